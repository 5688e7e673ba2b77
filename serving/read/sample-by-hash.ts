/**
 * A uniform sample by scans: the rows with the n smallest hashes of (seed, identity). Memory stays flat for any n: a
 * count of rows by the first 16 bits of their hash says in which of the 65,536 classes the n-th smallest lies, and only
 * that class is looked at.
 */
import { int8, Params } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import type { Rows } from './rows.ts';
import type { Session } from './session.ts';

/** What is sampled: rows, and their slices in order, as often as they are asked for. */
export interface Sampled<S> {
  readonly session: Session;
  readonly rows: Rows<S>;
  readonly slices: () => Iterable<S> | AsyncIterable<S>;
  readonly seed: number;
}

/** The sample; `all`: there are no more rows than wanted, and these slices hold them. Only slices with rows are read again. */
export async function sampleByHash<S>(
  of: Sampled<S>,
  wanted: number,
): Promise<{ readonly sample: Iterable<Statement> } | { readonly all: readonly S[] }> {
  const counts = new Map<number, number>();
  /** Slices that hold rows, and the lowest class of these. */
  const held: { readonly slice: S; readonly least: number }[] = [];
  for await (const slice of of.slices()) {
    const rows = await lookInto(of, slice, (hash) => `select (${hash}) >> 48 as class, count(*)`, 'group by 1');
    for (const [key, count] of rows) counts.set(Number(key), (counts.get(Number(key)) ?? 0) + Number(count));
    if (rows.length > 0)
      held.push({
        slice,
        least: rows.reduce((least, [key]) => Math.min(least, Number(key)), Number.POSITIVE_INFINITY),
      });
  }
  let before = 0;
  let found: number | undefined;
  for (const [key, count] of [...counts].sort(([a], [b]) => a - b)) {
    if (before + count >= wanted) {
      found = key;
      break;
    }
    before += count;
  }
  if (found === undefined) return { all: held.map(({ slice }) => slice) };
  const inClass: bigint[] = [];
  const ofClass = (hash: string) => `(${hash}) >> 48 = ${found}`;
  const sampled = held.filter(({ least }) => least <= found);
  for (const { slice } of sampled) {
    const hashes = await lookInto(of, slice, (hash) => `select ${hash}`, '', ofClass);
    for (const [hash] of hashes) inClass.push(BigInt(hash!));
  }
  inClass.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  const slices = sampled.map(({ slice }) => slice);
  return { sample: smallest(of, slices, inClass[wanted - before - 1]) };
}

/** All rows of the slices. */
export function* selectEach<S>(rows: Rows<S>, slices: readonly S[]): Generator<Statement> {
  for (const slice of slices) {
    const params = new Params();
    yield { text: rows.select(slice, params), params: params.list };
  }
}

/** A small result of one slice. */
async function lookInto<S>(
  { session, rows, seed }: Sampled<S>,
  slice: S,
  select: (hash: string) => string,
  rest: string,
  where?: (hash: string) => string,
) {
  const params = new Params();
  const hash = rows.hash(params.add(int8(seed)));
  return await session.rows(`${select(hash)} ${rows.from(slice, params, { where: where?.(hash) })} ${rest}`, params);
}

function* smallest<S>({ rows, seed }: Sampled<S>, slices: readonly S[], threshold: bigint): Generator<Statement> {
  for (const slice of slices) {
    const params = new Params();
    const where = `${rows.hash(params.add(int8(seed)))} <= ${params.add(int8(threshold))}`;
    yield { text: rows.select(slice, params, where), params: params.list };
  }
}
