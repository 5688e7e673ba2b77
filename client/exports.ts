/**
 * Exports: files of any size, which the service writes in the background.
 *
 *   const { export_id } = await exports.submit({ dataset, format: 'parquet', month_year: [1, 2024] })
 *   const status = await exports.wait(export_id)
 *   for await (const bytes of exports.download(status)) ...       resumes by itself when a connection breaks
 */
import type { DatasetKey } from './datasets.ts';
import { ExportFailedError, HistoricalDataError, IncompleteAnswerError, type Warning } from './errors.ts';
import type { FrameRequest } from './frames.ts';
import type { Filter, Mode, Options } from './requests.ts';
import { jittered, sleep, Transport, type TransportOptions } from './transport.ts';

/** What the file is. */
interface FileRequest {
  readonly format: 'parquet' | 'csv';
  /** Of Parquet `zstd` (default), `snappy` or `none`; of CSV `none` (default), `gzip` or `zstd`. */
  readonly compression?: 'none' | 'gzip' | 'zstd' | 'snappy';
}

/** The rows of a dataset, or a frame. */
export type ExportRequest = RowsExport | (FileRequest & FrameRequest);

/** It must have exactly one of `month_year`, `time_range`, `n_rows` and `n_random`. */
export interface RowsExport extends FileRequest {
  readonly dataset: DatasetKey;
  /** Of trades: the exchange’s symbol. Without it: the default. */
  readonly instrument?: string;
  /** Default `native`. */
  readonly mode?: Mode;
  /** A UTC month, `[month, year]`. */
  readonly month_year?: readonly [month: number, year: number];
  /** `[start, end)`, ISO-8601 with `Z` or an offset. */
  readonly time_range?: readonly [start: string, end: string];
  readonly n_rows?: number;
  readonly n_random?: number;
  /** For `n_random`. */
  readonly random_seed?: number;
  /** Exactly these columns, in this order. */
  readonly fields?: readonly string[];
  /** Rows must pass all filters. */
  readonly filters?: readonly Filter<string>[];
  readonly view_id?: string;
  readonly view_version?: number;
  /** Of CSV only: an apostrophe comes before texts that a spreadsheet would take for formulas. */
  readonly csv_formulas?: 'escape';
  /** For ETF and macro: the values as they were known then. */
  readonly as_of?: string;
  /** Of trades: the answer’s warnings name times above a minute without one. */
  readonly silences?: 'warn';
  /** Makes the service refuse an export with warnings, at submit and when it runs. */
  readonly strict?: boolean;
}

export type ExportState = 'queued' | 'running' | 'succeeded' | 'failed';

export interface SubmittedExport {
  readonly export_id: string;
  readonly status: ExportState;
  /** Name of the key that submitted it; `owner` for the configured one. */
  readonly api_key: string;
  readonly submitted_at: string;
  readonly status_path: string;
  readonly rights_state: string;
  readonly rights_provisional: boolean;
  readonly view_id: string;
  readonly view_version: number;
  readonly warnings: readonly Warning[];
  readonly as_of_utc: string | null;
}

export interface ArtifactFile {
  readonly name: string;
  readonly uri: string;
  /** The UTC day of its rows, where the artifact has a file a day. */
  readonly day: string | null;
  readonly row_count: number;
  readonly bytes: number;
  readonly checksum_sha256: string;
}

export interface Artifact {
  readonly format: 'parquet' | 'csv';
  readonly uri: string;
  readonly manifest_uri: string;
  readonly row_count: number;
  readonly bytes: number;
  readonly checksum_sha256: string;
  readonly expires_at: string;
  readonly expired: boolean;
  readonly synthetic: boolean;
  /** One file, or one a day. */
  readonly files: readonly ArtifactFile[];
}

export interface ExportStatus extends Omit<SubmittedExport, 'status_path'> {
  readonly mode: Mode;
  readonly format: 'parquet' | 'csv';
  readonly dataset: DatasetKey;
  /** Absent for the default. */
  readonly instrument?: string;
  readonly source: string;
  readonly updated_at: string;
  readonly progress: { readonly rows: number; readonly bytes: number; readonly attempt: number };
  /** Set when `succeeded`. */
  readonly artifact?: Artifact;
  /** Set when `failed`. */
  readonly error_code?: string;
  readonly error_message?: string;
}

export interface WaitOptions extends Options {
  /** Receives every status. */
  readonly onStatus?: (status: ExportStatus) => void;
  /** Longest pause between two requests of the status, ms; default 5,000. */
  readonly maxPauseMs?: number;
}

const PATH = '/v1/raw/export';
const JSON_TYPE = 'application/json';
/** The first request of the status comes soon, because small exports take no longer. */
const FIRST_PAUSE_MS = 100;

export class Exports {
  readonly #transport: Transport;

  /** Sends nothing yet. @throws TypeError for an invalid option. */
  constructor(options: TransportOptions) {
    this.#transport = new Transport(options);
  }

  /**
   * Submits an export. A lost answer does not cause a second export: every attempt sends the same Idempotency-Key. The client
   * generates one for this call; with a key of yours every later call returns the same export.
   * @throws HistoricalDataError
   */
  async submit(
    request: ExportRequest,
    { signal, idempotencyKey = newKey() }: Options & { readonly idempotencyKey?: string } = {},
  ): Promise<SubmittedExport> {
    const headers = { Accept: JSON_TYPE, 'Idempotency-Key': idempotencyKey };
    return await this.#transport.json({ method: 'POST', path: PATH, body: request, headers, signal });
  }

