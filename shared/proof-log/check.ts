/**
 * Checks what the service said against its proof log, with nothing but the log's key: lineage answers, checkpoints and mirrors.
 * Exports are checked by check-export.ts. The operator's command and the client use both.
 */

import { parseSalt } from './commitment.ts';
import { decodeLeaf, differingFromLeaf, isNamed, type Leaf, offsetsText, type StatedFacts } from './leaf.ts';
import {
  consistencyProof,
  equalHashes,
  GrowingTree,
  HASH_BYTES,
  leafHash,
  sha256,
  verifyConsistency,
  verifyInclusion,
} from './merkle.ts';
import { type Checkpoint, type LogKey, openCheckpoint } from './note.ts';
import { RotationLeaves } from './rotation-leaves.ts';
import type { LoggedPartition } from './signed-manifest.ts';
import { hashesOf, readEntries, readTile, TILE_HEIGHT, TILE_WIDTH, type TileSource } from './tiles.ts';

/** What a check found, in words. Without faults everything in `checked` holds. */
export class CheckReport {
  readonly checked: string[] = [];
  readonly unchecked: string[] = [];
  readonly faults: string[] = [];

  get ok(): boolean {
    return this.faults.length === 0;
  }

  /** Runs a check. @returns its result, or undefined where it threw; the message becomes a fault */
  attempt<T>(what: string, check: () => T): T | undefined {
    try {
      return check();
    } catch (error) {
      this.faults.push(`${what}: ${error instanceof Error ? error.message : String(error)}`);
      return undefined;
    }
  }
}

export const inWords = (count: number, one: string, many = `${one}s`): string =>
  `${count.toLocaleString('en-US')} ${count === 1 ? one : many}`;

export const PROVING: ReadonlySet<string> = new Set(['proved', 'revised']);

/** Checks a leaf and its inclusion. @throws LeafFault or Error saying what does not hold */
export function checkedLeaf(
  { leaf: text, leaf_index: index, inclusion }: Pick<LoggedPartition, 'leaf' | 'leaf_index' | 'inclusion'>,
  { size, root }: Checkpoint,
): Leaf {
  const body = Buffer.from(text);
  const leaf = decodeLeaf(body);
  const proof = (inclusion ?? []).map((hash) => Buffer.from(hash, 'base64'));
  const isIn =
    proof.every(({ length }) => length === HASH_BYTES) && verifyInclusion(leafHash(body), index!, size, proof, root);
  if (!isIn) throw new Error(`leaf ${index} is not in the tree of ${size} leaves that was signed`);
  return leaf;
}

/** The members of a lineage answer that a check reads. */
export interface LineageAnswer extends Readonly<Record<string, unknown>> {
  readonly dataset: string;
  readonly offset: string;
  readonly partition: string;
  readonly synthetic: boolean;
  readonly payload_raw: { readonly bytes: number; readonly base64: string; readonly utf8: string | null };
  readonly payload_sha256_raw: string;
  readonly document: { readonly name: string; readonly sha256: string };
  readonly proof: {
    readonly revision: number;
    readonly expected: Readonly<Record<string, unknown>>;
    readonly recount: Readonly<Record<string, unknown>>;
    /** Canonical bytes. */
    readonly facts: string;
  };
  readonly proof_log: {
    readonly state: string;
    readonly leaf_index: number | null;
    readonly leaf: string | null;
    /** Services give it to those who may read the rows. */
    readonly salt?: string | null;
    readonly inclusion: readonly string[] | null;
  };
  readonly checkpoint: string | null;
}

/** What is known of the vendor's file. */
export interface FoundDocument {
  readonly sha256: string;
  /** Whether a line of it is the event; null where events are not its lines, but read out of it. */
  readonly holds: boolean | null;
}

const LF = Buffer.of(10);

/** Whether a line of a file is the event. @param content that begins and ends with a line feed */
export const holdsLine = (content: Buffer, payload: Uint8Array): boolean =>
  payload.length > 0 && [LF, Buffer.from('\r\n')].some((end) => content.includes(Buffer.concat([LF, payload, end])));

