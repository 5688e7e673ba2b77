/** What an artifact is asked for, and what its manifest says of it. `docs/exports.md` explains the manifest's members. */
import type { Dtype } from '../../../shared/registry/index.ts';
import type { Mode } from '../../../shared/registry/types.ts';
import type { Warning } from '../../contract/problems.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import type { ReadCall } from '../../read/execute/answer.ts';
import type { Reader } from '../../read/execute/reader.ts';
import type { BufferPool } from '../../render/response.ts';

export type ArtifactFormat = 'parquet' | 'csv';

export interface ArtifactDeps {
  readonly reader: Reader;
  readonly buffers: BufferPool;
  readonly now: () => number;
  /** A window whose partitions hold more rows becomes a file a UTC day. */
  readonly splitRows: number;
}

export interface ArtifactProgress {
  readonly rows: number;
  /** On their way to the disk. */
  readonly bytes: number;
}

export interface ArtifactJob {
  readonly request: ReadRequest;
  readonly admit: ReadCall['admit'];
  readonly format: ArtifactFormat;
  /**
   * Where the artifact will be: its parent exists, it does not. It appears whole or not at all; what is written until
   * then lies beside it and is removed by whatever ends the writing, a later attempt included.
   */
  readonly directory: string;
  /** Kept in the manifest's `run`: facts of this run alone, such as the export's id. */
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
  /** Of the file: `int64`, `double`, `timestamp[ms, UTC]` in Parquet, `text` in CSV. */
  readonly type: string;
}

export interface ManifestFile {
  /** In the artifact's directory. */
  readonly name: string;
  /** The UTC day whose rows it holds, of an artifact split by day; else null. */
  readonly day: string | null;
  readonly row_count: number;
  readonly bytes: number;
  readonly sha256: string;
}

export interface ManifestPartition {
  readonly partition: string;
  readonly source_id: string;
  readonly revision: number;
  /** Native rows, and seconds, of the whole partition, also where the window holds only some. */
  readonly rows: number | null;
  readonly aligned_rows: number | null;
  /** Digests that the partition was proved by, as in coverage and lineage. */
  readonly rows_hash: string | null;
  readonly aligned_hash: string | null;
  readonly events_sha256: string | null;
  readonly document_sha256: string | null;
}

export type ManifestWindow =
  | { readonly kind: 'range'; readonly start_utc: string | null; readonly end_utc: string | null }
  | { readonly kind: 'latest'; readonly n_rows: number }
  | { readonly kind: 'random'; readonly n_random: number; readonly random_seed: number };

export interface Manifest {
  readonly manifest_version: 1;
  readonly dataset: string;
  readonly mode: Mode;
  readonly view_id: string;
  readonly view_version: number;
  readonly format: ArtifactFormat;
  readonly media_type: string;
  readonly window: ManifestWindow;
  /** Rows as they were known then; null: as they are known now. */
  readonly as_of: string | null;
  readonly schema: readonly ManifestColumn[];
  readonly row_count: number;
  readonly bytes: number;
  /** Of the one file; of several, of the lines that `sha256sum <files>` prints in their order here. */
  readonly sha256: string;
  readonly split: 'none' | 'day';
  readonly files: readonly ManifestFile[];
  /** Made from the service's own sample, not from a vendor's documents. */
  readonly synthetic: boolean;
  /** Exclusive end of what is proved of the dataset; null where nothing is. */
  readonly as_of_utc: string | null;
  readonly warnings: readonly Warning[];
  /** The proved partitions that the rows come from. */
  readonly proof: {
    readonly coverage_version: number;
    readonly partitions: number;
    /** Of all of them, one line each; how, is in the documentation. */
    readonly sha256: string;
    readonly listed: readonly ManifestPartition[];
  };
  /** What another run of the same request need not repeat. Everything above is the same for the same proved data. */
  readonly run: Readonly<Record<string, string | number | boolean | null>>;
}

export interface WrittenFile extends ManifestFile {
  readonly path: string;
  readonly modifiedMs: number;
}

export interface Artifact {
  readonly manifest: Manifest;
  readonly manifestPath: string;
  readonly files: readonly WrittenFile[];
}

/** Why an artifact could not be written or is not what it was. Messages name no path: they may reach a caller. */

export type ArtifactFaultKind =
  /** The disk, or the share of it, is full. */
  | 'no_space'
  /** The directory is missing, read-only or not ours. */
  | 'not_writable'
  /** The disk failed. */
  | 'io'
  /** A later attempt at the same artifact took this one's place. */
  | 'superseded';

const MESSAGES: Readonly<Record<ArtifactFaultKind, string>> = {
  no_space: 'the disk of the export root is full',
  not_writable: 'the export root cannot be written',
  io: 'the disk of the export root failed',
  superseded: 'a later attempt at the same export has taken over',
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

/** What a failed call on a file means. */
export function artifactFault(cause: unknown): ArtifactFault {
  if (cause instanceof ArtifactFault) return cause;
  return new ArtifactFault(KINDS[String((cause as { code?: unknown } | null)?.code)] ?? 'io', cause);
}
