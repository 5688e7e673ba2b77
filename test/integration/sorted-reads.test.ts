/** Filtered reads of many rows, which the database may sort and share among workers: the catalog of a small history says that it is large. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseQuery } from '../../serving/contract/query.ts';
import { PgConnection } from '../../serving/db/pg-connection.ts';
import { poolOptions } from '../../serving/db/pool.ts';
import { contextOf, type LiveContext } from '../../serving/read/plan/context.ts';
import { maySort, sortedBy } from '../../serving/read/plan/sorted.ts';
import { CoverageProbe, Session } from '../../serving/read/snapshot/session.ts';
import { lengthOf } from '../../shared/ranges.ts';
import { DATASET, loadBulk } from '../support/load-rows.ts';
import { runs } from '../support/seed.ts';
import {
  at,
  type Body,
  iso,
  PROVED_FROM,
  PROVED_TO,
  type SmallHistory,
  serveSmallHistory,
  TRADES,
} from '../support/small-history.ts';
import { execute } from '../support/stack.ts';

const MANY_ROWS = 1_000_000;
const sorted = (field: 'price' | 'quantity') => TRADES.map((row) => row[field]).sort((a, b) => a - b);

let history: SmallHistory;

beforeAll(async () => {
  history = await serveSmallHistory();
  const name = new URL(history.env.databaseUrl).pathname.slice(1);
  // Workers take part in reads of any size.
  const settings = ['min_parallel_table_scan_size', 'parallel_setup_cost', 'parallel_tuple_cost'];
  await execute(history.env.databaseUrl, settings.map((one) => `alter database ${name} set ${one} = 0`).join(';'));
  await execute(history.env.databaseUrl, `update partitions set rows = rows + ${MANY_ROWS}`);
});
afterAll(() => history[Symbol.asyncDispose]());

/** The context of a read, as its plan finds it. */
async function withContext<T>(
  body: Omit<Body, 'sources'>,
  use: (live: LiveContext) => Promise<T>,
  rows = MANY_ROWS,
): Promise<T> {
  const parsed = parseQuery({ sources: [DATASET], ...body } as never);
  if ('faults' in parsed) throw new Error(JSON.stringify(parsed.faults));
  const connection = await PgConnection.open(poolOptions(history.env.databaseUrl));
  try {
    const session = new Session(connection);
    const probe = new CoverageProbe(parsed.value.read);
    await session.begin(probe);
    const context = contextOf(parsed.value.read, probe.snapshot());
    return await use({ ...context, session, isAlone: () => true, rowsPerMs: rows / lengthOf(context.searched) });
  } finally {
    connection.end();
  }
}

const decided = (body: Omit<Body, 'sources'>, more: Partial<LiveContext> = {}, rows?: number) =>
  withContext(
    body,
    async (context) => {
      const live = { ...context, ...more };
      const [part] = live.searched;
      return maySort(live) ? await sortedBy(live, { from: part.from, to: part.to, part }) : 'no';
    },
    rows,
  );

const analyze = () => execute(history.env.databaseUrl, `analyze ${DATASET}`);

describe('rows are sorted', () => {
  const few = { filters: [{ field: 'quantity', op: 'gt', value: sorted('quantity').at(-5)! }] };

  test('only where the planner has statistics', async () => {
    // Autovacuum may have analyzed the chunks already.
    await execute(
      history.env.databaseUrl,
      `delete from pg_statistic where starelid = any (
      select format('%I.%I', chunk_schema, chunk_name)::regclass from timescaledb_information.chunks)`,
    );
    expect(await decided(few)).toBeUndefined();
    await analyze();
    expect(await decided(few)).toEqual({ workers: 2 });
  });

  test('of many rows, of a large part of a chunk, with a filter, and by workers while nobody else reads', async () => {
    await analyze();
    expect(await decided(few, { isAlone: () => false })).toEqual({ workers: 0 });
    expect(await decided(few, { isAlone: undefined })).toEqual({ workers: 0 });
    expect(await decided(few, {}, 499_999)).toBe('no');
    expect(await decided({})).toBe('no');
    expect(await decided({ ...few, time_range: [iso(PROVED_FROM), iso(PROVED_FROM + 3_600_000)] })).toBeUndefined();
    const seconds = { mode: 'aligned_1s', filters: [{ field: 'trade_count', op: 'gt', value: 3 }] } as const;
    expect(await decided(seconds)).toBe('no');
  });
});

test('the settings hold for one statement', async () => {
  await withContext({}, async ({ session }) => {
    const settings = () =>
      session.rows(`select current_setting('enable_sort'), current_setting('max_parallel_workers_per_gather')`);
    expect(await settings()).toEqual([['off', '0']]);
    const seen: string[] = [];
    const text = `select current_setting('enable_sort') || current_setting('max_parallel_workers_per_gather')`;
    await session.stream({ text, sorted: { workers: 2 } }, [25], {
      row: (_, bytes, from, length) => void seen.push(bytes.toString('utf8', from + 4, from + length)),
    });
    expect(seen).toEqual(['on2']);
    expect(await settings()).toEqual([['off', '0']]);
  });
});

test('answers hold the rows that pass, in order', async () => {
  await analyze();
  const value = (field: 'price' | 'quantity') => fc.nat(TRADES.length - 1).map((rank) => sorted(field)[rank]);
  const clause = fc
    .constantFrom('price', 'quantity')
    .chain((field) =>
      fc.record({ field: fc.constant(field), op: fc.constantFrom('gt', 'lte', 'eq', 'ne'), value: value(field) }),
    );
  const hours = fc.tuple(fc.integer({ min: -1, max: 120 }), fc.integer({ min: 7, max: 130 }));
  const window = fc.oneof(
    fc.constant({}),
    hours.map(([from, length]) => {
      const start = at('2024-03-01') + from * 3_600_000;
      return { time_range: [iso(start), iso(Math.min(start + length * 3_600_000, PROVED_TO + 3_600_000))] as const };
    }),
  );
  await fc.assert(
    fc.asyncProperty(window, fc.array(clause, { minLength: 1, maxLength: 2 }), (range, filters) =>
      history.check({ ...range, filters }),
    ),
    { numRuns: runs(150) },
  );
});

test('many rows are never sorted', { tags: ['nightly'] }, async () => {
  const day = '2024-05-01';
  await loadBulk(history.env.databaseUrl, { fromDay: day, days: 1, rowsPerDay: 600_000, firstId: 100_000 });
  const time_range = [`${day}T00:00:00Z`, '2024-05-02T00:00:00Z'] as const;
  // Quantities are those of 1 to 30,000 hundred-thousandths, each as often.
  const above = (value: number) => decided({ time_range, filters: [{ field: 'quantity', op: 'gt', value }] });
  expect(await above(0.15)).toBeUndefined();
  expect(await above(0.27)).toEqual({ workers: 2 });
});
