/** Lineage over HTTP: every event back to the vendor's bytes, with a real log behind it. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { generateLines } from '../../pipelines/sources/exchange_c/sample.ts';
import { commitmentOf } from '../../shared/proof-log/commitment.ts';
import { eventId } from '../../shared/registry/event-id.ts';
import { DATASETS, datasetOf } from '../../shared/registry/index.ts';
import { ROOT, runCommand } from '../support/command.ts';
import { givenData } from '../support/given.ts';
import { csvOf, DATASET, documentPath, memberName, System, writeDocument } from '../support/pipeline.ts';
import { type Answer, eventually, OWN_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { createMigratedEnv, execute, natsSettings } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';

const sha256 = (bytes: string | Buffer) => createHash('sha256').update(bytes).digest('hex');
const outcome = ({ status, json }: Answer) => [status, json.code];
const DAYS = ['2024-01-01', '2024-01-02'];
const ROWS = 5000;
const C = 'exchange_c_spot_trades';
const ROLE = `lineage_${Math.random().toString(36).slice(2, 10)}`;

let system: System;
let serving: Serving;
let matrixPath: string;
const csv: string[] = [];
const documents: string[] = [];
/** Lines of the two days of exchange C, which number their trades alike. */
const linesOfC: string[][] = [];

const ask = (offset: string | number, { on = serving, dataset = DATASET, query = '', headers = {} } = {}) =>
  on.send({ method: 'GET', path: `/v1/lineage/${dataset}/${offset}${query}`, headers });

const matrix = (state: string) => ({
  version: '1',
  sources: Object.fromEntries(
    ['exchange_a', 'exchange_c'].map((source) => [
      source,
      {
        rights_state: state,
        rights_provisional: false,
        datasets: [`${source}_spot_trades`],
        legal_signoff_artifact: 'signed.md',
      },
    ]),
  ),
});
const declare = (state: string) => writeFile(matrixPath, JSON.stringify(matrix(state)));

beforeAll(async () => {
  system = await System.create();
  for (const [index, day] of DAYS.entries()) {
    csv.push(csvOf({ day, rows: ROWS, firstId: 1000 + index * ROWS, seed: index, timeUnit: 'ms' }));
    documents.push(await writeDocument(system.vendor, day, csv[index]));
    linesOfC.push([...generateLines({ day, rows: 300, seed: index })]);
    const path = join(system.vendor, `spot/BTCUSDT/BTCUSDT_${day}.csv.gz`);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, gzipSync(linesOfC[index].join('')));
  }
  // Frames of a few hundred rows, so that a day has several.
  const env = {
    ...limitsEnv({ frameRawBytes: 20_000 }),
    SVC_EXCHANGE_C_BASE_URL: pathToFileURL(`${system.vendor}/`).href,
  };
  expect((await system.backfill(DAYS[0], DAYS[1], env)).exit).toBe(0);
  const ofC = await system.run(['backfill', C, '--from', DAYS[0], '--to', DAYS[1]], env);
  expect(ofC.exit, ofC.stderr).toBe(0);
  matrixPath = join(system.env.dir, 'matrix.json');
  await writeFile(join(system.env.dir, 'signed.md'), 'signed');
  await execute(
    system.env.databaseUrl,
    `create role ${ROLE} login password 'right'; grant usage on schema public to ${ROLE};
     grant select on partitions, frames, proof_leaves, proof_head to ${ROLE}`,
  );
  serving = await startServing({
    databaseUrl: system.env.databaseUrl,
    rightsMatrixPath: matrixPath,
    settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl, SVC_BYOK_DATABASE_ROLE: ROLE },
  });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await execute(system.env.databaseUrl, `drop owned by ${ROLE}; drop role ${ROLE}`);
  await system[Symbol.asyncDispose]();
});
beforeEach(() => declare('Hosted Allowed'));

