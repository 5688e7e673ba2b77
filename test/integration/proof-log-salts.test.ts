/** Who is given the salts of leaves, and what those see who are not: everything that the service answers without a key. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { decodeLeaf } from '../../shared/proof-log/leaf.ts';
import type { Json } from '../support/command.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { logFolderOf, sequence } from '../support/proof-log.ts';
import { eventually, type Serving, startServing } from '../support/serving.ts';

const DAYS = ['2024-01-01', '2024-01-02'];
const FIRST_ID = 730_000_001;
const csv = (at: number, seed = 1) =>
  csvOf({ day: DAYS[at], firstId: FIRST_ID + at * 1000, seed, rows: 100, timeUnit: 'ms' });

let system: System;
let serving: Serving;
/** Of the proved day. */
let salt: string;

/** The matrix of exchange A; a form that is not filled in covers synthetic rows alone. */
async function declare(state: string, signoff = 'A licence.'): Promise<void> {
  const source = { rights_state: state, rights_provisional: false, datasets: [DATASET] };
  const sources = { exchange_a: { ...source, legal_signoff_artifact: 'signed.md' } };
  await writeFile(join(system.env.dir, 'signed.md'), signoff);
  await writeFile(join(system.env.dir, 'matrix.json'), JSON.stringify({ version: '1', sources }));
}

beforeAll(async () => {
  system = await System.create();
  for (const at of [0, 1]) await writeDocument(system.vendor, DAYS[at], csv(at));
  expect((await system.backfill(DAYS[0], DAYS[1])).exit).toBe(0);
  // A late arrival, whose document differs, and rows that a verification finds changed.
  await writeDocument(system.vendor, DAYS[0], csv(0, 2));
  expect((await system.backfill(DAYS[0], DAYS[0], {}, ['--compare'])).exit).toBe(1);
  await system.rows(`update ${DATASET} set price = price + 1 where trade_id = ${FIRST_ID + 1001}`);
  expect((await system.run(['verify', DATASET])).exit).toBe(1);
  await sequence(system.env);
  await declare('Hosted Allowed');
  serving = await startServing({
    databaseUrl: system.env.databaseUrl,
    rightsMatrixPath: join(system.env.dir, 'matrix.json'),
    settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl, SVC_PROOF_LOG_DIR: logFolderOf(system.env) },
  });
  [{ salt }] = await system.rows(
    `select encode(salt, 'hex') salt from proof_leaves where partition_key = '${DAYS[0]}'`,
  );
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await system[Symbol.asyncDispose]();
});
beforeEach(() => declare('Hosted Allowed'));

const get = async (path: string): Promise<Json> => (await serving.send({ method: 'GET', path })).json;

/** The salts of the proved day: of coverage, of changes, and of lineage, which refuses where rows are refused. */
async function salts(): Promise<(string | null | undefined)[]> {
  const coverage = await get(`/v1/coverage/${DATASET}?limit=1`);
  const { changes } = await get('/v1/changes?limit=1');
  const lineage = await get(`/v1/lineage/${DATASET}/${FIRST_ID}`);
  return [coverage.partitions[0].proof_log.salt, changes[0].salt, lineage.proof_log?.salt];
}

test('are given to those who may read the rows, and to nobody else', async () => {
  expect(await salts()).toEqual([salt, salt, salt]);
  for (const [state, signoff] of [
    ['Ingest Only'],
    ['BYOK Required'],
    ['Hosted Allowed', ''],
    ['Hosted Allowed', '[UNSIGNED: by whom]'],
    ['no state'],
  ]) {
    await declare(state, signoff);
    expect([state, signoff, ...(await salts())]).toEqual([state, signoff, null, null, undefined]);
  }
  await system.rows('update coverage set synthetic = true; update partitions set synthetic = true');
  try {
    await declare('Hosted Allowed', '[UNSIGNED: by whom]');
    expect((await salts()).slice(0, 1)).toEqual([salt]);
  } finally {
    await system.rows('update coverage set synthetic = false; update partitions set synthetic = false');
  }
});

