/** Rows of a sample by what identifies them: found, looked whether they pass the filters, and answered in their order. */
import { Params } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import type { LiveContext } from './context.ts';
import type { Part } from './coverage.ts';
import { Relation } from './relation.ts';
import { batched, type MakeLookup, statementsOf } from './sample.ts';
import type { Slice } from './slices.ts';

const SECOND_MS = 1000;

/** What identifies a row: its time, and the values of the order as text. */
export interface RowKey {
  readonly ms: number;
  readonly values: readonly string[];
}

/** The rows of the keys, in their order. */
export async function rowsByKey(context: LiveContext, keys: readonly RowKey[]): Promise<Iterable<Statement>> {
  return statementsOf(context, await lookupsOf(context, keys));
}

/** Those of the keys whose rows are there and pass the filters. */
export async function passing(context: LiveContext, keys: readonly RowKey[]): Promise<RowKey[]> {
  const { request, session } = context;
  // Without fields nothing is worked out that no filter asks for.
  const relation = new Relation({ ...request, fields: [] }, context);
  const found: RowKey[] = [];
  for (const batch of batched(await lookupsOf({ ...context, relation }, keys))) {
    const params = new Params();
    found.push(...keysOf(await session.rows(relation.selectKeys(batch.map((make) => make(params))), params)));
  }
  return found;
}

/** Keys out of rows of `relation.selectKeys`. */
export const keysOf = (rows: readonly (readonly (string | null)[])[]): RowKey[] =>
  rows.map(([ms, ...values]) => ({ ms: Number(ms), values: values as string[] }));

const byTime = (keys: readonly RowKey[]) => [...Map.groupBy(keys, ({ ms }) => ms)].sort(([a], [b]) => a - b);

/** Look-ups of the keys, by their times. Where the end of validity is asked for, by fields or by a filter, it is told. */
async function lookupsOf(context: LiveContext, keys: readonly RowKey[]): Promise<MakeLookup[][]> {
  const { relation } = context;
  const times = byTime(keys);
  const needsNext = relation.validity === 'computed' && relation.isOneLine;
  const following = needsNext ? await followersOf(context, times) : undefined;
  return times.map(([ms, ofTime]) => [lookupOf(context, relation, ms, ofTime, following?.get(ms))]);
}

function lookupOf(
  { parts }: LiveContext,
  relation: Relation,
  ms: number,
  keys: readonly RowKey[],
  next?: number,
): MakeLookup {
  const following = next === undefined ? { from: ms, to: ms } : { from: next, to: next + 1 };
  const slice: Slice = { from: ms, to: ms + 1, part: partAt(parts, ms), following };
  return (params) => relation.lookup(slice, params, { where: relation.isOneOf(keys, params) });
}

const partAt = (parts: readonly Part[], ms: number): Part =>
  parts.find((part) => part.to > ms) ?? parts[parts.length - 1];

/** The aligned row that follows each of the times, as far as it may end the validity of the one there. */
async function followersOf(
  { session, relation, parts }: LiveContext,
  times: readonly (readonly [number, readonly RowKey[]])[],
): Promise<ReadonlyMap<number, number>> {
  const found = new Map<number, number>();
  let open = times.map(([ms]) => ({ ms, end: partAt(parts, ms).until }));
  // Near first: the index of a chunk or two tells of nearly all.
  for (let reach = relation.chunkMs; open.length > 0; reach *= 4) {
    for (const batch of batched(open.map((one) => [one]))) {
      const selects = batch.map(({ ms, end }) => {
        const slice = { from: ms + SECOND_MS, to: Math.min(ms + reach, end), part: parts[0] };
        return `select ${ms}, (${relation.selectFirst(slice)})`;
      });
      for (const [ms, next] of await session.rows(selects.join(' union all '))) {
        if (next !== null) found.set(Number(ms), Number(next));
      }
    }
    const reached = reach;
    open = open.filter(({ ms, end }) => !found.has(ms) && ms + reached < end);
  }
  return found;
}