describe('an event', () => {
  test('is the line of the vendor’s file, with everything that proves it', async () => {
    const lines = csv[1].split('\n');
    const at = 1234;
    const id = 1000 + ROWS + at;
    const { status, json, headers } = await ask(id);
    expect([status, headers['content-type'], headers['x-svc-synthetic']]).toEqual([200, 'application/json', undefined]);
    const [frames, [partition]] = [
      await system.rows(
        `select * from frames where dataset_id = 1 and partition_key = '${DAYS[1]}' order by stream_sequence`,
      ),
      await system.rows(
        `select *, to_char(proved_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as at from partitions
         where dataset_id = 1 and partition_key = '${DAYS[1]}'`,
      ),
    ];
    const number = frames.findIndex(({ first_offset, last_offset }) => first_offset <= id && id <= last_offset);
    expect(number).toBeGreaterThan(0);
    const frame = frames[number];
    const { manifest } = partition;
    expect(json).toEqual({
      dataset: DATASET,
      offset: String(id),
      event_id: eventId(datasetOf(DATASET), DAYS[1], String(id)),
      partition: DAYS[1],
      synthetic: false,
      ingested_at_utc: new Date(manifest.ingested_at_ms).toISOString(),
      payload_raw: {
        bytes: lines[at].length,
        base64: Buffer.from(lines[at]).toString('base64'),
        utf8: lines[at],
      },
      payload_sha256_raw: sha256(lines[at]),
      frame: {
        stream: DATASET,
        stream_sequence: Number(frame.stream_sequence),
        number,
        position: at - Number(frame.row_base),
        rows: frame.rows,
        first_offset: frame.first_offset,
        last_offset: frame.last_offset,
        raw_bytes: expect.any(Number),
        raw_sha256: sha256(
          lines
            .slice(Number(frame.row_base), Number(frame.row_base) + frame.rows)
            .join('\n')
            .concat('\n'),
        ),
      },
      document: manifest.document,
      proof: {
        attempt: 1,
        revision: 1,
        proved_at_utc: partition.at,
        expected: {
          rows: ROWS,
          first_offset: String(1000 + ROWS),
          last_offset: String(1000 + 2 * ROWS - 1),
          first_ms: manifest.first_ms,
          last_ms: manifest.last_ms,
          gaps: 0,
          totals: manifest.totals,
          rows_hash: manifest.rows_hash,
          events_sha256: sha256(csv[1]),
        },
        recount: partition.recount,
        facts: partition.facts,
      },
      // No process sequences the proof log here: test/integration/proof-log.test.ts.
      proof_log: {
        ...{ state: 'pending', leaf_index: null, inclusion: null },
        leaf: expect.stringContaining(
          commitmentOf(Buffer.from(json.proof_log.salt, 'hex'), 'document_sha256', documents[1]),
        ),
        salt: expect.stringMatching(/^[0-9a-f]{64}$/),
      },
      checkpoint: null,
      rights_state: 'Hosted Allowed',
      rights_provisional: false,
    });
    expect(json.document).toMatchObject({ name: documentPath(DAYS[1]).split('/').at(-1), sha256: documents[1] });
    expect(json.proof.recount).toMatchObject({ rows: ROWS, rows_hash: json.proof.expected.rows_hash });
    expect(JSON.stringify(json)).not.toContain(system.vendor);
  });

  test('any of them, by its offset: the first and last of frames, days and history too', async () => {
    const lines = csv.join('').split('\n');
    const edges = await system.rows(`select first_offset::int a, last_offset::int b from frames where dataset_id = 1`);
    expect(edges.length).toBeGreaterThan(20);
    const ids = edges.flatMap(({ a, b }) => [a, b, Math.floor((a + b) / 2)]);
    for (const id of new Set<number>(ids)) {
      const { status, json } = await ask(id);
      expect([status, json.payload_raw?.utf8]).toEqual([200, lines[id - 1000]]);
      expect(json.frame.first_offset).toBe(String(id - json.frame.position));
    }
  });

  test('of an offset that nothing proved holds is 404', async () => {
    const none = [0, 999, 1000 + 2 * ROWS, '01000', '1000.0', '+1000', 'x', '1'.repeat(18), '9'.repeat(400), '%27'];
    for (const offset of none)
      expect(outcome(await ask(offset)), String(offset)).toEqual([404, 'LINEAGE_OFFSET_NOT_FOUND']);
    // A path with an encoded slash is none.
    expect(outcome(await ask('1%2F2'))).toEqual([404, 'ROUTE_NOT_FOUND']);
    expect((await ask('x')).json.detail).toBe(
      `No proved partition of ${DATASET} holds this offset. An offset of ${DATASET} is the trade id, such as 109344068. ` +
        `GET /v1/coverage/${DATASET} lists what is proved.`,
    );
    expect((await ask(1000, { query: '?partition=2023-12-31' })).json.detail).toMatch(
      /^No proved partition 2023-12-31 /,
    );
    for (const partition of ['2024-01-02', '2023-12-31', 'x', "'"]) {
      const found = await ask(1000, { query: `?partition=${partition}` });
      expect(outcome(found), partition).toEqual([404, 'LINEAGE_OFFSET_NOT_FOUND']);
    }
    expect((await ask(1000, { query: `?partition=${DAYS[0]}` })).status).toBe(200);
  });
});

