/**
 * The manifests of a lake: the root's, which lists every file, and the one beside each file. A mirror reads them from anybody,
 * the service from its own folder; both use only what passes the checks here.
 */

import type { Verifier } from '../proof-log/note.ts';
import { printable } from '../proof-log/printable.ts';
import { verifyManifest } from '../proof-log/signed-manifest.ts';

export const MANIFEST_FILE = '_manifest.json';
export const ROWS_FILE = 'rows.parquet';
/** Files in progress, which are no part of the lake. */
export const PARTIAL_FOLDER = '_partial';

/** Most bytes of a root manifest, which is read into memory: some hundred thousand files. */
export const MAX_ROOT_BYTES = 128 * 1024 * 1024;
/** Most bytes of the manifest of one file or export: it lists 20,000 partitions and holds 1,000 leaves. */
export const MAX_MANIFEST_BYTES = 64 * 1024 * 1024;

/** Bytes that are named by their digest. */
export interface NamedBytes {
  /** Below the root of the lake. */
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
}

export interface LakeFile extends NamedBytes {
  readonly dataset: string;
  readonly mode: string;
  /** A UTC day or a year. */
  readonly date: string;
  readonly rows: number;
  readonly proof_sha256: string;
  readonly manifest: NamedBytes;
}

export interface LakeManifest {
  readonly synthetic: boolean;
  /** The lake holds every change of the proof log up to this number. */
  readonly change: number;
  readonly files: readonly LakeFile[];
  /** As it was parsed: the signature covers all members in their order. */
  readonly parsed: Readonly<Record<string, unknown>>;
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

export const DATASET = /^[a-z][a-z0-9_]{0,62}$/;
const MODES: ReadonlySet<unknown> = new Set(['native', 'aligned_1s']);
const DATE = /^\d{4}(?:-\d{2}-\d{2})?$/;
const SHA256 = /^[0-9a-f]{64}$/;

/** The folder of a file; its three parts have passed `checkedFile`, so that it lies below the root. */
const folderOf = ({ dataset, mode, date }: Pick<LakeFile, 'dataset' | 'mode' | 'date'>): string =>
  `dataset=${dataset}/mode=${mode}/date=${date}`;

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
  const { lake_version: version, synthetic, change, files } = parsed;
  const wrong = (member: string, what: string) => new MirrorFault('manifest', `${name}: ${member} ${what}`);
  if (version !== 1) throw wrong('lake_version', 'must be 1: another release wrote the lake, or it is none');
  if (typeof synthetic !== 'boolean') throw wrong('synthetic', 'must be true or false');
  if (!isCount(change)) throw wrong('change', 'must be a whole number');
  if (!Array.isArray(files)) throw wrong('files', 'must be a list');
  let last = '';
  for (const [at, file] of files.entries()) {
    const fault = faultOf(file);
    if (fault !== undefined) throw wrong(`files[${at}]`, fault);
    const { path } = file as LakeFile;
    if (path <= last) throw wrong(`files[${at}].path`, 'is not sorted, or there twice');
    last = path;
  }
  return { synthetic, change, files, parsed };
}

/** What is wrong with an entry of the root manifest. */
function faultOf(file: unknown): string | undefined {
  if (!isObject(file) || !isObject(file.manifest)) return 'must be an object with a manifest';
  const { dataset, mode, date, path, manifest } = file;
  if (typeof dataset !== 'string' || !DATASET.test(dataset)) return 'has an invalid dataset';
  if (!MODES.has(mode)) return 'has an invalid mode';
  if (typeof date !== 'string' || !DATE.test(date)) return 'has an invalid date';
  const folder = folderOf(file as unknown as LakeFile);
  if (path !== `${folder}/${ROWS_FILE}`) return `must have the path ${folder}/${ROWS_FILE}`;
  if (manifest.path !== `${folder}/${MANIFEST_FILE}`) return `must have the manifest ${folder}/${MANIFEST_FILE}`;
  if (!isCount(file.rows) || !isCount(file.bytes) || !isCount(manifest.bytes)) return 'has invalid counts';
  if (manifest.bytes > MAX_MANIFEST_BYTES) return `has a manifest of more than ${MAX_MANIFEST_BYTES} bytes`;
  if (![file.sha256, manifest.sha256, file.proof_sha256].every(isDigest)) return 'has an invalid sha256';
  return undefined;
}

/** Checks the manifest beside a file against the root's entry. @throws MirrorFault */
export function parseFileManifest(bytes: Uint8Array, file: LakeFile): Record<string, unknown> {
  const { path } = file.manifest;
  const manifest = parseObject(bytes, path);
  const { dataset, mode, row_count: rows, bytes: size, sha256, proof, files } = manifest;
  const [only] = Array.isArray(files) && files.length === 1 && isObject(files[0]) ? files : [];
  const pairs: readonly (readonly [member: string, found: unknown, expected: unknown])[] = [
    ['dataset', dataset, file.dataset],
    ['mode', mode, file.mode],
    ['row_count', rows, file.rows],
    ['bytes', size, file.bytes],
    ['sha256', sha256, file.sha256],
    ['files[0].bytes', only?.bytes, file.bytes],
    ['files[0].sha256', only?.sha256, file.sha256],
    ['proof.sha256', isObject(proof) ? proof.sha256 : undefined, file.proof_sha256],
  ];
  for (const [member, found, expected] of pairs) {
    if (found === expected) continue;
    const shown = JSON.stringify(found)?.slice(0, 100);
    throw new MirrorFault('manifest', `${path}: ${member} is ${shown}, and ${expected} in the root manifest`);
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
