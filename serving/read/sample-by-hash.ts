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

/** Undefined when there are no more rows than wanted: all of them are the sample. None at all are not looked for again. */
export async function sampleByHash<S>(
  of: Sampled<S>,
  wanted: number,
): Promise<Iterable<Statement> | AsyncIterable<Statement> | undefined> {
  const counts = new Map<number, number>();
  for await (const rows of bySlice(of, (hash) => `select (${hash}) >> 48 as class, count(*)`, 'group by 1')) {
    for (const [key, count] of rows) counts.set(Number(key), (counts.get(Number(key)) ?? 0) + Number(count));
  }
  if (counts.size === 0) return [];
  let before = 0;
  let found: number | undefined;
  for (const [key, count] of [...counts].sort(([a], [b]) => a - b)) {
    if (before + count >= wanted) {
      found = key;
      break;
    }
    before += count;
  }
  if (found === undefined) return undefined;
  const inClass: bigint[] = [];
  const ofClass = (hash: string) => `(${hash}) >> 48 = ${found}`;
  for await (const rows of bySlice(of, (hash) => `select ${hash}`, '', ofClass)) {
    for (const [hash] of rows) inClass.push(BigInt(hash!));
  }
  inClass.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  return smallest(of, inClass[wanted - before - 1]);
}

/** The same small result of every slice. */
async function* bySlice<S>(
  { session, rows, slices, seed }: Sampled<S>,
  select: (hash: string) => string,
  rest: string,
  where?: (hash: string) => string,
) {
  for await (const slice of slices()) {
    const params = new Params();
    const hash = rows.hash(params.add(int8(seed)));
    const text = `${select(hash)} ${rows.from(slice, params, { where: where?.(hash) })} ${rest}`;
    yield await session.rows(text, params);
  }
}

async function* smallest<S>({ rows, slices, seed }: Sampled<S>, threshold: bigint): AsyncGenerator<Statement> {
  for await (const slice of slices()) {
    const params = new Params();
    const where = `${rows.hash(params.add(int8(seed)))} <= ${params.add(int8(threshold))}`;
    yield { text: rows.select(slice, params, where), params: params.list };
  }
}
