/**
 * Checks what the service said against its proof log, with nothing but the log's key: exports, lineage answers, checkpoints and
 * mirrors. The operator's command and the client use it.
 */

import { missingFields } from './csv-feed.ts';
import { decodeLeaf, differingFromLeaf, type Leaf } from './leaf.ts';
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
import { type Checkpoint, openCheckpoint, type Verifier } from './note.ts';
import { type PartitionDigest, RowDigests, type RowLayout } from './rows.ts';
import { type LoggedPartition, type ManifestProofLog, verifyManifest } from './signed-manifest.ts';
import { decodeEntries, hashesOf, readTile, TILE_HEIGHT, TILE_WIDTH, type TileSource, widthIn } from './tiles.ts';

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

const inWords = (count: number, one: string, many = `${one}s`): string =>
  `${count.toLocaleString('en-US')} ${count === 1 ? one : many}`;

interface Window {
  readonly kind: string;
  readonly start_utc?: string | null;
  readonly end_utc?: string | null;
}

interface ListedPartition extends Readonly<Record<string, unknown>> {
  readonly partition: string;
}

/** The members of an export's manifest that a check reads. */
export interface ExportManifest extends Readonly<Record<string, unknown>> {
  readonly manifest_version: number;
  readonly dataset: string | null;
  readonly mode: string | null;
  readonly format: string;
  readonly window: Window;
  readonly filters: readonly unknown[];
  readonly as_of: string | null;
  readonly schema: readonly { readonly name: string }[];
  readonly row_count: number;
  readonly files: readonly { readonly name: string; readonly bytes: number; readonly sha256: string }[];
  readonly proof: { readonly partitions: number; readonly listed: readonly ListedPartition[] } | null;
  readonly proofs?: readonly {
    readonly dataset: string;
    readonly partitions: number;
    readonly listed: readonly ListedPartition[];
  }[];
  readonly proof_log?: ManifestProofLog;
}

/** A manifest has at most the leaves of so many partitions of a dataset. */
export const MAX_LEAVES = 1000;

const PROVING: ReadonlySet<string> = new Set(['proved', 'revised']);

