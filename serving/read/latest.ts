/** The last n rows of the order, returned ascending. */
import { gapsBetween } from '../../shared/db/ranges.ts';
import { Params } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import type { LiveContext, Plan, PlanContext } from './context.ts';
import { type Part, within } from './coverage.ts';
import { slicesBackward, slicesOf } from './slices.ts';

/** As many rows are taken from the end and sorted by the database; more are read forward from where they start. */
const SORTED_ROWS = 10_000;

export async function planLatest(context: LiveContext, wanted: number): Promise<Plan> {
  const newest = planNewest(context, wanted);
  if (newest) return newest;
  const { parts, searched } = context;
  const start = await findStart(context, wanted);
  const sinceStart = { from: start?.ms ?? Number.NEGATIVE_INFINITY, to: Number.POSITIVE_INFINITY };
  const kept = within(parts, sinceStart);
  return {
    gaps: gapsBetween(kept),
    parts: kept,
    statements: forward(context, within(searched, sinceStart), start?.key),
  };
}

export type NewestPlan = Plan & { readonly statements: readonly [Statement] };

/** One statement, where the counts of the newest partitions say how far back it has to look. */
export function planNewest(context: PlanContext, wanted: number): NewestPlan | undefined {
  const { parts, relation } = context;
  const newest = parts.at(-1);
  const from = newest && startByTail(context, newest, wanted);
  if (from === undefined) return undefined;
  const part = { ...newest!, from };
  const params = new Params();
  const text = relation.selectLatest({ from, to: part.to, part }, params, wanted);
  return { gaps: [], parts: [part], statements: [{ text, params: params.list, keep: true }], expectedRows: wanted };
}

/**
 * Without filters the counts of the newest partitions say where the rows start, as long as no gap lies between. Only
 * where partitions are stretches of time of their own.
 */
function startByTail({ request, snapshot }: PlanContext, newest: Part, wanted: number): number | undefined {
  if (request.filters.length > 0 || request.dataset.partition.kind !== 'file_day' || wanted > SORTED_ROWS)
    return undefined;
  let rows = 0;
  for (const partition of snapshot.tail) {
    if (partition.fromMs < newest.from) return undefined;
    rows += partition.rows;
    if (rows >= wanted) return partition.fromMs;
  }
  return undefined;
}

/** The n-th row from the end: its key and time. Undefined when there are not as many. */
async function findStart(
  { session, relation, searched }: LiveContext,
  wanted: number,
): Promise<{ readonly key: readonly string[]; readonly ms: number } | undefined> {
  let missing = wanted;
  for (const slice of slicesBackward(searched, relation.chunkMs)) {
    const params = new Params();
    const newestFirst = relation.order(' desc');
    const numbered = `select ${[
      ...relation.key,
      `(${relation.timeMs})::text`,
      `row_number() over (order by ${newestFirst})`,
    ]
      .map((sql, index) => `${sql} as c${index}`)
      .join(', ')} ${relation.from(slice, params)} order by ${newestFirst} limit ${missing}`;
    const last = relation.key.length + 1;
    const [row] = await session.rows(`select * from (${numbered}) n order by c${last} desc limit 1`, params);
    if (!row) continue;
    missing -= Number(row[last]);
    if (missing === 0) return { key: row.slice(0, -2) as string[], ms: Number(row[last - 1]) };
  }
  return undefined;
}

function* forward(
  { relation }: PlanContext,
  parts: readonly Part[],
  key: readonly string[] | undefined,
): Generator<Statement> {
  let isFirst = true;
  for (const slice of slicesOf(parts, relation.chunkMs)) {
    const params = new Params();
    const where = isFirst && key ? relation.fromKey(key, params) : undefined;
    isFirst = false;
    yield { text: relation.select(slice, params, where), params: params.list };
  }
}
