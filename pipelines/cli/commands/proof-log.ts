/** `proof-log`: rotates the key of the proof log, and restores leaves that database or folder lost. */
import { join } from 'node:path';
import type { ClientBase } from 'pg';
import { proofLogFolderOf } from '../../../shared/config/settings.ts';
import { connect, PROOF_LOG_LOCK } from '../../../shared/db/connect.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import {
  CHECKPOINT_FILE,
  folderSource,
  loadSigner,
  rotateSigner,
  writeDurably,
} from '../../../shared/proof-log/folder.ts';
import { decodeLeaf, encodeLeaf, LEAF_VERSION, type Leaf } from '../../../shared/proof-log/leaf.ts';
import { equalHashes, GrowingTree, leafHash } from '../../../shared/proof-log/merkle.ts';
import { openCheckpoint, parseVerifier, type Signer } from '../../../shared/proof-log/note.ts';
import { readEntries, TILE_WIDTH, TileFault } from '../../../shared/proof-log/tiles.ts';
import { DATASETS } from '../../../shared/registry/index.ts';
import { makeTiles, signedTree } from '../../proof-log/sequencer.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';

export async function rotate(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'proof-log');
  const { settings, databaseUrls, output } = context;
  const folder = proofLogFolderOf(settings);
  const isSet = settings.SVC_PROOF_LOG_KEY !== undefined;
  await using client = await connect({ url: databaseUrls.ingest, name: 'tidemark proof-log rotate' });
  await client.query('select pg_advisory_lock($1, 1)', [PROOF_LOG_LOCK]);
  const { verifier, secret } = await rotateSigner(folder, settings.SVC_PROOF_LOG_KEY);
  const answer = { command: 'proof-log', action: 'rotate', ok: true, key: verifier.line, ...(isSet && { secret }) };
  output.answer(answer, () =>
    [
      `The new key of the proof log is ${verifier.line}`,
      isSet
        ? `Set SVC_PROOF_LOG_KEY=${secret} and restart every process that signs: projectors, the HTTP service and export workers. The key is shown only now.`
        : 'The next checkpoint is signed with it.',
    ].join('\n'),
  );
  return 0;
}

export async function restored(command: ParsedCommand): Promise<number> {
  const reason = command.values.reason as string;
  await using context = await openContext(command, 'proof-log');
  const { settings, databaseUrls, output } = context;
  const folder = proofLogFolderOf(settings);
  const signer = await loadSigner(folder, settings.SVC_PROOF_LOG_KEY);
  await using client = await connect({ url: databaseUrls.ingest, name: 'tidemark proof-log restored' });
  const needs = { folder, signer, reason };
  // A sequencer that goes on holds the lock. One that is refused gives it up, and pauses.
  const isNeeded = (await lostOf(client, needs)).kind !== 'nothing';
  if (isNeeded) await client.query('select pg_advisory_lock($1, 0)', [PROOF_LOG_LOCK]);
  const { from, to, kind } = isNeeded ? await takeBack(client, needs) : await lostOf(client, needs);
  output.answer({ command: 'proof-log', action: 'restored', ok: true, from, to, leaves: to - from }, () =>
    kind === 'nothing'
      ? 'Database and folder both have every leaf that was signed; nothing is changed.'
      : `${to - from} leaves, ${from} to ${to - 1}, are in the ${kind} again; the log says that they were lost.`,
  );
  return EXIT.DONE;
}

interface RestoreNeeds {
  readonly folder: string;
  readonly signer: Signer;
  readonly reason: string;
}

/** Which of the two lacks leaves that were signed. */
interface Lost {
  readonly kind: 'database' | 'folder' | 'nothing';
  /** The leaves that it lacks, [from, to). */
  readonly from: number;
  readonly to: number;
}

async function lostOf(client: ClientBase, { folder, signer }: RestoreNeeds): Promise<Lost> {
  const { size } = await signedTree(folder, signer);
  const { rows } = await client.query('select size, signed_size from proof_head');
  const [held, signed] = [Number(rows[0]?.size ?? 0), Number(rows[0]?.signed_size ?? 0)];
  if (held < size) return { kind: 'database', from: held, to: size };
  return { kind: signed > size ? 'folder' : 'nothing', from: Math.min(size, signed), to: signed };
}

