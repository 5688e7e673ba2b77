/** Holds an answer against what the contract allows for its request. */
import { expect } from 'vitest';
import type { Answer } from '../serving.ts';
import { type Asked, judge, type Style } from './body.ts';
import type { Columns } from './fields.ts';
import { CSV, NDJSON, type Request } from './requests.ts';
import { type Expected, expectedOf, type Row, type World } from './world.ts';

/** What a route's own codes begin with; rights, strict and queue are said alike everywhere. */
const familyOf = (style: Style) => (style.kind === 'query' ? 'QUERY' : 'HISTORICAL');

export interface Foreseen {
  readonly asked: Asked | undefined;
  readonly allowed: readonly Expected[];
}

/** In the order of the contract's checks. */
export function foresee(world: World, style: Style, request: Request): Foreseen {
  const refused = (status: number, code: string): Foreseen => ({ asked: undefined, allowed: [{ status, code }] });
  if (request.key !== 'right') return refused(409, 'AUTH_INVALID_API_KEY');
  const estimates = style.kind === 'query' && style.estimates === true;
  const { gives } = request.accept;
  if (gives === undefined || (estimates && gives !== 'application/json')) return refused(406, 'NOT_ACCEPTABLE');
  const asked = request.search.length > 1 ? undefined : judge(style, jsonOf(request.body));
  const family = familyOf(style);
  if (!asked) return refused(409, `${family}_CONTRACT_ERROR`);
  const allowed = expectedOf(world, asked, request.token, family);
  return { asked, allowed: estimates ? allowed.map(estimated) : allowed };
}

/** Of a query that would find nothing that very thing is told, with 200. */
const estimated = (one: Expected): Expected =>
  'code' in one && one.status === 404
    ? { status: 200, among: [], count: 0, warnings: { certain: [], possible: undefined } }
    : one;

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const MEMBERS = {
  query: [
    'mode',
    'source',
    'sources',
    'row_count',
    'schema',
    'freshness',
    'warnings',
    'rows',
    'view_id',
    'view_version',
    'rights_state',
    'rights_provisional',
  ],
  historical: [
    'mode',
    'source',
    'sources',
    'row_count',
    'schema',
    'warnings',
    'rows',
    'rights_state',
    'rights_provisional',
  ],
};

export function verify(answer: Answer, style: Style, request: Request, { asked, allowed }: Foreseen): void {
  const codes = allowed.map((one) => ('code' in one ? `${one.status} ${one.code}` : '200'));
  const found = answer.status === 200 ? '200' : `${answer.status} ${answer.json?.code}`;
  expect(codes, `${found}: ${answer.text.slice(0, 300)}`).toContain(found);
  if (answer.status !== 200) {
    verifyProblem(answer);
    return;
  }
  expect(answer.headers['content-type']).toContain(request.accept.gives);
  if (style.kind === 'query' && style.estimates) {
    verifyEstimate(answer, allowed);
    return;
  }
  const expected = allowed.find((one) => !('code' in one)) as Exclude<Expected, { code: string }>;
  if (request.accept.gives !== 'application/json') {
    verifyLines(answer, request.accept.gives!, expected.count);
    return;
  }
  const { json } = answer;
  expect(Object.keys(json).toSorted()).toEqual(MEMBERS[style.kind === 'query' ? 'query' : 'historical'].toSorted());
  const { shown, mode, dataset, window } = asked!;
  expect([json.mode, json.source, json.sources]).toEqual([mode, dataset, [dataset]]);
  expect(json.schema).toEqual([...shown].map(([name, dtype]) => ({ name, dtype })));
  expect(json.row_count).toBe(json.rows.length);
  expect(json.row_count).toBeGreaterThan(0);
  const warnings: string[] = json.warnings.map((warning: { code: string }) => warning.code);
  expect(warnings).toEqual(expect.arrayContaining([...expected.warnings.certain]));
  const { certain, possible } = expected.warnings;
  if (possible) for (const code of warnings) expect([...certain, ...possible]).toContain(code);
  if (!expected.among) return;
  expect(json.row_count).toBe(expected.count);
  if (window.kind === 'random') expectDrawn(json.rows, expected.among, shown);
  else
    expect(json.rows.map((row: object) => known(row, expected.among!))).toEqual(
      expected.among.map((row) => cellsOf(row, shown)),
    );
}

/** How many rows there would be, where that is known here. */
function verifyEstimate({ json }: Answer, allowed: readonly Expected[]): void {
  const counts = allowed.flatMap((one) => ('code' in one ? [] : [one.count]));
  expect(json.rows).toBeGreaterThanOrEqual(0);
  if (counts.includes(undefined)) return;
  if (json.rows_is_exact) expect(counts).toContain(json.rows);
  if (json.rows_at_most !== null) expect(json.rows_at_most).toBeGreaterThanOrEqual(Math.min(...(counts as number[])));
}

/** Rows alone: as many lines as rows. */
function verifyLines({ text }: Answer, mediaType: string, count: number | undefined): void {
  const head = { [NDJSON]: 0, [CSV]: 1 }[mediaType];
  if (head === undefined || count === undefined) return;
  expect(text.trimEnd().split('\n')).toHaveLength(head + count);
}

/** The envelope every other answer has, and that it tells nothing it should not. */
export function verifyProblem(answer: Answer): void {
  const { status, headers, json, text } = answer;
  expect(headers['content-type']).toBe('application/problem+json');
  expect(json).toMatchObject({
    type: `urn:tidemark:problem:${json.code}`,
    title: expect.stringMatching(/./),
    status,
    detail: expect.stringMatching(/./),
    request_id: headers['x-request-id'],
  });
  expect(headers['retry-after'] !== undefined).toBe(status === 503);
  if (json.code.endsWith('_CONTRACT_ERROR')) {
    expect(json.errors.length).toBeGreaterThan(0);
    for (const { pointer, message } of json.errors)
      expect([typeof pointer, typeof message]).toEqual(['string', 'string']);
  }
  expect(text).not.toMatch(/\bat .*\.ts:\d|node_modules|\/tmp\/|pg_catalog|postgres:\/\//);
}

/** Cells as JSON shows them, as far as the row is worked out. */
function cellsOf(row: Row, shown: Columns): Record<string, unknown> {
  return Object.fromEntries(
    [...shown]
      .filter(([name]) => row.has(name))
      .map(([name, dtype]) => [
        name,
        dtype === 'timestamp_utc' ? new Date(row.get(name) as number).toISOString() : row.get(name),
      ]),
  );
}

const known = (served: object, [row]: readonly Row[]) =>
  Object.fromEntries(Object.entries(served).filter(([name]) => row.has(name)));

/** Some of the rows, in their order, none twice. */
function expectDrawn(served: readonly object[], among: readonly Row[], shown: Columns): void {
  const all = among.map((row) => JSON.stringify(cellsOf(row, shown)));
  let at = -1;
  for (const row of served) {
    at = all.indexOf(JSON.stringify(known(row, among)), at + 1);
    expect(at, `a row that was not expected here: ${JSON.stringify(row)}`).toBeGreaterThanOrEqual(0);
  }
}
