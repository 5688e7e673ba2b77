/**
 * `check`: holds files of an export, a lineage answer, checkpoints, a mirror or a lake against the proof log. It needs neither the database
 * nor the event log nor settings, only the log's key and, for some, its tiles.
 */
import { createHash } from 'node:crypto';
import { createReadStream, readFileSync } from 'node:fs';
import { glob, readdir, readFile, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createZstdDecompress } from 'node:zlib';
import { z } from 'zod';
import { TidemarkError } from '../../../shared/errors.ts';
import { LOG_FOLDER, logFileOf } from '../../../shared/mirror/delta-log.ts';
import { MIRROR_FILE, stateOf } from '../../../shared/mirror/folder.ts';
import {
  isChosen,
  MANIFEST_FILE,
  parseFileManifest,
  parseLakeManifest,
  readVersion,
} from '../../../shared/mirror/lake-manifest.ts';
import { RowFault, type RowLayout } from '../../../shared/proof-log/cells.ts';
import {
  CheckReport,
  checkConsistency,
  checkLineage,
  checkLog,
  type FoundDocument,
  holdsLine,
  inWords,
  type LineageAnswer,
} from '../../../shared/proof-log/check.ts';
import {
  ExportCheck,
  type ExportManifest,
  ROWS_AFTER_FAULT,
  SPARE_ROWS,
} from '../../../shared/proof-log/check-export.ts';
import { CsvFeed, GOES_ON } from '../../../shared/proof-log/csv-feed.ts';
import { CHECKPOINT_FILE, folderSource, KEY_FILE, ROTATIONS_FILE } from '../../../shared/proof-log/folder.ts';
import { httpSource } from '../../../shared/proof-log/http.ts';
import { type LogKey, openCheckpoint, parseVerifier, type SignedCheckpoint } from '../../../shared/proof-log/note.ts';
import { printable } from '../../../shared/proof-log/printable.ts';
import { keysFrom, parseRotations, trustedKeys } from '../../../shared/proof-log/rotations.ts';
import { verifyManifest } from '../../../shared/proof-log/signed-manifest.ts';
import { LogUnreachable, readEntry, TileFault, type TileSource, textOf } from '../../../shared/proof-log/tiles.ts';
import { checkTlogProof, TLOG_PROOF } from '../../../shared/proof-log/tlog-proof.ts';
import { DATASETS } from '../../../shared/registry/index.ts';
import { rowLayoutOf } from '../../../shared/registry/proof-rows.ts';
import { openGzip, openZipMember } from '../../sources/documents/zip-reader.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput, grouped } from '../output.ts';
import { feedParquet } from '../parquet-feed.ts';

/** What the named files are. */
type Subject = 'export' | 'lineage' | 'checkpoints' | 'mirror' | 'tlog_proof' | 'lake';

interface Named {
  readonly subject: Subject;
  readonly report: CheckReport;
}

const invalid = (message: string, cause?: unknown) =>
  new TidemarkError('USAGE', printable(message), {
    remedy:
      'Name the manifest of an export, a lineage answer, checkpoints, a tlog-proof, or the folder of a mirror or a lake.',
    cause,
  });

export async function runCheck(command: ParsedCommand): Promise<number> {
  const [path, second] = command.positionals;
  const { log, key, document } = command.values as Record<string, string | undefined>;
  const startedAt = performance.now();
  const source = log === undefined ? undefined : sourceOf(log);
  const { subject, report } = await checked(path, second, { source, key, document }).catch((error) => {
    const isLog = error instanceof TileFault || error instanceof LogUnreachable;
    throw isLog ? invalid(`The log cannot be read: ${error.message}`, error) : error;
  });
  const { checked: held, unchecked, faults, ok } = report;
  const elapsed_ms = Math.round(performance.now() - startedAt);
  createOutput(command).answer(
    { command: 'check', ok, subject, checked: held, not_checked: unchecked, faults, elapsed_ms },
    () =>
      [
        ...faults.map((line) => `WRONG        ${printable(line)}`),
        ...held.map((line) => `checked      ${printable(line)}`),
        ...unchecked.map((line) => `not checked  ${printable(line)}`),
        ok
          ? `${TITLES[subject]}: everything that was checked holds.`
          : `${TITLES[subject]}: ${faults.length} of the checks failed.`,
      ].join('\n'),
  );
  return ok ? EXIT.DONE : EXIT.FAILED;
}

