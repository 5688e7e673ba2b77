/** What tests of trade files have in common. */
import { createWriteStream } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { to as copyTo } from 'pg-copy-streams';
import type { DecodedItem } from '../../pipelines/sources/types.ts';
import type { Client } from '../../shared/db/connect.ts';
import type { PartitionFacts } from '../../shared/frame/manifest.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/partitions.ts';
import type { Answer, Running } from './pipeline.ts';

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
    state: (states.rows[0]?.state as string | undefined) ?? null,
  };
}

export const NO_TRACES = { native: 0, aligned: 0, frames: 0, covered: 0, manifests: 0, state: null };

/** One-second rows as stored, [second, count, open, high, low, close, quantity, quote]. */
export async function storedSeconds(client: Client, dataset: DatasetDefinition): Promise<number[][]> {
  const { rows } = await client.query({
    text: `select extract(epoch from aligned_at_utc)::int8, trade_count, open_price, high_price, low_price, close_price,
      quantity_sum, quote_volume_sum from canonical_aligned_1s_aggregates where dataset_id = $1 order by 1`,
    values: [dataset.number],
    rowMode: 'array',
  });
  return rows.map((row: unknown[]) => row.map(Number));
}

/** Stored native rows written to a file for DuckDB to read. */
export async function storedRows(client: Client, dataset: DatasetDefinition, path: string): Promise<void> {
  const names = dataset.native.columns.map(({ name }) => `"${name}"`).join(', ');
  const stream = client.query(
    copyTo(`copy (select ${names} from ${dataset.native.table}) to stdout with (format csv)`),
  );
  await pipeline(stream, createWriteStream(path));
}

/** Kills the command, or its projector, at random moments until it has been done often enough; then lets it finish. */
export async function killedBackfill(start: () => Running, kills: number, random: () => number): Promise<Answer> {
  for (let round = 0; ; round++) {
    const running = start();
    if (round === kills) return await running.done;
    await delay(300 + random() * 1200);
    const [projector] = await childrenOf(running.child.pid!);
    const victim = round % 2 === 1 && projector !== undefined ? projector : running.child.pid!;
    try {
      process.kill(victim, 'SIGKILL');
    } catch {
      // ended by itself just before
    }
    if (victim !== running.child.pid) {
      await delay(200 + random() * 400);
      running.child.kill('SIGKILL');
    }
    await running.done;
  }
}

async function childrenOf(pid: number): Promise<number[]> {
  const text = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8').catch(() => '');
  return text.split(' ').filter(Boolean).map(Number);
}
