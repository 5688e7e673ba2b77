/**
 * Which limits the documentation lists. A limit is a setting or a constant; its value is read from where it is
 * declared, so that the table cannot tell of another one.
 */
import type { SettingName } from '../shared/config/settings.ts';

export type Limit = { readonly what: string; readonly unit: 'bytes' | 'ms' | string } & (
  | { readonly setting: SettingName }
  /** A file, or a folder in which one file exports the constant. */
  | { readonly file: string; readonly name: string }
);

const of = (what: string, unit: string, file: string, name: string): Limit => ({ what, unit, file, name });

/** By subject. */
export const LIMITS: Readonly<Record<string, readonly Limit[]>> = {
  Fetching: [
    { what: 'Document downloaded', unit: 'bytes', setting: 'SVC_SOURCE_MAX_DOCUMENT_BYTES' },
    { what: 'Archive member, unpacked', unit: 'bytes', setting: 'SVC_SOURCE_MAX_UNPACKED_BYTES' },
    of('Companion document (a checksum)', 'bytes', 'pipelines/sources/documents/fetch.ts', 'MAX_TEXT_BYTES'),
    { what: 'Tries for one document', unit: '', setting: 'SVC_SOURCE_MAX_ATTEMPTS' },
    { what: 'Silence of a source', unit: 's', setting: 'SVC_SOURCE_TIMEOUT_SECONDS' },
    of(
      'Slowest body during that silence',
      'bytes a second',
      'pipelines/sources/documents/fetch.ts',
      'DEFAULT_MIN_BYTES_PER_SECOND',
    ),
    of('Longest `Retry-After` that is honoured', 'ms', 'pipelines/sources/documents/http.ts', 'MAX_RETRY_AFTER_MS'),
    of('Redirects of one request', '', 'pipelines/sources/documents/http.ts', 'MAX_REDIRECTS'),
    of(
      'Downloads that disagree with their checksum, then failure',
      '',
      'pipelines/sources/exchange_a/source.ts',
      'MAX_MISMATCHES',
    ),
    of("Document of a fund's issuer", 'bytes', 'pipelines/sources/etf/fetch.ts', 'MAX_PAGE_BYTES'),
    of('Holdings of a fund', '', 'pipelines/sources/etf/parse/facts.ts', 'MAX_HOLDINGS'),
    { what: 'Page rendered in a browser', unit: 's', setting: 'SVC_BROWSER_TIMEOUT_SECONDS' },
    of('Answer of a Bitcoin node', 'bytes', 'pipelines/sources/bitcoin/rpc/client.ts', 'MAX_ANSWER_BYTES'),
    of('Answer of a Bitcoin node about its mempool', 'bytes', 'pipelines/sources/bitcoin/node.ts', 'MAX_MEMPOOL_BYTES'),
    of('Row of a trade file', 'bytes', 'pipelines/sources', 'MAX_ROW_BYTES'),
  ],
  'The log': [
    { what: 'Event bytes in one frame', unit: 'bytes', setting: 'SVC_FRAME_RAW_BYTES' },
    of('Message of the log', 'bytes', 'shared/frame/codec.ts', 'MAX_MESSAGE_BYTES'),
    of('Header of a message', 'bytes', 'shared/frame/codec.ts', 'MAX_HEADER_BYTES'),
    of('Body of a message, unpacked', 'bytes', 'shared/frame/codec.ts', 'MAX_RAW_BYTES'),
    { what: 'Frames in flight to the log', unit: '', setting: 'SVC_PUBLISH_WINDOW' },
    { what: 'Stream of one dataset', unit: 'bytes', setting: 'SVC_STREAM_MAX_BYTES' },
    of('Acknowledgement of one message', 'ms', 'pipelines/publisher/attempt-writer.ts', 'ACK_TIMEOUT_MS'),
    of('Retries while the log does not answer', 'ms', 'shared/nats/connect.ts', 'OUTAGE_LIMIT_MS'),
    of(
      'Retries of a partition while a store is unavailable',
      'ms',
      'pipelines/publisher/backfill.ts',
      'OUTAGE_PATIENCE_MS',
    ),
    { what: 'Documents prefetched by a feed', unit: '', setting: 'SVC_BACKFILL_FETCH_AHEAD' },
    { what: 'Feeds of one backfill at once', unit: '', setting: 'SVC_BACKFILL_FEEDS' },
    of('Published days that wait for their proof', '', 'pipelines/publisher/backfill.ts', 'MAX_UNPROVED'),
    of(
      'Published small partitions that wait for their proof',
      '',
      'pipelines/publisher/backfill.ts',
      'MAX_UNPROVED_SMALL',
    ),
    of('Rows of those', '', 'pipelines/publisher/backfill.ts', 'MAX_UNPROVED_ROWS'),
    of('Capture buffered until it is compared', 'bytes', 'pipelines/publisher/publisher.ts', 'MAX_KEPT_BYTES'),
    of('Event with offset and auxiliary data, reassembled', 'bytes', 'shared/frame/records.ts', 'MAX_RECORD_BYTES'),
    of('Frame of records', 'bytes', 'shared/frame/records.ts', 'MAX_RECORD_FRAME_BYTES'),
    of('A backfill gives up when nothing is proved', 'ms', 'pipelines/cli/ingest.ts', 'PATIENCE_MS'),
    of('A backfill waits for an idle projector before publishing', 'ms', 'pipelines/cli/drain-backlog.ts', 'STILL_MS'),
    of('A waiting backfill reports what it waits for', 'ms', 'pipelines/publisher/await-proof.ts', 'NOTE_MS'),
  ],
  Projecting: [
    { what: 'Bytes of one pull from the log', unit: 'bytes', setting: 'SVC_PULL_MAX_BYTES' },
    of('Partitions of one transaction', '', 'pipelines/projector/load-session.ts', 'MAX_PARTITIONS'),
    of('Rows of one transaction of small partitions', '', 'pipelines/projector/load-session.ts', 'MAX_ROWS'),
    of(
      'Event bytes of one transaction of small partitions',
      'bytes',
      'pipelines/projector/load-session.ts',
      'MAX_BYTES',
    ),
    of('Age of a transaction of small partitions', 'ms', 'pipelines/projector/load-session.ts', 'MAX_OPEN_MS'),
    of('Frames decompressed in advance', '', 'pipelines/projector/projector.ts', 'LOOKAHEAD'),
    { what: 'Silence before an open attempt is dropped', unit: 'ms', setting: 'SVC_ATTEMPT_SILENCE_MS' },
  ],
  Serving: [
    { what: 'Request body', unit: 'bytes', setting: 'SVC_HTTP_MAX_BODY_BYTES' },
    of('Nesting of a request', 'levels', 'shared/strict-json.ts', 'MAX_DEPTH'),
    of('Keys of a request, all objects together', '', 'shared/strict-json.ts', 'MAX_KEYS'),
    of('Fields of a request', '', 'serving/contract/shapes.ts', 'MAX_FIELDS'),
    of('Filters of a request', '', 'serving/contract/filters.ts', 'MAX_FILTERS'),
    of('Values of one `in` or `not_in`', '', 'serving/contract/filters.ts', 'MAX_LIST_VALUES'),
    of('Faults named in one answer', '', 'serving/contract/problems.ts', 'MAX_FAULTS'),
    of('Length of one fault or of `detail`', 'characters', 'serving/contract/problems.ts', 'MAX_FAULT_CHARACTERS'),
    of("Time for a request's headers to arrive", 'ms', 'serving/server.ts', 'HEADERS_TIMEOUT_MS'),
    of('Time for a whole request to arrive', 'ms', 'serving/server.ts', 'REQUEST_TIMEOUT_MS'),
    of('Interval of the check for late requests', 'ms', 'serving/server.ts', 'CHECK_INTERVAL_MS'),
    { what: 'Connections with a request under way', unit: '', setting: 'SVC_HTTP_MAX_CONNECTIONS' },
    of('Connections reserved for health and metrics', '', 'serving/server.ts', 'RESERVED_CONNECTIONS'),
    of('A refused connection is drained', 'ms', 'serving/server.ts', 'LINGER_MS'),
    of('Interval of one log line for each refusal code', 'ms', 'serving/http/access.ts', 'REFUSAL_LOG_MS'),
    of('The body of a refused request is drained', 'ms', 'serving/http/request.ts', 'DISCARD_MS'),
    of('Idle connection stays open', 'ms', 'serving/server.ts', 'KEEP_ALIVE_TIMEOUT_MS'),
    { what: 'Native reads running', unit: '', setting: 'SVC_QUERY_MAX_CONCURRENCY' },
    { what: 'Native reads waiting', unit: '', setting: 'SVC_QUERY_MAX_QUEUE' },
    { what: 'Aligned reads running', unit: '', setting: 'SVC_ALIGNED_QUERY_MAX_CONCURRENCY' },
    { what: 'Aligned reads waiting', unit: '', setting: 'SVC_ALIGNED_QUERY_MAX_QUEUE' },
    of('Slots for each one reserved for small reads', '', 'serving/limits/concurrency-limiter.ts', 'SLOTS_PER_SMALL'),
    of('Rows of a small read (newest or random, no filter)', '', 'serving/routes/read.ts', 'SMALL_ROWS'),
    of('Window of a small read', 'ms', 'serving/routes/read.ts', 'SMALL_WINDOW_MS'),
    of("Work on one read's rows before it yields", 'ms', 'serving/db/pg-connection.ts', 'SLICE_MS'),
    { what: 'Catalog and lineage requests running', unit: '', setting: 'SVC_DISCOVERY_MAX_CONCURRENCY' },
    { what: 'Catalog and lineage requests waiting', unit: '', setting: 'SVC_DISCOVERY_MAX_QUEUE' },
    of('Time of a catalog request', 'ms', 'serving/discovery/inspector.ts', 'TIMEOUT_MS'),
    of('Partitions on a page of coverage', '', 'serving/routes/coverage.ts', 'MAX_PAGE'),
    of('Late arrivals listed by coverage', '', 'serving/discovery/coverage.ts', 'MAX_LATE_ARRIVALS'),
    of('Partitions listed for an ambiguous offset', '', 'shared/lineage/find-event.ts', 'MAX_NAMED_PARTITIONS'),
    of('Time of one log request', 'ms', 'serving/discovery/lineage.ts', 'REQUEST_TIMEOUT_MS'),
    of('Rows an estimate counts in a cut partition', '', 'serving/discovery/estimate/counts.ts', 'MAX_COUNTED'),
    { what: 'Wait for a read slot', unit: 'ms', setting: 'SVC_QUERY_QUEUE_TIMEOUT_MS' },
    { what: 'Time to the first row', unit: 'ms', setting: 'SVC_QUERY_FIRST_ROW_TIMEOUT_MS' },
    { what: 'Time from one row to the next', unit: 'ms', setting: 'SVC_QUERY_NEXT_ROW_TIMEOUT_MS' },
    { what: 'Time a client may read nothing', unit: 'ms', setting: 'SVC_QUERY_STALL_TIMEOUT_MS' },
    of('Connecting to the database', 'ms', 'serving/db/pool.ts', 'CONNECT_TIMEOUT_MS'),
    of('Rights matrix', 'bytes', 'shared/rights/store.ts', 'MAX_MATRIX_BYTES'),
    of('Legal artifact', 'bytes', 'shared/rights/store.ts', 'MAX_ARTIFACT_BYTES'),
    of(
      'Part of a legal artifact searched for sample and form marks',
      'bytes',
      'shared/rights/store.ts',
      'SEARCHED_BYTES',
    ),
    of('Length of a kline', 's', 'serving/contract/historical.ts', 'MAX_KLINE_SECONDS'),
    of('Random rows found by lookup; more use a scan', '', 'serving/read/execute/plan-read.ts', 'MAX_LOOKUPS'),
    of('Draws of a filtered random read', '', 'serving/read/sampling/drawn.ts', 'MAX_DRAWS'),
    of("Draws before the filter's hit rate is judged", '', 'serving/read/sampling/drawn.ts', 'FIRST_DRAWS'),
    of('Minimum draws for each requested row', '', 'serving/read/sampling/drawn.ts', 'MIN_DRAWS_A_ROW'),
    of('Shortfall tolerated before draws give way to a scan', '', 'serving/read/sampling/drawn.ts', 'SLACK_ROWS'),
    of('Rows counted before the oldest of the newest rows', '', 'serving/read/plan/counted.ts', 'MAX_STRADDLING_ROWS'),
    of('Recounts requested by one failed read', '', 'serving/read/execute/recount-requests.ts', 'MAX_ASKED'),
    of('Time to find the partitions to recount', 'ms', 'serving/read/execute/recount-requests.ts', 'TIMEOUT_MS'),
    of('Buckets tried for random klines', '', 'serving/read/klines/klines.ts', 'MAX_TRIES'),
    of('Chunks of one statement', '', 'serving/read/plan/boundary-rows.ts', 'MAX_CHUNKS'),
    of('Parked reads for each slot', 'reads', 'serving/limits/concurrency-limiter.ts', 'PARKED_PER_SLOT'),
    of('Buffer of an answer, four for each read', 'bytes', 'serving/render/cells.ts', 'BUFFER_BYTES'),
    of('Rows of an Arrow batch', '', 'serving/render/arrow-rows.ts', 'BATCH_ROWS'),
    of('Text of an Arrow batch', 'bytes', 'serving/render/arrow-rows.ts', 'BATCH_TEXT_BYTES'),
    of('Warnings in a header, with details', 'bytes', 'serving/render/json-rows.ts', 'MAX_WARNINGS_BYTES'),
  ],
  Exports: [
    { what: 'Exports running in one worker', unit: '', setting: 'SVC_EXPORT_MAX_CONCURRENCY' },
    { what: 'Exports waiting', unit: '', setting: 'SVC_EXPORT_MAX_QUEUE' },
    { what: 'Rows of one export file', unit: '', setting: 'SVC_EXPORT_SPLIT_ROWS' },
    of('Rows of a Parquet row group', '', 'serving/exports/artifact/parquet-file.ts', 'GROUP_ROWS'),
    of('Text of a Parquet row group', 'bytes', 'serving/exports/artifact/parquet-file.ts', 'GROUP_TEXT_BYTES'),
    of('Row groups waiting for the encoder', '', 'serving/exports/artifact/parquet-file.ts', 'MAX_GROUPS_AHEAD'),
    of('Bytes of a file waiting for the disk', 'bytes', 'serving/exports/artifact/file-sink.ts', 'HIGH_BYTES'),
    of("Partitions listed in an export's manifest", '', 'serving/exports/artifact/manifest.ts', 'MAX_LISTED'),
    { what: 'Silence before an export is taken from its worker', unit: 's', setting: 'SVC_EXPORT_LEASE_SECONDS' },
    { what: 'Worker crashes an export survives', unit: '', setting: 'SVC_EXPORT_MAX_CRASHES' },
    of('Tries of an export while a store is unavailable', '', 'serving/exports/worker.ts', 'MAX_RETRIES'),
    of('Time an export waits for its next row', 'ms', 'serving/exports/service.ts', 'ROW_TIMEOUT_MS'),
    of('Time a finished export waits for the database', 'ms', 'serving/exports/worker.ts', 'STORE_TIMEOUT_MS'),
    of('Time of a statement on the exports table', 'ms', 'serving/exports/store.ts', 'STATEMENT_TIMEOUT_MS'),
    of('Exports on a page', '', 'serving/routes/exports.ts', 'MAX_PAGE'),
    of('Segment of the audit log', 'bytes', 'shared/audit/writer.ts', 'MAX_SEGMENT_BYTES'),
    of('Interval of one audit record for each refused address', 'ms', 'serving/exports/audit.ts', 'REFUSED_RUN_MS'),
    of('Refused addresses counted separately', '', 'serving/exports/audit.ts', 'MAX_REFUSED_ADDRESSES'),
    of('Export queue', 'bytes', 'shared/nats/export-queue.ts', 'MAX_BYTES'),
    of('Grace period of running answers at shutdown', 'ms', 'serving/main.ts', 'GRACE_MS'),
  ],
};

/** The number a module's `const NAME = ...;` stands for. @throws when there is none, or it is no plain arithmetic. */
export function constantIn(source: string, name: string): number {
  const found = new RegExp(`^(?:export )?const ${name} = ([^;]+);`, 'm').exec(source)?.[1];
  if (found === undefined) throw new Error(`no constant ${name} is declared`);
  const expression = found.replaceAll(/[A-Z][A-Z\d_]*/g, (other) => String(constantIn(source, other)));
  if (!/^[\d_\s*+-]+$/.test(expression)) throw new Error(`${name} is no plain arithmetic: ${found}`);
  return arithmetic(expression.replaceAll('_', ''));
}

/** Sums of products of whole numbers and powers. */
function arithmetic(text: string): number {
  const terms = text.replaceAll(' ', '').split(/(?<=\d)(?=[+-])/);
  return terms.reduce((sum, term) => sum + product(term), 0);
}

function product(term: string): number {
  const sign = term.startsWith('-') ? -1 : 1;
  const factors = term.replace(/^[+-]/, '').split(/(?<!\*)\*(?!\*)/);
  return factors.reduce((value, factor) => {
    const [base, exponent = 1] = factor.split('**').map(Number);
    return value * base ** exponent;
  }, sign);
}
