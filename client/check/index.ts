/**
 * Checks exports, lineage answers and checkpoints of a service against its proof log, in Node: the same checks as
 * `./tidemark check`, as functions. docs/proof-log.md says what each of them proves.
 */
import { createHash } from 'node:crypto';
import * as zlib from 'node:zlib';
import { type Cell, RowFault, type RowLayout } from '../../shared/proof-log/cells.ts';
import {
  type CheckReport,
  checkConsistency as compareCheckpoints,
  checkLineage as compareLineage,
  checkLog as compareTree,
  holdsLine,
  type LineageAnswer,
} from '../../shared/proof-log/check.ts';
import { ExportCheck, type ExportManifest, ROWS_AFTER_FAULT, SPARE_ROWS } from '../../shared/proof-log/check-export.ts';
import { CsvFeed, GOES_ON, placesOf } from '../../shared/proof-log/csv-feed.ts';
import { CHECKPOINT_FILE, folderSource } from '../../shared/proof-log/folder.ts';
import { httpSource } from '../../shared/proof-log/http.ts';
import { openCheckpoint } from '../../shared/proof-log/note.ts';
import { keysIn, keysOfLog } from '../../shared/proof-log/rotations.ts';
import type { RowDigests } from '../../shared/proof-log/rows.ts';
import { LogUnreachable, textOf } from '../../shared/proof-log/tiles.ts';
import { LAYOUTS } from './layouts.ts';

export type { LineageAnswer } from '../../shared/proof-log/check.ts';
export type { ExportManifest } from '../../shared/proof-log/check-export.ts';

/** What a check found, in words. */
export interface CheckResult {
  /** Nothing that was checked is wrong. */
  readonly ok: boolean;
  readonly checked: readonly string[];
  readonly notChecked: readonly string[];
  readonly faults: readonly string[];
}

const LF = Buffer.of(10);

const resultOf = ({ ok, checked, unchecked, faults }: CheckReport): CheckResult => ({
  ok,
  checked,
  notChecked: unchecked,
  faults,
});

/** Rows by field: objects, or a table of Apache Arrow, which yields such rows. */
export type CheckedRows = Iterable<object> | AsyncIterable<object>;

export interface ExportInput {
  /** The manifest, as `GET /v1/raw/export/{id}/manifest` sends it: its text, or parsed. */
  readonly manifest: string | object;
  /** The verifier key of the log, `name+hash+base64`. Where it was rotated: and below it the text of `/v1/proofs/rotations`. */
  readonly key: string;
  /** The rows of all files in their order. A function, where they cannot be read twice. */
  readonly rows?: CheckedRows | (() => CheckedRows);
  /** Or the bytes of the one CSV file, packed as the service sends them. */
  readonly csv?: string | Uint8Array;
}

/**
 * Checks an export: the manifest's signature, the leaves of its partitions, and every row of whole partitions where the rows are
 * given.
 * @throws NoteFault for a key that is none
 */
export async function checkExport({ manifest: given, key, rows, csv }: ExportInput): Promise<CheckResult> {
  const manifest = (typeof given === 'string' ? JSON.parse(given) : given) as ExportManifest;
  const layout = LAYOUTS[manifest.dataset ?? ''];
  const check = new ExportCheck(manifest, keysIn(key), layout);
  const { report } = check;
  if (csv !== undefined) checkFile(report, manifest, Buffer.from(csv as Uint8Array));
  const why = check.whyNoRows ?? (rows === undefined && csv === undefined ? 'no rows are given' : undefined);
  if (why !== undefined) report.unchecked.push(`rows against leaves (${why}): vouched for only by the signed manifest`);
  else if (report.ok) await checkRows(check, layout, { manifest, rows, csv });
  else report.unchecked.push(ROWS_AFTER_FAULT);
  return resultOf(report);
}

function checkFile(report: CheckReport, { files }: ExportManifest, bytes: Uint8Array): void {
  const found = createHash('sha256').update(bytes).digest('hex');
  if (files.length === 1 && files[0].sha256 === found) report.checked.push('the file has the sha256 of the manifest');
  else report.faults.push(`the file has the sha256 ${found}, and ${files.map(({ sha256 }) => sha256)} in the manifest`);
}

