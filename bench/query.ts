/**
 * Reads of native rows over HTTP. A day in three representations, beside psql's row_to_json of the same rows; the latest 100 rows and an
 * hour, beside the same SQL through `pg`; filters that few rows pass or none, beside the plain scan; and small reads of 3,000 file days
 * beside those of ten. The sides are compared row by row before they are measured. The time of psql includes its start, some 15 ms.
 */
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { DAY_MS } from '../shared/dates.ts';
import { createDatabase, ingestHistory, iso, MADE_ROWS, makeDays } from './days.ts';
import type { Lab } from './lab.ts';
import { residentMib, timed, timedEach } from './measure.ts';
import { connected, DATASET, latest100, psqlJson, sameFields, type Window } from './others.ts';
import { ARROW, ended, QUERY, type Service, startService } from './service.ts';
import { subject } from './subject.ts';

const FROM_MS = Date.parse('2024-03-01');
const HOUR_MS = 3_600_000;
const SOURCES = { sources: [DATASET] };
const FORMATS = { JSON: 'application/json', CSV: 'text/csv', Arrow: ARROW.Accept };
const PARTS = ['all', 'rows', 'latest', 'hour', 'filters', 'chunks'] as const;

const within = ({ fromMs, toMs }: Window) => ({ ...SOURCES, time_range: [iso(fromMs), iso(toMs)] });

export const query = subject({
  name: 'query',
  compares:
    'rows as JSON, CSV and Arrow, beside psql; the latest 100, an hour, filters and 3,000 days, beside the bare SQL',
  options: { rows: 1_000_000, days: 2, requests: 200, chunks: 3000, only: PARTS },
  rounds: 7,
  smallest: '--rows 500 --requests 2 --chunks 11',
  async run(lab, { rows, days, requests, chunks, only }) {
    const wants = (part: (typeof PARTS)[number]) => only === 'all' || only === part;
    if (only !== 'chunks') {
      await ingestHistory(lab, { fromMs: FROM_MS, toMs: FROM_MS + days * DAY_MS, rows });
      await using service = await startService(lab.stack.databaseUrl);
      if (wants('rows')) await compareRows(lab, service, rows);
      if (wants('latest')) await compareLatest(lab, service, days, requests);
      if (wants('hour')) await compareHour(lab, service);
      if (wants('filters')) await compareFilters(lab, service, days);
      lab.fact('peak memory of the service, MiB', residentMib(service.pid, 'VmHWM'));
    }
    if (wants('chunks')) await compareChunks(lab, chunks, requests);
  },
});

async function compareRows(lab: Lab, service: Service, rows: number): Promise<void> {
  const { stack } = lab;
  const day = { fromMs: FROM_MS, toMs: FROM_MS + DAY_MS };
  await checkRows(lab, service, day, rows);
  const psql = timed(() => ended(psqlJson(stack, sameFields(day))));
  for (const [format, Accept] of Object.entries(FORMATS)) {
    const tidemark = timed(() => service.drain(QUERY, within(day), { Accept }));
    await lab.compare(`${rows.toLocaleString('en-US')} rows as ${format}`, { tidemark, 'psql row_to_json': psql });
  }
}

/** Compares the parsed rows of both sides one by one. */
async function checkRows({ stack }: Lab, service: Service, day: Window, rows: number): Promise<void> {
  const body = await text(await service.post(QUERY, within(day)));
  const served = body.slice(body.indexOf('"rows":[{') + 9, body.lastIndexOf('}]')).split('},{');
  if (served.length !== rows) throw new Error(`${served.length} rows were served, ${rows} ingested`);
  let row = 0;
  for await (const line of createInterface({ input: psqlJson(stack, sameFields(day), 'pipe').stdout! })) {
    const ours = JSON.stringify(JSON.parse(`{${served[row++]}}`));
    if (JSON.stringify(JSON.parse(line)) !== ours) throw new Error(`row ${row} differs: ${line} / ${ours}`);
  }
  if (row !== rows) throw new Error(`psql wrote ${row} rows`);
}

/** Both sides run in this process over one open connection, and end with rows as JavaScript objects. */
async function compareLatest({ compare, stack }: Lab, service: Service, days: number, requests: number) {
  await using client = await connected(stack.databaseUrl);
  const sql = latest100({ fromMs: FROM_MS + (days - 1) * DAY_MS, toMs: FROM_MS + days * DAY_MS });
  const same = (found: number) => {
    if (found !== 100) throw new Error(`${found} rows instead of the latest 100`);
  };
  await compare('latest 100 rows, p50', {
    tidemark: timedEach(requests, async () =>
      same((await service.json(QUERY, { ...SOURCES, n_rows: 100 })).rows.length),
    ),
    pg: timedEach(requests, async () => same((await client.pg.query(sql)).rows.length)),
  });
}

