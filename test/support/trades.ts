/** What tests of trade files have in common: decoding, and what is stored of them. */
import { type DecodedItem, type EventRun, type PartitionEnd, ReadAgain } from '../../pipelines/sources/feed-types.ts';
import type { Client } from '../../shared/db/connect.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { PartitionFacts } from '../../shared/frame/manifest.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import type { TradeLayout } from './trade-layouts.ts';

/** Feeds text in pieces of the given sizes, over and over; default all at once. */
export function decodeInPieces(
  text: string | Buffer,
  pieces: readonly number[] = [],
  push: (chunk: Buffer) => Iterable<DecodedItem>,
  finish: () => Iterable<DecodedItem>,
): DecodedItem[] {
  const bytes = Buffer.from(text as string);
  const items: DecodedItem[] = [];
  for (let at = 0, turn = 0; at < bytes.length; turn++) {
    const size = pieces.length > 0 ? pieces[turn % pieces.length] : bytes.length;
    // A buffer of its own, overwritten afterwards: a decompressor may use it again.
    const chunk = Buffer.from(bytes.subarray(at, at + size));
    items.push(...push(chunk));
    chunk.fill(0x21);
    at += size;
  }
  items.push(...finish());
  return items;
}

export interface DecodeOptions {
  /** Sizes of the pieces that the bytes come in, over and over; default all at once. */
  readonly pieces?: readonly number[];
  readonly frame?: number;
  readonly day?: string;
  /** Bytes of rows that are sorted in memory at once. */
  readonly run?: number;
}

/** Decodes a file; in another way where the decoder asks for that. */
export function decodeFile(layout: TradeLayout, text: string | Buffer, options: DecodeOptions = {}): DecodedItem[] {
  try {
    return decodeOnce(layout, text, options, false);
  } catch (error) {
    if (error instanceof ReadAgain) return decodeOnce(layout, text, options, true);
    throw error;
  }
}

function decodeOnce(
  layout: TradeLayout,
  text: string | Buffer,
  { pieces, frame, day, run }: DecodeOptions,
  isUnordered: boolean,
): DecodedItem[] {
  const decoder = layout.decoder({ frameRawBytes: frame, day, runBytes: run, isUnordered });
  using cleanup = new DisposableStack();
  cleanup.defer(() => decoder[Symbol.dispose]?.());
  return decodeInPieces(
    text,
    pieces,
    (chunk) => decoder.push(chunk),
    () => decoder.finish(),
  );
}

/** The fault that reading a file ends with. */
export function refusalOf(work: () => readonly DecodedItem[]): TidemarkError {
  let items: readonly DecodedItem[];
  try {
    items = work();
  } catch (error) {
    if (error instanceof TidemarkError) return error;
    throw error;
  }
  throw new Error(`accepted: ${JSON.stringify(factsOf(items))}`);
}

export const endsOf = (items: readonly DecodedItem[]): PartitionEnd[] => items.filter((item) => item.kind === 'end');

export const runsOf = (items: readonly DecodedItem[]): EventRun[] => items.filter((item) => item.kind === 'events');

export const factsOf = (items: readonly DecodedItem[]): PartitionFacts | undefined =>
  items.flatMap((item) => (item.kind === 'end' ? [item.facts] : []))[0];

export const rawOf = (items: readonly DecodedItem[]): string =>
  Buffer.concat(items.flatMap((item) => (item.kind === 'events' ? [item.raw] : []))).toString('latin1');

/** Everything that is known and stored of one partition of a dataset: all empty where it was never heard of. */
export async function tracesOf(client: Client, dataset: DatasetDefinition, partition: string) {
  const { fromMs, toMs } = windowOf(dataset, partition);
  const one = async (sql: string, values: unknown[]) => Number((await client.query(sql, values)).rows[0].n);
  const states = await client.query('select state from partitions where dataset_id = $1 and partition_key = $2', [
    dataset.number,
    partition,
  ]);
  return {
    native: await one(`select count(*) n from ${dataset.native.table} where "timestamp" >= $1 and "timestamp" < $2`, [
      fromMs,
      toMs,
    ]),
    aligned: await one(
      `select count(*) n from canonical_aligned_1s_aggregates where dataset_id = $1
       and aligned_at_utc >= to_timestamp($2 / 1000.0) and aligned_at_utc < to_timestamp($3 / 1000.0)`,
      [dataset.number, fromMs, toMs],
    ),
    frames: await one('select count(*) n from frames where dataset_id = $1 and partition_key = $2', [
      dataset.number,
      partition,
    ]),
    covered: await one(
      'select count(*) n from coverage where dataset_id = $1 and proved && int8multirange(int8range($2, $3))',
      [dataset.number, fromMs, toMs],
    ),
    manifests: await one(
      'select count(*) n from attempts where dataset_id = $1 and partition_key = $2 and manifest is not null',
      [dataset.number, partition],
    ),
    klines: await one(
      'select count(*) n from native_klines where dataset_id = $1 and start_ms >= $2 and start_ms < $3',
      [dataset.number, fromMs, toMs],
    ),
    leaves: await one(
      `select count(*) n from proof_leaves
       where dataset_id = $1 and convert_from(body, 'UTF8')::jsonb->>'partition' = $2`,
      [dataset.number, partition],
    ),
    state: (states.rows[0]?.state as string | undefined) ?? null,
  };
}

export const NO_TRACES = {
  ...{ native: 0, aligned: 0, frames: 0, covered: 0, manifests: 0, klines: 0, leaves: 0 },
  state: null,
};
