/** `leaves` makes the leaves of partitions that were proved before the proof log was kept; `proof-log` repairs the log and renews its key. */
import type { ClientBase } from 'pg';
import { proofLogFolderOf } from '../../../shared/config/settings.ts';
import { Catalog } from '../../../shared/db/catalog.ts';
import { connect, PROOF_LOG_LOCK, withClient } from '../../../shared/db/connect.ts';
import { lockCoverage } from '../../../shared/db/partition-changes.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { describeDiscrepancies } from '../../../shared/proof/recount.ts';
import { folderSource, loadSigner, rotateSigner } from '../../../shared/proof-log/folder.ts';
import { decodeLeaf, encodeLeaf, LEAF_VERSION, type Leaf } from '../../../shared/proof-log/leaf.ts';
import { equalHashes, GrowingTree, type Hash, leafHash } from '../../../shared/proof-log/merkle.ts';
import { decodeEntries, readTile, TILE_WIDTH } from '../../../shared/proof-log/tiles.ts';
import { DATASETS, type DatasetDefinition } from '../../../shared/registry/index.ts';
import { DirtyBuckets } from '../../projector/dirty-buckets.ts';
import { provingLeaf, stateProved, storedRowsSha256 } from '../../projector/logged-proof.ts';
import { retractPartition } from '../../projector/retract.ts';
import { recountStored } from '../../projector/verify.ts';
import { signedTree } from '../../proof-log/sequencer.ts';
import type { Projection } from '../../rows/binary-copy.ts';
import { projectionOf } from '../../sources/index.ts';
import { type Context, openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions, type PartitionReport } from '../over-partitions.ts';

/**
 * Recounts a proved partition that has no leaf and adds its leaf, or quarantines it, in a transaction of its own.
 * @throws TidemarkError PARTITION_CHANGED
 */