/** Takes the leaves that database or folder lack from the other, and states it in the log. The tree never shrinks. */
export async function takeBack(client: ClientBase, needs: RestoreNeeds): Promise<Lost> {
  const lost = await lostOf(client, needs);
  if (lost.kind === 'database') await takeLeaves(client, needs, lost.from);
  if (lost.kind === 'folder') await takeFiles(client, needs, lost);
  return lost;
}

/** Adds the leaves from `from` on to the database. */
async function takeLeaves(client: ClientBase, { folder, signer, reason }: RestoreNeeds, from: number): Promise<void> {
  const signed = await signedTree(folder, signer);
  const { rows } = await client.query('select root from proof_head');
  const source = folderSource(folder);
  const tree = new GrowingTree();
  const root = rows[0]?.root ?? tree.root;
  await client.query('begin');
  try {
    for (let tile = 0; tree.size < signed.size; tile++) {
      const first = tile * TILE_WIDTH;
      const entries = await readEntries(source, tile, signed.size);
      for (const [at, body] of entries.entries()) {
        if (tree.size === from && !equalHashes(tree.root, root)) throw notOurs(from);
        tree.add(leafHash(body));
        if (first + at >= from) await restoreLeaf(client, Buffer.from(body), first + at);
      }
    }
    if (!equalHashes(tree.root, signed.root)) throw notOurs(signed.size);
    await client.query(
      `insert into proof_head (size, root) values ($1, $2) on conflict (is_only) do update set size = excluded.size, root = excluded.root`,
      [signed.size, signed.root],
    );
    await stateRestored(client, `leaves ${from} to ${signed.size - 1} were lost by the database: ${reason}`);
    await client.query('commit');
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error instanceof TileFault ? notOurs(signed.size, error) : error;
  }
}

/** Writes the tiles again, and the checkpoint that the database keeps. It is stated first: a crash may state it twice. */
async function takeFiles(client: ClientBase, { folder, reason }: RestoreNeeds, { from, to }: Lost): Promise<void> {
  const { rows } = await client.query<{ checkpoint: string; key: string }>('select checkpoint, key from proof_head');
  const [{ checkpoint, key }] = rows;
  await stateRestored(client, `leaves ${from} to ${to - 1} were lost by the folder: ${reason}`);
  await makeTiles(client, folder, openCheckpoint(checkpoint, [parseVerifier(key)]));
  await writeDurably(join(folder, CHECKPOINT_FILE), checkpoint);
}

const notOurs = (size: number, cause?: unknown) =>
  new TidemarkError('PROOF_LOG_DIVERGED', `The first ${size} leaves of the files are not those of the checkpoint`, {
    cause,
  });

const NUMBERS = new Map([...DATASETS.values()].map(({ key, number }) => [key as string, number]));

/** A leaf with its index. The backup may have it from before it was given one. */
async function restoreLeaf(client: ClientBase, body: Buffer, index: number): Promise<void> {
  const { rowCount } = await client.query(
    `update proof_leaves set leaf_index = $1
     where entry_id = (select min(entry_id) from proof_leaves where leaf_index is null and body = $2)`,
    [index, body],
  );
  if (rowCount === 0) await insertLeaf(client, decodeLeaf(body), body, index);
}

async function insertLeaf(client: ClientBase, leaf: Leaf, body: Buffer, index: number | null): Promise<void> {
  await client.query(
    `insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body) values ($1, $2, $3, $4, $5, $6)`,
    [index, NUMBERS.get(leaf.dataset ?? '') ?? null, leaf.partition, leaf.attempt, leaf.kind, body],
  );
}

async function stateRestored(client: ClientBase, reason: string): Promise<void> {
  const leaf = restoredLeaf(reason);
  await insertLeaf(client, leaf, encodeLeaf(leaf), null);
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
  at: new Date().toISOString(),
  reason,
});