async function compareHour({ compare, stack }: Lab, service: Service): Promise<void> {
  await using client = await connected(stack.databaseUrl);
  const hour = { fromMs: FROM_MS + 12 * HOUR_MS, toMs: FROM_MS + 13 * HOUR_MS };
  const pg = timed(() => client.pg.query({ text: sameFields(hour), rowMode: 'array' }));
  for (const format of ['CSV', 'Arrow'] as const) {
    const headers = { Accept: FORMATS[format] };
    await compare(`an hour as ${format}`, { tidemark: timed(() => service.drain(QUERY, within(hour), headers)), pg });
  }
}

async function compareFilters({ compare, stack }: Lab, service: Service, days: number): Promise<void> {
  await using client = await connected(stack.databaseUrl);
  const { rows: largest } = await client.pg.query<{ quantity: number }>(
    `select quantity from ${DATASET} order by quantity desc limit ${3 * days}`,
  );
  const fields = ['trade_id', 'timestamp', 'price', 'quantity'];
  const sql = `select ${fields.map((name) => `"${name}"`).join(', ')} from ${DATASET} where quantity >= $1
    order by "timestamp", trade_id`;
  const cases = { 'three rows a day': largest.at(-1)!.quantity, 'no row': largest[0].quantity + 1 };
  for (const [what, value] of Object.entries(cases)) {
    const body = { ...SOURCES, fields, filters: [{ field: 'quantity', op: 'gte', value }] };
    const ours = async (): Promise<number[]> => {
      const { rows, code } = JSON.parse(await text(await service.post(QUERY, body)));
      if (!rows && code !== 'QUERY_NO_DATA') throw new Error(`the filter was answered with ${code}`);
      return (rows ?? []).map(({ trade_id }: { trade_id: number }) => trade_id);
    };
    const plain = async () => (await client.pg.query(sql, [value])).rows.map(({ trade_id }) => Number(trade_id));
    const [served, expected] = [await ours(), await plain()];
    if (served.join() !== expected.join())
      throw new Error(`${served.length} rows were served, ${expected.length} found`);
    await compare(`a filter over ${days} days that ${what} passes`, {
      tidemark: timed(ours),
      'plain scan': timed(plain),
    });
  }
}

const FEW_DAYS = 10;

/** The same requests to two services; hours lie anywhere in each history. */
async function compareChunks(lab: Lab, chunks: number, requests: number): Promise<void> {
  const endMs = FROM_MS;
  const made = async (name: string, days: number) => {
    const url = await createDatabase(lab.stack.databaseUrl, name);
    lab.note(`making ${days} days`);
    await makeDays(url, endMs, days);
    return url;
  };
  await using few = await startService(await made('bench_few', FEW_DAYS));
  await using many = await startService(await made('bench_many', chunks));
  const hourIn = (days: number) => {
    const fromMs = endMs - (1 + Math.floor(Math.random() * (days * 24 - 1))) * HOUR_MS;
    return within({ fromMs, toMs: fromMs + HOUR_MS });
  };
  const kinds = {
    'latest 100 rows': { rows: 100, bodyOf: () => ({ ...SOURCES, n_rows: 100 }) },
    'latest 100 seconds': { rows: 100, bodyOf: () => ({ ...SOURCES, n_rows: 100, mode: 'aligned_1s' }) },
    'an hour': { rows: MADE_ROWS / 24, bodyOf: hourIn },
    'an hour of seconds': { rows: MADE_ROWS / 24, bodyOf: (days: number) => ({ ...hourIn(days), mode: 'aligned_1s' }) },
  };
  for (const [what, { rows, bodyOf }] of Object.entries(kinds)) {
    const ask = (service: Service, days: number) =>
      timedEach(requests, async () => {
        const { row_count } = await service.json(QUERY, bodyOf(days));
        if (row_count !== rows) throw new Error(`${row_count} rows were served instead of ${rows}`);
      });
    await lab.compare(`${what} of ${chunks} days, p50`, {
      [`${chunks} days`]: ask(many, chunks),
      [`${FEW_DAYS} days`]: ask(few, FEW_DAYS),
    });
  }
}
