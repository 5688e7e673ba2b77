/**
 * What a lake states besides the logs of its tables: the root manifest, which names the newest version of each table, and the
 * manifest of each file of rows. A mirror reads them from anybody, the service from its own folder; both use only what passes the
 * checks here.
 */

import { createHash } from 'node:crypto';
import { coversInstrument } from '../instrument-names.ts';
import type { Verifier } from '../proof-log/note.ts';
import { printable } from '../proof-log/printable.ts';
import { verifyManifest } from '../proof-log/signed-manifest.ts';
import { type Added, dataFileOf, filesDigest, LogFault, readSnapshot, type Snapshot } from './delta-log.ts';

export const LAKE_VERSION = 2;
export const MANIFEST_FILE = '_manifest.json';
/** Holds what proves the tables. It lies outside of their folders, where no engine removes what it does not know. */
export const PROOFS_FOLDER = '_proofs';
/** Files in progress, which are no part of the lake. */
export const PARTIAL_FOLDER = '_partial';

/** Most bytes of a root manifest: two kilobytes a table. */
export const MAX_ROOT_BYTES = 1024 * 1024;
/** Most bytes of the manifest of one file or export: it lists 20,000 partitions and holds 1,000 leaves. */
export const MAX_MANIFEST_BYTES = 64 * 1024 * 1024;
/** Most bytes of the files of a log that say what a version is: some hundred thousand files of rows. */
const MAX_LOG_BYTES = 256 * 1024 * 1024;
/** Most commits since a checkpoint. */
const MAX_COMMITS = 1000;

/** Bytes that are named by their digest. */
export interface NamedBytes {
  /** Below the root of the lake. */
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
}

/** A version of a table, as its signed note states it. */
export interface TableVersion {
  readonly lake_version: typeof LAKE_VERSION;
  /** Folder below the lake: `<dataset>/<mode>`. */
  readonly table: string;
  /** Of the Delta log. */
  readonly version: number;
  /** The table has every change of the proof log before this leaf. */
  readonly change: number;
  /** Of the proof log. */
  readonly checkpoint: string | null;
  /** Whether no row comes from a vendor. */
  readonly synthetic: boolean;
  readonly files: number;
  readonly rows: number;
  readonly bytes: number;
  /** Digest of the lines that `sha256sum` prints of the active files, sorted by path, in the folder of the table. */
  readonly files_sha256: string;
  /** The Delta checkpoint that reading begins with; null: the first commit. */
  readonly log_checkpoint: number | null;
  /** Bytes of that checkpoint and of the commits after it. */
  readonly log_bytes: number;
  readonly written_at_utc: string;
  readonly signed: string | null;
}

export interface LakeManifest {
  readonly lake_version: typeof LAKE_VERSION;
  readonly written_at_utc: string;
  /** Whether synthetic rows may be in the lake. */
  readonly synthetic: boolean;
  /** The lake holds every change of the proof log up to this number. */
  readonly change: number;
  readonly tables: readonly TableVersion[];
}

/** A file of rows that is active at a version. */
export interface LakeFile extends NamedBytes {
  /** Below the folder of its table. */
  readonly name: string;
  /** Below the root of the lake: its manifest, which an export's `check` reads. */
  readonly manifest: string;
}

/** Why a mirror cannot continue. */
export type MirrorFaultKind =
  /** The options of the call. */
  | 'usage'
  /** The folder is something else than a mirror of this source. */
  | 'folder'
  /** Another process writes to the folder. */
  | 'held'
  /** No answer, or none that is complete. */
  | 'unreachable'
  /** The source answers with a refusal. */
  | 'refused'
  /** The source lacks a file that its manifest names. */
  | 'missing'
  /** The bytes are not those that the manifest names. */
  | 'altered'
  /** A manifest is not of its form, not signed by the key, or contradicts another. */
  | 'manifest';

export class MirrorFault extends Error {
  override readonly name = 'MirrorFault';
  readonly kind: MirrorFaultKind;

  constructor(kind: MirrorFaultKind, message: string, cause?: unknown) {
    // Words of a manifest or of a server may be in it.
    super(printable(message), cause === undefined ? undefined : { cause });
    this.kind = kind;
  }
}

