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
  of('Wait that a source may ask for', 'ms', 'pipelines/sources/documents/retry.ts', 'MAX_RETRY_AFTER_MS'),
  of('Redirects of one request', '', 'pipelines/sources/documents/http.ts', 'MAX_REDIRECTS'),
  of('Downloads that disagree with their checksum', '', 'pipelines/sources/exchange_a/fetch.ts', 'MAX_MISMATCHES'),
  of('Row of a trade file', 'bytes', 'pipelines/sources', 'MAX_ROW_BYTES'),
  // the log
  { what: 'Event bytes in one frame', unit: 'bytes', setting: 'SVC_FRAME_RAW_BYTES' },
  of('Message of the log', 'bytes', 'shared/frame/codec.ts', 'MAX_MESSAGE_BYTES'),
  of('Header of a message', 'bytes', 'shared/frame/codec.ts', 'MAX_HEADER_BYTES'),
  of('Body of a message, unpacked', 'bytes', 'shared/frame/codec.ts', 'MAX_RAW_BYTES'),
  { what: 'Frames in flight to the log', unit: '', setting: 'SVC_PUBLISH_WINDOW' },
  { what: 'Stream of one dataset', unit: 'bytes', setting: 'SVC_STREAM_MAX_BYTES' },
  of('Acknowledgement of one message', 'ms', 'pipelines/publish/attempt-writer.ts', 'ACK_TIMEOUT_MS'),
  of('nats-server away while publishing', 'ms', 'pipelines/publish/attempt-writer.ts', 'OUTAGE_LIMIT_MS'),
  of('A store away before a day is given up', 'ms', 'pipelines/publish/backfill.ts', 'OUTAGE_PATIENCE_MS'),
  of('Days published ahead of their proof', '', 'pipelines/publish/backfill.ts', 'MAX_UNPROVED'),
  of('Nothing proved while a backfill waits', 'ms', 'pipelines/cli/commands/backfill.ts', 'PATIENCE_MS'),
  // projecting
  { what: 'Bytes pulled from the log at once', unit: 'bytes', setting: 'SVC_PULL_MAX_BYTES' },
  of('Frames unpacked ahead', '', 'pipelines/project/projector.ts', 'LOOKAHEAD'),
  { what: 'Silence of an open attempt', unit: 'ms', setting: 'SVC_ATTEMPT_SILENCE_MS' },
  // serving
  { what: 'Request body', unit: 'bytes', setting: 'SVC_HTTP_MAX_BODY_BYTES' },
  of('Nesting of a request', 'levels', 'serving/contract/json.ts', 'MAX_DEPTH'),
  of('Fields of a request', '', 'serving/contract/query.ts', 'MAX_FIELDS'),
  of('Filters of a request', '', 'serving/contract/filters.ts', 'MAX_FILTERS'),
  of('Values of one `in` or `not_in`', '', 'serving/contract/filters.ts', 'MAX_LIST_VALUES'),
  of('Faults named in one answer', '', 'serving/contract/problems.ts', 'MAX_FAULTS'),
  of('Headers of a request to arrive', 'ms', 'serving/server.ts', 'HEADERS_TIMEOUT_MS'),
  of('A whole request to arrive', 'ms', 'serving/server.ts', 'REQUEST_TIMEOUT_MS'),
  of('Idle connection kept', 'ms', 'serving/server.ts', 'KEEP_ALIVE_TIMEOUT_MS'),
  { what: 'Native reads at once', unit: '', setting: 'SVC_QUERY_MAX_CONCURRENCY' },
  { what: 'Native reads waiting', unit: '', setting: 'SVC_QUERY_MAX_QUEUE' },
  { what: 'Aligned reads at once', unit: '', setting: 'SVC_ALIGNED_QUERY_MAX_CONCURRENCY' },
  { what: 'Aligned reads waiting', unit: '', setting: 'SVC_ALIGNED_QUERY_MAX_QUEUE' },
  { what: 'Wait for a read slot', unit: 'ms', setting: 'SVC_QUERY_QUEUE_TIMEOUT_MS' },
  { what: 'Time to the first row', unit: 'ms', setting: 'SVC_QUERY_FIRST_ROW_TIMEOUT_MS' },
  { what: 'Reader that takes nothing', unit: 'ms', setting: 'SVC_QUERY_STALL_TIMEOUT_MS' },
  of('Chunks touched by one statement', '', 'serving/read/slices.ts', 'MAX_CHUNKS'),
  of('Buffer of an answer; four may wait for a slow reader', 'bytes', 'serving/rendering/out.ts', 'BUFFER_BYTES'),
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
