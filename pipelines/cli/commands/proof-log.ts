/** `proof-log`: rotates the key of the proof log, and restores leaves that database or folder lost. */
import { join } from 'node:path';
import { jetstreamManager } from '@nats-io/jetstream';
import type { ClientBase } from 'pg';
import { proofLogOf } from '../../../shared/config/settings.ts';
import { connect, PROOF_LOG_LOCK } from '../../../shared/db/connect.ts';
import { holdSecret, proofSecret } from '../../../shared/db/proof-secret.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { saltOf } from '../../../shared/proof-log/commitment.ts';
import { CHECKPOINT_FILE, folderSource, ROTATIONS_FILE, writeDurably } from '../../../shared/proof-log/folder.ts';
import { decodeLeaf, encodeLeaf, type Leaf, logLeaf } from '../../../shared/proof-log/leaf.ts';
import { equalHashes, GrowingTree, leafHash } from '../../../shared/proof-log/merkle.ts';
import { openCheckpoint, parseVerifier, type Verifier } from '../../../shared/proof-log/note.ts';
import { keyPathOf, loadSigners, readRotations, rotateSigner } from '../../../shared/proof-log/signers.ts';
import { readEntries, TILE_WIDTH, TileFault } from '../../../shared/proof-log/tiles.ts';
import { DATASETS } from '../../../shared/registry/index.ts';
import { Instruments } from '../../projector/instruments.ts';
import { leavesAhead } from '../../proof-log/change-publisher.ts';
import {
  indexedLeaves,
  makeTiles,
  newestSize,
  requireOwnOrigin,
  rotationLeaves,
  signedTree,
} from '../../proof-log/sequencer.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';

export async function rotate(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'proof-log');
  const { settings, databaseUrls, output } = context;
  const place = proofLogOf(settings);
  const isSet = place.secret !== undefined;
  await requireOwnOrigin(place);
  await using client = await connect({ url: databaseUrls.ingest, name: 'tidemark proof-log rotate' });
  const manager = await jetstreamManager(await context.nats('operator'), { checkAPI: false });
  const leavesMore = async (size: number) => (await leavesAhead(manager, size)).length;
  const untilMs = Date.now() + settings.limits.bothKeysMs;
  const { verifier, secret } = await turned(client, async () => {
    const key = (await loadSigners(place)).current.verifier;
    const held = await newestSize({ client, folder: place.folder, key, leavesAhead: leavesMore });
    const size = held + (await waitingRotations(client, place.folder));
    return await rotateSigner(place, { size, untilMs });
  });
  const until = new Date(untilMs).toISOString();
  const answer = { command: 'proof-log', action: 'rotate', ok: true, key: verifier.line, until };
  output.answer({ ...answer, ...(isSet && { secret }) }, () =>
    [
      `The new key of the proof log is ${verifier.line}`,
      `The next checkpoint is signed with it, and until ${until} with the key before it as well: those who watch the log read /v1/proofs/rotations by then.`,
      ...(isSet
        ? [
            `Put SVC_PROOF_LOG_KEY=${secret} before the key that is set, with a comma between them, and restart every process that signs: projectors, the HTTP service and export workers. Until then ${keyPathOf(place.folder)} has it: remove that file afterwards.`,
          ]
        : []),
    ].join('\n'),
  );
  return 0;
}

