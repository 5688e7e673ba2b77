/**
 * Trades of the same days in Tidemark, and in what one would use instead: DuckDB's file, ClickHouse (chdb) and QuestDB, each by its own
 * HTTP or behind the least of it. One table of reads (engine-reads.ts) is run in turns; the answers of all sides are compared first. With
 * TIDEMARK_TEST_DATABASE_URL, a server with the community edition, the same days lie in its columnstore too, as a side of its own.
 */
import { spawn } from 'node:child_process';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { finished } from 'node:stream/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { tableFromIPC } from 'apache-arrow';
import { DAY_MS } from '../shared/dates.ts';
import { freePort } from '../shared/stack/state.ts';
import { compactNow } from '../test/support/compaction.ts';
import { OTHER_DATABASE } from '../test/support/given.ts';
import { loadWorld } from '../test/support/load-worlds.ts';
import { clickhousePython, QUESTDB_JAR, questDb, readersPython, type Tool } from '../test/support/tools.ts';
import type { World } from '../test/support/worlds.ts';
import { createDatabase, type History, ingestHistory } from './days.ts';
import { DIALECTS, type Engine, type Form, loading, PASSING, type Read, readsOf } from './engine-reads.ts';
import { hashrates, hashrateValues } from './frame.ts';
import type { Lab } from './lab.ts';
import { rounded, type Side, timed, timedEach } from './measure.ts';
import { connected, csvToParquet, DATASET, openDuckDb, psqlToCsv, sameFields } from './others.ts';
import { ARROW, type Service, serviceOf, startServer, startService } from './service.ts';
import { subject } from './subject.ts';

const FROM_MS = Date.parse('2024-03-01');
const WRAPPER = join(import.meta.dirname, 'engines.py');
const DATABASE = 'tidemark_bench_engines';
const POLL_MS = 100;
const ACCEPT: Record<Form, string> = { json: 'application/json', csv: 'text/csv', arrow: ARROW.Accept };

/** One that answers the reads. */
interface Store {
  readonly name: string;
  readonly bytesATrade: number;
  has(read: Read): boolean;
  send(read: Read): Promise<IncomingMessage>;
}

export const engines = subject({
  name: 'engines',
  compares: 'reads of the same days, beside DuckDB, ClickHouse and QuestDB',
  options: { rows: 3_500_000, days: 2, requests: 20 },
  rounds: 7,
  smallest: '--rows 2000 --requests 2',
  async run(lab, { rows, days, requests }) {
    const history = { fromMs: FROM_MS, toMs: FROM_MS + days * DAY_MS, rows };
    await using cleanup = new AsyncDisposableStack();
    const series = hashrates(FROM_MS, days);
    const ours = await tidemarks(lab, history, series, cleanup);
    const files = await writeFiles(lab, history, series);
    const others = await otherStores(lab, files, cleanup);
    const stores = [...ours, ...others];
    for (const { name, bytesATrade } of stores) lab.fact(`bytes a trade, ${name}`, bytesATrade);
    const reads = readsOf({ ...history, total: rows * days, limits: files.limits });
    for (const read of reads) await checkSame(lab, read, stores);
    for (const read of reads) {
      const times = read.small ? (ask: () => Promise<unknown>) => timedEach(requests, ask) : timed;
      const sides = stores.flatMap((store): [string, Side][] => {
        const drained = async () => void (await finished((await store.send(read)).resume()));
        return store.has(read) ? [[store.name, times(drained)]] : [];
      });
      const measured = await lab.measure(read.what, Object.fromEntries(sides));
      for (const { name } of ours) {
        const compared = [name, ...others.map((other) => other.name)].filter((side) => side in measured);
        const what = name === ours[0].name ? read.what : `${read.what}: ${name}`;
        lab.report(what, Object.fromEntries(compared.map((side) => [side, measured[side]])));
      }
    }
  },
});