const TITLES: Readonly<Record<Subject, string>> = {
  export: 'Export',
  lineage: 'Lineage answer',
  checkpoints: 'Checkpoints',
  mirror: 'Mirror of the log',
  tlog_proof: 'Proof of inclusion (tlog-proof)',
  lake: 'Lake',
};

/** The files of a log: at a URL, or in a folder. */
export const sourceOf = (log: string, stop?: AbortSignal): TileSource =>
  /^https?:\/\//.test(log) ? httpSource(log, stop) : folderSource(log);

interface Given {
  readonly source: TileSource | undefined;
  /** A line, or a file with one. */
  readonly key: string | undefined;
  readonly document: string | undefined;
}

async function checked(path: string, second: string | undefined, given: Given): Promise<Named> {
  if (await isFolder(path)) {
    const manifest = await manifestIn(path);
    if (manifest !== undefined) return await checkExport(manifest, given);
    if (await isFile(join(path, CHECKPOINT_FILE))) return await checkFolder(path, given);
    if (await isFile(join(path, MANIFEST_FILE))) return await checkLake(path, given);
    throw invalid(`${path} has neither a manifest.json, a checkpoint nor a ${MANIFEST_FILE}`);
  }
  const text = await readText(path);
  if (text.startsWith(TLOG_PROOF)) return await checkProof(text, second, given);
  if (text.includes('\n\n\u2014 ') && !text.startsWith('{')) return await checkNotes(path, text, second, given);
  const json = parsed(path, text);
  if ('manifest_version' in json) return await checkExport(path, given);
  if ('payload_sha256_raw' in json) return await checkAnswer(shaped(LINEAGE, path, json), given);
  throw invalid(`${path} is neither a manifest, a lineage answer, a checkpoint nor a tlog-proof`);
}

/** The manifest in a folder, else, as a worker leaves its export, that of the last run in a subfolder of its number. */
async function manifestIn(folder: string): Promise<string | undefined> {
  const runs = (await readdir(folder)).filter((name) => /^\d+$/.test(name)).sort((a, b) => Number(b) - Number(a));
  for (const name of ['.', ...runs]) {
    const path = join(folder, name, 'manifest.json');
    if (await isFile(path)) return path;
  }
  return undefined;
}

const isFolder = async (path: string) => (await stat(path).catch(() => undefined))?.isDirectory() === true;
const isFile = async (path: string) => (await stat(path).catch(() => undefined))?.isFile() === true;

/** As of the largest manifest. */
const MAX_TEXT_BYTES = 64 * 1024 * 1024;

export async function readText(path: string): Promise<string> {
  try {
    const found = await stat(path);
    // A pipe or a device might never end.
    if (!found.isFile()) throw invalid(`${path} is not a file`);
    if (found.size > MAX_TEXT_BYTES)
      throw invalid(`${path} has ${found.size} bytes, and at most ${MAX_TEXT_BYTES} are read`);
    return await readFile(path, 'utf8');
  } catch (cause) {
    if (cause instanceof TidemarkError) throw cause;
    throw invalid(`${path} cannot be read`, cause);
  }
}

function parsed(path: string, text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Reported below.
  }
  throw invalid(`${path} is not a JSON object`);
}

const text = z.string();
const partitions = z.looseObject({ partitions: z.int(), listed: z.array(z.looseObject({ partition: text })) });

/** What a check reads of a manifest, and of a lineage answer. Other members stay, because the signature covers them. */
const MANIFEST = z.looseObject({
  manifest_version: z.literal(1),
  dataset: text.nullable(),
  mode: text.nullable(),
  format: text,
  window: z.looseObject({ kind: text, start_utc: text.nullish(), end_utc: text.nullish() }),
  filters: z.array(z.unknown()),
  as_of: text.nullable(),
  schema: z.array(z.looseObject({ name: text })),
  row_count: z.int(),
  files: z.array(z.looseObject({ name: text.min(1), bytes: z.int(), sha256: text })),
  proof: partitions.nullable(),
  proofs: z.array(partitions.extend({ dataset: text })).optional(),
  proof_log: z
    .looseObject({
      checkpoint: text.nullable(),
      leaves: z.array(
        z.looseObject({
          dataset: text,
          partition: text,
          leaf_index: z.int().nullable(),
          leaf: text,
          salt: text.nullish(),
          inclusion: z.array(text).nullable(),
        }),
      ),
    })
    .optional(),
});

