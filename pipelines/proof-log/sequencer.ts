/**
 * The sequencer of the proof log. Transactions leave leaves without an index; after their commit it gives them the next
 * indexes, writes the tiles, and signs the tree's root. One process does it, by a lock. The order is what makes a crash
 * harmless: indexes and root are committed, then tiles are synced, then the checkpoint is signed. Tiles that are missing are made
 * again from the leaves, which gives the same tree. The last checkpoint is in the folder and in the database, so that the loss of
 * either is noticed: without it nobody knows which root was signed.
 */

import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { ClientBase } from 'pg';
import { proofLogFolderOf, type Settings } from '../../shared/config/settings.ts';
import { connect, PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { assert, codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import {
  CHECKPOINT_FILE,
  folderSource,
  KEY_FILE,
  keyPathOf,
  loadSigner,
  ROTATIONS_FILE,
  readCheckpoint,
  readSigner,
  writeDurably,
} from '../../shared/proof-log/folder.ts';
import { GrowingLog } from '../../shared/proof-log/growing-log.ts';
import { equalHashes, type Hash, type TreeHead, treeRoot } from '../../shared/proof-log/merkle.ts';
import {
  checkpointText,
  followRotations,
  NoteFault,
  parseRotations,
  parseVerifier,
  type Signer,
  type Verifier,
} from '../../shared/proof-log/note.ts';
import { TILE_WIDTH, TileFault, type TileLevel, tilePath, widthIn } from '../../shared/proof-log/tiles.ts';

/** Leaves that one round takes. */
const ROUND_LEAVES = 4096;

/** The row of `proof_head`. */
interface Head {
  readonly size: number;
  readonly root: Hash;
  readonly signedSize: number;
  /** Line of the key that signed the last checkpoint. */
  readonly key: string | null;
}

interface SequencerNeeds {
  readonly client: ClientBase;
  readonly folder: string;
  /** `SVC_PROOF_LOG_KEY`, where it is set. */
  readonly secret: string | undefined;
}

export class Sequencer {
  readonly #needs: SequencerNeeds;
  readonly #grown: GrowingLog;
  #head: Head;
  /** Whether tiles or the checkpoint may be older than the head. */
  #isBehind: boolean;

  private constructor(needs: SequencerNeeds, grown: GrowingLog, head: Head, isBehind: boolean) {
    this.#needs = needs;
    this.#grown = grown;
    this.#head = head;
    this.#isBehind = isBehind;
  }

  /**
   * Brings the files of the folder to the tree of the database. The caller holds the lock.
   * @throws TidemarkError PROOF_LOG_DIVERGED, CONFIGURATION_INVALID
   */
  static async open(needs: SequencerNeeds): Promise<Sequencer> {
    const { client, folder, secret } = needs;
    const head = await readHead(client);
    const signer = await signerOf(folder, secret, head.key);
    const signed = await signedTree(folder, signer);
    // After a rotation the file names the key of the last checkpoint until the next one is signed.
    if (!(await folderSource(folder)(KEY_FILE)))
      await writeDurably(join(folder, KEY_FILE), `${signer.verifier.line}\n`);
    if (signed.size > head.size) {
      throw rewound(
        `The database holds ${head.size} leaves of the proof log, and a checkpoint of ${signed.size} was signed`,
      );
    }
    if (head.signedSize > signed.size) {
      throw rewound(
        `${folder} has the proof log up to ${signed.size} leaves, and a checkpoint of ${head.signedSize} was signed`,
      );
    }
    const grown = (await loadTiles(folder, signed)) ?? (await makeTiles(client, folder, signed));
    await extend(client, grown, head.size);
    if (!equalHashes(grown.root, head.root)) throw forked(`the ${head.size} leaves of the database do not continue it`);
    return new Sequencer(needs, grown, head, head.size > signed.size);
  }

  /** Takes the leaves that have no index. @returns how many it took */
  async round(): Promise<number> {
    const { client } = this.#needs;
    const { rows } = await client.query<{ entry_id: string; body: Buffer }>(
      `select entry_id, body from proof_leaves where leaf_index is null order by entry_id limit ${ROUND_LEAVES}`,
    );
    if (rows.length > 0) await this.#take(rows);
    await this.#publish();
    return rows.length;
  }

  async #take(rows: readonly { readonly entry_id: string; readonly body: Buffer }[]): Promise<void> {
    const { client } = this.#needs;
    const grown = this.#grown;
    const from = grown.size;
    this.#isBehind = true;
    for (const { body } of rows) grown.add(body);
    const { size, root } = grown;
    await client.query('begin');
    try {
      const indexed = await client.query(
        `update proof_leaves l set leaf_index = $1::int8 + place - 1
         from unnest($2::int8[]) with ordinality as e (entry_id, place) where l.entry_id = e.entry_id and l.leaf_index is null`,
        [from, rows.map(({ entry_id: id }) => id)],
      );
      const moved = await client.query('update proof_head set size = $1, root = $2 where size = $3', [
        size,
        root,
        from,
      ]);
      assert(indexed.rowCount === rows.length && moved.rowCount === 1, 'one process gives leaves their indexes');
      await client.query('commit');
    } catch (error) {
      await client.query('rollback').catch(() => {});
      throw error;
    }
    this.#head = { ...this.#head, size, root };
  }

  /** Writes tiles, then signs. A new key signs the last tree again. */
  async #publish(): Promise<void> {
    const { client, folder, secret } = this.#needs;
    const { size, root, signedSize } = this.#head;
    const signer = await signerOf(folder, secret, this.#head.key);
    const { line, name: origin } = signer.verifier;
    const isSigned = signedSize === size && this.#head.key === line;
    if (size === 0 || (isSigned && !this.#isBehind)) return;
    await this.#grown.write();
    // The connection holds the lock. Without this a process that was stopped here would overwrite its successor's checkpoint.
    const { rows } = await client.query('select size from proof_head');
    assert(Number(rows[0]?.size) === size, 'the sequencer that has the lock moves the head');
    const note = signer.sign(checkpointText({ origin, size, root }));
    await writeDurably(join(folder, CHECKPOINT_FILE), note);
    await writeDurably(join(folder, KEY_FILE), `${line}\n`);
    await client.query(
      'update proof_head set signed_size = $1, checkpoint = $2, signed_at = clock_timestamp(), key = $3',
      [size, note, line],
    );
    this.#head = { ...this.#head, signedSize: size, key: line };
    this.#isBehind = false;
  }
}

/** The log of a checkpoint from the files; undefined where files are missing or altered. */
async function loadTiles(folder: string, { size, root }: TreeHead): Promise<GrowingLog | undefined> {
  try {
    await requireTiles(folder, size);
    const grown = await GrowingLog.load(folder, size);
    return equalHashes(grown.root, root) ? grown : undefined;
  } catch (error) {
    if (error instanceof TileFault) return undefined;
    throw error;
  }
}

/** @throws TileFault when a complete tile is missing */
async function requireTiles(folder: string, size: number): Promise<void> {
  const levels: TileLevel[] = ['entries', 0];
  for (let level = 1; widthIn(level, 0, size) === TILE_WIDTH; level++) levels.push(level);
  for (const level of levels) {
    for (let index = 0; widthIn(level, index, size) === TILE_WIDTH; index++) {
      const path = tilePath(level, index);
      await access(join(folder, path)).catch((cause) => {
        throw new TileFault(`the log has no ${path}`, { cause });
      });
    }
  }
}

/** Makes all tiles of a checkpoint again. @throws TidemarkError PROOF_LOG_DIVERGED when the leaves do not give its root */
export async function makeTiles(client: ClientBase, folder: string, { size, root }: TreeHead): Promise<GrowingLog> {
  const grown = await GrowingLog.load(folder, 0);
  await extend(client, grown, size);
  if (!equalHashes(grown.root, root)) throw forked(`the first ${size} leaves of the database do not give its root`);
  return grown;
}

/** Adds the leaves of the database up to `size` and writes their tiles. */
async function extend(client: ClientBase, grown: GrowingLog, size: number): Promise<void> {
  while (grown.size < size) {
    const to = Math.min(size, grown.size + ROUND_LEAVES);
    for (const body of await indexedLeaves(client, grown.size, to)) grown.add(body);
    await grown.write();
  }
}

/** The database or the folder is older than the last checkpoint. */
const rewound = (what: string) =>
  new TidemarkError('PROOF_LOG_DIVERGED', what, {
    remedy:
      'Restore the newest copy of the folder that anybody has, such as a mirror; then `./tidemark proof-log restored --reason ...` takes what is missing from the other and says so in the log.',
  });

const forked = (what: string) =>
  new TidemarkError('PROOF_LOG_DIVERGED', `The proof log differs from the checkpoint that was signed: ${what}`);

async function readHead(client: ClientBase): Promise<Head> {
  await client.query(`insert into proof_head (size, root) values (0, sha256('')) on conflict do nothing`);
  const { rows } = await client.query('select size, root, signed_size, key from proof_head');
  const [{ size, root, signed_size, key }] = rows;
  return { size: Number(size), root, signedSize: Number(signed_size), key };
}

/** The bodies of the leaves [from, to). @throws TidemarkError PROOF_LOG_DIVERGED when one is missing */
export async function indexedLeaves(client: ClientBase, from: number, to: number): Promise<Buffer[]> {
  const { rows } = await client.query<{ body: Buffer }>(
    'select body from proof_leaves where leaf_index >= $1 and leaf_index < $2 order by leaf_index',
    [from, to],
  );
  if (rows.length !== to - from) throw forked(`the database lacks leaves between ${from} and ${to}`);
  return rows.map(({ body }) => body);
}

/**
 * The key to sign with: generated for a log that never signed, else the key of the last checkpoint, or one that a rotation leads to.
 * @throws TidemarkError CONFIGURATION_INVALID
 */
async function signerOf(folder: string, secret: string | undefined, signedBy: string | null): Promise<Signer> {
  try {
    const signer = signedBy === null ? await loadSigner(folder, secret) : await readSigner(folder, secret);
    if (!signer) throw new NoteFault(`${keyPathOf(folder)} is gone, and the log was signed with ${signedBy}`);
    if (signedBy !== null) followRotations(parseVerifier(signedBy), signer.verifier, await rotationsOf(folder));
    return signer;
  } catch (cause) {
    if (!(cause instanceof NoteFault)) throw cause;
    throw new TidemarkError('CONFIGURATION_INVALID', 'The key of the proof log cannot be used', {
      remedy: 'Set SVC_PROOF_LOG_KEY to the line `PRIVATE+KEY+name+hash+base64` of the log, or restore its key file.',
      cause,
    });
  }
}

const rotationsOf = async (folder: string): Promise<string[]> =>
  parseRotations(Buffer.from((await folderSource(folder)(ROTATIONS_FILE)) ?? []).toString());

/** The keys of the log, the current one first: an earlier one signed the last checkpoint where a rotation was cut off. */
async function verifiersOf(folder: string, signer: Signer): Promise<Verifier[]> {
  const rotations = await rotationsOf(folder);
  const old = await folderSource(folder)(KEY_FILE);
  const lines = rotations.map((note) => note.slice(0, note.indexOf('\n')));
  if (old) lines.push(Buffer.from(old).toString());
  return [signer.verifier, ...lines.map(parseVerifier).filter(({ name }) => name === signer.verifier.name)];
}

/** The tree of the folder's checkpoint. @throws TidemarkError PROOF_LOG_DIVERGED for one that is not the log's */
export async function signedTree(folder: string, signer: Signer): Promise<TreeHead> {
  try {
    const found = await readCheckpoint(folder, await verifiersOf(folder, signer));
    return found?.checkpoint ?? { size: 0, root: await treeRoot(0, async () => new Uint8Array()) };
  } catch (cause) {
    throw new TidemarkError('PROOF_LOG_DIVERGED', `The checkpoint of ${folder} is not the log's own`, { cause });
  }
}

/** How often a waiting sequencer asks for the lock. */
const LOCK_POLL_MS = 1000;
/** Pauses after failures in a row double: a database that restarts is back in a second, a lost key takes an operator. */
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 15_000;

export interface SequencingNeeds {
  readonly databaseUrl: string;
  readonly settings: Settings;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** Sequences until the signal, and then once more. One process does; others wait for its lock. */
export async function keepSequenced({ databaseUrl, settings, log, signal }: SequencingNeeds): Promise<void> {
  const folder = proofLogFolderOf(settings);
  // Half the promised time: a leaf may come right after a round.
  const pauseMs = settings.limits.checkpointMs / 2;
  let failures = 0;
  while (!signal.aborted) {
    try {
      await using client = await connect({ url: databaseUrl, name: 'tidemark proof log' });
      if (!(await waitForLock(client, signal))) return;
      const sequencer = await Sequencer.open({ client, folder, secret: settings.SVC_PROOF_LOG_KEY });
      while (!signal.aborted) {
        const taken = await sequencer.round();
        failures = 0;
        if (taken < ROUND_LEAVES) await delay(pauseMs, undefined, { signal }).catch(() => {});
      }
      // A backfill that started its own projector stops it after the last proof.
      while ((await sequencer.round()) === ROUND_LEAVES);
    } catch (error) {
      if (signal.aborted) return;
      log.error({ code: codeOf(error), fault: explain(error) }, 'the proof log is not continued; tried again later');
      const retryMs = Math.min(FIRST_RETRY_MS * 2 ** failures++, MAX_RETRY_MS);
      await delay(retryMs, undefined, { signal }).catch(() => {});
    }
  }
}

async function waitForLock(client: ClientBase, signal: AbortSignal): Promise<boolean> {
  while (!signal.aborted) {
    const asked = await client.query('select pg_try_advisory_lock($1, 0) as held', [PROOF_LOG_LOCK]);
    if (asked.rows[0].held) return true;
    await delay(LOCK_POLL_MS, undefined, { signal }).catch(() => {});
  }
  return false;
}
