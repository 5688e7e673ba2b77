/** Routes that are asked by their URL, and what each must answer; a route joins by an entry of the table. */
import fc from 'fast-check';
import { DATASETS, type Dataset } from './fields.ts';
import { HOSTILE_TEXTS } from './requests.ts';
import { STORED } from './setups.ts';
import { parseTime } from './time.ts';
import type { World } from './world.ts';

/** A URL in the making, and what was meant by it. */
export interface Visit {
  /** Values of the path's `:names`, as they stand in the URL. */
  readonly segments: Readonly<Record<string, string>>;
  readonly params: readonly (readonly [string, string])[];
}

/** `409 CODE`, or `200`. */
export type Outcome = string;

export interface GetRoute {
  readonly path: string;
  readonly access: 'key' | 'metrics' | 'open';
  /** Media type of its answer. */
  readonly gives: string;
  /** Answers whatever is accepted: for probes. */
  readonly anyAccept?: true;
  /** Methods that its path takes beside GET and HEAD. */
  readonly others?: readonly string[];
  readonly visits: fc.Arbitrary<Visit>;
  /** What may be answered to a caller with the key. */
  outcomes(visit: Visit, world: World, token: string | undefined): readonly Outcome[];
}

/** Pieces of a path, among them such as are no text at all. */
const hostileSegment = fc.oneof(
  fc.constantFrom(...HOSTILE_TEXTS.filter((text) => text.isWellFormed() && text !== '')).map(encodeURIComponent),
  fc.constantFrom('%ff', '%zz', '%', '%c3%28', '%00', '%2e%2e%2f', '%2F', 'a'.repeat(5000)),
);

const segment = (usual: fc.Arbitrary<string>) =>
  fc.oneof({ weight: 6, arbitrary: usual.map(encodeURIComponent) }, { weight: 1, arbitrary: hostileSegment });

const anyText = fc.oneof(fc.string(), fc.constantFrom(...HOSTILE_TEXTS.filter((text) => text.isWellFormed())));

/** Parameters, now and then one that is unknown, wrong, or there twice. */
function paramsOf(known: Readonly<Record<string, fc.Arbitrary<string>>>): fc.Arbitrary<[string, string][]> {
  const right = Object.entries(known).map(([name, value]) => fc.tuple(fc.constant(name), value));
  const wrong = fc.tuple(fc.oneof(fc.constantFrom(...Object.keys(known), 'x', 'mode'), anyText), anyText);
  const one = fc.oneof(...right.map((arbitrary) => ({ weight: 4, arbitrary })), { weight: 1, arbitrary: wrong });
  return fc.array(one, { maxLength: 2 });
}

const dataset = fc.constantFrom<string>(...DATASETS);
const datasetOf = (visit: Visit) => DATASETS.find((key) => key === decoded(visit.segments.dataset));

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}

/** Each at most once, of those that are known, and right by their own rule. */
function areRight(params: Visit['params'], rules: Readonly<Record<string, (value: string) => boolean>>): boolean {
  const names = params.map(([name]) => name);
  if (new Set(names).size < names.length) return false;
  return params.every(([name, value]) => Object.hasOwn(rules, name) && rules[name](value));
}

const CONTRACT = '409 QUERY_CONTRACT_ERROR';
const EXPORT_CONTRACT = '409 EXPORT_CONTRACT_ERROR';
const NO_DATASET = '404 DATASET_NOT_FOUND';

const days = fc.constantFrom('2024-03-01', '2024-03-05', '2024-02-30', '2024-3-1');

const times = fc.constantFrom(
  '2024-03-01T00:00:00Z',
  '2024-03-02T12:00:00.5+01:00',
  '2024-03-05T00:00:00Z',
  '2024-03-01',
  'now',
);

/** What rights say of a dataset, or undefined where it is served. */
function refusal(world: World, key: Dataset, token: string | undefined): Outcome | undefined {
  const verdict = world.verdict(key);
  if (verdict.kind === 'refused') return `${verdict.status ?? 409} ${verdict.code}`;
  if (verdict.kind !== 'byok') return undefined;
  if (!token?.trim()) return '409 QUERY_RIGHTS_BYOK_REQUIRED';
  return token === verdict.password ? undefined : '409 QUERY_RIGHTS_BYOK_REFUSED';
}