export function checkLineage(answer: LineageAnswer, keys: readonly LogKey[], document?: FoundDocument): CheckReport {
  const report = new CheckReport();
  const { base64, bytes, utf8 } = answer.payload_raw;
  const payload = Buffer.from(base64, 'base64');
  if (sha256(payload).toString('hex') !== answer.payload_sha256_raw || payload.length !== bytes) {
    report.faults.push('the bytes of the event do not have the sha256 of the answer');
  } else if (utf8 !== null && utf8 !== payload.toString()) {
    report.faults.push('the text of the event is not its bytes');
  } else report.checked.push('the bytes of the event have their sha256');
  const { state, leaf, leaf_index, inclusion } = answer.proof_log;
  if (state !== 'logged' || leaf === null || answer.checkpoint === null) {
    report.unchecked.push(
      state === 'pending'
        ? 'the proof log: the leaf is pending; ask again after the next checkpoint'
        : 'the proof log: the answer has no leaf',
    );
  } else if (inclusion === null) {
    report.unchecked.push('the proof log: the service could not read the files that a proof is made of');
  } else {
    const checkpoint = report.attempt('checkpoint', () => openCheckpoint(answer.checkpoint!, keys));
    const found = checkpoint && report.attempt('leaf', () => checkedLeaf({ leaf, leaf_index, inclusion }, checkpoint));
    if (found) report.checked.push(`leaf ${leaf_index} is in the tree that ${checkpoint.origin} signed`);
    const salt = found && report.attempt('leaf', () => parseSalt(answer.proof_log.salt));
    if (salt) compareLineage(report, answer, found, salt);
  }
  report.unchecked.push(
    `that the event is the one of offset ${answer.offset}: the leaf covers all events of the partition`,
  );
  if (!document) report.unchecked.push('the document: name the vendor’s file to find the event in it');
  else if (document.sha256 !== answer.document.sha256)
    report.faults.push(`the file has the sha256 ${document.sha256}, the document ${answer.document.sha256}`);
  else if (document.holds === false) report.faults.push('no line of the document is the event');
  else {
    const name = answer.document.name;
    report.checked.push(
      `${name} has the sha256 of the answer${document.holds ? ', and one of its lines is the event' : ''}`,
    );
    if (document.holds === null) report.unchecked.push(`how the event was read out of ${name}`);
  }
  return report;
}

/** The facts of a leaf that every lineage answer has, before the rows were stored and after. */
const LINEAGE_FACTS = { expected: ['rows', 'rows_hash', 'events_sha256'], recount: ['rows', 'rows_hash'] } as const;

function compareLineage(report: CheckReport, answer: LineageAnswer, leaf: Leaf, salt: Uint8Array): void {
  const { document, proof, synthetic } = answer;
  const faults = differingFromLeaf(leaf, salt, {
    revision: proof.revision,
    document_sha256: document.sha256,
    facts: proof.facts,
  });
  for (const side of ['expected', 'recount'] as const) {
    const { [side]: found } = proof;
    const { first_offset, last_offset } = found;
    const facts: StatedFacts = {
      ...Object.fromEntries(LINEAGE_FACTS[side].map((name) => [name, found[name]])),
      offsets: offsetsText({ first_offset, last_offset }),
    };
    faults.push(...differingFromLeaf(leaf, salt, facts).map((fault) => `${side}: ${fault}`));
  }
  if (synthetic !== leaf.synthetic) faults.push(`synthetic is ${synthetic}, and ${leaf.synthetic} in the leaf`);
  if (!isNamed(leaf, document.name)) faults.push(`the document is ${document.name}, and ${leaf.document} in the leaf`);
  if (leaf.dataset !== answer.dataset || leaf.partition !== answer.partition || !PROVING.has(leaf.kind)) {
    faults.push(`the leaf is ${leaf.kind} of ${leaf.dataset} ${leaf.partition}`);
  }
  if (faults.length === 0) report.checked.push('partition, document and digests of the answer are those of the leaf');
  report.faults.push(...faults);
}

