/**
 * Reads of whole chunks by filters that few rows pass: the database reads the tables in the order in which they are stored, and sorts
 * what passes. That is twice as fast as the order of the index, and several processes can share it. Rows come after the last one was
 * read, so it is for reads whose first row would be late in any case, and the planner must expect few.
 */
import { lengthOf } from '../../../shared/ranges.ts';
import { array, Params, type Statement, text } from '../../db/pg-messages.ts';
import type { Slice } from '../read-model.ts';
import type { LiveContext } from './context.ts';

/** Chunks of one statement: millions of rows take less than a second. */
export const SORTED_CHUNKS = 2;
/** A read of fewer rows is not worth the question to the planner. */
const LEAST_ROWS = 500_000;
/** The most rows that the planner may expect to pass: they take some 25 MB, and are sorted in memory. */
const MOST_SORTED = 250_000;
/** Processes beside the backend that a statement may use while nobody else reads. */
const WORKERS = 2;

interface Plan {
  readonly 'Plan Rows': number;
  readonly 'Relation Name'?: string;
  readonly Plans?: readonly Plan[];
}

/** Whether the read's statements may be sorted: filtered rows of file days, if there are many. */
export const maySort = ({ request, relation, searched, rowsPerMs = 0 }: LiveContext): boolean =>
  request.filters.length > 0 &&
  request.mode === 'native' &&
  relation.validity === 'none' &&
  relation.isSingleSeries &&
  rowsPerMs * lengthOf(searched) >= LEAST_ROWS;

/** The way to run the statement of a slice; undefined for the usual one. */
export async function sortedBy(context: LiveContext, slice: Slice): Promise<Statement['sorted']> {
  const { relation, session, isAlone } = context;
  if (slice.ranges || slice.to - slice.from < relation.chunkMs / 4) return undefined;
  const params = new Params();
  const [[json]] = await session.rows(`explain (format json) select 1 ${relation.from(slice, params)}`, params);
  const [{ Plan: plan }] = JSON.parse(json!) as [{ readonly Plan: Plan }];
  if (plan['Plan Rows'] > MOST_SORTED || !(await haveStatistics(context, tablesOf(plan)))) return undefined;
  return { workers: isAlone?.() ? WORKERS : 0 };
}

const tablesOf = (plan: Plan): string[] => [
  ...(plan['Relation Name'] === undefined ? [] : [plan['Relation Name']]),
  ...(plan.Plans ?? []).flatMap(tablesOf),
];

/** Without statistics the planner guesses, and expects one of two hundred rows to equal any text. */
async function haveStatistics({ session }: LiveContext, tables: readonly string[]): Promise<boolean> {
  if (tables.length === 0) return false;
  const params = new Params();
  const names = params.add(array(tables.map(text)));
  const [[known]] = await session.rows(
    `select bool_and(exists (select from pg_stats s where s.tablename = n)) from unnest(${names}) n`,
    params,
  );
  return known === 't';
}