test('a NUL in the offset of a transaction reached the database, which refused the statement', async () => {
  const TRANSACTIONS = 'bitcoin_block_transactions';
  const found = await ask('1:0:ab%00', { dataset: TRANSACTIONS });
  expect(outcome(found)).toEqual([409, 'QUERY_CONTRACT_ERROR']);
  expect(found.json.errors).toEqual([{ pointer: '{offset}', message: 'must be Unicode text without NUL' }]);
  for (const dataset of DATASETS.keys()) {
    for (const offset of ['%00', '1%00', '1:0:%00', '1:0:a%00b']) {
      expect(outcome(await ask(offset, { dataset })), dataset).toEqual([409, 'QUERY_CONTRACT_ERROR']);
    }
    const named = await ask('1', { dataset, query: '?partition=2024-01-01%00' });
    expect([...outcome(named), named.json.errors[0].pointer]).toEqual([409, 'QUERY_CONTRACT_ERROR', '?partition']);
    // What is no text at all in the URL is text by then, and simply not there.
    expect([409, 404]).toContain((await ask('1:0:%ff', { dataset })).status);
  }
});

describe('an offset that several partitions hold', () => {
  test('is 409 naming them; ?date= or ?partition= chooses', async () => {
    const both = await ask(80, { dataset: C });
    expect(outcome(both)).toEqual([409, 'LINEAGE_OFFSET_AMBIGUOUS']);
    expect(both.json.partitions).toEqual(DAYS);
    expect(both.json.detail).toContain(`${DAYS.join(', ')}. Choose one of them with ?date=`);
    for (const [index, day] of DAYS.entries()) {
      for (const query of [`?date=${day}`, `?partition=${day}`, `?date=${day}&partition=${day}`]) {
        const { status, json } = await ask(80, { dataset: C, query });
        expect(status).toBe(200);
        expect(json.payload_raw.utf8).toBe(linesOfC[index][80].trimEnd());
        expect([json.partition, json.event_id]).toEqual([day, eventId(datasetOf(C), day, '80')]);
      }
    }
    expect(outcome(await ask(301, { dataset: C }))).toEqual([404, 'LINEAGE_OFFSET_NOT_FOUND']);
  });

  test.each([
    [C, '?date=2024-01-32', /must be a day, YYYY-MM-DD; the calendar has no 2024-01-32/],
    [C, '?date=yesterday', /must be a day/],
    [C, '?date=2024-01-01&partition=2024-01-02', /another day than the partition/],
    ['bitcoin_block_headers', '?date=2024-01-01', /has none, so name the partition/],
  ])('of %s is refused a date that chooses nothing: %s', async (dataset, query, message) => {
    const { status, json } = await ask(80, { dataset, query });
    expect([status, json.code, json.errors]).toEqual([
      409,
      'QUERY_CONTRACT_ERROR',
      [{ pointer: '?date', message: expect.stringMatching(message) }],
    ]);
  });
});