const LINEAGE = z.looseObject({
  dataset: text,
  offset: text,
  partition: text,
  synthetic: z.boolean(),
  payload_raw: z.looseObject({ bytes: z.int(), base64: text, utf8: text.nullable() }),
  payload_sha256_raw: text,
  document: z.looseObject({ name: text, sha256: text }),
  proof: z.looseObject({ revision: z.int(), expected: z.looseObject({}), recount: z.looseObject({}), facts: text }),
  proof_log: z.looseObject({
    state: z.enum(['logged', 'pending', 'none']),
    leaf_index: z.int().nullable(),
    leaf: text.nullable(),
    salt: text.nullish(),
    inclusion: z.array(text).nullable(),
  }),
  checkpoint: text.nullable(),
});

/** @throws TidemarkError USAGE naming the member */
function shaped<T>(shape: z.ZodType<T>, path: string, value: unknown): T {
  const result = shape.safeParse(value);
  // The value itself: its signature depends on the order of its members.
  if (result.success) return value as T;
  const [{ path: at, message }] = result.error.issues;
  throw invalid(`${path} is not of its form: /${at.join('/')}: ${message}`);
}

/**
 * The key that is named and those that followed it in the log; without one, that of the log's own files, which `report` says.
 * @throws TidemarkError USAGE
 */
async function keysOf({ source, key }: Pick<Given, 'source' | 'key'>, report: CheckReport): Promise<LogKey[]> {
  const read = async (file: string) => source && (await textOf(source, file));
  try {
    const current = await read(KEY_FILE);
    if (key === undefined) {
      if (current === undefined)
        throw invalid('The key of the log is missing: name it with --key, or the log with --log');
      report.unchecked.push(
        'the key: it came from the log itself; keep it, and name it with --key from now on, as for what an earlier key signed',
      );
    }
    const named = current === undefined ? undefined : parseVerifier(current);
    const given = key === undefined ? undefined : await namedKeys(key);
    const trusted = given ? parseVerifier(given.key) : named!;
    const rotations = parseRotations((given?.rotations ?? '') + ((await read(ROTATIONS_FILE)) ?? ''));
    const keys = report.attempt('rotations', () =>
      named ? trustedKeys(trusted, named, rotations) : keysFrom(trusted, rotations),
    );
    if (given && named && keys && keys.length > 1)
      report.checked.push('the key of the log was rotated, and the key before it signed that');
    if (!source) report.unchecked.push(NOT_ASKED);
    return keys ?? [trusted];
  } catch (cause) {
    if (cause instanceof TidemarkError) throw cause;
    throw unusableKey(cause);
  }
}

/** A key that was rotated away signs nothing larger, which its own line does not say. */
const NOT_ASKED = 'whether the key was rotated away before that was signed: its log says so, which you name with --log';

const unusableKey = (cause: unknown) => invalid('The key cannot be used', cause);

/** A key by its line, and the rotations below it, where the file has them. */
export interface GivenKey {
  readonly key: string;
  readonly rotations?: string;
}

/** A key that a flag gives as text or as a file. @throws TidemarkError USAGE */
export async function namedKeys(key: string): Promise<GivenKey> {
  try {
    const text = ((await isFile(key)) ? await readText(key) : key).trimStart();
    const [line] = text.split('\n', 1);
    const rotations = text.slice(line.length + 1);
    return { key: parseVerifier(line).line, ...(rotations !== '' && { rotations }) };
  } catch (cause) {
    if (!key.includes('+') && !(await isFile(key)))
      throw invalid(`There is no file ${key}, and it is not a key either`, cause);
    throw unusableKey(cause);
  }
}

async function checkExport(manifestPath: string, given: Given): Promise<Named> {
  const manifest: ExportManifest = shaped(MANIFEST, manifestPath, parsed(manifestPath, await readText(manifestPath)));
  const keyed = new CheckReport();
  const keys = await keysOf(given, keyed);
  const report = await checkFiles(manifest, keys, (name) => join(dirname(manifestPath), basename(name)));
  report.unchecked.push(...keyed.unchecked);
  report.checked.push(...keyed.checked);
  return { subject: 'export', report };
}