/** Tidemark's rows, and its columns where there is a server that has them. */
async function tidemarks(lab: Lab, history: History, series: World, cleanup: AsyncDisposableStack): Promise<Store[]> {
  const store = async (name: string, databaseUrl: string): Promise<Store> => {
    await loadWorld(databaseUrl, series);
    const service = cleanup.use(await startService(databaseUrl));
    await using client = await connected(databaseUrl);
    const sql = `select hypertable_size('${DATASET}')::float8 / (select count(*) from ${DATASET}) as bytes`;
    const [{ bytes }] = (await client.pg.query(sql)).rows;
    return {
      name,
      bytesATrade: rounded(bytes, 1),
      has: () => true,
      send: async ({ path, body, as = 'json' }) => {
        const response = await service.post(path, body, { Accept: ACCEPT[as] });
        // 404: no row passes the filter.
        if (response.statusCode === 200 || response.statusCode === 404) return response;
        throw new Error(`${path} answered with ${await text(response)}`);
      },
    };
  };
  await ingestHistory(lab, history);
  const rows = await store('tidemark', lab.stack.databaseUrl);
  if (OTHER_DATABASE === undefined) {
    lab.note('no columns: TIDEMARK_TEST_DATABASE_URL names no server with the community edition of TimescaleDB');
    return [rows];
  }
  const drop = async () => {
    await using server = await connected(OTHER_DATABASE!);
    await server.pg.query(`drop database if exists ${DATABASE} with (force)`);
  };
  await drop();
  const databaseUrl = await createDatabase(OTHER_DATABASE, DATABASE);
  cleanup.defer(drop);
  await ingestHistory(lab, history, { SVC_DATABASE_URL: databaseUrl, SVC_STATE_DIR: join(lab.directory, 'columns') });
  await compactNow(databaseUrl, 0);
  return [rows, await store('tidemark columns', databaseUrl)];
}

/** What is stored, as Parquet for the engines, and the limits of the filters. */
async function writeFiles({ directory, stack, note }: Lab, history: History, series: World) {
  note('writing the same trades as Parquet');
  const [csv, trades, states] = ['trades.csv', 'trades.parquet', 'hashrates.parquet'].map((name) =>
    join(directory, name),
  );
  await psqlToCsv(stack, sameFields(history), csv);
  await csvToParquet(csv, trades);
  await rm(csv);
  using duckdb = await openDuckDb();
  await duckdb.connection.run(
    `copy (select * from (values ${hashrateValues(series)}) v(timestamp, hashrate, interval) order by 1) to '${states}'`,
  );
  const limits = Object.values(PASSING).map((share) => `quantile_disc(price * quantity, ${1 - share})`);
  const found = await duckdb.connection.runAndReadAll(`select ${limits} from '${trades}'`);
  const [values] = found.getRows();
  // Whole numbers: a product of doubles may differ from the served decimal in its last place.
  return {
    ...{ trades, hashrates: states },
    limits: Object.fromEntries(Object.keys(PASSING).map((share, at) => [share, Math.floor(Number(values[at]))])),
  };
}

type Files = Awaited<ReturnType<typeof writeFiles>>;

/** The engines that this machine can have, loaded. */
async function otherStores(lab: Lab, files: Files, cleanup: AsyncDisposableStack): Promise<Store[]> {
  const { directory } = lab;
  const starts: Record<Engine, readonly [() => Promise<Tool>, (tool: Tool, place: string) => Promise<Service>]> = {
    DuckDB: [readersPython, ({ path }, place) => startServer(path, [WRAPPER, 'DuckDB', place])],
    ClickHouse: [clickhousePython, ({ path }, place) => startServer(path, [WRAPPER, 'ClickHouse', place])],
    QuestDB: [questDb, ({ path }, place) => startQuestDb(path, place, directory)],
  };
  const stores: Store[] = [];
  for (const [engine, [toolOf, start]] of Object.entries(starts) as [Engine, (typeof starts)[Engine]][]) {
    const tool = await toolOf();
    if (tool.missing !== undefined) {
      lab.note(`no ${engine}: ${tool.missing}`);
      continue;
    }
    lab.note(`loading ${engine}`);
    const place = join(directory, engine);
    const service = cleanup.use(await start(tool, place));
    const run = async (sql: string, as: Form = 'json') => {
      const response = await service.post(...requestOf(engine, sql, as));
      if (response.statusCode === 200) return response;
      throw new Error(`${engine} answered ${sql.slice(0, 200)} with ${await text(response)}`);
    };
    const cell = async (sql: string) => Number((await cellsOf(lab, await run(sql), 'json', ['n']))[0][0]);
    for (const sql of loading(engine, files)) {
      await text(await run(sql));
      while (DIALECTS[engine].pending && (await cell(DIALECTS[engine].pending)) > 0) await delay(POLL_MS);
    }
    stores.push({
      name: engine,
      bytesATrade: rounded(await cell(DIALECTS[engine].bytes), 1),
      has: ({ sql }) => sql[engine] !== undefined,
      send: ({ sql, as = 'json' }) => run(sql[engine]!, as),
    });
  }
  return stores;
}

/** QuestDB's own HTTP has no Arrow, and Parquet instead. */
const QUESTDB_PATHS: Record<Form, string> = { json: '/exec?', csv: '/exp?', arrow: '/exp?fmt=parquet&' };

const requestOf = (engine: Engine, sql: string, as: Form): [path: string, body?: object] =>
  engine === 'QuestDB' ? [`${QUESTDB_PATHS[as]}query=${encodeURIComponent(sql)}`] : ['/', { sql, as }];