/** Whether the newer of two checkpoints continues the older, by the tiles of the log. */
export async function checkConsistency(old: Checkpoint, head: Checkpoint, source: TileSource): Promise<CheckReport> {
  const report = new CheckReport();
  if (old.origin !== head.origin)
    report.faults.push(`the checkpoints are of two logs, ${old.origin} and ${head.origin}`);
  else if (old.size > head.size) report.faults.push(`the log shrank from ${old.size} to ${head.size} leaves`);
  else if (old.size === head.size) {
    if (equalHashes(old.root, head.root)) report.checked.push(`both checkpoints are of the same ${head.size} leaves`);
    else report.faults.push(`two roots were signed for ${head.size} leaves: the log forked`);
  } else {
    const proof = await consistencyProof(old.size, head.size, hashesOf(source, head.size));
    if (verifyConsistency(old, head, proof))
      report.checked.push(`the tree of ${head.size} leaves continues that of ${old.size}`);
    else
      report.faults.push(
        `the tree of ${head.size} leaves does not continue that of ${old.size}: history was rewritten`,
      );
  }
  return report;
}

/** Tiles that are read while earlier ones are hashed. */
const READ_AHEAD = 8;

/**
 * Checks every leaf of a log against its checkpoint, and its rotations against its leaves.
 * @throws NoteFault for a checkpoint that the keys did not sign
 */
export async function checkLog(note: string, keys: readonly LogKey[], source: TileSource): Promise<CheckReport> {
  const head = openCheckpoint(note, keys);
  const rotated = new RotationLeaves();
  const report = await checkMirror(head, source, (leaf, index) => rotated.see(leaf, index));
  report.faults.push(...rotated.faults(keys, note, { from: 0, to: head.size }));
  return report;
}

/** Reads every leaf of a mirror, and makes the tree again. @param each called with every leaf */
export async function checkMirror(
  head: Checkpoint,
  source: TileSource,
  each?: (leaf: Uint8Array, index: number) => void,
): Promise<CheckReport> {
  const report = new CheckReport();
  const tree = new GrowingTree();
  const levels: Uint8Array[][] = [];
  const onSubtree = (level: number, index: number, hash: Uint8Array): void => {
    if (level === 0 || level % TILE_HEIGHT !== 0) return;
    const tileLevel = level / TILE_HEIGHT;
    const hashes = levels[tileLevel] ?? [];
    levels[tileLevel] = hashes;
    hashes[index] = hash;
  };
  const tiles = Math.ceil(head.size / TILE_WIDTH);
  const read = (tile: number) =>
    Promise.all([readTile(source, 0, tile, head.size), readEntries(source, tile, head.size)]);
  const ahead: ReturnType<typeof read>[] = [];
  for (let tile = 0; tile < tiles; tile++) {
    for (let next = tile + ahead.length; next < Math.min(tiles, tile + READ_AHEAD); next++) {
      ahead.push(read(next));
      // A fault counts when its turn comes.
      ahead.at(-1)!.catch(() => {});
    }
    const [hashes, entries] = await ahead.shift()!;
    for (const [at, entry] of entries.entries()) {
      const hash = leafHash(entry);
      const index = tile * TILE_WIDTH + at;
      if (hash.compare(hashes, at * HASH_BYTES, (at + 1) * HASH_BYTES) !== 0) {
        report.faults.push(`leaf ${index} is not the one that its tile was made of`);
      }
      each?.(entry, index);
      tree.add(hash, onSubtree);
    }
  }
  if (equalHashes(tree.root, head.root))
    report.checked.push(`all ${inWords(head.size, 'leaf', 'leaves')} give the root that was signed`);
  else report.faults.push(`the ${head.size} leaves do not give the root that was signed`);
  await compareTiles(report, levels, head.size, source);
  report.unchecked.push('incomplete tiles of earlier sizes, which a log may keep beside');
  return report;
}

/** Compares the tiles above level 0 with the subtrees that the leaves give. */
async function compareTiles(
  report: CheckReport,
  levels: readonly Uint8Array[][],
  size: number,
  source: TileSource,
): Promise<void> {
  for (const [level, hashes] of levels.entries()) {
    for (let tile = 0; level > 0 && tile * TILE_WIDTH < (hashes?.length ?? 0); tile++) {
      const expected = Buffer.concat(hashes.slice(tile * TILE_WIDTH, (tile + 1) * TILE_WIDTH));
      const found = await readTile(source, level, tile, size);
      if (!expected.equals(found)) report.faults.push(`tile ${tile} of level ${level} is not made of its leaves`);
    }
  }
}
