/**
 * Filters over days: a query with a filter that some three frames a day hold, and one that no row passes, over HTTP, beside the
 * plain scan: hand-written SQL for the same rows through `pg`. Rounds alternate, after a warm-up that checks that both sides
 * find the same rows. Both end with rows as JavaScript objects.
 *
 * Options: --rows N (3,500,000) a day, --days N (4), --rounds N (5), --json.
 */
import { buffer } from 'node:stream/consumers';
import pg from 'pg';
import { DAY_MS } from '../shared/dates.ts';
import { benchHarness } from './harness.ts';
import { alternating } from './measure.ts';
import { optionsOf } from './options.ts';
import { DATASET, ingestHistory, type QueryServer, startServer } from './query-subjects.ts';

const START_MS = Date.parse('2024-03-01T00:00:00Z');
const FIELDS = ['trade_id', 'timestamp', 'price', 'quantity'];

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, days, rounds, json } = optionsOf(argv, {
    counts: { rows: [3_500_000, 1], days: [4, 1], rounds: [5, 1] },
  });
  await using harness = await benchHarness('filters');
  const { directory, stack, note } = harness;
  const history = { fromMs: START_MS, toMs: START_MS + days * DAY_MS, rows };
  await ingestHistory(stack, directory, history, { note });
  await using server = await startServer(stack);
  const client = new pg.Client({ connectionString: stack.databaseUrl });
  await client.connect();
  try {
    const largest = await client.query<{ quantity: number }>(
      `select quantity from ${DATASET} order by quantity desc limit ${3 * days}`,
    );
    const few = largest.rows.at(-1)!.quantity;
    const cases = {
      'three frames a day': few,
      'no row': largest.rows[0].quantity + 1,
    };
    const found: Record<string, Awaited<ReturnType<typeof compare>>> = {};
    for (const [name, least] of Object.entries(cases)) {
      note(`comparing quantity >= ${least}: ${name}`);
      found[name] = await compare(server, client, least, rounds);
    }
    const result = {
      bench: 'filters',
      rows_a_day: rows,
      days,
      rounds,
      ratio: found['three frames a day'].ratio,
      cases: found,
    };
    process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${linesOf(result).join('\n')}\n`);
  } finally {
    await client.end();
  }
}

async function compare(server: QueryServer, client: pg.Client, least: number, rounds: number) {
  const sql = `select ${FIELDS.map((name) => `"${name}"`).join(', ')} from ${DATASET} where quantity >= $1
    order by "timestamp", trade_id`;
  const body = { fields: FIELDS, filters: [{ field: 'quantity', op: 'gte', value: least }] };
  let headers: Record<string, unknown> = {};
  const ours = async (): Promise<number[]> => {
    const response = await server.postAny('/v1/raw/query', { sources: [DATASET], ...body });
    headers = response.headers;
    const answer = JSON.parse(String(await buffer(response)));
    if (response.statusCode === 404 && answer.code === 'QUERY_NO_DATA') return [];
    if (response.statusCode !== 200) throw new Error(JSON.stringify(answer));
    return answer.rows.map(({ trade_id }: { trade_id: number }) => trade_id);
  };
  const plain = async () => (await client.query(sql, [least])).rows.map(({ trade_id }) => Number(trade_id));
  const [served, expected] = [await ours(), await plain()];
  if (served.join() !== expected.join()) throw new Error(`${served.length} rows were served, ${expected.length} found`);
  const { first_ms, second_ms, ...ratios } = await alternating(ours, plain, rounds, 4);
  return {
    rows: expected.length,
    partitions_read: Number(headers['x-svc-partitions-read']),
    partitions_skipped: Number(headers['x-svc-partitions-skipped']),
    tidemark_ms: first_ms,
    plain_scan_ms: second_ms,
    ...ratios,
  };
}

interface Result {
  readonly rows_a_day: number;
  readonly days: number;
  readonly rounds: number;
  readonly cases: Readonly<Record<string, Awaited<ReturnType<typeof compare>>>>;
}

const linesOf = ({ rows_a_day, days, rounds, cases }: Result): string[] => [
  `${days} days of ${rows_a_day.toLocaleString('en-US')} trades, medians of ${rounds} rounds`,
  ...Object.entries(cases).map(
    ([name, one]) =>
      `  ${name}, ${one.rows} rows: ${one.tidemark_ms} ms over HTTP, plain scan ${one.plain_scan_ms} ms  ratio ${one.ratio} (${one.ratio_min}..${one.ratio_max}), ${one.partitions_read} file days read, ${one.partitions_skipped} skipped`,
  ),
];