const offsets = fc.oneof(
  fc.constantFrom(...STORED.native.map((row) => String(row.get('trade_id')))),
  fc.integer({ min: -5, max: 10 ** 15 }).map(String),
  fc.constantFrom('01000', '1e3', '1000.0', '9'.repeat(30), '0x3e8'),
);

const isStored = (offset: string | undefined) => STORED.native.some((row) => String(row.get('trade_id')) === offset);

const isUnsigned = (world: World, key: Dataset) => {
  const verdict = world.verdict(key);
  return verdict.kind === 'refused' && verdict.code === 'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING';
};

const HEALTH: Omit<GetRoute, 'path'> = {
  access: 'open',
  gives: 'application/json',
  anyAccept: true,
  visits: fc.constant({ segments: {}, params: [] }),
  outcomes: () => ['200'],
};

/** A document that is always the same. */
const fixed = (path: string, gives: string): GetRoute => ({
  path,
  access: 'open',
  gives,
  visits: paramsOf({}).map((params) => ({ segments: {}, params })),
  outcomes: ({ params }) => [params.length === 0 ? '200' : CONTRACT],
});

/** Of no export: there is none in the setups. */
const ofExport = (path: string, more: Partial<GetRoute> = {}): GetRoute => ({
  path: `/v1/raw/export/:export_id${path}`,
  access: 'key',
  gives: 'application/json',
  visits: fc.record({
    segments: fc.record({
      export_id: segment(fc.oneof(fc.uuid(), fc.constantFrom('1', 'manifest', `${'0'.repeat(8)}-0000-0000-0000-x`))),
      file: segment(fc.constantFrom('a.csv', 'manifest.json')),
    }),
    params: paramsOf({}),
  }),
  outcomes: ({ params }) => [params.length === 0 ? '404 EXPORT_NOT_FOUND' : EXPORT_CONTRACT],
  ...more,
});

/** Of the proof log: there is none in the setups. */
function ofLog(path: string): GetRoute {
  let part = 0;
  const parts = segment(fc.constantFrom('000', 'x001', '000.p', '17', '256', 'x', 'entries'));
  return {
    ...fixed(`/v1/proofs/${path.replaceAll(/:n\b/g, () => `:n${++part}`)}`, 'text/plain'),
    anyAccept: true,
    visits: fc.record({
      segments: fc.record({
        level: segment(fc.constantFrom('0', '1', '8', 'entries')),
        ...{ n1: parts, n2: parts, n3: parts, n4: parts },
      }),
      params: paramsOf({}),
    }),
    outcomes: ({ params }) => [params.length === 0 ? '404 PROOF_LOG_NOT_FOUND' : CONTRACT],
  };
}