const TABLE = /^([a-z][a-z0-9_]{0,62})\/(native|aligned_1s)$/;
const SHA256 = /^[0-9a-f]{64}$/;

/** Dataset and mode of a table. */
export function partsOf(table: string): { readonly dataset: string; readonly mode: string } {
  const [, dataset, mode] = TABLE.exec(table) ?? [];
  return { dataset, mode };
}

/** The folder of a table's notes and manifests, below the lake. */
export const proofsOf = (table: string): string => `${PROOFS_FOLDER}/${table}`;
export const noteName = (version: number): string => `${String(version).padStart(20, '0')}.json`;
/** The name of the manifest of a file of rows: the same bytes may belong to two dates. */
export const manifestName = (name: string): string =>
  `${createHash('sha256').update(name).digest('hex').slice(0, 32)}.json`;

/** @param name of the manifest, for the fault. @throws MirrorFault */
export function parseObject(bytes: Uint8Array, name: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new MirrorFault('manifest', `${name} is not JSON`, cause);
  }
  if (!isObject(value)) throw new MirrorFault('manifest', `${name} is not a JSON object`);
  return value;
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
export const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
export const isDigest = (value: unknown): value is string => typeof value === 'string' && SHA256.test(value);

/** Parses a root manifest. @throws MirrorFault naming the member that is wrong */
export function parseLakeManifest(bytes: Uint8Array, name = MANIFEST_FILE): LakeManifest {
  const parsed = parseObject(bytes, name);
  const { lake_version: version, synthetic, change, tables } = parsed;
  const wrong = (member: string, what: string) => new MirrorFault('manifest', `${name}: ${member} ${what}`);
  if (version !== LAKE_VERSION) {
    throw wrong(
      'lake_version',
      `is ${JSON.stringify(version)?.slice(0, 100)}, and must be ${LAKE_VERSION}: another release wrote the lake, or it is none`,
    );
  }
  if (typeof synthetic !== 'boolean') throw wrong('synthetic', 'must be true or false');
  if (!isCount(change)) throw wrong('change', 'must be a whole number');
  if (!Array.isArray(tables)) throw wrong('tables', 'must be a list');
  let last = '';
  for (const [at, table] of tables.entries()) {
    const fault = faultOf(table);
    if (fault !== undefined) throw wrong(`tables[${at}]`, fault);
    const { table: own } = table as TableVersion;
    if (own <= last) throw wrong(`tables[${at}].table`, 'is not sorted, or there twice');
    last = own;
  }
  return parsed as unknown as LakeManifest;
}

/** What is wrong with a version: a reader trusts its bounds before it has read anything else. */
function faultOf(version: unknown): string | undefined {
  if (!isObject(version)) return 'must be an object';
  if (version.lake_version !== LAKE_VERSION) return `must have the lake_version ${LAKE_VERSION}`;
  if (typeof version.table !== 'string' || !TABLE.test(version.table)) return 'has an invalid table';
  const counts = ['version', 'change', 'files', 'rows', 'bytes', 'log_bytes'] as const;
  const count = counts.find((member) => !isCount(version[member]));
  if (count !== undefined) return `has an invalid ${count}`;
  const { log_checkpoint: checkpoint, version: own, log_bytes: bytes } = version as unknown as TableVersion;
  if (checkpoint !== null && (!isCount(checkpoint) || checkpoint > own)) return 'has an invalid log_checkpoint';
  if (bytes > MAX_LOG_BYTES) return `has a log of more than ${MAX_LOG_BYTES} bytes`;
  if (own - (checkpoint ?? 0) > MAX_COMMITS) return `has more than ${MAX_COMMITS} commits since its checkpoint`;
  if (typeof version.synthetic !== 'boolean') return 'has an invalid synthetic';
  return isDigest(version.files_sha256) ? undefined : 'has an invalid files_sha256';
}

/**
 * Reads the table of a note, within the note's bounds. @param read of a file of the log: at most so many bytes of it
 * @throws MirrorFault where the log does not hold what the note says
 */