  async status(exportId: string, { signal }: Options = {}): Promise<ExportStatus> {
    return await this.#transport.json({
      method: 'GET',
      path: pathOf(exportId),
      headers: { Accept: JSON_TYPE },
      signal,
    });
  }

  /** Cancels an export that has not ended. */
  async cancel(exportId: string, { signal }: Options = {}): Promise<ExportStatus> {
    return await this.#transport.json({
      method: 'DELETE',
      path: pathOf(exportId),
      headers: { Accept: JSON_TYPE },
      signal,
    });
  }

  /** Lists exports, newest first; `filter` selects a state or a dataset. */
  async *list(
    filter: { readonly status?: ExportState; readonly dataset?: DatasetKey } = {},
    { signal }: Options = {},
  ): AsyncGenerator<ExportStatus, void, undefined> {
    for (let cursor: string | null | undefined; cursor !== null; ) {
      const query = new URLSearchParams();
      for (const [name, value] of Object.entries({ ...filter, cursor }))
        if (value !== undefined) query.set(name, value);
      const page: { readonly exports: readonly ExportStatus[]; readonly next_cursor: string | null } =
        await this.#transport.json({
          method: 'GET',
          path: `${PATH}?${query}`,
          headers: { Accept: JSON_TYPE },
          signal,
        });
      yield* page.exports;
      cursor = page.next_cursor;
    }
  }

  /** Waits until the export has succeeded. @throws ExportFailedError when it failed or was canceled. */
  async wait(
    exportId: string,
    { signal, onStatus, maxPauseMs = 5000 }: WaitOptions = {},
  ): Promise<ExportStatus & { readonly artifact: Artifact }> {
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(pauseMs * 1.5, maxPauseMs)) {
      const status = await this.status(exportId, { signal });
      onStatus?.(status);
      const { artifact, error_code: code, error_message: message } = status;
      if (status.status === 'succeeded' && artifact) return { ...status, artifact };
      if (status.status === 'failed') throw new ExportFailedError(exportId, code ?? '', message ?? '');
      await sleep(jittered(pauseMs), signal);
    }
  }

  /** The manifest of the artifact: what it holds and what proves it. */
  async manifest(exportId: string, { signal }: Options = {}): Promise<Readonly<Record<string, unknown>>> {
    const path = `${pathOf(exportId)}/manifest`;
    return await this.#transport.json({ method: 'GET', path, headers: { Accept: JSON_TYPE }, signal });
  }

  /**
   * Downloads a file in constant memory. When a connection breaks, the client connects again and resumes where it stopped.
   * `from` is the byte to begin at, to resume a download of an earlier process. The client makes sure that every byte
   * arrives; compare `checksum_sha256` if you do not trust your own storage.
   * @param of the status of an export of one file, or one of its files.
   */
  async *download(
    of: Pick<ExportStatus, 'artifact'> | ArtifactFile,
    { signal, from = 0 }: Options & { readonly from?: number } = {},
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const file = 'uri' in of ? of : onlyFile(of);
    // The bytes of an earlier process are then of another file; without a request nothing would tell.
    if (from > file.bytes) {
      throw new HistoricalDataError(
        `The file has ${file.bytes} bytes and cannot be continued from byte ${from}: what was downloaded is another file; download it again`,
      );
    }
    let at = from;
    for (let failures = 0; at < file.bytes; ) {
      const before = at;
      try {
        for await (const bytes of this.#part(file, at, signal)) {
          at += bytes.length;
          if (at > file.bytes) throw otherBytes();
          yield bytes;
        }
        if (at < file.bytes) throw new IncompleteAnswerError(`The file broke off after ${at} of ${file.bytes} bytes`);
      } catch (error) {
        signal?.throwIfAborted();
        if (!(error instanceof IncompleteAnswerError)) throw error;
        // An attempt that made progress does not count: a large file may break off any number of times.
        failures = at > before ? 1 : failures + 1;
        if (failures >= this.#transport.maxAttempts) throw error;
      }
    }
  }

  async *#part(file: ArtifactFile, at: number, signal: AbortSignal | undefined): AsyncGenerator<Uint8Array> {
    const tag = `"${file.checksum_sha256}"`;
    // If-Range is sent for a whole file too: if another file has replaced it, the answer comes without a range.
    const headers = { Accept: '*/*', Range: `bytes=${at}-`, 'If-Range': tag };
    const response = await this.#transport.send({ method: 'GET', path: file.uri, headers, signal });
    // A browser shows the range only where the service lets it.
    const range = response.headers.get('content-range') ?? `bytes ${at}-`;
    if (response.status !== 206 || response.headers.get('etag') !== tag || !range.startsWith(`bytes ${at}-`)) {
      await response.body?.cancel().catch(() => {});
      throw otherBytes();
    }
    if (!response.body) throw new IncompleteAnswerError('The answer has no body');
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        yield value;
      }
    } finally {
      await reader.cancel().catch(() => {});
    }
  }
}

const otherBytes = () =>
  new HistoricalDataError(
    'The file was replaced, or a proxy does not support ranges; request the status of the export and download it again',
  );

function onlyFile({ artifact }: Pick<ExportStatus, 'artifact'>): ArtifactFile {
  if (!artifact) throw new HistoricalDataError('The export has no file (yet); wait until it has succeeded');
  if (artifact.files.length === 1) return artifact.files[0];
  throw new HistoricalDataError(`The artifact has ${artifact.files.length} files; download each of artifact.files`);
}

const pathOf = (exportId: string) => `${PATH}/${encodeURIComponent(exportId)}`;

/** 128 random bits; pages without TLS have no `randomUUID`. */
function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