/** Checks a leaf and its inclusion. @throws LeafFault or Error saying what does not hold */
function checkedLeaf(
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

/** The check of one export. */
export class ExportCheck {
  readonly report = new CheckReport();
  readonly #manifest: ExportManifest;
  readonly #layout: RowLayout | undefined;
  /** By partition of the manifest's dataset: the leaves whose inclusion holds. */
  readonly #leaves = new Map<string, Leaf>();

  /** @param keys that are trusted, @param layout of the manifest's dataset */
  constructor(manifest: ExportManifest, keys: readonly Verifier[], layout: RowLayout | undefined) {
    this.#manifest = manifest;
    this.#layout = layout;
    const { report } = this;
    const by = report.attempt('signature of the manifest', () => verifyManifest(manifest, keys));
    if (by) report.checked.push(`the manifest is the one that ${by.name} signed`);
    this.#checkLeaves(keys);
  }

  #checkLeaves(keys: readonly Verifier[]): void {
    const { report } = this;
    const { proof_log: log, proof, proofs = [], dataset } = this.#manifest;
    const listed = proof ? [{ dataset: dataset!, ...proof }] : proofs;
    const total = listed.reduce((sum, { partitions }) => sum + partitions, 0);
    if (!log?.checkpoint) {
      report.unchecked.push('the proof log: it had no checkpoint when the export was written');
      return;
    }
    const checkpoint = report.attempt('checkpoint', () => openCheckpoint(log.checkpoint!, keys));
    if (!checkpoint) return;
    report.checked.push(`the checkpoint of ${inWords(checkpoint.size, 'leaf', 'leaves')} is signed`);
    const facts = new Map(
      listed.flatMap((one) => one.listed.map((fact) => [`${one.dataset} ${fact.partition}`, fact])),
    );
    const seen = new Set<string>();
    let held = 0;
    for (const one of log.leaves) {
      const what = `${one.dataset} ${one.partition}`;
      seen.add(what);
      if (one.leaf_index === null || one.inclusion === null) continue;
      const leaf = report.attempt(what, () => checkedLeaf(one, checkpoint));
      if (!leaf) continue;
      const wrong =
        leaf.dataset !== one.dataset || leaf.partition !== one.partition || !PROVING.has(leaf.kind)
          ? [`its leaf is ${leaf.kind} of ${leaf.dataset} ${leaf.partition}`]
          : differingFromLeaf(leaf, facts.get(what) ?? {});
      report.faults.push(...wrong.map((fault) => `${what}: ${fault}`));
      if (wrong.length > 0) continue;
      held++;
      if (one.dataset === dataset) this.#leaves.set(one.partition, leaf);
    }
    // A manifest has the leaves of its first partitions only.
    if (total <= facts.size && log.leaves.length < MAX_LEAVES) {
      for (const what of facts.keys()) {
        if (!seen.has(what)) report.faults.push(`${what}: the partition is proved, and the log has no leaf of it`);
      }
    }
    if (held > 0)
      report.checked.push(
        `${held} of ${inWords(total, 'partition')}: leaf in the tree, digests of the manifest equal to it`,
      );
    if (held < total)
      report.unchecked.push(`${inWords(total - held, 'partition')}: no leaf with a proof in the manifest`);
  }

  /** The fields of the files, in their order. */
  get fields(): string[] {
    return this.#manifest.schema.map(({ name }) => name);
  }

  /** Why the rows of the files cannot be held against leaves; undefined if they can. */
  get whyNoRows(): string | undefined {
    const { mode, filters, as_of: asOf, dataset } = this.#manifest;
    if (dataset === null || !this.#layout) return 'a frame has rows of its own';
    if (mode !== 'native') return 'one-second rows have no leaves';
    if (filters.length > 0) return 'the export is filtered';
    if (asOf !== null) return 'the export is as of a time';
    const missing = missingFields(this.#layout, this.fields);
    if (missing.length > 0) return `the export lacks the fields ${missing.join(', ')}`;
    if (this.#leaves.size === 0) return 'no leaf of its partitions is known';
    return undefined;
  }

  /** The digests to feed with the rows of all files. @param keep partitions that `rows` asked for */
  digests(keep: readonly string[] = []): RowDigests {
    const expected = [...this.#leaves].map(([partition, { document }]) => ({
      partition,
      document_sha256: document?.sha256 ?? null,
    }));
    return new RowDigests(this.#layout!, expected, new Set(keep));
  }

  /**
   * Compares the rows of the files with the leaves. @returns partitions whose rows have to be fed again and kept, because they
   * did not come in the order of offsets; nothing is reported then
   */
  rows(digests: RowDigests): string[] {
    const { report } = this;
    const found = new Map(digests.digests().map((one) => [one.partition, one]));
    const again = [...found.values()].filter(
      ({ partition, rows, sha256: digest }) => digest === null && rows === this.#leaves.get(partition)!.rows,
    );
    if (again.length > 0) return again.map(({ partition }) => partition);
    const partial: string[] = [];
    let [whole, rows] = [0, 0];
    for (const [partition, leaf] of this.#leaves) {
      const digest: PartitionDigest = found.get(partition) ?? { partition, rows: 0, sha256: null };
      if (digest.rows !== leaf.rows) {
        if (digest.rows > leaf.rows! || this.#isInside(partition)) {
          report.faults.push(`${partition}: the files hold ${inWords(digest.rows, 'row')}, the leaf says ${leaf.rows}`);
        } else partial.push(partition);
        continue;
      }
      if (digest.rows > 0 && digest.sha256 !== leaf.rows_sha256) {
        report.faults.push(
          `${partition}: the rows have the sha256 ${digest.sha256}, and ${leaf.rows_sha256} in the leaf`,
        );
        continue;
      }
      whole++;
      rows += digest.rows;
    }
    if (whole > 0) {
      report.checked.push(
        `every row of ${inWords(whole, 'whole partition')} hashed again from the files and equal to its leaf: ${inWords(rows, 'row')}`,
      );
    }
    if (partial.length > 0) {
      const names = partial.length > 3 ? `${partial.slice(0, 3).join(', ')} and others` : partial.join(', ');
      report.unchecked.push(
        `the rows of ${inWords(partial.length, 'partition')} that the window cuts (${names}): held by the manifest alone`,
      );
    }
    if (digests.strays > 0)
      report.unchecked.push(
        `${inWords(digests.strays, 'row')} of partitions without a leaf: held by the manifest alone`,
      );
    const derived = this.#derived();
    if (derived.length > 0)
      report.unchecked.push(
        `the ${derived.length === 1 ? 'field' : 'fields'} ${derived.join(', ')}: computed, in no leaf, held by the manifest alone`,
      );
    return [];
  }

  /** Whether all rows of a file day lie in the window. */
  #isInside(partition: string): boolean {
    const { window } = this.#manifest;
    if (this.#layout?.partition !== 'file_day' || window.kind !== 'range') return false;
    const from = Date.parse(partition) + this.#layout.startOffsetMs;
    const starts = window.start_utc == null || Date.parse(window.start_utc) <= from;
    return starts && (window.end_utc == null || Date.parse(window.end_utc) >= from + 86_400_000);
  }

  #derived(): string[] {
    const { columns, copies } = this.#layout!;
    const used = new Set([...columns.flatMap(({ fields }) => fields), ...copies.map(({ field }) => field)]);
    return this.fields.filter((name) => !used.has(name));
  }
}

/** The members of a lineage answer that a check reads. */
export interface LineageAnswer extends Readonly<Record<string, unknown>> {
  readonly dataset: string;
  readonly partition: string;
  readonly payload_raw: { readonly bytes: number; readonly base64: string };
  readonly payload_sha256_raw: string;
  readonly document: { readonly name: string; readonly sha256: string };
  readonly proof: { readonly revision: number; readonly expected: Readonly<Record<string, unknown>> };
  readonly proof_log: {
    readonly state: string;
    readonly leaf_index: number | null;
    readonly leaf: string | null;
    readonly inclusion: readonly string[] | null;
  };
  readonly checkpoint: string | null;
}

/** @param document of the vendor's file: its sha256, and whether it holds the bytes of the event */
export function checkLineage(
  answer: LineageAnswer,
  keys: readonly Verifier[],
  document?: { readonly sha256: string; readonly holds: boolean },
): CheckReport {
  const report = new CheckReport();
  const payload = Buffer.from(answer.payload_raw.base64, 'base64');
  if (sha256(payload).toString('hex') === answer.payload_sha256_raw && payload.length === answer.payload_raw.bytes) {
    report.checked.push('the bytes of the event have their sha256');
  } else report.faults.push('the bytes of the event do not have the sha256 of the answer');
  const { state, leaf, leaf_index, inclusion } = answer.proof_log;
  if (state !== 'logged' || leaf === null || answer.checkpoint === null) {
    report.unchecked.push(`the proof log: the leaf is ${state}; ask again after the next checkpoint`);
  } else if (inclusion === null) {
    report.unchecked.push('the proof log: the service could not read the files that a proof is made of');
  } else {
    const checkpoint = report.attempt('checkpoint', () => openCheckpoint(answer.checkpoint!, keys));
    const found = checkpoint && report.attempt('leaf', () => checkedLeaf({ leaf, leaf_index, inclusion }, checkpoint));
    if (found) report.checked.push(`leaf ${leaf_index} is in the tree that ${checkpoint.origin} signed`);
    if (found) compareLineage(report, answer, found);
  }
  if (!document) {
    report.unchecked.push('the document: name the vendor’s file to find the event in it');
    return report;
  }
  if (document.sha256 !== answer.document.sha256)
    report.faults.push(`the file has the sha256 ${document.sha256}, the document ${answer.document.sha256}`);
  else if (!document.holds) report.faults.push('the document does not hold the bytes of the event');
  else report.checked.push('the document has the sha256 of the leaf, and holds the bytes of the event');
  return report;
}

function compareLineage(report: CheckReport, answer: LineageAnswer, leaf: Leaf): void {
  const faults = differingFromLeaf(leaf, {
    ...answer.proof.expected,
    revision: answer.proof.revision,
    document_sha256: answer.document.sha256,
  });
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
    Promise.all([readTile(source, 0, tile, head.size), readTile(source, 'entries', tile, head.size)]);
  const ahead: ReturnType<typeof read>[] = [];
  for (let tile = 0; tile < tiles; tile++) {
    for (let next = tile + ahead.length; next < Math.min(tiles, tile + READ_AHEAD); next++) {
      ahead.push(read(next));
      // A fault counts when its turn comes.
      ahead.at(-1)!.catch(() => {});
    }
    const [hashes, bytes] = await ahead.shift()!;
    const entries = decodeEntries(bytes, widthIn(0, tile, head.size));
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
