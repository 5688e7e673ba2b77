/** GET /v1/revisions and the differences of a revision: from when to when each was served, and what its vendor changed. */
import { createHash } from 'node:crypto';
import { cp, readdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Changes } from '../../client/index.ts';
import { addKey, type KeyTerms } from '../../shared/keys/store.ts';
import { alteredText } from '../support/altered-days.ts';
import type { Json } from '../support/command.ts';
import { writeLake } from '../support/lake.ts';
import { DATASET, System } from '../support/pipeline.ts';
import { sequence } from '../support/proof-log.ts';
import { OWN_MATRIX } from '../support/rights.ts';
import { API_KEY, SAMPLE_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { VENDOR_A } from '../support/vendors.ts';

const [FIRST, SECOND] = ['2024-02-01', '2024-02-02'];
let system: System;
let serving: Serving;
const served: Serving[] = [];

const textOf = (day: string) => VENDOR_A.plainDay({ day, rows: 50, seed: 2, firstId: day === FIRST ? 1 : 51 });
const publish = (day: string, text: string) => VENDOR_A.put(system.vendor, day, VENDOR_A.pack(day, text));
const repaired = alteredText(VENDOR_A, textOf(SECOND), { fates: [[100, 'priced']], added: 2, order: 'kept' });

const serve = async (rightsMatrixPath = OWN_MATRIX) => {
  const settings = { SVC_KEEP_DIR: join(system.env.dir, 'state', 'kept') };
  served.push(await startServing({ databaseUrl: system.env.databaseUrl, settings, rightsMatrixPath }));
  return served.at(-1)!;
};

beforeAll(async () => {
  system = await System.create();
  for (const day of [FIRST, SECOND]) await publish(day, textOf(day));
  expect((await system.backfill(FIRST, SECOND)).exit).toBe(0);
  await publish(SECOND, repaired);
  await system.backfill(FIRST, SECOND, {}, ['--compare']);
  await sequence(system.env);
  serving = await serve();
});
afterAll(async () => {
  for (const one of served) await one[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

const get = (path: string, headers: Record<string, string> = {}, by = serving, key?: string) =>
  by.send({ method: 'GET', path, headers, ...(key !== undefined && { key }) });
const revisions = async (by = serving, query = ''): Promise<Json[]> => {
  await sequence(system.env);
  const { status, json } = await get(`/v1/revisions?dataset=${DATASET}${query}`, {}, by);
  expect(status).toBe(200);
  return json.revisions;
};
const shape = ({ partition, state, from_change, to_change }: Json) => [partition, state, from_change, to_change];
const keyOf = async (...scopes: string[]) =>
  (await addKey(system.client, `of-${scopes.join('-')}`, { scopes } as unknown as KeyTerms)).text;

describe('revisions', () => {
  test('are listed by the change from which each was served; one that was found has no change', async () => {
    const list = await revisions();
    const [first, second, found] = list;
    expect(list.map(shape)).toEqual([
      [FIRST, 'served', first.id, null],
      [SECOND, 'served', second.id, null],
      [SECOND, 'refused', null, null],
    ]);
    expect([first.id, second.id, found.id]).toEqual([1, 2, 3]);
    expect(found).toMatchObject({ revision: 1, differences: { added: 2, removed: 0, altered: 1 }, from_utc: null });
    expect(found.document.sha256).not.toBe(second.document.sha256);
    const changes = (await get('/v1/changes')).json.changes;
    expect(changes.map(({ number, kind }: Json) => [number, kind])).toEqual([
      [1, 'proved'],
      [2, 'proved'],
      [3, 'refused'],
    ]);
  });

  test('are those of one partition where the request names it', async () => {
    const list = await revisions();
    expect(await revisions(serving, `&partition=${SECOND}`)).toEqual(list.slice(1));
    expect(await revisions(serving, '&partition=2024-02-03')).toEqual([]);
    expect((await get(`/v1/revisions?dataset=${DATASET}&partition=`)).json.code).toBe('QUERY_CONTRACT_ERROR');
  });

  test('come as JSON, NDJSON and CSV, in pages that follow each other', async () => {
    const list = await revisions();
    const path = `/v1/revisions?dataset=${DATASET}`;
    const lines = await get(path, { Accept: 'application/x-ndjson' });
    expect(
      lines.text
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line)),
    ).toEqual(list);
    const csv = (await get(path, { Accept: 'text/csv' })).text.trimEnd().split('\n');
    expect(csv).toHaveLength(list.length + 1);
    const cells = csv.map((line) => line.split(','));
    expect(cells.map((row) => row[cells[0].indexOf('state')])).toEqual(['state', ...list.map(({ state }) => state)]);
    expect(cells.map((row) => row[cells[0].indexOf('differences.added')])).toEqual(['differences.added', '', '', '2']);
    expect((await get(path, { Accept: 'text/html' })).status).toBe(406);
    const paged: Json[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const { json }: { json: Json } = await get(`${path}&limit=1${cursor && `&cursor=${cursor}`}`);
      paged.push(...json.revisions);
      cursor = json.next_cursor;
    }
    expect(paged).toEqual(list);
    const page = await get(`${path}&limit=2`, { Accept: 'text/csv' });
    expect(page.headers['x-svc-next-cursor']).toBe('2');
    expect((await get('/v1/revisions')).json.code).toBe('QUERY_CONTRACT_ERROR');
  });
});

describe('the differences of a revision', () => {
  const found = async () => (await revisions()).at(-1)!;
  const pathOf = (id: number) => `/v1/revisions/${id}/diff`;

  test('are a file with its digest, which says that nothing of it is proved', async () => {
    const { id, differences } = await found();
    const { status, headers, text } = await get(pathOf(id));
    expect([status, headers['x-svc-proved'], headers.etag]).toEqual([200, 'false', `"${differences.sha256}"`]);
    expect(createHash('sha256').update(text).digest('hex')).toBe(differences.sha256);
    expect(Buffer.byteLength(text)).toBe(differences.bytes);
    const [head, ...rows] = text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(head).toMatchObject({
      proved: false,
      dataset: DATASET,
      partition: SECOND,
      added: 2,
      removed: 0,
      altered: 1,
    });
    expect(rows.map(({ kind }) => kind)).toEqual(['altered', 'added', 'added']);
    const { served: before, found: after } = rows[0];
    expect({ ...after, price: before.price }).toEqual(before);
    expect(after.price).not.toBe(before.price);
    const part = await get(pathOf(id), { Range: 'bytes=0-9' });
    expect([part.status, part.text]).toEqual([206, text.slice(0, 10)]);
    expect((await get(pathOf(id), { 'If-None-Match': headers.etag! })).status).toBe(304);
    // Not every client that a generator makes knows NDJSON.
    const bytes = await get(pathOf(id), { Accept: 'application/octet-stream' });
    expect([headers, bytes.headers].map((one) => one['content-type'])).toEqual([
      'application/x-ndjson',
      'application/octet-stream',
    ]);
    expect(bytes.text).toBe(text);
    expect((await get(pathOf(id), { Accept: 'text/html' })).json.code).toBe('NOT_ACCEPTABLE');
  });

  test('need the scope operate and the rights of the dataset', async () => {
    const { id } = await found();
    expect((await get(pathOf(id), {}, serving, await keyOf('read', 'export'))).json.code).toBe('AUTH_SCOPE_MISSING');
    expect((await get(pathOf(id), {}, serving, await keyOf('operate'))).status).toBe(200);
    const folder = join(system.env.dir, 'rights');
    await cp(dirname(OWN_MATRIX), folder, { recursive: true });
    const matrix = JSON.parse(await readFile(OWN_MATRIX, 'utf8'));
    matrix.sources.exchange_a.rights_state = 'Ingest Only';
    await writeFile(join(folder, 'matrix.json'), JSON.stringify(matrix));
    const withdrawn = await serve(join(folder, 'matrix.json'));
    expect((await get(pathOf(id), {}, withdrawn)).json.code).toBe('QUERY_RIGHTS_INGEST_ONLY');
    const list = await revisions(withdrawn);
    expect(list.map(({ document, differences }) => [document.sha256, differences?.sha256 ?? null])).toEqual(
      list.map(() => [null, null]),
    );
    const sample = await serve(SAMPLE_MATRIX);
    expect((await get(pathOf(id), {}, sample)).json.code).toBe('QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING');
  });

  test('are of an id that has some, and never another file', async () => {
    for (const id of ['1', '999', '0', 'x', '03']) {
      expect([id, (await get(`/v1/revisions/${id}/diff`)).json.code]).toEqual([id, 'REVISION_NOT_FOUND']);
    }
    const { id, differences } = await found();
    const path = join(system.env.dir, 'state', 'kept', 'objects', differences.sha256.slice(0, 2), differences.sha256);
    const bytes = await readFile(path);
    await writeFile(path, bytes.toString().replace('altered', 'ALTERED'));
    expect((await get(pathOf(id))).json.code).toBe('QUERY_RUNTIME_ERROR');
    await writeFile(path, bytes);
    expect((await get(pathOf(id))).status).toBe(200);
  });

  test('are in no lake', async () => {
    const { differences } = await found();
    const lake = join(system.env.dir, 'lake');
    await writeLake({ databaseUrl: system.env.databaseUrl, folder: lake });
    const files = await readdir(lake, { recursive: true, withFileTypes: true });
    expect(files.length).toBeGreaterThan(3);
    for (const file of files.filter((one) => one.isFile())) {
      const bytes = await readFile(join(file.parentPath, file.name));
      expect(bytes.includes(differences.sha256)).toBe(false);
      expect(bytes.includes('"altered"')).toBe(false);
    }
  });
});

const openArrivals = async () => {
  const by = await serve();
  const { text } = await get('/metrics', {}, by);
  return /tidemark_late_arrivals_open\{dataset="exchange_a_spot_trades"\} (\d+)/.exec(text)?.[1];
};

test('the client has all of them, and monitors how many wait for an operator', async () => {
  const all = await Array.fromAsync(
    new Changes({ baseUrl: serving.url, apiKey: API_KEY }).revisions({ dataset: DATASET }),
  );
  expect(all).toEqual(await revisions());
  const one = new Changes({ baseUrl: serving.url, apiKey: API_KEY }).revisions({ dataset: DATASET, partition: FIRST });
  expect(await Array.fromAsync(one)).toEqual(all.slice(0, 1));
  expect(await openArrivals()).toBe('1');
  expect((await system.status()).late_arrivals_open).toBe(1);
});

test('a revision that an operator reingests is served from its change on; one that leaves service is withdrawn', async () => {
  expect((await system.reingest(SECOND, SECOND, 'the vendor repaired the day')).exit).toBe(0);
  const list = await revisions();
  const last = list.at(-1)!;
  expect(list.slice(1).map(shape)).toEqual([
    [SECOND, 'replaced', 2, last.id],
    [SECOND, 'accepted', null, null],
    [SECOND, 'served', last.id, null],
  ]);
  expect(last).toMatchObject({ revision: 2, rows: 52 });
  expect(last.document.sha256).toBe(list[2].document.sha256);
  expect(list[1].to_utc).toBe(last.from_utc);
  expect(await openArrivals()).toBe('0');
  await system.rows(`update ${DATASET} set price = price + 1 where trade_id = 7`);
  await system.run(['verify', DATASET, '--from', FIRST, '--to', FIRST]);
  const [first] = await revisions();
  expect(first).toMatchObject({ state: 'withdrawn', from_change: 1 });
  expect(first.to_change).toBeGreaterThan(last.id);
});