describe('a request', () => {
  test('passes the rights that a query passes', async () => {
    await declare('Ingest Only');
    expect(outcome(await ask(1000))).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
    await declare('BYOK Required');
    expect(outcome(await ask(1000))).toEqual([409, 'QUERY_RIGHTS_BYOK_REQUIRED']);
    expect(outcome(await ask(1000, { headers: { 'X-Backend-Token': 'wrong' } }))).toEqual([
      409,
      'QUERY_RIGHTS_BYOK_REFUSED',
    ]);
    const { status, json } = await ask(1000, { headers: { 'X-Backend-Token': 'right' } });
    expect([status, json.rights_state]).toEqual([200, 'BYOK Required']);
    await writeFile(matrixPath, '{');
    expect(outcome(await ask(1000))).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
  });
});

describe('a partition', () => {
  test('that is not proved shows no event; one ingested again shows that of its revision', async () => {
    const client = system.client;
    await client.query(
      `update partitions set state = 'quarantined' where dataset_id = 1 and partition_key = '${DAYS[0]}'`,
    );
    expect(outcome(await ask(1000))).toEqual([404, 'LINEAGE_OFFSET_NOT_FOUND']);
    await client.query(`update partitions set state = 'proved' where dataset_id = 1 and partition_key = '${DAYS[0]}'`);
    const anew = csvOf({ day: DAYS[0], rows: ROWS, firstId: 1000, seed: 77, timeUnit: 'ms' });
    const document = await writeDocument(system.vendor, DAYS[0], anew);
    expect((await system.reingest(DAYS[0], DAYS[0], 'it was republished')).exit).toBe(0);
    const { json } = await ask(1000);
    expect(json.payload_raw.utf8).toBe(anew.split('\n')[0]);
    expect([json.document.sha256, json.proof.revision]).toEqual([document, 2]);
    // The same document once more; an index that points at frames of the attempt before is not believed.
    const before = json.frame.stream_sequence;
    expect((await system.reingest(DAYS[0], DAYS[0], 'once more')).exit).toBe(0);
    const again = (await ask(1000)).json;
    expect([again.payload_raw, again.proof.revision]).toEqual([json.payload_raw, 3]);
    await client.query(`update frames set stream_sequence = ${before} where stream_sequence = $1`, [
      again.frame.stream_sequence,
    ]);
    expect(outcome(await ask(1000))).toEqual([503, 'LINEAGE_LOG_DAMAGED']);
  });
});

