/** Checks an export: its manifest, the leaves of its partitions, and the rows of its files. */
import type { RowLayout } from './cells.ts';
import { CheckReport, checkedLeaf, inWords, PROVING } from './check.ts';
import { parseSalt } from './commitment.ts';
import { missingFields } from './csv-feed.ts';
import { differingFromLeaf, type Leaf, type StatedFacts } from './leaf.ts';
import { type LogKey, openCheckpoint } from './note.ts';
import { dayOf, type PartitionDigest, RowDigests } from './rows.ts';
import { type ManifestProofLog, verifyManifest } from './signed-manifest.ts';

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
  /** Unless it is the default. */
  readonly instrument?: string;
  readonly mode: string | null;
  readonly format: string;
  readonly window: Window;
  readonly filters: readonly unknown[];
  readonly as_of: string | null;
  readonly schema: readonly { readonly name: string }[];
  readonly row_count: number;
  readonly synthetic?: boolean;
  readonly files: readonly { readonly name: string; readonly bytes: number; readonly sha256: string }[];
  readonly proof: { readonly partitions: number; readonly listed: readonly ListedPartition[] } | null;
  readonly proofs?: readonly {
    readonly dataset: string;
    readonly partitions: number;
    readonly listed: readonly ListedPartition[];
  }[];
  readonly proof_log?: ManifestProofLog;
}

/** What is said of rows where something before them is wrong already. */
export const ROWS_AFTER_FAULT = 'the rows: not read, because the manifest or the files are wrong';

/** So many rows more than the manifest says are read, for the report to say how many there are; not any number. */
export const SPARE_ROWS = 100_000;
/** A manifest has at most the leaves of so many partitions of a dataset. */
export const MAX_LEAVES = 1000;

/** A leaf, its salt, and the digest of the document that it commits to. */
interface OpenedLeaf extends Leaf {
  readonly salt: Uint8Array;
  readonly document_sha256: string | null;
}

/** The facts of the manifest that leaves state or commit to; those that it lacks do not count. */
const LISTED_FACTS = ['revision', 'rows', 'rows_hash', 'events_sha256', 'document_sha256'] as const;

const statedBy = (facts: ListedPartition): StatedFacts =>
  Object.fromEntries(LISTED_FACTS.flatMap((name) => (facts[name] == null ? [] : [[name, facts[name]]])));

/** The check of one export. */
export class ExportCheck {
  readonly report = new CheckReport();
  readonly #manifest: ExportManifest;
  readonly #layout: RowLayout | undefined;
  /** By partition of the manifest's dataset: the leaves whose inclusion holds. */
  readonly #leaves = new Map<string, OpenedLeaf>();
  /** Whether all partitions of the proof have one. */
  #isWhole = false;
  readonly #window: { readonly from: number; readonly to: number } | undefined;

  /** @param keys that are trusted, @param layout of the manifest's dataset */
  constructor(manifest: ExportManifest, keys: readonly LogKey[], layout: RowLayout | undefined) {
    this.#manifest = manifest;
    this.#layout = layout;
    const { report } = this;
    const by = report.attempt('signature of the manifest', () => verifyManifest(manifest, keys));
    if (by) report.checked.push(`the manifest is the one that ${by.name} signed`);
    this.#window = report.attempt('window', () => boundsOf(manifest.window));
    this.#checkLeaves(keys);
  }