/** Holds the files of a manifest against it, and it against the proof log. */
async function checkFiles(
  manifest: ExportManifest,
  keys: readonly LogKey[],
  pathOf: (name: string) => string,
): Promise<CheckReport> {
  const dataset = DATASETS.get(manifest.dataset ?? '');
  const layout = dataset && rowLayoutOf(dataset);
  const check = new ExportCheck(manifest, keys, layout);
  const { report } = check;
  const files = await filesOf(manifest, pathOf, report);
  const why = check.whyNoRows;
  if (why !== undefined) report.unchecked.push(`rows against leaves (${why}): vouched for only by the signed manifest`);
  else if (files && report.ok) await checkRows(check, { layout: layout!, rows: manifest.row_count }, files);
  else report.unchecked.push(ROWS_AFTER_FAULT);
  return report;
}

/** The newest version of each table of a lake or of a mirror of one: its note, its log, and all of its files. */
async function checkLake(folder: string, given: Given): Promise<Named> {
  const report = new CheckReport();
  const keys = await keysOf(given, report);
  const root = report.attempt(MANIFEST_FILE, () =>
    parseLakeManifest(Buffer.from(readFileSync(join(folder, MANIFEST_FILE)))),
  );
  const mirrored = await readFile(join(folder, MIRROR_FILE)).then(stateOf, () => undefined);
  const listed = new Set(root?.tables.map(({ table }) => table));
  for await (const log of glob(`*/*/${LOG_FOLDER}`, { cwd: folder })) {
    if (!listed.has(dirname(log))) report.faults.push(`${dirname(log)}: it has no signed note`);
  }
  for (const note of root?.tables ?? []) {
    const { table, version } = note;
    try {
      const by = verifyManifest({ ...note }, keys);
      if (note.checkpoint !== null) openCheckpoint(note.checkpoint, keys);
      const log = join(folder, table, LOG_FOLDER);
      const newest = Math.max(...(await readdir(log)).map((name) => logFileOf(name)?.version ?? -1));
      if (newest > version) throw new Error(`version ${newest} of its log has no signed note`);
      const { files: all } = await readVersion(note, async (name, limit) => {
        const { size } = await stat(join(log, name));
        if (size > limit) throw new Error(`${name} has ${size} bytes, and at most ${limit} are left of its log`);
        return await readFile(join(log, name));
      });
      report.checked.push(
        `${table}: version ${version}, up to change ${note.change}, has the ${inWords(all.length, 'file')} that ${by.name} signed`,
      );
      const files = all.filter(({ path }) => isChosen(mirrored?.datasets ?? null, path));
      if (files.length < all.length) {
        report.unchecked.push(
          `${table}: ${inWords(all.length - files.length, 'file')} of instruments that this mirror does not keep`,
        );
      }
      const held = new CheckReport();
      let rows = 0;
      for (const file of files) {
        const path = join(folder, file.manifest);
        const manifest = parseFileManifest(Buffer.from(await readText(path)), table, file);
        rows += Number(manifest.row_count);
        merge(held, await checkFiles(shaped(MANIFEST, path, manifest), keys, (name) => join(folder, table, name)));
      }
      report.faults.push(...held.faults.map((fault) => `${table}: ${fault}`));
      for (const list of ['checked', 'unchecked'] as const) {
        for (const [line, { length }] of Map.groupBy(held[list], String)) {
          report[list].push(`${table}: ${length > 1 ? `${length} times: ` : ''}${line}`);
        }
      }
      if (files.length === note.files && rows !== note.rows) {
        throw new Error(`its files have ${rows} rows, and its note ${note.rows}`);
      }
    } catch (error) {
      report.faults.push(`${table}: ${error instanceof Error ? error.message : error}`);
    }
  }
  return { subject: 'lake', report };
}

const SPARE_BYTES = 1024 * 1024;