export const GET_ROUTES: readonly GetRoute[] = [
  {
    path: '/v1/raw/export',
    access: 'key',
    gives: 'application/json',
    others: ['POST'],
    visits: paramsOf({
      status: fc.constantFrom('queued', 'failed', 'done'),
      dataset,
      limit: fc.constantFrom('1', '100', '101', '0', '01', ' 1'),
      cursor: fc.oneof(fc.constantFrom('1', '999', '-1'), anyText),
    }).map((params) => ({ segments: {}, params })),
    outcomes({ params }) {
      const right = areRight(params, {
        status: (text) => ['queued', 'running', 'succeeded', 'failed'].includes(text),
        dataset: (text) => (DATASETS as readonly string[]).includes(text),
        limit: (text) => /^[1-9]\d*$/.test(text) && Number(text) <= 100,
        cursor: (text) => /^[1-9]\d{0,17}$/.test(text),
      });
      return [right ? '200' : EXPORT_CONTRACT];
    },
  },
  ofExport('', { others: ['DELETE'] }),
  ofExport('/artifact', { anyAccept: true }),
  ofExport('/artifact/:file', { anyAccept: true }),
  ofExport('/manifest', { anyAccept: true }),
  fixed('/openapi.json', 'application/json'),
  fixed('/', 'text/html'),
  fixed('/docs', 'text/html'),
  fixed('/docs/docs.css', 'text/css'),
  fixed('/docs/docs.js', 'text/javascript'),
  { ...HEALTH, path: '/healthz' },
  {
    ...HEALTH,
    path: '/readyz',
    outcomes: (_visit, world) => [DATASETS.some((key) => isUnsigned(world, key)) ? '503 NOT_READY' : '200'],
  },
  {
    path: '/v1/datasets',
    access: 'key',
    gives: 'application/json',
    visits: paramsOf({}).map((params) => ({ segments: {}, params })),
    outcomes: ({ params }) => [params.length === 0 ? '200' : CONTRACT],
  },
  {
    path: '/v1/instruments',
    access: 'key',
    gives: 'application/json',
    visits: paramsOf({ dataset }).map((params) => ({ segments: {}, params })),
    outcomes({ params }) {
      const right = areRight(params, { dataset: (text) => /^exchange_[abc]_spot_trades$/.test(text) });
      return [right ? '200' : CONTRACT];
    },
  },
  {
    path: '/v1/conditions',
    access: 'key',
    gives: 'application/json',
    visits: fc
      .oneof(
        paramsOf({ dataset, from: days, to: days }),
        fc.tuple(dataset, days, days).map(([key, from, to]): [string, string][] => [
          ['dataset', key],
          ['from', from],
          ['to', to],
        ]),
      )
      .map((params) => ({ segments: {}, params })),
    outcomes({ params }) {
      const right = areRight(params, {
        dataset: (text) => (DATASETS as readonly string[]).includes(text),
        from: (text) => /^2024-03-0\d$/.test(text),
        to: (text) => /^2024-03-0\d$/.test(text),
      });
      const { dataset: key, from, to } = Object.fromEntries(params);
      return [right && key !== undefined && from !== undefined && to !== undefined && from <= to ? '200' : CONTRACT];
    },
  },
  {
    path: '/v1/changes',
    access: 'key',
    gives: 'application/json',
    visits: paramsOf({
      since: fc.constantFrom('0', 'latest', '1', '-1', '00', 'now'),
      dataset,
      limit: fc.constantFrom('1', '10000', '10001', '0', '1.0'),
    }).map((params) => ({ segments: {}, params })),
    outcomes({ params }) {
      // The rows of the setups were put in place without changes.
      const right = areRight(params, {
        since: (text) => text === '0' || text === 'latest',
        dataset: (text) => (DATASETS as readonly string[]).includes(text),
        limit: (text) => /^[1-9]\d*$/.test(text) && Number(text) <= 10_000,
      });
      return [right ? '200' : CONTRACT];
    },
  },
  {
    path: '/v1/revisions',
    access: 'key',
    gives: 'application/json',
    visits: paramsOf({
      dataset,
      limit: fc.constantFrom('1', '1000', '1001', '0', '01'),
      cursor: fc.oneof(fc.constantFrom('1', '999', '0', '-1'), anyText),
    }).map((params) => ({ segments: {}, params })),
    outcomes({ params }) {
      const right = areRight(params, {
        dataset: (text) => (DATASETS as readonly string[]).includes(text),
        limit: (text) => /^[1-9]\d*$/.test(text) && Number(text) <= 1000,
        cursor: (text) => /^[1-9]\d{0,14}$/.test(text),
      });
      return [right && params.some(([name]) => name === 'dataset') ? '200' : CONTRACT];
    },
  },
  {
    // Of no revision: there is none with differences in the setups.
    path: '/v1/revisions/:id/diff',
    access: 'key',
    gives: 'application/x-ndjson',
    visits: fc.record({
      segments: fc.record({ id: segment(fc.constantFrom('1', '0', '01', '999999999999999', 'x')) }),
      params: paramsOf({}),
    }),
    outcomes: ({ params }) => [params.length === 0 ? '404 REVISION_NOT_FOUND' : CONTRACT],
  },
  ...[
    '_manifest.json',
    '_proofs/:dataset/:mode/:file',
    ':dataset/:mode/:folder/:file',
    ':dataset/:mode/:date/:instrument/:file',
  ].map(
    (path): GetRoute => ({
      path: `/v1/lake/${path}`,
      access: 'key',
      gives: 'application/json',
      anyAccept: true,
      visits: fc.record({
        segments: fc.record({
          dataset: segment(dataset),
          mode: segment(fc.constantFrom('native', 'aligned_1s', 'mode=native')),
          folder: segment(fc.constantFrom('_delta_log', 'date=2024-03-01', 'year=2024', 'x')),
          date: segment(fc.constantFrom('date=2024-03-01', 'year=2024', 'x')),
          instrument: segment(fc.constantFrom('instrument=BTCUSDT', 'x')),
          file: segment(fc.constantFrom('00000000000000000000.json', '_manifest.json', 'x')),
        }),
        params: paramsOf({}),
      }),
      // There is no lake in the setups.
      outcomes: ({ params }) => [params.length === 0 ? '404 LAKE_NOT_FOUND' : CONTRACT],
    }),
  ),
  ...['/v1/ops/status', '/v1/ops/history'].map(
    (path): GetRoute => ({ ...fixed(path, 'application/json'), access: 'key' }),
  ),
  {
    ...fixed('/page/:file', 'text/javascript'),
    anyAccept: true,
    visits: fc.record({ segments: fc.record({ file: segment(fc.constant('main.js')) }), params: paramsOf({}) }),
    outcomes: ({ segments, params }) =>
      segments.file === 'main.js' ? [params.length === 0 ? '200' : CONTRACT] : ['404 ROUTE_NOT_FOUND'],
  },
  { ...fixed('/metrics', 'text/plain'), access: 'metrics', anyAccept: true },
  ...['checkpoint', 'key', 'rotations', ...[1, 2, 3, 4].map((parts) => `tile/:level${'/:n'.repeat(parts)}`)].map(ofLog),
  {
    path: '/v1/coverage/:dataset',
    access: 'key',
    gives: 'application/json',
    visits: fc.record({
      segments: fc.record({ dataset: segment(dataset) }),
      params: paramsOf({
        from: times,
        to: times,
        state: fc.constantFrom('proved', 'quarantined', 'published', 'publishing', 'Proved'),
        limit: fc.constantFrom('1', '2', '1000', '1001', '0', '-1', '01', '1.5', ' 1'),
        cursor: anyText,
      }),
    }),
    outcomes(visit) {
      const key = datasetOf(visit);
      if (!key) return [NO_DATASET];
      const right = areRight(visit.params, {
        from: (text) => parseTime(text) !== undefined,
        to: (text) => parseTime(text) !== undefined,
        state: (text) => ['proved', 'quarantined', 'published', 'publishing'].includes(text),
        limit: (text) => /^[1-9]\d*$/.test(text) && Number(text) <= 1000,
        // Only ever taken from an answer: a text made up here is none.
        cursor: () => false,
      });
      const [from, to] = ['from', 'to'].map((name) => visit.params.find(([known]) => known === name)?.[1]);
      const isEmpty = right && from !== undefined && to !== undefined && parseTime(from)!.ns >= parseTime(to)!.ns;
      return [right && !isEmpty ? '200' : CONTRACT];
    },
  },
  {
    path: '/v1/lineage/:dataset/:offset',
    access: 'key',
    gives: 'application/json',
    visits: fc.record({
      segments: fc.record({
        dataset: segment(fc.oneof(fc.constant('exchange_a_spot_trades'), dataset)),
        offset: segment(offsets),
      }),
      params: paramsOf({ partition: fc.oneof(fc.constantFrom('2024-03-01', '2024-03-02', '2024-03-03'), anyText) }),
    }),
    outcomes(visit, world, token) {
      const key = datasetOf(visit);
      if (!key) return [NO_DATASET];
      const hasNul = decoded(visit.segments.offset)?.includes('\0');
      const isPartition = (text: string) => text !== '' && !text.includes('\0');
      if (hasNul || !areRight(visit.params, { partition: isPartition })) return [CONTRACT];
      const refused = refusal(world, key, token);
      if (refused) return [refused];
      // Rows were put in place without a log, so an offset that is stored cannot be followed to the end.
      const found = key === 'exchange_a_spot_trades' && isStored(decoded(visit.segments.offset));
      return found ? ['503 LINEAGE_LOG_UNAVAILABLE', '404 LINEAGE_OFFSET_NOT_FOUND'] : ['404 LINEAGE_OFFSET_NOT_FOUND'];
    },
  },
];
