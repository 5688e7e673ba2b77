/**
 * Every route that answers with rows, asked at random, rightly and wrongly, and held against the contract as
 * test/support/oracle has it, which shares nothing with the service: status, code, schema, warnings, and the rows
 * themselves where there are some. Never a 500, never an answer that does not come. And against the service's own
 * OpenAPI document, as ajv reads it: what its schemas allow is no fault of the contract, and all else is one.
 */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ContractSchemas } from '../support/contract-schema.ts';
import { DATASET } from '../support/load-rows.ts';
import { anyRequests, type Request, rightRequests } from '../support/oracle/requests.ts';
import { ROW_ROUTES, type RowRoute } from '../support/oracle/routes.ts';
import { createSetups, type Setups } from '../support/oracle/setups.ts';
import { foresee, verify } from '../support/oracle/verify.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { runs } from '../support/seed.ts';
import { type Answer, API_KEY, type Serving } from '../support/serving.ts';

let setups: Setups;
let schemas: ContractSchemas;
beforeAll(async () => {
  setups = await createSetups();
  const [{ serving }] = setups.both;
  schemas = new ContractSchemas((await serving.send({ method: 'GET', path: '/openapi.json' })).json);
});
afterAll(() => setups[Symbol.asyncDispose]());

/** @throws where no answer comes in time: a hang is a failure like any other. */
async function ask(serving: Serving, { path }: RowRoute, request: Request): Promise<Answer> {
  const { key, token, accept, search, body } = request;
  const timeout = Promise.withResolvers<never>();
  const timer = setTimeout(() => timeout.reject(new Error(`no answer within ${PATIENCE_MS} ms`)), PATIENCE_MS);
  const asked = serving.send({
    path: path + search,
    key: key === 'right' ? API_KEY : key === 'wrong' ? 'wrong' : null,
    headers: {
      ...(token !== undefined && { 'X-Backend-Token': token }),
      ...(accept.header !== undefined && { Accept: accept.header }),
    },
    body,
  });
  return await Promise.race([asked, timeout.promise]).finally(() => clearTimeout(timer));
}

/** What the schema allows is no fault of the contract, and what it forbids is one; the key is asked for before. */
function expectAgreement({ path }: RowRoute, { key, search, body }: Request, { status, json }: Answer): void {
  if (key !== 'right' || status === 406 || search.length > 1) return;
  const { allows, why } = schemas.verdict(path, body);
  const isContractFault = /^[A-Z]+_CONTRACT_ERROR$/.test(status === 200 ? '' : json.code);
  const told = JSON.stringify(status === 200 ? '200' : json).slice(0, 1000);
  expect(isContractFault, `the schema of ${path}: ${why}\nthe service: ${told}\n${body}`).toBe(!allows);
}

/** Asks a service, by its number, and holds the answer against the contract. @returns what came out. */
async function hold(route: RowRoute, request: Request, which: 0 | 1): Promise<string> {
  const { serving, world } = setups.both[which];
  const foreseen = foresee(world, route.style, request);
  const answer = await ask(serving, route, request);
  verify(answer, route.style, request, foreseen);
  expectAgreement(route, request, answer);
  return answer.status === 200 ? '200' : `${answer.status} ${answer.json.code}`;
}

/** What came out, by how often. */
async function check(route: RowRoute, arbitrary: fc.Arbitrary<Request>, numRuns: number): Promise<Map<string, number>> {
  const seen = new Map<string, number>();
  // Numbers of services, not services: fast-check prints what a failing run was given.
  const property = fc.asyncProperty(arbitrary, fc.constantFrom(0 as const, 1 as const), async (request, which) => {
    const outcome = await hold(route, request, which);
    seen.set(outcome, (seen.get(outcome) ?? 0) + 1);
  });
  await fc.assert(property, { numRuns });
  return seen;
}

describe.each(ROW_ROUTES)('$path', (route) => {
  const isQuery = route.style.kind === 'query';
  const hasRows = route.style.kind === 'query' || route.style.dataset === DATASET;

  test('answers what is right with the rows it asks for, or says why not', async () => {
    const count = runs(isQuery ? 360 : hasRows ? 180 : 60);
    const seen = await check(route, rightRequests(route.style, setups.requests), count);
    if (hasRows) expect(seen.get('200')).toBeGreaterThan(count / 10);
  });

  test('answers everything else as the contract says', async () => {
    const count = runs(isQuery ? 400 : 120);
    const seen = await check(route, anyRequests(route.style, setups.requests), count);
    expect(seen.get(`409 ${isQuery ? 'QUERY' : 'HISTORICAL'}_CONTRACT_ERROR`)).toBeGreaterThan(count / 6);
  });
});

const NATIVE_ROUTES = ROW_ROUTES.filter(
  ({ style }) => style.kind === 'query' || (style.kind === 'historical' && style.dataset === DATASET),
);

test.each(NATIVE_ROUTES)('$path: a filter may compare with the ends of 64 bits', async (route) => {
  for (const field of ['trade_id', 'timestamp']) {
    // The least, and the greatest that a double holds: as text, for doubles are not shown to the last digit.
    for (const value of ['-9223372036854775808', '9223372036854774784']) {
      for (const op of ['eq', 'lt', 'gt']) {
        const filters = `"filters":[{"field":"${field}","op":"${op}","value":${value}}]`;
        const body = route.style.kind === 'query' ? `{"sources":["${DATASET}"],${filters}}` : `{${filters}}`;
        const accept = { header: undefined, gives: 'application/json' };
        const request: Request = { body, key: 'right', token: undefined, accept, search: '' };
        const isAll = op === (value.startsWith('-') ? 'gt' : 'lt');
        const isEstimate = route.style.kind === 'query' && route.style.estimates === true;
        const family = route.style.kind === 'query' ? 'QUERY' : 'HISTORICAL';
        const outcome = isAll || isEstimate ? '200' : `404 ${family}_NO_DATA`;
        expect(await hold(route, request, 0), body).toBe(outcome);
      }
    }
  }
});

test('an estimate of a filter on a column of states, or on an end of validity, is one and no fault of the storage', async () => {
  const [{ serving }] = setups.both;
  for (const [sources, filter] of [
    [['macro_series_metrics'], { field: 'metric_value_float', op: 'gte', value: 0 }],
    [
      ['bitcoin_block_subsidy_schedule'],
      { field: 'valid_to_utc_exclusive', op: 'eq', value: '2020-06-01T01:19:23.000Z' },
    ],
  ]) {
    const body = JSON.stringify({ mode: 'aligned_1s', sources, filters: [filter] });
    const answer = await serving.send({ path: '/v1/raw/estimate', body });
    expect([answer.status, answer.json.code]).toEqual([200, undefined]);
  }
});