export async function readVersion(
  note: TableVersion,
  read: (name: string, limit: number) => Promise<Uint8Array>,
): Promise<{ readonly snapshot: Snapshot; readonly files: readonly LakeFile[] }> {
  const { table, version } = note;
  const wrong = (what: string, cause?: unknown) =>
    new MirrorFault('manifest', `${table}, version ${version}: ${what}`, cause);
  let left = note.log_bytes;
  try {
    const bounded = async (name: string) => {
      const bytes = await read(name, left);
      left -= bytes.length;
      return bytes;
    };
    const snapshot = await readSnapshot(bounded, version, note.log_checkpoint);
    if (left !== 0) throw wrong(`its log has not the ${note.log_bytes} bytes of its note`);
    if (snapshot.files.size !== note.files) {
      throw wrong(`its log has ${snapshot.files.size} files, and its note ${note.files}`);
    }
    const digest = filesDigest(snapshot.files.keys());
    if (digest !== note.files_sha256) {
      throw wrong(`the files of its log have the sha256 ${digest}, and ${note.files_sha256} in its note`);
    }
    if (snapshot.change !== note.change) {
      throw wrong(`its log is of change ${snapshot.change}, and its note of ${note.change}`);
    }
    const files = [...snapshot.files].map(([name, added]) => lakeFileOf(table, name, added));
    const wrongSize = files.find((file) => !isCount(file.bytes));
    if (wrongSize) throw wrong(`its log has no size of ${wrongSize.name}`);
    const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
    if (bytes !== note.bytes) throw wrong(`the files of its log have ${bytes} bytes, and ${note.bytes} in its note`);
    return { snapshot, files };
  } catch (cause) {
    throw cause instanceof LogFault ? wrong(cause.message, cause) : cause;
  }
}

const lakeFileOf = (table: string, name: string, { size }: Pick<Added, 'size'>): LakeFile => ({
  name,
  path: `${table}/${name}`,
  bytes: size,
  sha256: dataFileOf(name)!.sha256,
  manifest: `${proofsOf(table)}/${manifestName(name)}`,
});

/**
 * Whether a mirror of these datasets and instruments keeps a file of rows.
 * @param path below the lake
 */
export function isChosen(datasets: readonly string[] | null, path: string): boolean {
  const [dataset, , ...below] = path.split('/');
  return coversInstrument(datasets, dataset, dataFileOf(below.join('/'))?.instrument);
}

/** Checks the manifest of a file. @throws MirrorFault */
export function parseFileManifest(bytes: Uint8Array, table: string, file: LakeFile): Record<string, unknown> {
  const { manifest: path } = file;
  const manifest = parseObject(bytes, path);
  const { dataset, mode, bytes: size, sha256, files } = manifest;
  const [only] = Array.isArray(files) && files.length === 1 && isObject(files[0]) ? files : [];
  const parts = partsOf(table);
  const pairs: readonly (readonly [member: string, found: unknown, expected: unknown])[] = [
    ['dataset', dataset, parts.dataset],
    ['mode', mode, parts.mode],
    ['bytes', size, file.bytes],
    ['sha256', sha256, file.sha256],
    ['files[0].name', only?.name, file.name],
    ['files[0].bytes', only?.bytes, file.bytes],
    ['files[0].sha256', only?.sha256, file.sha256],
  ];
  for (const [member, found, expected] of pairs) {
    if (found === expected) continue;
    const shown = JSON.stringify(found)?.slice(0, 100);
    throw new MirrorFault('manifest', `${path}: ${member} is ${shown}, and ${expected} in the log of ${table}`);
  }
  return manifest;
}

/** Checks who signed a manifest, where keys are given. @throws MirrorFault */
export function checkSigned(manifest: object, name: string, keys: readonly Verifier[]): void {
  if (keys.length === 0) return;
  try {
    verifyManifest(manifest as Record<string, unknown>, keys);
  } catch (cause) {
    throw new MirrorFault('manifest', `${name}: ${cause instanceof Error ? cause.message : cause}`, cause);
  }
}
