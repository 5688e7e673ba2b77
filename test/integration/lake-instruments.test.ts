/** A lake of several instruments of an exchange: its table has all of them, and who may read one of them gets its files alone. */
import { stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { mirror } from '../../client/mirror/index.ts';
import { writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { dataFileOf } from '../../shared/mirror/delta-log.ts';
import { datasetOf, shapeOf } from '../../shared/registry/index.ts';
import { givenTool } from '../support/given.ts';
import { expectServed, faultsOf, manifestOf, rootOf, type TableFile, tableFiles } from '../support/lake.ts';
import { readParquet } from '../support/parquet-readers.ts';
import { System } from '../support/pipeline.ts';
import { logFolderOf, sequence } from '../support/proof-log.ts';
import { openDuckDb } from '../support/read-parquet.ts';
import { OWN_MATRIX } from '../support/rights.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { tablesPython } from '../support/tools.ts';

const A = datasetOf('exchange_a_spot_trades');
const [BTC, ETH, SATS] = ['BTCUSDT', 'ETHUSDT', '1000SATSUSDT'];
const [FIRST, LAST] = ['2024-03-01', '2024-03-02'];
const ROWS = 300;

let system: System;
let serving: Serving;
let folder: string;

beforeAll(async () => {
  system = await System.create();
  folder = join(system.env.dir, 'lake');
  // Trade ids of all symbols are the same.
  for (const [index, symbol] of [BTC, ETH, SATS].entries()) {
    for (const day of symbol === SATS ? [LAST] : [FIRST, LAST]) {
      const firstId = day === FIRST ? 1 : 1 + 10 * ROWS;
      const seed = index * 10 + Number(day.slice(-1));
      await writeDay({ directory: system.vendor, symbol, day, rows: ROWS, seed, firstId, timeUnit: 'us' });
    }
  }
  const settings = {
    SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${system.vendor}/`).href,
    SVC_EXCHANGE_A_ALSO: `${ETH},${SATS}`,
  };
  const range = ['--from', FIRST, '--to', LAST];
  for (const symbol of [BTC, ETH]) {
    expect((await system.run(['backfill', A.key, ...range, '--instrument', symbol], settings)).exit).toBe(0);
  }
  await system.run(['backfill', A.key, '--from', LAST, '--to', LAST, '--instrument', SATS], settings);
  await sequence(system.env);
  serving = await startServing({ databaseUrl: system.env.databaseUrl, settings: { SVC_LAKE_FOLDER: folder } });
  // Neither the writer nor the service is told of other instruments: what was proved of one that is left out stays.
  expect(await write()).toMatchObject({ failed: [], skipped: [], files: 10 });
}, 180_000);
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

const write = async () => {
  const { json } = await system.run(['lake', '--to', folder], { SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX });
  return json;
};
const instrumentOf = ({ name }: Pick<TableFile, 'name'>) => dataFileOf(name)!.instrument;
const filesOf = async (instrument: string, date = LAST) =>
  (await tableFiles(folder)).filter((file) => instrumentOf(file) === instrument && file.date === date);
const check = async (path: string) => {
  const { exit, json } = await system.run(['check', path, '--log', logFolderOf(system.env)]);
  return [exit, json.faults, json.not_checked.filter((line: string) => line.includes('instrument'))];
};
const keyOf = async (name: string, datasets: string) => {
  const { exit, json, stderr } = await system.run(['keys', 'add', name, '--scopes', 'export', '--datasets', datasets]);
  expect(exit, stderr).toBe(0);
  return json.secret as string;
};

test('the rows of each instrument are what the service answers, and a second run commits nothing', async () => {
  using duck = await openDuckDb();
  const rows = await expectServed(folder, duck, serving);
  expect(rows).toBeGreaterThan(5 * ROWS);
  const { tables } = await rootOf(folder);
  expect(tables.map(({ table, files }) => [table, files])).toEqual(
    ['aligned_1s', 'native'].map((mode) => [`${A.key}/${mode}`, 5]),
  );
  for (const file of await filesOf(ETH)) expect(await manifestOf(folder, file)).toMatchObject({ instrument: ETH });
  for (const file of await filesOf(BTC)) expect(await manifestOf(folder, file)).not.toHaveProperty('instrument');
  expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0 });
  expect((await rootOf(folder)).tables.map(({ version }) => version)).toEqual([0, 0]);
  expect(await check(folder)).toEqual([0, [], []]);
});

const tool = await tablesPython();
givenTool(tool).test('engines read one instrument, cell by cell', async () => {
  const cases = [];
  for (const mode of ['native', 'aligned_1s'] as const) {
    for (const instrument of [BTC, ETH, SATS]) {
      const rows = join(system.env.dir, `${mode}.${instrument}.json`);
      const body = { sources: [A.key], mode, instrument, time_range: ['2024-01-01T00:00:00Z', '2025-01-01T00:00:00Z'] };
      await writeFile(rows, (await serving.query(body)).text);
      const fields = shapeOf(A, mode).fields.map(({ name, dtype }) => ({ name, dtype }));
      cases.push({ name: `${mode} ${instrument}`, path: join(folder, A.key, mode), instrument, rows, fields });
    }
  }
  const engines = ['delta-rs', 'polars, a table', 'duckdb, a table'] as const;
  const { equal, faults } = await readParquet(tool, engines, cases);
  expect(faults).toEqual([]);
  const columns = cases.reduce((sum, { fields }) => sum + fields.length, 0);
  expect(equal).toEqual(Object.fromEntries(engines.map((engine) => [engine, columns])));
  // What delta-rs may do to a table, `vacuum(full=True)` among it, leaves it provable.
  const maintained = join(folder, A.key, 'native');
  const stray = join(maintained, 'stray.parquet');
  await writeFile(stray, 'x');
  expect((await readParquet(tool, engines, cases, { maintain: maintained })).faults).toEqual([]);
  await expect(stat(stray)).rejects.toThrow('ENOENT');
  // Its commits have no note until the writer comes by.
  expect(await check(folder)).toEqual([1, [expect.stringMatching(/version \d+ of its log has no signed note/)], []]);
  expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0 });
  expect(await check(folder)).toEqual([0, [], []]);
});

test('a key of one instrument reads its files and manifests alone, and mirrors them; its mirror is checked', async () => {
  const key = await keyOf('eth', `${A.key}:${ETH}`);
  const ask = async (path: string, by: string) => {
    const { status, json, headers } = await serving.send({ method: 'GET', path: `/v1/lake/${path}`, key: by });
    return status === 200 ? headers['x-svc-instrument'] : json.code;
  };
  for (const own of await filesOf(ETH)) {
    for (const path of [own.path, own.manifest]) expect(await ask(path, key)).toBe(ETH);
  }
  for (const other of [...(await filesOf(BTC)), ...(await filesOf(SATS))]) {
    for (const path of [other.path, other.manifest]) expect(await ask(path, key)).toBe('AUTH_DATASET_NOT_COVERED');
  }
  const byDefault = await keyOf('btc', `${A.key}:${BTC}`);
  for (const own of await filesOf(BTC)) expect(await ask(own.path, byDefault)).toBeUndefined();
  for (const other of await filesOf(ETH)) expect(await ask(other.path, byDefault)).toBe('AUTH_DATASET_NOT_COVERED');

  const from = `${serving.url}/v1/lake`;
  const copy = join(system.env.dir, 'copy');
  const options = { from, to: copy, key, datasets: [`${A.key}:${ETH}`] };
  expect(await mirror(options)).toMatchObject({ files: 4, new: 4 });
  expect(await mirror(options)).toMatchObject({ unchanged: 4, requests: 1 });
  expect(await check(copy)).toEqual([
    0,
    [],
    ['aligned_1s', 'native'].map((mode) => `${A.key}/${mode}: 3 files of instruments that this mirror does not keep`),
  ]);
  await expect(mirror({ ...options, to: join(system.env.dir, 'all'), datasets: [A.key] })).rejects.toThrow(
    'AUTH_DATASET_NOT_COVERED',
  );
  await expect(
    mirror({ from: pathToFileURL(folder).href, to: join(system.env.dir, 'none'), datasets: [`${A.key}:ETHUSD`] }),
  ).rejects.toThrow(`The table ${A.key}/aligned_1s has no instrument ETHUSD; it has ${SATS}, ${BTC}, ${ETH}`);
});

test('what is withdrawn of one instrument is neither served nor kept, and the others are', async () => {
  const [eth, btc] = [await filesOf(ETH), await filesOf(BTC)];
  await system.rows(
    `update ${A.key}_others t set price = price + 1 from series s
     where s.key = '${ETH}' and t.instrument_id = s.dataset_id and t.trade_id = ${1 + 10 * ROWS}`,
  );
  expect((await system.run(['verify', A.key, '--instrument', ETH])).exit).toBe(1);
  const statusOf = async ({ path }: TableFile) =>
    (await serving.send({ method: 'GET', path: `/v1/lake/${path}` })).status;
  for (const file of eth) expect(await statusOf(file)).toBe(503);
  for (const file of btc) expect(await statusOf(file)).toBe(200);
  expect(await write()).toMatchObject({ removed: 2, written: 0, failed: [] });
  expect(await filesOf(ETH)).toEqual([]);
  expect(await filesOf(BTC)).toEqual(btc);
  expect((await filesOf(ETH, FIRST)).length).toBe(2);
  expect(await faultsOf(folder)).toEqual([]);
});
