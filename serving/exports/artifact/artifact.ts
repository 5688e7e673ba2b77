/** The job of writing an artifact, and its manifest. `docs/exports.md` explains the manifest's members. */

import type { Signer } from '../../../shared/proof-log/note.ts';
import type { ManifestProofLog } from '../../../shared/proof-log/signed-manifest.ts';
import type { Mode } from '../../../shared/registry/definition.ts';
import type { Dtype } from '../../../shared/registry/index.ts';
import type { JsonObject } from '../../../shared/strict-json.ts';
import type { Compression, ExportSubject } from '../../contract/export.ts';
import type { FilterClause } from '../../contract/filters.ts';
import type { Warning } from '../../contract/problems.ts';
import type { CsvFormulas } from '../../contract/shapes.ts';
import type { ProofLog } from '../../discovery/proof-log.ts';
import type { ReadCall, Reader } from '../../read/execute/answer.ts';
import type { FrameReader } from '../../read/frame/frame.ts';
import type { BufferPool } from '../../render/response.ts';

export type ArtifactFormat = 'parquet' | 'csv';

export interface ArtifactDeps {
  readonly reader: Reader;
  readonly frames: FrameReader;
  readonly buffers: BufferPool;
  readonly proofLog: ProofLog;
  /** The key of the proof log, where this process knows it. */
  readonly signer: () => Promise<Signer | undefined>;
  readonly now: () => number;
  /** A window whose partitions hold more rows than this becomes one file per UTC day. */
  readonly splitRows: number;
}

export interface ArtifactProgress {
  readonly rows: number;
  /** Including bytes on their way to the disk. */
  readonly bytes: number;
}

export interface ArtifactJob {
  readonly request: ExportSubject;
  readonly admit: ReadCall['admit'];
  readonly format: ArtifactFormat;
  readonly compression: Compression;
  readonly csvFormulas?: CsvFormulas;
  /**
   * The final directory of the artifact. Its parent exists; the directory does not. The artifact appears completely or not at
   * all. Unfinished files lie beside it; the end of the writing or a later attempt removes them.
   */
  readonly directory: string;
  /** Facts of this run alone, such as the export's id, for the manifest's `run`. */
  readonly run?: Readonly<Record<string, string | number | boolean | null>>;
  readonly signal: AbortSignal;
  onProgress?(progress: ArtifactProgress): void;
}

/** One column as the files hold it. */
export interface ManifestColumn {
  readonly name: string;
  readonly dtype: Dtype;
  readonly nullable: boolean;
  readonly unit: string | null;
  /** The type in the file: `int64`, `double`, `timestamp[ms, UTC]` in Parquet, `text` in CSV. */
  readonly type: string;
}

export interface ManifestFile {
  /** Name in the artifact's directory. */
  readonly name: string;
  /** The UTC day of its rows, if the artifact is split by day; else null. */
  readonly day: string | null;
  readonly row_count: number;
  readonly bytes: number;
  readonly sha256: string;
}

export interface ManifestPartition {
  readonly partition: string;
  readonly source_id: string;
  readonly revision: number;
  /** Native and aligned rows of the whole partition, even if the window holds only some. */
  readonly rows: number | null;
  readonly aligned_rows: number | null;
  /** The digests that proved the partition, as in coverage and lineage. */
  readonly rows_hash: string | null;
  readonly aligned_hash: string | null;
  readonly events_sha256: string | null;
  readonly document_sha256: string | null;
}

export interface ManifestProof {
  readonly coverage_version: number;
  readonly partitions: number;
  /** Digest over one line per partition; the documentation describes the line. */
  readonly sha256: string;
  readonly listed: readonly ManifestPartition[];
}

export type ManifestWindow =
  | { readonly kind: 'range'; readonly start_utc: string | null; readonly end_utc: string | null }
  | { readonly kind: 'latest'; readonly n_rows: number }
  | { readonly kind: 'random'; readonly n_random: number; readonly random_seed: number };