describe('the log', () => {
  test('away: lineage is 503 and nothing else is; back, it answers again', async () => {
    await using proxy = await startStoreProxy(system.env.natsReaderUrl);
    await using on = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: proxy.url },
      logTimeoutMs: 300,
    });
    const others = async () => [
      (await on.query({ sources: [DATASET], n_rows: 1 })).status,
      (await on.send({ method: 'GET', path: '/readyz' })).status,
    ];
    const isServed = async () => (await ask(7000, { on })).status === 200;
    await eventually(isServed, 'answers at first');
    proxy.mute();
    const silent = await ask(7000, { on });
    expect([...outcome(silent), Number(silent.headers['retry-after']) > 0]).toEqual([
      503,
      'LINEAGE_LOG_UNAVAILABLE',
      true,
    ]);
    expect(await others()).toEqual([200, 200]);
    proxy.unmute();
    await eventually(isServed, 'answers after the silence');
    proxy.goAway();
    await eventually(async () => (await ask(7000, { on })).status === 503, 'its absence is noticed');
    expect(await others()).toEqual([200, 200]);
    proxy.comeBack();
    await eventually(isServed, 'answers again');
  });

  test('never there, or not configured: 503, and rows are served', async () => {
    for (const url of ['nats://127.0.0.1:1', undefined]) {
      await using on = await startServing({
        databaseUrl: system.env.databaseUrl,
        settings: url === undefined ? {} : { SVC_NATS_READER_URL: url },
      });
      expect(outcome(await ask(1000, { on }))).toEqual([503, 'LINEAGE_LOG_UNAVAILABLE']);
      expect(outcome(await ask(1, { on }))).toEqual([404, 'LINEAGE_OFFSET_NOT_FOUND']);
      expect((await on.query({ sources: [DATASET], n_rows: 1 })).status).toBe(200);
    }
  });

  test('with other messages in the frames’ places: 503, never another event', async () => {
    await using env = await createMigratedEnv();
    const settings = (natsReaderUrl: string) => ({ SVC_NATS_READER_URL: natsReaderUrl });
    await using on = await startServing({ databaseUrl: system.env.databaseUrl, settings: settings(env.natsReaderUrl) });
    // No stream at all; then one of another history.
    expect(outcome(await ask(7000, { on }))).toEqual([503, 'LINEAGE_LOG_DAMAGED']);
    const vendor = join(env.dir, 'vendor');
    await writeDocument(vendor, DAYS[1], csv[1]);
    const done = await runCommand(['backfill', DATASET, '--from', DAYS[1], '--to', DAYS[1]], {
      SVC_DATABASE_URL: env.databaseUrl,
      ...natsSettings(env),
      SVC_STATE_DIR: join(env.dir, 'state'),
      SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${vendor}/`).href,
      SVC_STREAM_MAX_BYTES: String(1 << 28),
      ...limitsEnv({ frameRawBytes: 20_000 }),
    });
    expect(done.exit, done.stderr).toBe(0);
    expect(outcome(await ask(1500, { on }))).toEqual([503, 'LINEAGE_LOG_DAMAGED']);
  });
});

const REAL = join(ROOT, '..', 'shared', 'data', 'exchange_a');

givenData('exchange_a').test(
  'a real day: the bytes are the lines of the vendor’s file, the document is the vendor’s',
  async () => {
    await using own = await System.create();
    const day = '2019-04-01';
    const env = { SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${REAL}/`).href };
    expect((await own.backfill(day, day, env)).exit).toBe(0);
    const archive = join(REAL, documentPath(day));
    // Another program's unpacking, and sha256sum's digest.
    const file = execFileSync('unzip', ['-p', archive, memberName(day)], { maxBuffer: 1 << 28 });
    const digest = execFileSync('sha256sum', [archive]).toString().slice(0, 64);
    const lines = file.toString('latin1').split('\n');
    // As docs/lineage.md checks a whole day.
    const whole = execFileSync('sh', ['-c', `unzip -p '${archive}' | tr -d '\\r' | sha256sum`])
      .toString()
      .slice(0, 64);
    await using on = await startServing({
      databaseUrl: own.env.databaseUrl,
      rightsMatrixPath: OWN_MATRIX,
      settings: { SVC_NATS_READER_URL: own.env.natsReaderUrl },
    });
    const first = 109_344_068;
    for (const index of [0, 1, 9999, 91_677, 183_353, 183_354]) {
      const { status, json } = await ask(first + index, { on });
      const line = lines[index].trimEnd();
      expect([status, json.payload_raw.utf8, json.payload_sha256_raw]).toEqual([200, line, sha256(line)]);
      expect(Buffer.from(json.payload_raw.base64, 'base64').toString('latin1')).toBe(line);
      expect(json.document).toMatchObject({ name: `BTCUSDT-trades-${day}.zip`, sha256: digest });
      const { totals } = json.proof.recount;
      expect(json.proof.expected).toMatchObject({ rows: 183_355, totals, events_sha256: whole });
      // The row that is served holds what the line says.
      const { json: row } = await on.query({
        sources: [DATASET],
        filters: [{ field: 'trade_id', op: 'eq', value: first + index }],
      });
      const [id, price, quantity] = line.split(',');
      expect(row.rows[0]).toMatchObject({ trade_id: Number(id), price: Number(price), quantity: Number(quantity) });
    }
    expect(outcome(await ask(first - 1, { on }))).toEqual([404, 'LINEAGE_OFFSET_NOT_FOUND']);
  },
  { tags: ['nightly'] },
);