/** The files with the sizes and digests of the manifest; undefined where one differs. */
async function filesOf(
  { files, row_count: rows }: ExportManifest,
  pathOf: (name: string) => string,
  report: CheckReport,
): Promise<string[] | undefined> {
  const paths: string[] = [];
  const seen = new Set<string>();
  for (const { name, sha256, bytes } of files) {
    const path = pathOf(name);
    if (seen.has(path)) throw invalid(`The manifest lists ${path} twice`);
    seen.add(path);
    if (!(await isFile(path))) throw invalid(`${path}, which the manifest lists, is not there`);
    const { size } = await stat(path);
    // The digest names a file that was edited; one that is larger by any amount is not read for it.
    if (size > 2 * bytes + SPARE_BYTES) {
      report.faults.push(`${name} has ${size} bytes, and ${bytes} in the manifest`);
      continue;
    }
    const digest = createHash('sha256');
    await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), digest);
    const found = digest.digest('hex');
    if (found === sha256 && size === bytes) paths.push(path);
    else report.faults.push(`${name} has the sha256 ${found}, and ${sha256} in the manifest`);
  }
  if (paths.length < files.length) return undefined;
  report.checked.push(
    `${files.length === 1 ? 'the file has' : `all ${files.length} files have`} the size and sha256 of the manifest, which says ${grouped(rows)} rows`,
  );
  return paths;
}

async function checkRows(
  check: ExportCheck,
  { layout, rows }: { readonly layout: RowLayout; readonly rows: number },
  files: readonly string[],
): Promise<void> {
  for (let keep: string[] = []; ; ) {
    const digests = check.digests(keep);
    let left = rows + SPARE_ROWS;
    try {
      for (const path of files) {
        if (path.endsWith('.parquet')) left -= await feedParquet(path, { layout, digests }, check.fields, left);
        else left -= await feedCsv(path, new CsvFeed(layout, digests, check.fields, left));
      }
    } catch (error) {
      check.report.faults.push(`rows: ${error instanceof Error ? error.message : error}`);
      return;
    }
    keep = check.rows(digests);
    if (keep.length === 0) return;
  }
}

/** @returns its rows */
async function feedCsv(path: string, feed: CsvFeed): Promise<number> {
  const zstd = path.endsWith('.zst') ? createZstdDecompress() : undefined;
  const unpack = path.endsWith('.gz') ? [createGunzip()] : zstd ? [zstd] : [];
  const file = createReadStream(path, { highWaterMark: 1 << 20 });
  await pipeline([
    file,
    ...unpack,
    async (chunks: AsyncIterable<Buffer>) => {
      for await (const chunk of chunks) feed.push(chunk);
    },
  ] as never);
  if (zstd && zstd.bytesWritten !== file.bytesRead) throw new RowFault(GOES_ON);
  feed.end();
  return feed.rows;
}

async function checkAnswer(answer: LineageAnswer, given: Given): Promise<Named> {
  const keyed = new CheckReport();
  const keys = await keysOf(given, keyed);
  const document = given.document === undefined ? undefined : await openDocument(given.document, answer);
  const report = checkLineage(answer, keys, document);
  merge(report, keyed);
  return { subject: 'lineage', report };
}

/** The most unpacked bytes of a document. */
const MAX_DOCUMENT_BYTES = 8 * 1024 ** 3;

/** The vendor's file: its digest, and whether its unpacked content holds the bytes of the event. */
async function openDocument(path: string, { dataset, document, payload_raw }: LineageAnswer): Promise<FoundDocument> {
  const hash = createHash('sha256');
  try {
    await pipeline(createReadStream(path), hash);
  } catch (cause) {
    throw invalid(`${path} cannot be read`, cause);
  }
  const sha256 = hash.digest('hex');
  // Events of the other datasets are values that were read out of a page or a response.
  if (sha256 !== document.sha256 || !hasLines(dataset)) return { sha256, holds: null };
  const payload = Buffer.from(payload_raw.base64, 'base64');
  try {
    return { sha256, holds: await holds(await unpacked(path, document.name), payload) };
  } catch (error) {
    // It is not packed as its name says, so that nothing is a line of it.
    if (error instanceof TidemarkError) return { sha256, holds: false };
    throw error;
  }
}

async function unpacked(path: string, name: string): Promise<AsyncIterable<Buffer>> {
  const options = { path, expectedName: name.replace(/\.zip$/, '.csv'), maxUnpackedBytes: MAX_DOCUMENT_BYTES };
  if (name.endsWith('.zip')) return (await openZipMember(options)).stream();
  if (name.endsWith('.gz')) return (await openGzip(options)).stream();
  return createReadStream(path);
}