export interface ArtifactManifest {
  readonly manifest_version: 1;
  /** Null for a frame, as `mode` is: its columns name their datasets. */
  readonly dataset: string | null;
  /** Absent for the default. */
  readonly instrument?: string;
  readonly mode: Mode | null;
  /** Of a frame: its columns, grid and fill, as requested. */
  readonly frame?: JsonObject;
  readonly view_id: string;
  readonly view_version: number;
  readonly format: ArtifactFormat;
  readonly compression: Compression;
  /** Absent where the texts are as they are stored. */
  readonly csv_formulas?: CsvFormulas;
  readonly media_type: string;
  readonly window: ManifestWindow;
  /** As the request has them; every row passes all of them. */
  readonly filters: readonly FilterClause[];
  /** The time as of which the rows were known, or `row`; null: now. */
  readonly as_of: string | null;
  readonly schema: readonly ManifestColumn[];
  readonly row_count: number;
  readonly bytes: number;
  /** Digest of the file; if it is split by day, of the lines that `sha256sum <files>` prints in the order of `files`. */
  readonly sha256: string;
  readonly split: 'none' | 'day';
  readonly files: readonly ManifestFile[];
  /** Whether the rows come from the service's own sample and not from a vendor's documents. */
  readonly synthetic: boolean;
  /** Exclusive end of the dataset's coverage; null where nothing is proved. */
  readonly as_of_utc: string | null;
  readonly warnings: readonly Warning[];
  /** The proved partitions that the rows come from; null for a frame, which has `proofs`. */
  readonly proof: ManifestProof | null;
  /** Of a frame: the same for each of its datasets, and the digest of the rows, which is that of the same request's answer. */
  readonly proofs?: readonly ({ readonly dataset: string; readonly instrument?: string } & ManifestProof)[];
  readonly rows_sha256?: string;
  /** How much of the window was searched, and how much the filters ruled out by stored value ranges; else null. */
  readonly searched: {
    readonly partitions_read: number;
    readonly partitions_skipped: number;
    readonly frames_read: number;
    readonly frames_skipped: number;
  } | null;
  /** Facts that differ between runs of the same request. Everything above is the same for the same proved data. */
  readonly run: Readonly<Record<string, string | number | boolean | null>>;
  /** The leaves of the partitions in the proof log. It differs between runs, as `signed` does. */
  readonly proof_log: ManifestProofLog;
  /** Signed note over the manifest without this member; null where the process that wrote it had no key. */
  readonly signed: string | null;
}

export interface WrittenFile extends ManifestFile {
  readonly path: string;
  readonly modifiedMs: number;
}

export interface Artifact {
  readonly manifest: ArtifactManifest;
  readonly manifestPath: string;
  readonly files: readonly WrittenFile[];
}

/** Why an artifact could not be written or was changed. The messages may reach a caller, so they name no path. */
export type ArtifactFaultKind =
  /** The disk or its quota is full. */
  | 'no_space'
  /** The directory is missing, read-only or belongs to another user. */
  | 'not_writable'
  /** The disk failed. */
  | 'io'
  /** A later attempt at the same artifact replaced this one. */
  | 'superseded';

const MESSAGES: Readonly<Record<ArtifactFaultKind, string>> = {
  no_space: 'the disk of the export root is full; the operator has to free space',
  not_writable: 'the export root is not writable; the operator has to repair it',
  io: 'the disk of the export root failed; the operator has to check it',
  superseded: 'a later attempt at the same export replaced this one',
};

const KINDS: Readonly<Record<string, ArtifactFaultKind>> = {
  ENOSPC: 'no_space',
  EDQUOT: 'no_space',
  EFBIG: 'no_space',
  EACCES: 'not_writable',
  EPERM: 'not_writable',
  EROFS: 'not_writable',
  ENOTDIR: 'not_writable',
  ENOENT: 'not_writable',
};

export class ArtifactFault extends Error {
  override readonly name = 'ArtifactFault';
  readonly kind: ArtifactFaultKind;

  constructor(kind: ArtifactFaultKind, cause?: unknown) {
    super(MESSAGES[kind], cause === undefined ? undefined : { cause });
    this.kind = kind;
  }
}

/** Maps the error of a file system call. */
export function artifactFault(cause: unknown): ArtifactFault {
  if (cause instanceof ArtifactFault) return cause;
  return new ArtifactFault(KINDS[String((cause as { code?: unknown } | null)?.code)] ?? 'io', cause);
}