async function startQuestDb(folder: string, place: string, files: string): Promise<Service> {
  const port = await freePort();
  await mkdir(place);
  const settings = {
    QDB_HTTP_BIND_TO: `127.0.0.1:${port}`,
    QDB_CAIRO_SQL_COPY_ROOT: files,
    QDB_CAIRO_COMMIT_MODE: 'sync',
    ...Object.fromEntries(
      ['PG', 'LINE_TCP', 'LINE_UDP', 'HTTP_MIN', 'TELEMETRY'].map((part) => [`QDB_${part}_ENABLED`, 'false']),
    ),
  };
  const args = ['-p', join(folder, QUESTDB_JAR), '-m', 'io.questdb/io.questdb.ServerMain', '-d', place];
  const child = spawn('java', args, { stdio: 'ignore', env: { ...process.env, ...settings } });
  const service = serviceOf(child, `http://127.0.0.1:${port}`);
  const answers = () => service.post('/ping').then(text, () => undefined);
  while ((await answers()) === undefined) {
    if (child.exitCode !== null) throw new Error(`QuestDB ended with ${child.exitCode}`);
    await delay(POLL_MS);
  }
  return service;
}

/** @throws Error unless all stores answer with the same cells */
async function checkSame(lab: Lab, read: Read, stores: readonly Store[]): Promise<void> {
  lab.note(`comparing ${read.what}`);
  const cells = async (store: Store) => await cellsOf(lab, await store.send(read), read.as ?? 'json', read.compared);
  const [ours, ...others] = stores.filter((store) => store.has(read));
  const expected = await cells(ours);
  for (const other of others) {
    const found = await cells(other);
    for (const [at, name] of read.compared.entries()) {
      const difference = differenceOf(expected[at], found[at], read.random);
      if (difference) throw new Error(`${read.what}: ${name} differs: ${ours.name} / ${other.name}: ${difference}`);
    }
  }
}

type Cells = ArrayLike<number | bigint>;
type Row = Readonly<Record<string | number, number | null>>;

/** Sums of engines are not exact, and ours are rounded. */
const TOLERANCE = 1e-9;
/** QuestDB draws each row by itself. */
const APPROXIMATE = 0.2;

function differenceOf(ours: Cells, theirs: Cells, random = false): string | undefined {
  if (random && Math.abs(ours.length - theirs.length) <= APPROXIMATE * ours.length) return undefined;
  if (ours.length !== theirs.length) return `${ours.length} / ${theirs.length} rows`;
  for (let row = 0; row < ours.length; row++) {
    const [one, other] = [Number(ours[row]), Number(theirs[row])];
    const isSame = Math.abs(one - other) <= TOLERANCE * (1 + Math.abs(one));
    if (!isSame) return `${one} / ${other} in row ${row}`;
  }
  return undefined;
}

/** The cells of an answer by column, oldest row first. */
async function cellsOf(
  { directory }: Lab,
  response: IncomingMessage,
  as: Form,
  names: readonly string[],
): Promise<Cells[]> {
  const body = await buffer(response);
  if (response.statusCode === 404) return names.map(() => []);
  const columns = await columnsOf(body, as, names, directory);
  const [key = []] = columns;
  const isNewestFirst = key.length > 1 && key[0] > key[key.length - 1];
  return isNewestFirst ? columns.map((column) => Array.from(column).reverse()) : columns;
}

async function columnsOf(body: Buffer, as: Form, names: readonly string[], directory: string): Promise<Cells[]> {
  if (as === 'json') {
    const { rows, data, columns, dataset } = JSON.parse(String(body));
    const placeOf = (name: string) =>
      dataset ? columns.findIndex((column: { name: string }) => column.name === name) : name;
    // A frame has buckets without trades.
    const found = (dataset ?? data ?? rows).filter((row: Row) => row[placeOf(names[0])] !== null);
    return names.map((name) => found.map((row: Row) => row[placeOf(name)]));
  }
  if (as === 'csv') {
    const [header, ...lines] = body.toString('latin1').trimEnd().split(/\r?\n/);
    const places = header.replaceAll('"', '').split(',');
    return names.map((name) => lines.map((line) => Number(line.split(',')[places.indexOf(name)])));
  }
  if (!body.subarray(0, 4).equals(Buffer.from('PAR1'))) {
    const table = tableFromIPC(body);
    return names.map((name) => table.getChild(name)!.toArray());
  }
  const file = join(directory, 'answer.parquet');
  await writeFile(file, body);
  using duckdb = await openDuckDb();
  const read = await duckdb.connection.runAndReadAll(`select ${names} from '${file}'`);
  await rm(file);
  // Without rows it has no columns.
  const columns = read.getColumns() as Cells[];
  return names.map((_, at) => columns[at] ?? []);
}
