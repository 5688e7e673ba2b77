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

export const LIMITS: readonly Limit[] = [
  // fetching
  { what: 'Document downloaded', unit: 'bytes', setting: 'SVC_SOURCE_MAX_DOCUMENT_BYTES' },
  { what: 'Archive member, unpacked', unit: 'bytes', setting: 'SVC_SOURCE_MAX_UNPACKED_BYTES' },
  of('Companion document (a checksum)', 'bytes', 'pipelines/sources/documents/fetch.ts', 'MAX_TEXT_BYTES'),
  { what: 'Tries for one document', unit: '', setting: 'SVC_SOURCE_MAX_ATTEMPTS' },
  { what: 'Silence of a source', unit: 's', setting: 'SVC_SOURCE_TIMEOUT_SECONDS' },
  of(
    'Slowest body over one such time',
    'bytes a second',
    'pipelines/sources/documents/fetch.ts',
    'DEFAULT_MIN_BYTES_PER_SECOND',
  ),
  of('Wait that a source may ask for', 'ms', 'pipelines/sources/documents/http.ts', 'MAX_RETRY_AFTER_MS'),
  of('Redirects of one request', '', 'pipelines/sources/documents/http.ts', 'MAX_REDIRECTS'),
  of('Downloads that disagree with their checksum', '', 'pipelines/sources/exchange_a/feed.ts', 'MAX_MISMATCHES'),
  of("Document of a fund's issuer", 'bytes', 'pipelines/sources/etf/fetch.ts', 'MAX_PAGE_BYTES'),
  of('Holdings of a fund', '', 'pipelines/sources/etf/parse/facts.ts', 'MAX_HOLDINGS'),
  { what: 'Page that builds itself', unit: 's', setting: 'SVC_BROWSER_TIMEOUT_SECONDS' },
  of('Answer of a Bitcoin node', 'bytes', 'pipelines/sources/bitcoin/rpc/client.ts', 'MAX_ANSWER_BYTES'),
  of('Answer of a Bitcoin node about its mempool', 'bytes', 'pipelines/sources/bitcoin/node.ts', 'MAX_MEMPOOL_BYTES'),
  of('Row of a trade file', 'bytes', 'pipelines/sources', 'MAX_ROW_BYTES'),
  // the log
  { what: 'Event bytes in one frame', unit: 'bytes', setting: 'SVC_FRAME_RAW_BYTES' },
  of('Message of the log', 'bytes', 'shared/frame/codec.ts', 'MAX_MESSAGE_BYTES'),
  of('Header of a message', 'bytes', 'shared/frame/codec.ts', 'MAX_HEADER_BYTES'),
  of('Body of a message, unpacked', 'bytes', 'shared/frame/codec.ts', 'MAX_RAW_BYTES'),
  { what: 'Frames in flight to the log', unit: '', setting: 'SVC_PUBLISH_WINDOW' },
  { what: 'Stream of one dataset', unit: 'bytes', setting: 'SVC_STREAM_MAX_BYTES' },
  of('Acknowledgement of one message', 'ms', 'pipelines/publisher/attempt-writer.ts', 'ACK_TIMEOUT_MS'),
  of(
    'A log that does not answer is asked again, and published to again',
    'ms',
    'shared/nats/connect.ts',
    'OUTAGE_LIMIT_MS',
  ),
  of('A store away before a day is given up', 'ms', 'pipelines/publisher/backfill.ts', 'OUTAGE_PATIENCE_MS'),
  { what: 'Documents of a feed fetched ahead', unit: '', setting: 'SVC_BACKFILL_FETCH_AHEAD' },
  { what: 'Feeds of one backfill at once', unit: '', setting: 'SVC_BACKFILL_FEEDS' },
  of('Days published ahead of their proof', '', 'pipelines/publisher/backfill.ts', 'MAX_UNPROVED'),
  of('Small partitions published ahead of their proof', '', 'pipelines/publisher/backfill.ts', 'MAX_UNPROVED_SMALL'),
  of(
    'Rows of small partitions published ahead of their proof',
    '',
    'pipelines/publisher/backfill.ts',
    'MAX_UNPROVED_ROWS',
  ),
  of(
    'Capture kept until it is known to say something new',
    'bytes',
    'pipelines/publisher/publisher.ts',
    'MAX_KEPT_BYTES',
  ),
  of(
    'Event with its offset and side facts, put together from parts',
    'bytes',
    'shared/frame/records.ts',
    'MAX_RECORD_BYTES',
  ),
  of('Frame of records', 'bytes', 'shared/frame/records.ts', 'MAX_RECORD_FRAME_BYTES'),
  of('Nothing proved while a backfill waits', 'ms', 'pipelines/cli/ingest.ts', 'PATIENCE_MS'),
  of(
    'A projector that does nothing is waited for before publishing',
    'ms',
    'pipelines/cli/drain-backlog.ts',
    'STILL_MS',
  ),
  of('Nothing moves until a backfill says what it waits for', 'ms', 'pipelines/publisher/await-proof.ts', 'NOTE_MS'),
  // projecting
  { what: 'Bytes pulled from the log at once', unit: 'bytes', setting: 'SVC_PULL_MAX_BYTES' },
  of('Partitions of one transaction', '', 'pipelines/projector/load-session.ts', 'MAX_PARTITIONS'),
  of('Rows of one transaction of small partitions', '', 'pipelines/projector/load-session.ts', 'MAX_ROWS'),
  of('Event bytes of one transaction of small partitions', 'bytes', 'pipelines/projector/load-session.ts', 'MAX_BYTES'),
  of('A transaction of small partitions stays open', 'ms', 'pipelines/projector/load-session.ts', 'MAX_OPEN_MS'),
  of('Frames unpacked ahead', '', 'pipelines/projector/projector.ts', 'LOOKAHEAD'),
  { what: 'Silence of an open attempt', unit: 'ms', setting: 'SVC_ATTEMPT_SILENCE_MS' },
  // serving
  { what: 'Request body', unit: 'bytes', setting: 'SVC_HTTP_MAX_BODY_BYTES' },
  of('Nesting of a request', 'levels', 'shared/strict-json.ts', 'MAX_DEPTH'),
  of('Keys of a request, of all its objects', '', 'shared/strict-json.ts', 'MAX_KEYS'),
  of('Fields of a request', '', 'serving/contract/shapes.ts', 'MAX_FIELDS'),
  of('Filters of a request', '', 'serving/contract/filters.ts', 'MAX_FILTERS'),
  of('Values of one `in` or `not_in`', '', 'serving/contract/filters.ts', 'MAX_LIST_VALUES'),
  of('Faults named in one answer', '', 'serving/contract/problems.ts', 'MAX_FAULTS'),
  of('What one of them, or the detail, may say', 'characters', 'serving/contract/problems.ts', 'MAX_FAULT_CHARACTERS'),
  of('Headers of a request to arrive', 'ms', 'serving/server.ts', 'HEADERS_TIMEOUT_MS'),
  of('A whole request to arrive', 'ms', 'serving/server.ts', 'REQUEST_TIMEOUT_MS'),
  of('How often late requests are looked for', 'ms', 'serving/server.ts', 'CHECK_INTERVAL_MS'),
  { what: 'Connections with a request at once', unit: '', setting: 'SVC_HTTP_MAX_CONNECTIONS' },
  of('Connections beside those, for health and metrics', '', 'serving/server.ts', 'RESERVED_CONNECTIONS'),
  of('Refused connection read on, so that its client reads the answer', 'ms', 'serving/server.ts', 'LINGER_MS'),
  of('Refusals of a code logged as one line and a count', 'ms', 'serving/http/access.ts', 'REFUSAL_LOG_MS'),
  of(
    'Body of a refused request read on, so that its client reads the answer',
    'ms',
    'serving/http/request.ts',
    'DISCARD_MS',
  ),
  of('Idle connection kept', 'ms', 'serving/server.ts', 'KEEP_ALIVE_TIMEOUT_MS'),
  { what: 'Native reads at once', unit: '', setting: 'SVC_QUERY_MAX_CONCURRENCY' },
  { what: 'Native reads waiting', unit: '', setting: 'SVC_QUERY_MAX_QUEUE' },
  { what: 'Aligned reads at once', unit: '', setting: 'SVC_ALIGNED_QUERY_MAX_CONCURRENCY' },
  { what: 'Aligned reads waiting', unit: '', setting: 'SVC_ALIGNED_QUERY_MAX_QUEUE' },
  of('Slots of which one is for small reads alone', '', 'serving/limits/concurrency-limiter.ts', 'SLOTS_PER_SMALL'),
  of('Newest or random rows of a small read, without a filter', '', 'serving/routes/read.ts', 'SMALL_ROWS'),
  of('Window of a small read', 'ms', 'serving/routes/read.ts', 'SMALL_WINDOW_MS'),
  of('Work on the rows of one read before others have their turn', 'ms', 'serving/db/pg-connection.ts', 'SLICE_MS'),
  { what: 'Looks into the catalog at once, and lineages', unit: '', setting: 'SVC_DISCOVERY_MAX_CONCURRENCY' },
  { what: 'Looks into the catalog waiting', unit: '', setting: 'SVC_DISCOVERY_MAX_QUEUE' },
  of('A look into the catalog', 'ms', 'serving/discovery/inspector.ts', 'TIMEOUT_MS'),
  of('Partitions on a page of coverage', '', 'serving/routes/coverage.ts', 'MAX_PAGE'),
  of('Late arrivals named by coverage', '', 'serving/discovery/coverage.ts', 'MAX_LATE_ARRIVALS'),
  of('Partitions named that hold one offset', '', 'shared/lineage/find-event.ts', 'MAX_NAMED_PARTITIONS'),
  of('The log, asked for one message', 'ms', 'serving/discovery/lineage.ts', 'REQUEST_TIMEOUT_MS'),
  of('Rows looked at where an estimate cuts a partition', '', 'serving/discovery/estimate/counts.ts', 'MAX_COUNTED'),
  { what: 'Wait for a read slot', unit: 'ms', setting: 'SVC_QUERY_QUEUE_TIMEOUT_MS' },
  { what: 'Time to the first row', unit: 'ms', setting: 'SVC_QUERY_FIRST_ROW_TIMEOUT_MS' },
  { what: 'Time from one row to the next', unit: 'ms', setting: 'SVC_QUERY_NEXT_ROW_TIMEOUT_MS' },
  { what: 'Reader that takes nothing', unit: 'ms', setting: 'SVC_QUERY_STALL_TIMEOUT_MS' },
  of('Connecting to the database', 'ms', 'serving/db/pool.ts', 'CONNECT_TIMEOUT_MS'),
  of('Rights matrix', 'bytes', 'shared/rights/store.ts', 'MAX_MATRIX_BYTES'),
  of('Legal artifact', 'bytes', 'shared/rights/store.ts', 'MAX_ARTIFACT_BYTES'),
  of(
    'Legal artifact searched for the marks of a sample or a form',
    'bytes',
    'shared/rights/store.ts',
    'SEARCHED_BYTES',
  ),
  of('Length of a kline', 's', 'serving/contract/historical.ts', 'MAX_KLINE_SECONDS'),
  of(
    'Rows of a sample that are looked up; more are scanned for',
    '',
    'serving/read/execute/plan-read.ts',
    'MAX_LOOKUPS',
  ),
  of('Draws of a sample under filters', '', 'serving/read/sampling/drawn.ts', 'MAX_DRAWS'),
  of(
    'Draws that show whether a filter passes enough rows to go on',
    '',
    'serving/read/sampling/drawn.ts',
    'FIRST_DRAWS',
  ),
  of('Draws for each row wanted, however short the history', '', 'serving/read/sampling/drawn.ts', 'MIN_DRAWS_A_ROW'),
  of(
    'Rows that chance may have held back before draws are given up',
    '',
    'serving/read/sampling/drawn.ts',
    'SLACK_ROWS',
  ),
  of(
    'Rows before the oldest of the newest that are counted to hold these',
    '',
    'serving/read/plan/counted.ts',
    'MAX_STRADDLING_ROWS',
  ),
  of('Partitions that one failed read has counted again', '', 'serving/read/execute/recount-requests.ts', 'MAX_ASKED'),
  of('Search for the partitions to be counted again', 'ms', 'serving/read/execute/recount-requests.ts', 'TIMEOUT_MS'),
  of('Buckets tried for random klines', '', 'serving/read/klines/klines.ts', 'MAX_TRIES'),
  of('Chunks touched by one statement', '', 'serving/read/plan/boundary-rows.ts', 'MAX_CHUNKS'),
  of(
    'Reads parked a slot: their clients are behind',
    'reads',
    'serving/limits/concurrency-limiter.ts',
    'PARKED_PER_SLOT',
  ),
  of('Buffer of an answer; four may wait for a slow reader', 'bytes', 'serving/render/cells.ts', 'BUFFER_BYTES'),
  of('Rows of an Arrow batch', '', 'serving/render/arrow-rows.ts', 'BATCH_ROWS'),
  of('Text after which an Arrow batch ends', 'bytes', 'serving/render/arrow-rows.ts', 'BATCH_TEXT_BYTES'),
  of('Warnings in a header with their details', 'bytes', 'serving/render/json-rows.ts', 'MAX_WARNINGS_BYTES'),
  // exports
  { what: 'Exports at once in one worker', unit: '', setting: 'SVC_EXPORT_MAX_CONCURRENCY' },
  { what: 'Exports waiting', unit: '', setting: 'SVC_EXPORT_MAX_QUEUE' },
  { what: 'Rows of one file of an export', unit: '', setting: 'SVC_EXPORT_SPLIT_ROWS' },
  of('Rows of a Parquet row group', '', 'serving/exports/artifact/parquet-file.ts', 'GROUP_ROWS'),
  of(
    'Text after which a Parquet row group ends',
    'bytes',
    'serving/exports/artifact/parquet-file.ts',
    'GROUP_TEXT_BYTES',
  ),
  of('Row groups waiting while the next is filled', '', 'serving/exports/artifact/parquet-file.ts', 'MAX_GROUPS_AHEAD'),
  of('Bytes of a file that wait for the disk', 'bytes', 'serving/exports/artifact/file-sink.ts', 'HIGH_BYTES'),
  of('Partitions that a manifest lists', '', 'serving/exports/artifact/manifest.ts', 'MAX_LISTED'),
  { what: 'Silence of an export worker', unit: 's', setting: 'SVC_EXPORT_LEASE_SECONDS' },
  { what: 'Deaths of its worker that an export survives', unit: '', setting: 'SVC_EXPORT_MAX_CRASHES' },
  of('Tries of an export whose stores are away', '', 'serving/exports/worker.ts', 'MAX_RETRIES'),
  of('Search of an export for its next row', 'ms', 'serving/exports/service.ts', 'ROW_TIMEOUT_MS'),
  of('A finished artifact waits for the database', 'ms', 'serving/exports/worker.ts', 'STORE_PATIENCE_MS'),
  of('Statement about exports', 'ms', 'serving/exports/store.ts', 'STATEMENT_TIMEOUT_MS'),
  of('Exports on a page', '', 'serving/routes/exports.ts', 'MAX_PAGE'),
  of('Segment of the audit log', 'bytes', 'shared/audit/writer.ts', 'MAX_SEGMENT_BYTES'),
  of(
    'Refusals of an address counted before the audit log has their number',
    'ms',
    'serving/exports/audit.ts',
    'REFUSED_RUN_MS',
  ),
  of('Addresses told apart in that time', '', 'serving/exports/audit.ts', 'MAX_REFUSED_ADDRESSES'),
  of('Queue of exports', 'bytes', 'shared/nats/export-queue.ts', 'MAX_BYTES'),
  of('Running answers when the service stops', 'ms', 'serving/main.ts', 'GRACE_MS'),
];

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
