/**
 * The OpenAPI document against the contract of the running service: what its schemas allow the service takes, and what
 * they forbid it refuses as a fault of the contract. ajv decides; requests are drawn around the borders of what is right.
 */
import { createRequire } from 'node:module';
import { connect as connectTo } from 'node:net';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Json } from '../support/command.ts';
import { ContractSchemas } from '../support/contract-schema.ts';
import { exportSettings } from '../support/exports.ts';
import { runs } from '../support/seed.ts';
import { type Answer, type RawRequest, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

/** As far as it is used here. */
interface Redocly {
  createConfig(config: { readonly extends: readonly string[] }): Promise<object>;
  lintFromString(document: { readonly source: string; readonly absoluteRef: string; readonly config: object }): Promise<
    readonly {
      readonly severity: string;
      readonly ruleId: string;
      readonly message: string;
      readonly location: readonly { readonly pointer?: string }[];
    }[]
  >;
}
const REDOCLY: Redocly = createRequire(import.meta.url)('@redocly/openapi-core');

const TRADES = 'exchange_a_spot_trades';
const MACRO = 'macro_series_metrics';
const EXPORT = '/v1/raw/export';

let env: TestEnv;
let serving: Serving;
let openapi: Json;
let schemas: ContractSchemas;
beforeAll(async () => {
  env = await createMigratedEnv();
  serving = await startServing({ databaseUrl: env.databaseUrl, settings: exportSettings(env) });
  openapi = (await serving.send({ method: 'GET', path: '/openapi.json' })).json;
  schemas = new ContractSchemas(openapi);
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

const operations = () =>
  Object.entries<Json>(openapi.paths).flatMap(([path, methods]) =>
    Object.entries<Json>(methods).map(([method, operation]) => ({ path, method, operation })),
  );

test('Redocly’s linter objects to nothing', async () => {
  const config = await REDOCLY.createConfig({ extends: ['recommended'] });
  const lint = (document: Json) =>
    REDOCLY.lintFromString({ source: JSON.stringify(document), absoluteRef: '/openapi.json', config });
  const said = (await lint(openapi)).map(
    ({ severity, ruleId, message, location }) => `${severity} ${ruleId}: ${message} ${location[0]?.pointer}`,
  );
  expect(said).toEqual([]);
  // It looks: a document without a licence is told.
  expect(await lint({ ...openapi, info: { title: 'x', version: '1' } })).not.toEqual([]);
});

test('every header that the service heeds is declared: those that a preflight allows', async () => {
  await using allowing = await startServing({
    databaseUrl: env.databaseUrl,
    settings: exportSettings(env, { SVC_HTTP_CORS_ORIGINS: 'https://a.example.org' }),
  });
  const { headers } = await allowing.send({
    method: 'OPTIONS',
    key: null,
    headers: { Origin: 'https://a.example.org', 'Access-Control-Request-Method': 'POST' },
  });
  // OpenAPI says these elsewhere: as contents of bodies and answers, and as the key.
  const elsewhere = ['Accept', 'Content-Type', 'X-API-Key'];
  const allowed = headers['access-control-allow-headers']!.split(', ').filter((name) => !elsewhere.includes(name));
  expect(Object.keys(openapi.components.parameters).sort()).toEqual(allowed.sort());
  const of = (path: string, method = 'get') =>
    openapi.paths[path][method].parameters.map(({ $ref = '' }: Json) => $ref.split('/').at(-1)).filter(Boolean);
  const used = new Set(operations().flatMap(({ path, method }) => of(path, method)));
  expect([...used].sort()).toEqual(allowed.sort());
  expect(of(EXPORT, 'post')).toEqual(['X-Request-Id', 'Idempotency-Key']);
  expect(of(`${EXPORT}/{export_id}/artifact`)).toEqual(expect.arrayContaining(['Range', 'If-Range', 'If-Match']));
  expect(of('/openapi.json')).toContain('If-None-Match');
});

/** Bytes as they are. @returns what comes back until the connection ends */
async function sendBytes(text: string): Promise<{ readonly status: number; readonly body: Json }> {
  const { hostname, port } = new URL(serving.url);
  const socket = connectTo(Number(port), hostname);
  socket.write(text);
  const answer = Buffer.concat(await socket.toArray()).toString();
  const [, status] = /^HTTP\/1\.1 (\d+)/.exec(answer)!;
  return { status: Number(status), body: JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)) };
}

test('what is no request is answered as every operation declares', async () => {
  for (const [text, expected] of [
    ['what is this\r\n\r\n', 400],
    [`GET /healthz HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(70_000)}\r\n\r\n`, 431],
  ] as const) {
    const { status, body } = await sendBytes(text);
    expect(status).toBe(expected);
    for (const { path, method, operation } of operations()) {
      expect(Object.keys(operation.responses), path).toEqual(expect.arrayContaining(['400', '408', '431']));
      if (method === 'head') continue;
      const place = ['paths', path, method, 'responses', status, 'content', 'application/problem+json', 'schema'];
      expect(schemas.at(...place)(body), path).toBe(true);
    }
  }
});

test('a parameter that no path has is refused as its operation declares, also where no key is asked for', async () => {
  for (const { path, method } of operations()) {
    if (method !== 'get') continue;
    const target = path.replaceAll(/\{(\w+)\}/g, (_, name) => (name === 'dataset' ? TRADES : '000'));
    const { status, json } = await serving.send({ method: 'GET', path: `${target}?stray=1` });
    const { content } = openapi.paths[path].get.responses[status] ?? {};
    expect([path, status, content !== undefined]).toEqual([path, status, true]);
    const [type] = Object.keys(content).filter((one) => /json$/.test(one));
    if (status < 400) continue;
    const validate = schemas.at('paths', path, 'get', 'responses', status, 'content', type, 'schema');
    expect(validate(json), `${path}: ${JSON.stringify(validate.errors)}`).toBe(true);
  }
});

const isContractFault = ({ status, json }: Answer) => status === 409 && /_CONTRACT_ERROR$/.test(json.code);

async function expectAgreement(path: string, body: Json): Promise<boolean> {
  const text = JSON.stringify(body);
  const { allows, why } = schemas.verdict(path, text);
  const answer = await serving.send({ path, body: text });
  const told = `the schema of ${path}: ${why}\nthe service: ${answer.text.slice(0, 1000)}\n${text}`;
  expect(answer.status, told).not.toBe(500);
  expect(isContractFault(answer), told).toBe(!allows);
  return allows;
}

const RANGE = ['2024-01-01T00:00:00Z', '2024-01-02T00:00:00Z'];
/** Known, and refused after the contract: no export of these tests is ever made. */
const NO_RUN = { auth_token: 'x' };

describe('what passed the schema and was refused by the service', () => {
  const query = (more: object) => ['/v1/raw/query', { sources: [TRADES], ...more }] as const;
  const files = (more: object) => [EXPORT, { dataset: TRADES, format: 'csv', ...NO_RUN, ...more }] as const;
  const trades = (more: object) => ['/v1/historical/exchange_a/spot/trades', more] as const;
  test.each([
    ['two windows', query({ n_rows: 1, n_random: 1 })],
    ['a range and a count', query({ time_range: RANGE, n_rows: 1 })],
    ['two windows of an estimate', ['/v1/raw/estimate', { sources: [TRADES], n_rows: 1, n_random: 1 }] as const],
    ['two windows of an export', files({ n_rows: 1, month_year: [1, 2024] })],
    ['no window of an export', files({})],
    ['days and a count', trades({ start_date: '2024-01-01', n_latest_rows: 1 })],
    ['a filter without a value', query({ filters: [{ field: 'price', op: 'eq' }] })],
    [
      'a filter whose operator its field does not take',
      query({ filters: [{ field: 'is_buyer_maker', op: 'gt', value: 1 }] }),
    ],
    ['a filter whose value is of another type', query({ filters: [{ field: 'price', op: 'eq', value: '1' }] })],
    ['a view without its version', query({ view_id: `${TRADES}_native` })],
    ['a version without its view', query({ view_version: 1 })],
    ['the view of another mode', query({ view_id: 'aligned_1s_raw', view_version: 1 })],
    ['random_seed alone', query({ random_seed: 1 })],
    ['random_seed beside a count', files({ n_rows: 1, random_seed: 1 })],
    ['random_seed alone on a historical route', trades({ random_seed: 1 })],
    ['as_of of what has no vintages', query({ as_of: RANGE[0] })],
    ['as_of of an export of what has none', files({ n_rows: 1, as_of: RANGE[0] })],
    ['a field of another dataset', query({ fields: ['side'] })],
    ['a field of the other mode', query({ mode: 'aligned_1s', fields: ['price'] })],
    ['a field twice', query({ fields: ['price', 'price'] })],
    ['include_datetime_col where there is none', trades({ mode: 'aligned_1s', include_datetime_col: true })],
    ['datetime asked for and left out', trades({ fields: ['datetime'], include_datetime_col: false })],
    ['a day that there is not', trades({ start_date: '2024-02-30' })],
    ['a time without a zone', query({ time_range: ['2024-01-01T00:00:00', RANGE[1]] })],
    ['klines of 32 days', ['/v1/historical/exchange_a/spot/klines', { kline_size: '32d' }] as const],
  ])('%s', async (_, [path, body]) => expect(await expectAgreement(path, body)).toBe(false));
});

/** Values around the border of what each key takes. */
const FIELDS = ['price', 'datetime', 'trade_id', 'close_price', 'metric_id', 'open', 'provenance_json', 'nope', '', 1];
const INSTANTS = [
  ...RANGE,
  '2024-02-29T23:59:59.999999999999999999+05:30',
  '2024-01-01T00:00Z',
  '2024-01-01T00:00:00,5-0800',
  '0001-01-01T00:00:00Z',
  '2024-01-01T00:00:00',
  '2023-02-29T00:00:00Z',
  '2024-01-01T24:00:00Z',
  '2024-01-01 00:00:00Z',
  '2024-01-01t00:00:00z',
  '0000-12-31T23:00:00Z',
  '',
  0,
  null,
];
const DAYS = ['2024-01-31', '2024-02-29', '2000-02-29', '1900-02-29', '2024-04-31', '0000-01-01', '2024-1-1', 20240101];
const COUNTS = [1, 5, 2 ** 53 - 1, 0, -1, 1.5, 2 ** 53, 1e300, '5', null, [], true];
const SEEDS = [0, -1, 2 ** 53 - 1, -(2 ** 53) + 1, 2 ** 53, 0.5, '1'];
const VALUES = [
  0,
  1,
  2,
  -0.5,
  1e20,
  2 ** 63,
  -(2 ** 63),
  'x',
  '',
  'a\u0000',
  '\ud800',
  null,
  [],
  [1],
  ['x'],
  [null],
  {},
  true,
];

const one = (values: readonly unknown[]) => fc.constantFrom(...values);
const clause = fc.record(
  {
    field: one(FIELDS),
    op: one(['eq', 'ne', 'gt', 'lte', 'in', 'not_in', 'like']),
    value: fc.oneof(one(VALUES), one(INSTANTS), fc.array(one([...VALUES, ...INSTANTS]), { maxLength: 2 })),
  },
  { requiredKeys: ['field', 'op'] },
);
const POOL: Readonly<Record<string, fc.Arbitrary<unknown>>> = {
  mode: one(['native', 'native', 'aligned_1s', 'aligned_1s', 'raw', null]),
  sources: one([[TRADES], [MACRO], ['bitcoin_block_headers'], [TRADES, MACRO], [], ['x'], TRADES, [1]]),
  dataset: one([TRADES, MACRO, 'etf_daily_metrics', 'x', [TRADES]]),
  format: one(['csv', 'parquet', 'CSV', 1]),
  view_id: one([`${TRADES}_native`, `${MACRO}_native`, 'aligned_1s_raw', 'x', 1]),
  view_version: one([1, 1, 1, 2, 0, '1']),
  fields: fc.oneof(
    fc.array(one(FIELDS), { maxLength: 3 }),
    fc.shuffledSubarray(['price', 'datetime', 'trade_id']),
    one(['price']),
  ),
  filters: fc.oneof(fc.array(clause, { maxLength: 2 }), one([{}, [1], [{}]])),
  time_range: fc.oneof(one([RANGE, RANGE.toReversed(), RANGE.slice(1)]), fc.tuple(one(INSTANTS), one(INSTANTS))),
  month_year: one([[1, 2024], [12, 9999], [0, 2024], [13, 2024], [1, 0], [1, 10_000], [1], [1, 2024, 1], '1/2024']),
  n_rows: one(COUNTS),
  n_random: one(COUNTS),
  n_latest_rows: one(COUNTS),
  n_random_rows: one(COUNTS),
  random_seed: one(SEEDS),
  as_of: one(INSTANTS),
  start_date: one(DAYS),
  end_date: one(DAYS),
  strict: one([true, false, 0, 'true', null]),
  include_datetime_col: one([true, false, 0]),
  kline_size: fc.oneof(
    one([1, 60, 2_678_400, 0, 2_678_401, 1.5, '1m', '1M', '01m', '0s', 'm', '', null]),
    fc
      .tuple(one([4, 5, 31, 32, 744, 745, 44_640, 44_641, 2_678_400, 2_678_401]), one(['s', 'm', 'h', 'd', 'w']))
      .map((parts) => parts.join('')),
    fc.tuple(fc.integer({ min: 1, max: 3_000_000 }), one(['s', 'm', 'h', 'd', 'w'])).map((parts) => parts.join('')),
  ),
  columns: fc.oneof(
    fc.array(
      fc.record(
        {
          name: one(['a', 'b', 'datetime', '1', '', 'x y']),
          dataset: one([TRADES, 'bitcoin_block_headers', 'x']),
          field: one(['price', 'height', 'block_hash', '', 1]),
          aggregate: one(['last', 'mean', null]),
          max_age: one([1, '7d', 0, '7x']),
        },
        { requiredKeys: ['name', 'dataset', 'field'] },
      ),
      { minLength: 0, maxLength: 2 },
    ),
    one([{}, [1], null]),
  ),
  grid: one([1, '1m', '31d', '32d', 0, 1.5, null]),
  fill: one(['null', 'previous', null, 'zero']),
  stray: one([1]),
};

/** Bodies that are nearly right: up to four keys of a right one set to something else, or taken away. */
function bodies(path: string, right: Json): fc.Arbitrary<Json> {
  const { $ref } = openapi.paths[path].post.requestBody.content['application/json'].schema;
  const { properties } = openapi.components.schemas[$ref.split('/').at(-1)];
  const keys = [...Object.keys(properties).filter((key) => key in POOL), ...Object.keys(POOL).slice(-1)];
  const set = fc.constantFrom(...keys).chain((key) => POOL[key].map((value) => ({ [key]: value })));
  const removed = fc.constantFrom(...Object.keys(right), 'stray').map((key) => ({ [key]: undefined }));
  const change = fc.oneof({ weight: 9, arbitrary: set }, { weight: 1, arbitrary: removed });
  return fc.array(change, { maxLength: 4 }).map((changes) => Object.assign({}, right, ...changes));
}

describe('the schema and the service agree', () => {
  test.each([
    ['/v1/raw/query', { sources: [TRADES] }, 800],
    ['/v1/raw/query', { sources: [MACRO], mode: 'aligned_1s' }, 400],
    ['/v1/raw/estimate', { sources: [TRADES] }, 200],
    [EXPORT, { dataset: TRADES, format: 'csv', n_rows: 5, ...NO_RUN }, 600],
    [EXPORT, { dataset: MACRO, format: 'parquet', n_random: 5, ...NO_RUN }, 300],
    ['/v1/frame', { columns: [{ name: 'x', dataset: TRADES, field: 'price' }], grid: '1h', n_rows: 5 }, 400],
    ['/v1/historical/exchange_a/spot/trades', {}, 500],
    ['/v1/historical/exchange_a/spot/klines', { kline_size: 60 }, 500],
    ['/v1/historical/macro/series_metrics', {}, 300],
  ] as const)('on bodies of %s like %o', async (path, right, searching) => {
    const numRuns = runs(searching);
    const seen = { allowed: 0, forbidden: 0 };
    await fc.assert(
      fc.asyncProperty(bodies(path, right), async (body) => {
        seen[(await expectAgreement(path, body)) ? 'allowed' : 'forbidden']++;
      }),
      { numRuns },
    );
    expect(Math.min(seen.allowed, seen.forbidden), JSON.stringify(seen)).toBeGreaterThan(numRuns / 20);
  });

  /** What the text of a parameter says to a reader of JSON. */
  const meant = (text: string, { type }: Json) => (type === 'integer' && /^-?\d+$/.test(text) ? Number(text) : text);

  test('on parameters behind the question mark', async () => {
    const texts = [
      '1',
      '2',
      '100',
      '101',
      '1000',
      '1001',
      '0',
      '-1',
      '1.5',
      'x',
      '',
      'proved',
      'succeeded',
      TRADES,
      'a\0b',
    ];
    const tried = [...texts, ...INSTANTS.filter((text) => typeof text === 'string')];
    const seen = new Set<boolean>();
    for (const path of ['/v1/coverage/{dataset}', EXPORT, '/metrics', '/v1/lineage/{dataset}/{offset}']) {
      const parameters = (openapi.paths[path].get.parameters ?? []).filter((each: Json) => each.in === 'query');
      const target = path.replace('{dataset}', TRADES).replace('{offset}', '1');
      // An opaque text of an earlier answer: what it looks like is nobody's business. And which instruments there are, the operator says.
      const judged = (each: Json) => each.name !== 'instrument' && (each.name !== 'cursor' || each.schema.pattern);
      for (const { name, schema } of parameters.filter(judged)) {
        const at = parameters.findIndex((each: Json) => each.name === name);
        const place = openapi.paths[path].get.parameters.indexOf(parameters[at]);
        const validate = schemas.at('paths', path, 'get', 'parameters', place, 'schema');
        for (const text of tried) {
          const allows = validate(meant(text, schema));
          const answer = await serving.send({
            method: 'GET',
            path: `${target}?${new URLSearchParams({ [name]: text })}`,
          });
          expect(isContractFault(answer), `${path}?${name}=${text}: ${answer.text.slice(0, 300)}`).toBe(!allows);
          seen.add(allows);
        }
      }
      expect(isContractFault(await serving.send({ method: 'GET', path: `${target}?stray=1` }))).toBe(true);
    }
    expect(seen.size).toBe(2);
  });

  test('on Idempotency-Key', async () => {
    const { schema } = openapi.components.parameters['Idempotency-Key'];
    const body = JSON.stringify({ dataset: TRADES, format: 'csv', n_rows: 5, ...NO_RUN });
    const send = (key: string) =>
      serving.send({ path: EXPORT, body, headers: { 'Idempotency-Key': key } } as RawRequest);
    for (const key of ['a', 'a b', '~', 'x'.repeat(255), 'x'.repeat(256), 'ü', 'a\tb', '']) {
      expect(isContractFault(await send(key)), key).toBe(!new RegExp(schema.pattern, 'u').test(key));
    }
  });
});