async function checkRows(
  check: ExportCheck,
  layout: RowLayout,
  { manifest, rows, csv }: Pick<ExportInput, 'rows' | 'csv'> & { readonly manifest: ExportManifest },
): Promise<void> {
  for (let keep: readonly string[] = []; ; ) {
    const digests = check.digests(keep);
    try {
      if (csv !== undefined) {
        const feed = new CsvFeed(layout, digests, check.fields, manifest.row_count + SPARE_ROWS);
        feed.push(unpacked(manifest.files[0].name, Buffer.from(csv as Uint8Array)));
        feed.end();
      } else await feedRows(typeof rows === 'function' ? rows() : rows!, layout, digests);
    } catch (error) {
      check.report.faults.push(`rows: ${error instanceof Error ? error.message : error}`);
      return;
    }
    keep = check.rows(digests);
    if (keep.length === 0) return;
  }
}

/** The text of a file, which has the sha256 of the manifest by now. */
function unpacked(name: string, bytes: Buffer): Buffer {
  if (name.endsWith('.gz')) return zlib.gunzipSync(bytes);
  if (!name.endsWith('.zst')) return bytes;
  // Node has it since 22.15.
  const unpack = zlib.zstdDecompressSync as typeof zlib.zstdDecompressSync | undefined;
  if (!unpack) throw new Error(`this version of Node cannot unpack ${name}; give the rows`);
  const { buffer, engine } = unpack(bytes, { info: true }) as unknown as Unpacked;
  if (engine.bytesWritten !== bytes.length) throw new RowFault(GOES_ON);
  return buffer;
}

/** What Node unpacks with `info`. */
interface Unpacked {
  readonly buffer: Buffer;
  readonly engine: zlib.ZstdDecompress;
}

async function feedRows(rows: CheckedRows, layout: RowLayout, digests: RowDigests): Promise<void> {
  const needed = [...layout.partitionFields, ...layout.columns.flatMap(({ fields }) => fields)];
  const names = [...new Set([...needed, ...layout.copies.map(({ field }) => field)])];
  const { columns, by, copies } = placesOf(layout, names, names);
  for await (const row of rows) {
    const cells = names.map((name) => (row as Readonly<Record<string, Cell>>)[name]);
    digests.add(
      columns.map((places) => places.map((place) => cells[place])),
      by.map((place) => cells[place]),
      copies.map((place) => cells[place]),
    );
  }
}

/** Checks a lineage answer down to the leaf that it names. @param document the unpacked bytes of the vendor's file, and the sha256 of the file */
export function checkLineage(
  answer: object,
  key: string,
  document?: { readonly sha256: string; readonly content: Uint8Array },
): CheckResult {
  const lineage = answer as LineageAnswer;
  const payload = Buffer.from(lineage.payload_raw.base64, 'base64');
  // Events of the other datasets are values that were read out of a page or a response.
  const hasLines = LAYOUTS[lineage.dataset]?.partition === 'file_day';
  const found = document && {
    sha256: document.sha256,
    holds: hasLines ? holdsLine(Buffer.concat([LF, document.content, LF]), payload) : null,
  };
  return resultOf(compareLineage(lineage, keysIn(key), found));
}

/** Checks every leaf of a log against its last checkpoint. @param log URL of the service, or the folder of a mirror */
export async function checkMirror(log: string, key: string): Promise<CheckResult> {
  const source = /^https?:\/\//.test(log) ? httpSource(log) : folderSource(log);
  const note = await textOf(source, CHECKPOINT_FILE);
  if (note === undefined) throw new LogUnreachable(`${log} has no checkpoint`);
  return resultOf(await compareTree(note, await keysOfLog(key, source), source));
}

/** Whether the newer of two checkpoints continues the older. @param url of the service, for its tiles */
export async function checkConsistency(first: string, second: string, key: string, url: string): Promise<CheckResult> {
  const source = httpSource(url);
  const keys = await keysOfLog(key, source);
  const [old, head] = [first, second].map((note) => openCheckpoint(note, keys)).sort((a, b) => a.size - b.size);
  return resultOf(await compareCheckpoints(old, head, source));
}
