/** Routes asked by their URL, at random: status and code as the contract says, whatever stands in the URL. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { GET_ROUTES, type GetRoute, type Visit } from '../support/oracle/get-routes.ts';
import { HOSTILE_TEXTS } from '../support/oracle/requests.ts';
import { ROW_ROUTES } from '../support/oracle/routes.ts';
import { createSetups, type Setups } from '../support/oracle/setups.ts';
import { verifyProblem } from '../support/oracle/verify.ts';
import { type Answer, API_KEY } from '../support/serving.ts';

let setups: Setups;
beforeAll(async () => {
  setups = await createSetups();
});
afterAll(() => setups[Symbol.asyncDispose]());

const KEYS = { right: API_KEY, wrong: 'wrong', none: null };

const outcomeOf = (answer: Answer) => (answer.status === 200 ? '200' : `${answer.status} ${answer.json?.code}`);

function pathOf(route: GetRoute, { segments, params }: Visit): string {
  const path = route.path.replaceAll(/:(\w+)/g, (_, name: string) => segments[name]);
  const search = params.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`).join('&');
  return search === '' ? path : `${path}?${search}`;
}

/** Paths that a proxy or a parser of URLs may take for others: encoded slashes, dot segments. */
const REWRITTEN = /%2f|%5c|\\|\/(?:[.]|%2e){1,2}(?:\/|$)/i;

describe.each(GET_ROUTES)('GET $path', (route) => {
  test('answers as the contract says', async () => {
    const circumstances = fc.record({
      key: fc.constantFrom('right', 'right', 'right', 'wrong', 'none'),
      accept: fc.constantFrom(undefined, undefined, '*/*', route.gives, 'image/png'),
      token: fc.constantFrom(undefined, ...setups.requests.tokens),
      which: fc.constantFrom(0, 1),
    });
    const property = fc.asyncProperty(route.visits, circumstances, async (visit, { key, accept, token, which }) => {
      const { serving, world } = setups.both[which];
      const path = pathOf(route, visit);
      const answer = await serving.send({
        method: 'GET',
        path,
        key: KEYS[key as keyof typeof KEYS],
        headers: { ...(accept && { Accept: accept }), ...(token && { 'X-Backend-Token': token }) },
      });
      const outcome = outcomeOf(answer);
      if (answer.status !== 200) verifyProblem(answer);
      // Whoever asks: such a path is none.
      if (REWRITTEN.test(path.split('?')[0])) expect(outcome).toBe('404 ROUTE_NOT_FOUND');
      else if (route.access !== 'open' && key !== 'right') expect(outcome).toBe('409 AUTH_INVALID_API_KEY');
      else if (!route.anyAccept && ![undefined, '*/*', route.gives].includes(accept))
        expect(outcome).toBe('406 NOT_ACCEPTABLE');
      else expect(route.outcomes(visit, world, token)).toContain(outcome);
      if (answer.status === 200) expect(answer.headers['content-type']).toContain(route.gives);
    });
    await fc.assert(property, { numRuns: route.path.includes(':') ? 300 : 100 });
  });

  test('takes no other method', async () => {
    const taken = route.others ?? [];
    for (const method of ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS'].filter((one) => !taken.includes(one))) {
      const path = route.path.replaceAll(/:\w+/g, 'x');
      const answer = await setups.both[0].serving.send({ method, path, body: '{}' });
      expect([method, outcomeOf(answer)]).toEqual([method, '405 METHOD_NOT_ALLOWED']);
      expect(answer.headers.allow?.split(', ').sort()).toEqual(['GET', 'HEAD', ...taken].sort());
    }
  });
});

test('every route of the service is in one of the two tables', async () => {
  const answer = await setups.both[0].serving.send({ method: 'GET', path: '/nowhere' });
  const served = [...answer.json.detail.matchAll(/(GET|POST|DELETE) (\/[\w/:.]*)/g)].map(
    ([, method, path]) => `${method} ${path.replace(/\.$/, '')}`,
  );
  const known = [
    ...ROW_ROUTES.map(({ path }) => `POST ${path}`),
    // Its columns are of several datasets: frame-answers.test.ts has its contract.
    'POST /v1/frame',
    ...GET_ROUTES.flatMap(({ path, others = [] }) => ['GET', ...others].map((method) => `${method} ${path}`)),
  ];
  expect(served.length).toBeGreaterThan(5);
  expect(known).toEqual(expect.arrayContaining(served));
});

test('any other path is 404, with any method, however it is written', async () => {
  const piece = fc.oneof(
    fc.constantFrom(
      'v1',
      'raw',
      'query',
      'historical',
      'lineage',
      'coverage',
      'datasets',
      'healthz',
      '',
      '%00',
      '%zz',
      '%2e%2e',
      '%2F',
    ),
    fc.constantFrom(...HOSTILE_TEXTS.filter((text) => text.isWellFormed())).map(encodeURIComponent),
  );
  const property = fc.asyncProperty(
    fc.constantFrom('GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'HEAD', 'PROPFIND'),
    fc.array(piece, { minLength: 1, maxLength: 4 }),
    async (method, pieces) => {
      const answer = await setups.both[0].serving.send({ method, path: `/${pieces.join('/')}`, key: null });
      expect([200, 404, 405, 409]).toContain(answer.status);
      if (answer.status !== 200 && method !== 'HEAD') verifyProblem(answer);
    },
  );
  await fc.assert(property, { numRuns: 500 });
});