/** Runs a turn of the key, during which the sequencer neither signs nor moves the head. */
async function turned<T>(client: ClientBase, turn: () => Promise<T>): Promise<T> {
  await client.query('begin');
  try {
    await client.query(`insert into proof_head (size, root) values (0, sha256('')) on conflict do nothing`);
    await client.query('select 1 from proof_head for update');
    const result = await turn();
    await client.query('commit');
    return result;
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Rotations that the sequencer has not added yet: it adds them before all that waits, and the next one after them. */
async function waitingRotations(client: ClientBase, folder: string): Promise<number> {
  const leaves = await rotationLeaves(client);
  return (await readRotations(folder)).filter((note) => !leaves.has(note)).length;
}

export async function restored(command: ParsedCommand): Promise<number> {
  const reason = command.values.reason as string;
  await using context = await openContext(command, 'proof-log');
  const { settings, databaseUrls, output } = context;
  const place = proofLogOf(settings);
  await requireOwnOrigin(place);
  const { current } = await loadSigners(place);
  await using client = await connect({ url: databaseUrls.ingest, name: 'tidemark proof-log restored' });
  const manager = await jetstreamManager(await context.nats('operator'), { checkAPI: false });
  const needs = {
    folder: place.folder,
    key: current.verifier,
    reason,
    streamed: (size: number) => leavesAhead(manager, size),
  };
  await holdSecret(client, place.folder);
  // A sequencer that goes on holds the lock. One that is refused gives it up, and pauses.
  const isNeeded = (await lostOf(client, needs)).kind !== 'nothing';
  if (isNeeded) await client.query('select pg_advisory_lock($1, 0)', [PROOF_LOG_LOCK]);
  const { from, to, kind } = isNeeded ? await takeBack(client, needs) : await lostOf(client, needs);
  output.answer({ command: 'proof-log', action: 'restored', ok: true, from, to, leaves: to - from }, () =>
    kind === 'nothing'
      ? 'Database and folder both have every leaf that was signed; nothing is changed.'
      : `${to - from} leaves, ${from} to ${to - 1}, are in ${STORES[kind]} again; the log says for ever that they were lost, and why.`,
  );
  return EXIT.DONE;
}

const STORES = { database: 'the database', folder: 'the folder', both: 'database and folder' } as const;

interface StoresNeeds {
  readonly folder: string;
  /** The log's key. */
  readonly key: Verifier;
  /** The leaves from `size` on that the stream of changes has. */
  readonly streamed?: (size: number) => Promise<readonly Buffer[]>;
}

interface RestoreNeeds extends StoresNeeds {
  readonly reason: string;
}

/** Which of the two lacks leaves that were signed, or that the stream of changes has. */
interface Lost {
  readonly kind: keyof typeof STORES | 'nothing';
  /** The leaves that it lacks, [from, to). */
  readonly from: number;
  readonly to: number;
}

export async function lostOf(client: ClientBase, { folder, key, streamed }: StoresNeeds): Promise<Lost> {
  const { size } = await signedTree(folder, key);
  const { rows } = await client.query('select size, signed_size from proof_head');
  const [held, signed] = [Number(rows[0]?.size ?? 0), Number(rows[0]?.signed_size ?? 0)];
  if (held < size) return { kind: 'database', from: held, to: size };
  if (signed > size) return { kind: 'folder', from: Math.min(size, signed), to: signed };
  const more = (await streamed?.(held))?.length ?? 0;
  return { kind: more > 0 ? 'both' : 'nothing', from: held, to: held + more };
}

/** Takes the leaves that database or folder lack from another store, and states it in the log. The tree never shrinks. */
export async function takeBack(client: ClientBase, needs: RestoreNeeds): Promise<Lost> {
  const lost = await lostOf(client, needs);
  if (lost.kind === 'database') await takeLeaves(client, needs, lost.from);
  if (lost.kind === 'folder') await takeFiles(client, needs, lost);
  if (lost.kind === 'both') await takeStreamed(client, needs, lost);
  return lost;
}

/** Gives leaves that wait the indexes that the stream of changes has for them; the sequencer then makes their tiles, and signs. */
async function takeStreamed(
  client: ClientBase,
  { folder, reason, streamed }: RestoreNeeds,
  { from, to }: Lost,
): Promise<void> {
  const tree = new GrowingTree();
  for (const body of await indexedLeaves(client, 0, from)) tree.add(leafHash(body));
  await turned(client, async () => {
    for (const [at, body] of (await streamed!(from)).entries()) {
      tree.add(leafHash(body));
      await restoreLeaf(client, body, from + at);
    }
    await client.query('update proof_head set size = $1, root = $2', [tree.size, tree.root]);
    await stateRestored(client, `leaves ${from} to ${to - 1} were lost by database and folder: ${reason}`);
    await restoreRotations(client, folder);
  });
}

/** Adds the leaves from `from` on to the database. */
async function takeLeaves(client: ClientBase, { folder, key, reason }: RestoreNeeds, from: number): Promise<void> {
  const signed = await signedTree(folder, key);
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
  await restoreRotations(client, folder);
  await makeTiles(client, folder, openCheckpoint(checkpoint, [parseVerifier(key)]));
  await writeDurably(join(folder, CHECKPOINT_FILE), checkpoint);
}

/** The rotations are leaves, so that their file can be made again. */
async function restoreRotations(client: ClientBase, folder: string): Promise<void> {
  const rotations = new Set([...(await rotationLeaves(client)), ...(await readRotations(folder))]);
  if (rotations.size > 0) await writeDurably(join(folder, ROTATIONS_FILE), [...rotations].join(''));
}

const notOurs = (size: number, cause?: unknown) =>
  new TidemarkError('PROOF_LOG_DIVERGED', `The first ${size} leaves of the files are not those of the checkpoint`, {
    cause,
  });

/** The number of whatever a leaf is about: its dataset, or the instrument that its partition names. */
async function numberOf(client: ClientBase, { dataset, partition }: Leaf): Promise<number | null> {
  const found = dataset === null ? undefined : DATASETS.get(dataset);
  return found && partition !== null
    ? (await new Instruments(client, found).of(partition)).number
    : (found?.number ?? null);
}

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
  const { dataset, partition, revision } = leaf;
  const salt =
    dataset === null
      ? null
      : saltOf(await proofSecret(client), { dataset, partition: partition!, revision: revision! });
  await client.query(
    `insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body, salt) values ($1, $2, $3, $4, $5, $6, $7)`,
    [index, await numberOf(client, leaf), partition, leaf.attempt, leaf.kind, body, salt],
  );
}

async function stateRestored(client: ClientBase, reason: string): Promise<void> {
  const leaf = logLeaf({ kind: 'restored', reason });
  await insertLeaf(client, leaf, encodeLeaf(leaf), null);
}
