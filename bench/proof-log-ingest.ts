/** What the proof log costs an ingest: the leaf of a day and its checkpoint, and the sha256 over its rows, beside the whole day. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import type { ClientBase } from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import { stateProved } from '../pipelines/projector/logged-proof.ts';
import { Sequencer } from '../pipelines/proof-log/sequencer.ts';
import { Catalog } from '../shared/db/catalog.ts';
import { connect } from '../shared/db/connect.ts';
import type { PartitionRow } from '../shared/db/schema.ts';
import { datasetOf } from '../shared/registry/index.ts';
import { benchHarness } from './harness.ts';
import { backfillDays, dayAfter } from './ingest.ts';
import { SUBJECTS } from './ingest-subjects.ts';
import { median, timed } from './measure.ts';

const [SUBJECT] = SUBJECTS;
const DATASET = datasetOf(SUBJECT.dataset);
const FIRST_DAY = '2024-03-01';
/** Leaves that are written and signed one by one. */
const LEAVES = 100;

interface Part {
  readonly name: string;
  readonly seconds: readonly number[];
}

/** @returns seconds of whole days, and of each part that the log adds to one */
export async function measureIngest(
  rows: number,
  rounds: number,
): Promise<{ readonly days: readonly number[]; readonly parts: readonly Part[] }> {
  await using harness = await benchHarness('proof-log');
  const { directory, stack, note } = harness;
  const vendor = join(directory, 'vendor');
  note(`generating ${rounds} days of ${rows.toLocaleString('en-US')} trades`);
  const plan = await SUBJECT.generate(vendor, FIRST_DAY, dayAfter(FIRST_DAY, rounds - 1), rows);
  const days: number[] = [];
  for (const day of plan) {
    days.push(
      await timed(async () => {
        const [code] = await once(backfillDays(stack, SUBJECT, vendor, day, day), 'exit');
        if (code !== 0) throw new Error(`the backfill of ${day} ended with ${code}`);
      }),
    );
  }
  await using client = await connect({ url: stack.databaseUrl, name: 'bench' });
  const [row] = await new Catalog(client).partitions(DATASET, undefined, undefined);
  const folder = join(stack.stateDir, 'proof-log');
  const sequencer = await Sequencer.open({ client, folder, secret: undefined });
  const [written, signed] = [[] as number[], [] as number[]];
  for (let at = 0; at < LEAVES; at++) {
    await client.query('begin');
    written.push(await timed(() => stateProved(client, DATASET, row, { rowsSha256: '0'.repeat(64) })));
    await client.query('commit');
    signed.push(await timed(() => sequencer.round()));
  }
  return {
    days,
    parts: [
      { name: 'the leaf of a day, written in its transaction', seconds: written },
      { name: 'its index, tiles and checkpoint', seconds: signed },
      { name: 'the sha256 over the rows of a day', seconds: await hashing(client, row, rounds) },
    ],
  };
}

async function hashing(client: ClientBase, row: PartitionRow, rounds: number): Promise<number[]> {
  const { table } = DATASET.native;
  const from = Date.parse(row.partitionKey);
  const stream = client.query(
    copyTo(
      `copy (select timestamp, trade_id, price, quantity, quote_quantity, is_buyer_maker, is_best_match from ${table}
       where timestamp >= ${from} and timestamp < ${from + 86_400_000}) to stdout with (format binary)`,
    ),
  );
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk as Buffer);
  const found: number[] = [];
  for (let round = 0; round < rounds; round++) {
    found.push(
      await timed(async () => {
        const hash = createHash('sha256');
        for (const chunk of chunks) hash.update(chunk);
        hash.digest();
      }),
    );
  }
  return found;
}

/** The parts as shares of a day. */
export function linesOf({ days, parts }: Awaited<ReturnType<typeof measureIngest>>): readonly string[] {
  const inMs = (seconds: number) => (1000 * seconds).toFixed(1);
  const shown = (seconds: readonly number[]) =>
    `${inMs(median(seconds))} ms (${inMs(Math.min(...seconds))}..${inMs(Math.max(...seconds))})`;
  return [
    `a day from zip to proved: ${shown(days)}`,
    ...parts.map(
      ({ name, seconds }) => `${name}: ${shown(seconds)}, ratio ${(median(seconds) / median(days)).toFixed(5)}`,
    ),
  ];
}