export async function makeLeaf(
  client: ClientBase,
  dataset: DatasetDefinition,
  projection: Projection,
  row: PartitionRow,
): Promise<PartitionReport> {
  const { partitionKey: partition, manifest } = row;
  assert(manifest, 'a proved partition has a manifest');
  if (projection.seconds) await DirtyBuckets.prepare(client);
  await client.query('begin');
  try {
    if (await provingLeaf(client, dataset, row)) {
      await client.query('rollback');
      return { partition, state: 'there', rows: row.rows ?? 0 };
    }
    const { found, discrepancies } = await recountStored(client, dataset, projection, row, manifest);
    const rowsSha256 = await storedRowsSha256(client, dataset, row);
    await lockCoverage(client, dataset);
    const now = await new Catalog(client).partition(dataset, partition);
    if (now?.state !== 'proved' || now.attempt !== row.attempt || now.provedAt?.getTime() !== row.provedAt?.getTime()) {
      throw new TidemarkError('PARTITION_CHANGED', `${dataset.key} ${partition} has changed since it was read`);
    }
    const reason = describeDiscrepancies(discrepancies);
    if (reason)
      await retractPartition(client, dataset, projection.seconds, row, { reason, by: 'verify', recount: found });
    else await stateProved(client, dataset, now, { rowsSha256, backfilled: true });
    await client.query('commit');
    return { partition, state: reason ? 'quarantined' : 'made', rows: found.rows, ...(reason ? { reason } : {}) };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

export async function runLeaves(command: ParsedCommand): Promise<number> {
  return await overPartitions(command, {
    name: 'leaves',
    states: ['proved'],
    good: ['made', 'there'],
    work: (dataset, row, { pool }) =>
      withClient(pool, (client) => makeLeaf(client, dataset, projectionOf(dataset), row)),
  });
}

const ACTIONS: Readonly<Record<string, (context: Context, command: ParsedCommand) => Promise<number>>> = {
  rotate,
  restored,
};

export async function runProofLog(command: ParsedCommand): Promise<number> {
  const [action] = command.positionals;
  const run = ACTIONS[action];
  if (!run) throw new TidemarkError('USAGE', `proof-log takes ${Object.keys(ACTIONS).join(' or ')}, not ${action}`);
  await using context = await openContext(command, 'proof-log');
  return await run(context, command);
}

async function rotate({ settings, output }: Context): Promise<number> {
  const folder = proofLogFolderOf(settings);
  const isSet = settings.SVC_PROOF_LOG_KEY !== undefined;
  const { verifier, secret } = await rotateSigner(folder, settings.SVC_PROOF_LOG_KEY);
  const answer = { command: 'proof-log', action: 'rotate', ok: true, key: verifier.line, ...(isSet && { secret }) };
  output.answer(answer, () =>
    [
      `The new key of the proof log is ${verifier.line}`,
      isSet
        ? `Set SVC_PROOF_LOG_KEY=${secret} and restart the projector; the key is shown only now.`
        : 'The next checkpoint is signed with it.',
    ].join('\n'),
  );
  return 0;
}

async function restored({ settings, databaseUrls, output }: Context, command: ParsedCommand): Promise<number> {
  const reason = command.values.reason as string | undefined;
  if (!reason) throw new TidemarkError('USAGE', 'proof-log restored needs --reason, which the log keeps');
  const folder = proofLogFolderOf(settings);
  const signer = await loadSigner(folder, settings.SVC_PROOF_LOG_KEY);
  await using client = await connect({ url: databaseUrls.ingest, name: 'tidemark proof-log restored' });
  // The sequencer gives up the lock after each failure, and pauses.
  await client.query('select pg_advisory_lock($1, 0)', [PROOF_LOG_LOCK]);
  const { from, to } = await takeBack(client, { folder, signed: await signedTree(folder, signer), reason });
  output.answer({ command: 'proof-log', action: 'restored', ok: true, from, to, leaves: to - from }, () =>
    to === from
      ? 'The database has every leaf that was signed; nothing is changed.'
      : `${to - from} leaves, ${from} to ${to - 1}, are in the database again; the log says that they were lost. Partitions that the database lacks are proved again from the event log.`,
  );
  return 0;
}

interface LostLeaves {
  readonly folder: string;
  readonly signed: { readonly size: number; readonly root: Hash };
  readonly reason: string;
}

/** Takes the leaves that a restored database lacks from the log's files, and states it in the log. The tree never shrinks. */
export async function takeBack(
  client: ClientBase,
  { folder, signed, reason }: LostLeaves,
): Promise<{ readonly from: number; readonly to: number }> {
  const { rows } = await client.query('select size, root from proof_head');
  const head = rows[0] ?? { size: 0, root: new GrowingTree().root };
  const from = Number(head.size);
  if (from >= signed.size) return { from, to: from };
  const source = folderSource(folder);
  const tree = new GrowingTree();
  await client.query('begin');
  try {
    for (let tile = 0; tree.size < signed.size; tile++) {
      const first = tile * TILE_WIDTH;
      const width = Math.min(TILE_WIDTH, signed.size - first);
      const entries = decodeEntries(await readTile(source, 'entries', tile, signed.size), width);
      for (const [at, body] of entries.entries()) {
        if (tree.size === from && !equalHashes(tree.root, head.root)) throw notOurs(from);
        tree.add(leafHash(body));
        if (first + at >= from) await insertLeaf(client, decodeLeaf(body), Buffer.from(body), first + at);
      }
    }
    if (!equalHashes(tree.root, signed.root)) throw notOurs(signed.size);
    await client.query(
      `insert into proof_head (size, root) values ($1, $2) on conflict (is_only) do update set size = excluded.size, root = excluded.root`,
      [signed.size, signed.root],
    );
    const stated = restoredLeaf(`leaves ${from} to ${signed.size - 1} were lost by the database: ${reason}`);
    await insertLeaf(client, stated, encodeLeaf(stated), null);
    await client.query('commit');
    return { from, to: signed.size };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

const notOurs = (size: number) =>
  new TidemarkError('PROOF_LOG_FORKED', `The first ${size} leaves of the files are not those of the checkpoint`);

const NUMBERS = new Map([...DATASETS.values()].map(({ key, number }) => [key as string, number]));

async function insertLeaf(client: ClientBase, leaf: Leaf, body: Buffer, index: number | null): Promise<void> {
  await client.query(
    `insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body) values ($1, $2, $3, $4, $5, $6)`,
    [index, NUMBERS.get(leaf.dataset ?? '') ?? null, leaf.partition, leaf.attempt, leaf.kind, body],
  );
}

const restoredLeaf = (reason: string): Leaf => ({
  v: LEAF_VERSION,
  kind: 'restored',
  dataset: null,
  partition: null,
  revision: null,
  attempt: null,
  synthetic: false,
  document: null,
  rows: null,
  first_offset: null,
  last_offset: null,
  rows_hash: null,
  events_sha256: null,
  rows_sha256: null,
  aligned_hash: null,
  klines_sha256: null,
  at: new Date().toISOString(),
  reason,
});