  #checkLeaves(keys: readonly LogKey[]): void {
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
    const holding = new Set<string>();
    for (const one of log.leaves) {
      const what = `${one.dataset} ${one.partition}`;
      seen.add(what);
      if (one.leaf_index === null || one.inclusion === null) continue;
      const leaf = report.attempt(what, () => checkedLeaf(one, checkpoint));
      const salt = leaf && report.attempt(what, () => parseSalt(one.salt));
      if (!salt) continue;
      const listed = facts.get(what);
      const wrong =
        leaf.dataset !== one.dataset || leaf.partition !== one.partition || !PROVING.has(leaf.kind)
          ? [`its leaf is ${leaf.kind} of ${leaf.dataset} ${leaf.partition}`]
          : listed
            ? [
                ...differingFromLeaf(leaf, salt, statedBy(listed)),
                ...this.#differingSample(leaf),
                ...this.#differingInstrument(leaf),
              ]
            : ['it is not one of the partitions of the proof'];
      report.faults.push(...wrong.map((fault) => `${what}: ${fault}`));
      if (wrong.length > 0) continue;
      holding.add(what);
      const { document_sha256: document } = listed!;
      const document_sha256 = typeof document === 'string' ? document : null;
      if (one.dataset === dataset) this.#leaves.set(one.partition, { ...leaf, salt, document_sha256 });
    }
    // A manifest has the leaves of its first partitions only.
    if (total <= facts.size && log.leaves.length < MAX_LEAVES) {
      for (const what of facts.keys()) {
        if (!seen.has(what)) report.faults.push(`${what}: the partition is proved, and the log has no leaf of it`);
      }
    }
    const held = holding.size;
    this.#isWhole = held === total;
    if (held > 0)
      report.checked.push(
        `${held} of ${inWords(total, 'partition')}: leaf in the tree, digests of the manifest equal to it`,
      );
    if (held < total)
      report.unchecked.push(`${inWords(total - held, 'partition')}: no leaf with a proof in the manifest`);
  }

  /** A sample is never served beside real rows, so that every leaf says the same. A frame joins datasets that differ. */
  #differingSample(leaf: Leaf): string[] {
    const { synthetic, dataset } = this.#manifest;
    if (dataset === null || synthetic === undefined || synthetic === leaf.synthetic) return [];
    return [`synthetic is ${synthetic}, and ${leaf.synthetic} in the leaf`];
  }

  /** The keys of partitions of another instrument than the default begin with it. */
  #differingInstrument({ dataset, partition }: Leaf): string[] {
    const { instrument } = this.#manifest;
    if (dataset !== this.#manifest.dataset || this.#layout?.partition !== 'file_day') return [];
    if (partition?.slice(0, -10) === (instrument === undefined ? '' : `${instrument}:`)) return [];
    return [`the instrument is ${instrument ?? 'the default'}, and the leaf is of ${partition}`];
  }

  /** The fields of the files, in their order. */
  get fields(): string[] {
    return this.#manifest.schema.map(({ name }) => name);
  }

  /** Why the rows of the files cannot be held against leaves; undefined if they can. */
  get whyNoRows(): string | undefined {
    const { mode, filters, as_of: asOf, dataset } = this.#manifest;
    if (dataset === null || !this.#layout) return 'a frame has rows of its own';
    if (mode !== 'native') return 'aligned rows have no leaves';
    if (filters.length > 0) return 'the export is filtered';
    if (asOf !== null) return 'the export is as of a time';
    if (this.#manifest.csv_formulas !== undefined) return 'its texts were escaped for spreadsheets';
    const missing = missingFields(this.#layout, this.fields);
    if (missing.length > 0) return `the export lacks the fields ${missing.join(', ')}`;
    if (this.#leaves.size === 0) return 'no leaf of its partitions is known';
    return undefined;
  }

  /** The digests to feed with the rows of all files. @param keep partitions that `rows` asked for */
  digests(keep: readonly string[] = []): RowDigests {
    const expected = [...this.#leaves].map(([partition, { document_sha256, rows }]) => ({
      partition,
      document_sha256,
      rows,
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
    const total = [...found.values()].reduce((sum, one) => sum + one.rows, digests.strays);
    if (total !== this.#manifest.row_count)
      report.faults.push(`the files hold ${inWords(total, 'row')}, the manifest says ${this.#manifest.row_count}`);
    for (const [partition, leaf] of this.#leaves) {
      const digest: PartitionDigest = found.get(partition) ?? { partition, rows: 0, sha256: null };
      if (digest.rows !== leaf.rows) {
        if (digest.rows > leaf.rows! || this.#isInside(partition)) {
          report.faults.push(`${partition}: the files hold ${inWords(digest.rows, 'row')}, the leaf says ${leaf.rows}`);
        } else partial.push(partition);
        continue;
      }
      const wrong = digest.rows > 0 ? differingFromLeaf(leaf, leaf.salt, { rows_sha256: digest.sha256 }) : [];
      if (wrong.length > 0) {
        report.faults.push(...wrong.map((fault) => `${partition}: ${fault}`));
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
        `the rows of ${inWords(partial.length, 'partition')} (${names}), of which the files hold a part: vouched for only by the signed manifest`,
      );
    }
    if (digests.strays > 0) {
      const strays = inWords(digests.strays, 'row');
      if (this.#isWhole) report.faults.push(`the files hold ${strays} of none of the partitions of the proof`);
      else report.unchecked.push(`${strays} of partitions without a leaf: vouched for only by the signed manifest`);
    }
    const derived = this.#derived();
    if (derived.length > 0)
      report.unchecked.push(
        `the ${derived.length === 1 ? 'field' : 'fields'} ${derived.join(', ')}: computed, in no leaf, vouched for only by the signed manifest`,
      );
    return [];
  }

  /** Whether all rows of a partition lie in the window, as far as its key tells. */
  #isInside(partition: string): boolean {
    if (!this.#window) return false;
    const { from, to } = this.#window;
    if (from === Number.NEGATIVE_INFINITY && to === Number.POSITIVE_INFINITY) return true;
    if (this.#layout?.partition !== 'file_day') return false;
    const start = Date.parse(dayOf(partition)) + this.#layout.startOffsetMs;
    return from <= start && to >= start + 86_400_000;
  }

  #derived(): string[] {
    const { columns, copies, partition } = this.#layout!;
    const used = new Set([...columns.flatMap(({ fields }) => fields), ...copies.map(({ field }) => field)]);
    const derived = this.fields.filter((name) => !used.has(name));
    return partition === 'vintage' ? [...derived, 'last_updated_utc of provenance_json'] : derived;
  }
}

/** The bounds of a window of time; undefined for windows of other kinds, which cut partitions anywhere. @throws Error */
function boundsOf({ kind, start_utc: start, end_utc: end }: Window): { from: number; to: number } | undefined {
  if (kind === 'latest' || kind === 'random') return undefined;
  const from = start == null ? Number.NEGATIVE_INFINITY : Date.parse(start);
  const to = end == null ? Number.POSITIVE_INFINITY : Date.parse(end);
  if (kind !== 'range' || Number.isNaN(from) || Number.isNaN(to)) {
    throw new Error(`${JSON.stringify({ kind, start, end })} has an unknown kind, or times that cannot be read`);
  }
  return { from, to };
}
