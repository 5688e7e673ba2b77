/** Rows of the exports table, as the code sees them. */

import { OWNER } from '../../shared/keys/key.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import type { RightsState } from '../../shared/rights/matrix.ts';
import { type JsonObject, parseJson } from '../../shared/strict-json.ts';
import type { ExportFormat } from '../contract/export.ts';
import type { Warning } from '../contract/problems.ts';
import type { ExportState } from './states.ts';

/** One file of an artifact, as it was written. */
export interface StoredFile {
  readonly name: string;
  readonly day: string | null;
  readonly row_count: number;
  readonly bytes: number;
  readonly sha256: string;
  readonly modified_ms: number;
}

/** The database's record of an artifact. */
export interface StoredArtifact {
  readonly row_count: number;
  readonly bytes: number;
  readonly sha256: string;
  readonly media_type: string;
  readonly split: 'none' | 'day';
  readonly files: readonly StoredFile[];
  readonly manifest: StoredFile;
  readonly synthetic: boolean;
}

export interface Progress {
  readonly rows: number;
  readonly bytes: number;
}

export interface ExportRow {
  readonly exportId: string;
  readonly number: string;
  readonly state: ExportState;
  readonly request: JsonObject;
  readonly requestSha256: string;
  /** Name of the key that submitted it. */
  readonly apiKey: string;
  readonly dataset: string;
  readonly mode: Mode;
  readonly format: ExportFormat;
  readonly rightsState: RightsState;
  readonly rightsProvisional: boolean;
  readonly viewId: string;
  readonly viewVersion: number;
  readonly submittedAt: Date;
  readonly updatedAt: Date;
  readonly fence: number;
  readonly worker: string | null;
  readonly crashes: number;
  readonly retries: number;
  readonly warnings: readonly Warning[];
  readonly asOf: Date | null;
  readonly progress: Progress;
  readonly artifact: StoredArtifact | null;
  readonly artifactFence: number | null;
  readonly expiresAt: Date | null;
  /** By the database's clock, which decides. */
  readonly isExpired: boolean;
  readonly errorCode: string | null;
  readonly errorMessage: string | null;
}

const DATASET_BY_NUMBER = new Map([...DATASETS.values()].map(({ number, key }) => [number, key]));

// biome-ignore lint/suspicious/noExplicitAny: a row of the database
export function rowOf(row: any): ExportRow {
  return {
    exportId: row.export_id,
    number: row.number,
    state: row.state,
    // `pg` would round its integers above 2^53.
    request: parseJson(row.request_text) as JsonObject,
    requestSha256: row.request_sha256,
    apiKey: row.api_key ?? OWNER,
    dataset: DATASET_BY_NUMBER.get(row.dataset_id) ?? '',
    mode: row.mode,
    format: row.format,
    rightsState: row.rights_state,
    rightsProvisional: row.rights_provisional,
    viewId: row.view_id,
    viewVersion: row.view_version,
    submittedAt: row.submitted_at,
    updatedAt: row.updated_at,
    fence: Number(row.fence),
    worker: row.worker,
    crashes: row.crashes,
    retries: row.retries,
    warnings: row.warnings,
    asOf: row.as_of_utc,
    progress: row.progress,
    artifact: row.artifact,
    artifactFence: row.artifact_fence === null ? null : Number(row.artifact_fence),
    expiresAt: row.expires_at,
    isExpired: row.is_expired,
    errorCode: row.error_code,
    errorMessage: row.error_message,
  };
}

/** The datasets that an export reads: one, or those of a frame's columns. */
export function datasetsOf({ dataset, request }: Pick<ExportRow, 'dataset' | 'request'>): DatasetDefinition[] {
  const columns = Array.isArray(request.columns) ? (request.columns as { readonly dataset: string }[]) : [{ dataset }];
  return [...new Set(columns.map((column) => column.dataset))].flatMap((key) => DATASETS.get(key) ?? []);
}