test('with the salt goes all of coverage that depends on rows or documents', async () => {
  const open = await get(`/v1/coverage/${DATASET}`);
  const [proved, quarantined] = open.partitions;
  const stored = await system.rows('select manifest from partitions order by from_ms');
  const hidden = stored.flatMap(({ manifest: { rows_hash, events_sha256, first_offset, last_offset, document } }) => [
    ...[rows_hash, events_sha256, first_offset, last_offset, document.sha256],
  ]);
  expect(hidden.filter((one) => !JSON.stringify(open).includes(one))).toEqual([]);
  for (const [state, signoff] of [
    ['Ingest Only'],
    ['BYOK Required'],
    ['Hosted Allowed', ''],
    ['Hosted Allowed', '[UNSIGNED: by whom]'],
  ]) {
    await declare(state, signoff);
    const closed = await get(`/v1/coverage/${DATASET}`);
    expect([state, signoff, hidden.filter((one) => JSON.stringify(closed).includes(one))]).toEqual([
      state,
      signoff,
      [],
    ]);
    const withheld = { first_offset: null, last_offset: null, rows_hash: null, events_sha256: null, document: null };
    const log = ({ proof_log }: Json) => ({ ...proof_log, salt: null });
    const [{ at_utc, partition }] = open.late_arrivals;
    expect(closed).toEqual({
      ...open,
      partitions: [
        { ...proved, ...withheld, proof_log: log(proved) },
        {
          ...{ ...quarantined, ...withheld, proof_log: log(quarantined) },
          reason: 'its stored rows are not those that were proved',
        },
      ],
      late_arrivals: [{ at_utc, partition, reason: 'the partition is proved with other content', document: null }],
    });
  }
});

test('an event stream follows the rights, and its leaves are the same either way', async () => {
  const heard = async () => {
    const headers = { Accept: 'text/event-stream' };
    const response = await serving.open({ method: 'GET', path: '/v1/changes?since=0', headers });
    let text = '';
    response.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
    });
    await eventually(() => text.includes('"number":4'), 'the changes');
    response.destroy();
    return [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => JSON.parse(data));
  };
  const open = await heard();
  await declare('Ingest Only');
  const closed = await heard();
  expect(open.map((one) => typeof one.salt)).toEqual(Array(4).fill('string'));
  expect(closed).toEqual(open.map((one) => ({ ...one, salt: null })));
  const { number, salt: _, ...leaf } = closed[0];
  expect(decodeLeaf(Buffer.from(JSON.stringify(leaf)))).toEqual(leaf);
});

/** The paths that answer without a key, beside the pages. A new one is looked at before it is listed, here and in docs/security.md. */
const OPEN = [
  '/healthz',
  '/openapi.json',
  '/readyz',
  '/v1/proofs/checkpoint',
  '/v1/proofs/key',
  '/v1/proofs/rotations',
  ...['', '/{n2}', '/{n2}/{n3}', '/{n2}/{n3}/{n4}'].map((path) => `/v1/proofs/tile/{level}/{n1}${path}`),
];

test('without a key nothing can be read that depends on rows or documents', async () => {
  const { paths } = await get('/openapi.json');
  const open = Object.entries<Json>(paths).filter(([, { get: operation }]) => operation?.security?.length === 0);
  expect(open.map(([path]) => path).sort()).toEqual(OPEN);
  const { rows } = await system.client.query('select size::int from proof_head');
  const asked = ['/', '/docs', '/page/index.html', ...OPEN.filter((path) => !path.includes('{'))];
  asked.push(...['entries', '0'].map((level) => `/v1/proofs/tile/${level}/000.p/${rows[0].size}`));
  const texts = await Promise.all(
    asked.map(async (path) => (await serving.send({ method: 'GET', path, key: '' })).text),
  );
  const all = texts.join('\n');
  // What it looks at are the leaves: four of them, with the names of partitions and documents.
  for (const told of [...DAYS, `BTCUSDT-trades-${DAYS[0]}.zip`, '"kind":"refused"', '"kind":"quarantined"']) {
    expect(all).toContain(told);
  }
  const hidden = await system.rows(`
    select manifest->>'rows_hash' s from partitions union select manifest->>'events_sha256' from partitions
    union select manifest->'document'->>'sha256' from partitions union select manifest->'document'->>'bytes' from partitions
    union select manifest->>'first_offset' from partitions union select manifest->>'last_offset' from partitions
    union select details->'document'->>'sha256' from ledger union select details->'found'->>'events_sha256' from ledger
    union select value from partitions, jsonb_each_text(manifest->'totals')
    union select trade_id::text from ${DATASET} union select encode(salt, 'hex') from proof_leaves
    union select encode(secret, 'hex') from proof_secret`);
  expect(hidden.length).toBeGreaterThan(200);
  const told = hidden.flatMap(({ s }) => (s !== null && s.length > 6 && all.includes(s) ? [s] : []));
  expect(told).toEqual([]);
});
