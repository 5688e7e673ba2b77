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
import { proofLogOf, type Settings } from '../../shared/config/settings.ts';
import { connect, PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { assert, codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import {
  CHECKPOINT_FILE,
  folderSource,
  KEY_FILE,
  readCheckpoint,
  writeDurably,
} from '../../shared/proof-log/folder.ts';
import { GrowingLog } from '../../shared/proof-log/growing-log.ts';
import { decodeLeaf, encodeLeaf, logLeaf } from '../../shared/proof-log/leaf.ts';
import { equalHashes, type Hash, type TreeHead, treeRoot } from '../../shared/proof-log/merkle.ts';
import { type LogKey, NoteFault, parseVerifier, signCheckpoint, type Verifier } from '../../shared/proof-log/note.ts';
import { followRotations, keysFrom } from '../../shared/proof-log/rotations.ts';
import {
  forgetRetired,
  keyPathOf,
  type LogPlace,
  loadSigners,
  readRotations,
  readSigners,
  type Signers,
} from '../../shared/proof-log/signers.ts';
import { TILE_WIDTH, TileFault, type TileLevel, tilePath, widthIn } from '../../shared/proof-log/tiles.ts';

/** Leaves that one round takes. */
const ROUND_LEAVES = 4096;

/** The row of `proof_head`. */
interface Head {
  readonly size: number;
  readonly root: Hash;
  readonly signedSize: number;
  /** The size that a follower knows, where somebody showed its checkpoint. */
  readonly knownSize: number;
  /** Line of the key that signed the last checkpoint, and when. */
  readonly key: string | null;
  readonly signedAtMs: number;
}

interface SequencerNeeds extends LogPlace {
  readonly client: ClientBase;
  /** A checkpoint is signed again when it is as old as this. */
  readonly refreshMs?: number;
  /** How many more leaves than `size` the stream of changes holds, which may have outlived a restore of database and folder. */
  readonly leavesAhead?: (size: number) => Promise<number>;
}

export class Sequencer {
  readonly #needs: SequencerNeeds;
  readonly #grown: GrowingLog;
  /** Notes of the rotations that are leaves. */
  readonly #rotated: Set<string>;
  #head: Head;
  /** Whether tiles or the checkpoint may be older than the head. */
  #isBehind: boolean;

  private constructor(
    needs: SequencerNeeds,
    { grown, rotated, head, isBehind }: { grown: GrowingLog; rotated: Set<string>; head: Head; isBehind: boolean },
  ) {
    this.#needs = needs;
    this.#grown = grown;
    this.#rotated = rotated;
    this.#head = head;
    this.#isBehind = isBehind;
  }

  /**
   * Brings the files of the folder to the tree of the database. The caller holds the lock.
   * @throws TidemarkError PROOF_LOG_DIVERGED, CONFIGURATION_INVALID
   */
  static async open(needs: SequencerNeeds): Promise<Sequencer> {
    const { client, folder } = needs;
    const head = await readHead(client);
    const { current } = await signersOf(needs, head.key);
    const signed = await signedTree(folder, current.verifier);
    // After a rotation the file names the key of the last checkpoint until the next one is signed.
    if (!(await folderSource(folder)(KEY_FILE)))
      await writeDurably(join(folder, KEY_FILE), `${current.verifier.line}\n`);
    await requireNewest(needs, head, signed);
    const grown = (await loadTiles(folder, signed)) ?? (await makeTiles(client, folder, signed));
    await extend(client, grown, head.size);
    if (!equalHashes(grown.root, head.root)) throw forked(`the ${head.size} leaves of the database do not continue it`);
    const rotated = await rotationLeaves(client);
    return new Sequencer(needs, { grown, rotated, head, isBehind: head.size > signed.size });
  }

  /** Takes the leaves that have no index. @returns how many it took */
  async round(): Promise<number> {
    const { client, folder } = this.#needs;
    const { rows } = await client.query(
      'select known_size, exists (select from proof_leaves where leaf_index is null) as waits from proof_head',
    );
    refuseSmaller(this.#head.size, Number(rows[0].known_size));
    const hasRotated = (await readRotations(folder)).some((note) => !this.#rotated.has(note));
    const taken = rows[0].waits || hasRotated ? await this.#take() : 0;
    await this.#publish();
    return taken;
  }

  async #take(): Promise<number> {
    const { client } = this.#needs;
    const grown = this.#grown;
    const from = grown.size;
    this.#isBehind = true;
    let taken = 0;
    await this.#locked(async () => {
      await this.#addRotations();
      // A rotation names the index of its leaf: it comes before what waits longer.
      const { rows } = await client.query<{ entry_id: string; body: Buffer }>(
        `select entry_id, body from proof_leaves where leaf_index is null order by kind <> 'rotated', entry_id limit ${ROUND_LEAVES}`,
      );
      for (const { body } of rows) grown.add(body);
      const indexed = await client.query(
        `update proof_leaves l set leaf_index = $1::int8 + place - 1
         from unnest($2::int8[]) with ordinality as e (entry_id, place) where l.entry_id = e.entry_id and l.leaf_index is null`,
        [from, rows.map(({ entry_id: id }) => id)],
      );
      const moved = await client.query('update proof_head set size = $1, root = $2 where size = $3', [
        grown.size,
        grown.root,
        from,
      ]);
      assert(indexed.rowCount === rows.length && moved.rowCount === 1, 'one process gives leaves their indexes');
      taken = rows.length;
    });
    this.#head = { ...this.#head, size: grown.size, root: grown.root };
    return taken;
  }

  /** Runs a transaction in which neither another process nor a rotation moves the head. */
  async #locked(work: () => Promise<void>): Promise<void> {
    const { client } = this.#needs;
    await client.query('begin');
    try {
      const { rows } = await client.query('select size, known_size from proof_head for update');
      const [{ size, known_size: known }] = rows;
      // A process that was stopped here and lost its lock would overwrite its successor's checkpoint.
      assert(Number(size) === this.#head.size, 'the sequencer that has the lock moves the head');
      refuseSmaller(Number(size), Number(known));
      await work();
      await client.query('commit');
    } catch (error) {
      await client.query('rollback').catch(() => {});
      throw error;
    }
  }

  /** Adds a leaf for each rotation that has none. */
  async #addRotations(): Promise<void> {
    const { client, folder } = this.#needs;
    for (const note of await readRotations(folder)) {
      if (this.#rotated.has(note)) continue;
      const leaf = encodeLeaf(logLeaf({ kind: 'rotated', reason: null, note }));
      await client.query(`insert into proof_leaves (kind, body) values ('rotated', $1)`, [leaf]);
      this.#rotated.add(note);
    }
  }

  /** Writes tiles, then signs. A new key signs the last tree again, and a checkpoint that is old is signed again. */
  async #publish(): Promise<void> {
    const { client, folder, refreshMs = Number.POSITIVE_INFINITY } = this.#needs;
    const { size, root, signedSize, key, signedAtMs } = this.#head;
    const { line } = (await signersOf(this.#needs, key)).current.verifier;
    const isSigned = signedSize === size && key === line && Math.abs(Date.now() - signedAtMs) < refreshMs;
    if (size === 0 || (isSigned && !this.#isBehind)) return;
    await this.#grown.write();
    await this.#locked(async () => {
      const signers = await signersOf(this.#needs, key);
      const { name: origin, line: by } = signers.current.verifier;
      // Its rotation is not a leaf yet: the next round signs.
      if ((signers.from ?? 0) > size) return;
      const seconds = Math.floor(Date.now() / 1000);
      const note = signCheckpoint({ origin, size, root }, [signers.current, ...signers.before], seconds);
      await writeDurably(join(folder, CHECKPOINT_FILE), note);
      await writeDurably(join(folder, KEY_FILE), `${by}\n`);
      await client.query(
        'update proof_head set signed_size = $1, checkpoint = $2, signed_at = to_timestamp($3), key = $4',
        [size, note, seconds, by],
      );
      await forgetRetired(this.#needs, signers);
      this.#head = { ...this.#head, signedSize: size, key: by, signedAtMs: seconds * 1000 };
      this.#isBehind = false;
    });
  }
}

/** The notes of the rotations that are leaves, in the order of the leaves. */
export async function rotationLeaves(client: ClientBase): Promise<Set<string>> {
  const { rows } = await client.query<{ body: Buffer }>(
    `select body from proof_leaves where kind = 'rotated' order by leaf_index nulls last, entry_id`,
  );
  return new Set(rows.map(({ body }) => decodeLeaf(body).note!));
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

/**
 * Nothing is signed while somebody knows a larger tree: neither a checkpoint nor a rotation, which would end the key below it.
 * @throws TidemarkError PROOF_LOG_DIVERGED
 */
async function requireNewest(
  { folder, leavesAhead }: Pick<SequencerNeeds, 'folder' | 'leavesAhead'>,
  head: Head,
  signed: TreeHead,
): Promise<void> {
  const held = Math.max(head.size, signed.size);
  refuseSmaller(held, head.knownSize);
  const ahead = (await leavesAhead?.(held)) ?? 0;
  if (ahead > 0) {
    throw rewound(
      `Database and folder hold ${held} leaves of the proof log, and the stream of changes ${held + ahead}: they were restored from a backup, and followers may know the larger tree`,
    );
  }
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
}

/** The leaves that the log has, where a rotation may be signed. @throws TidemarkError PROOF_LOG_DIVERGED */
export async function newestSize({
  client,
  key,
  ...needs
}: Pick<SequencerNeeds, 'client' | 'folder' | 'leavesAhead'> & { readonly key: Verifier }): Promise<number> {
  const head = await readHead(client);
  await requireNewest(needs, head, await signedTree(needs.folder, key));
  return head.size;
}

/** Database or folder, or both, are older than the last checkpoint. */
const rewound = (what: string) =>
  new TidemarkError('PROOF_LOG_DIVERGED', what, {
    remedy:
      'Restore the newest copy of the folder that anybody has, such as a mirror; then `./tidemark proof-log restored --reason ...` takes what is missing from the others and says so in the log. Never begin another log: followers know this one.',
  });

/** @throws TidemarkError PROOF_LOG_DIVERGED */
function refuseSmaller(size: number, known: number): void {
  if (known > size) throw rewound(`The proof log holds ${size} leaves, and a follower has a checkpoint of ${known}`);
}

const forked = (what: string) =>
  new TidemarkError('PROOF_LOG_DIVERGED', `The proof log differs from the checkpoint that was signed: ${what}`);

async function readHead(client: ClientBase): Promise<Head> {
  await client.query(`insert into proof_head (size, root) values (0, sha256('')) on conflict do nothing`);
  const { rows } = await client.query(
    `select size, root, signed_size, known_size, key, coalesce(extract(epoch from signed_at), 0)::float8 as signed_at from proof_head`,
  );
  const [{ size, root, signed_size, known_size, key, signed_at }] = rows;
  return {
    size: Number(size),
    root,
    signedSize: Number(signed_size),
    knownSize: Number(known_size),
    key,
    signedAtMs: signed_at * 1000,
  };
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
 * The keys to sign with: generated for a log that never signed, else the key of the last checkpoint, or one that a rotation leads to.
 * @throws TidemarkError CONFIGURATION_INVALID
 */
async function signersOf(place: LogPlace, signedBy: string | null): Promise<Signers & Pick<LogKey, 'from'>> {
  try {
    const signers = signedBy === null ? await loadSigners(place) : await readSigners(place);
    if (!signers) throw new NoteFault(`${keyPathOf(place.folder)} is gone, and the log was signed with ${signedBy}`);
    const { verifier } = signers.current;
    requireOrigin(place, verifier);
    const keys =
      signedBy === null ? [] : followRotations(parseVerifier(signedBy), verifier, await readRotations(place.folder));
    return { ...signers, from: keys.find(({ line }) => line === verifier.line)?.from };
  } catch (cause) {
    if (!(cause instanceof NoteFault)) throw cause;
    throw new TidemarkError('CONFIGURATION_INVALID', 'The key of the proof log cannot be used', {
      remedy: 'Set SVC_PROOF_LOG_KEY to the line `PRIVATE+KEY+name+hash+base64` of the log, or restore its key file.',
      cause,
    });
  }
}

/** @throws TidemarkError CONFIGURATION_INVALID when the setting names another origin than the log has */
function requireOrigin({ origin }: LogPlace, { name }: Verifier): void {
  if (origin === undefined || origin === name) return;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    `SVC_PROOF_LOG_ORIGIN is ${origin}, and the proof log of this state has the origin ${name} for ever`,
    {
      remedy: `Set SVC_PROOF_LOG_ORIGIN to ${name}, or leave it unset; another origin needs a state folder and a database of its own.`,
    },
  );
}

/** As `requireOrigin`, before anything is started. */
export async function requireOwnOrigin(place: LogPlace): Promise<void> {
  if (place.origin !== undefined && (await readSigners(place).catch(() => undefined))) await signersOf(place, null);
}

/** The keys of the log that may have signed what the folder holds, the current one first. */
export async function keysOf(folder: string, current: Verifier): Promise<LogKey[]> {
  const rotations = await readRotations(folder);
  const old = await folderSource(folder)(KEY_FILE);
  const named = old && parseVerifier(Buffer.from(old).toString());
  // Each names the next key in its second line; the first key is in none of them.
  const lines = rotations.map((note) => note.split('\n')[1]);
  const first = named && !lines.includes(named.line) ? named : undefined;
  const known = [current, ...(first ? [first] : []), ...lines.map(parseVerifier)];
  const own = known.filter(({ name }) => name === current.name);
  return own.flatMap((key) => keysFrom(key, rotations)[0]);
}

/** The tree of the folder's checkpoint. @throws TidemarkError PROOF_LOG_DIVERGED for one that is not the log's */
export async function signedTree(folder: string, current: Verifier): Promise<TreeHead> {
  try {
    const found = await readCheckpoint(folder, await keysOf(folder, current));
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

export interface SequencingNeeds extends Pick<SequencerNeeds, 'leavesAhead'> {
  readonly databaseUrl: string;
  readonly settings: Settings;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** Sequences until the signal, and then once more. One process does; others wait for its lock. */
export async function keepSequenced({
  databaseUrl,
  settings,
  log,
  signal,
  leavesAhead,
}: SequencingNeeds): Promise<void> {
  // Half the promised time: a leaf may come right after a round.
  const pauseMs = settings.limits.checkpointMs / 2;
  let failures = 0;
  while (!signal.aborted) {
    try {
      await using client = await connect({ url: databaseUrl, name: 'tidemark proof log' });
      if (!(await waitForLock(client, signal))) return;
      const sequencer = await Sequencer.open({
        ...{ client, ...proofLogOf(settings), refreshMs: settings.limits.refreshMs },
        leavesAhead,
      });
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