const hasLines = (dataset: string): boolean => DATASETS.get(dataset)?.partition.kind === 'file_day';

async function holds(chunks: AsyncIterable<Buffer>, payload: Buffer): Promise<boolean> {
  const LF = Buffer.of(10);
  let rest: Buffer = LF;
  for await (const chunk of chunks) {
    const bytes = Buffer.concat([rest, chunk]);
    if (holdsLine(bytes, payload)) return true;
    // What may be the beginning of the line: a line feed, its bytes, and a carriage return.
    rest = bytes.subarray(Math.max(0, bytes.length - payload.length - 2));
  }
  return holdsLine(Buffer.concat([rest, LF]), payload);
}

/** The leaf is that of a file, or of the log. */
async function checkProof(text: string, leaf: string | undefined, given: Given): Promise<Named> {
  const keyed = new CheckReport();
  const keys = await keysOf(given, keyed);
  const report = await checkTlogProof(text, keys, async (index, size) => {
    if (leaf !== undefined) return Buffer.from(await readText(leaf));
    return given.source && (await readEntry(given.source, index, size));
  });
  merge(report, keyed);
  return { subject: 'tlog_proof', report };
}

async function checkNotes(path: string, text: string, second: string | undefined, given: Given): Promise<Named> {
  const report = new CheckReport();
  const keys = await keysOf(given, report);
  const first = report.attempt(path, () => openCheckpoint(text, keys));
  if (first) report.checked.push(`${path}: ${first.size} leaves, signed by ${first.origin}`);
  if (second === undefined || !first) {
    if (second === undefined) report.unchecked.push('consistency: name a second checkpoint, and the log with --log');
    return { subject: 'checkpoints', report };
  }
  const other = await readText(second);
  const last = report.attempt(second, () => openCheckpoint(other, keys));
  if (!last) return { subject: 'checkpoints', report };
  report.checked.push(`${second}: ${last.size} leaves, signed by ${last.origin}`);
  const [old, head] = first.size <= last.size ? [first, last] : [last, first];
  if (!given.source && old.size !== head.size)
    throw invalid('Two checkpoints need the tiles of the log: name it with --log');
  merge(report, await checkConsistency(old, head, given.source ?? (async () => undefined)));
  return { subject: 'checkpoints', report };
}

function merge(report: CheckReport, other: CheckReport): void {
  report.checked.push(...other.checked);
  report.unchecked.push(...other.unchecked);
  report.faults.push(...other.faults);
}

async function checkFolder(folder: string, { key, source: log }: Given): Promise<Named> {
  const report = new CheckReport();
  const source = folderSource(folder);
  const keys = await keysOf({ source, key }, report);
  const note = await readText(join(folder, CHECKPOINT_FILE));
  const head = report.attempt(CHECKPOINT_FILE, () => openCheckpoint(note, keys));
  if (head) {
    report.checked.push(`the checkpoint of ${grouped(head.size)} leaves is signed by ${head.origin}`);
    try {
      merge(report, await checkLog(note, keys, source));
      if (log) await compareWith(log, head, { report, keys, source });
    } catch (error) {
      if (error instanceof LogUnreachable) throw error;
      report.faults.push(error instanceof Error ? error.message : String(error));
    }
  }
  return { subject: 'mirror', report };
}

/** Whether the log that is served continues the mirror, or the mirror the log. */
async function compareWith(
  log: TileSource,
  own: SignedCheckpoint,
  { report, keys, source }: { readonly report: CheckReport; readonly keys: LogKey[]; readonly source: TileSource },
): Promise<void> {
  const [line, note] = await Promise.all([textOf(log, KEY_FILE), textOf(log, CHECKPOINT_FILE)]);
  if (line === undefined || note === undefined) throw new LogUnreachable('it has no checkpoint yet');
  const rotations = parseRotations((await textOf(log, ROTATIONS_FILE)) ?? '');
  const followed = keys.flatMap(({ rotation }) => rotation ?? []);
  const served = openCheckpoint(note, trustedKeys(keys[0], parseVerifier(line), [...rotations, ...followed]));
  const [old, head, tiles] = own.size <= served.size ? [own, served, log] : [served, own, source];
  merge(report, await checkConsistency(old, head, tiles));
}
