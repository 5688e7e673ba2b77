/**
 * Which limits the documentation lists: those that a user or operator can meet. A limit is a setting or a constant; its
 * value is read from where it is declared, so that the page cannot show another one.
 */
import type { Limits } from '../shared/config/limits.ts';
import type { SettingName } from '../shared/config/settings.ts';

type LimitUnit = 'bytes' | 'ms' | string;

/** .env.example describes what each setting bounds. */
export interface SettingLimit {
  readonly setting: SettingName;
  readonly unit: LimitUnit;
}

export interface ConstantLimit {
  readonly what: string;
  readonly unit: LimitUnit;
  /** A file, or a folder in which one file exports the constant. */
  readonly file: string;
  readonly name: string;
}

/** One that processes are handed (shared/config/limits.ts). */
interface HandedLimit {
  readonly what: string;
  readonly unit: LimitUnit;
  readonly limit: keyof Limits;
}

export type Limit = SettingLimit | ConstantLimit | HandedLimit;

const of = (what: string, unit: string, file: string, name: string): Limit => ({ what, unit, file, name });

const limit = (what: string, unit: string, name: keyof Limits): Limit => ({ what, unit, limit: name });

/** By subject. */
export const LIMITS: Readonly<Record<string, readonly Limit[]>> = {
  Fetching: [
    limit('Document', 'bytes', 'documentBytes'),
    limit('Member of an archive, unpacked', 'bytes', 'unpackedBytes'),
    of('Checksum document', 'bytes', 'pipelines/sources/documents/fetch.ts', 'MAX_TEXT_BYTES'),
    limit('Tries for a document, or a call of a node', '', 'sourceAttempts'),
    limit('Silence of a source', 'ms', 'sourceTimeoutMs'),
    of('Wait for a body before its mean speed counts', 'ms', 'pipelines/sources/documents/http.ts', 'GRACE_MS'),
    of('Slowest mean of a body', 'bytes a second', 'pipelines/sources/documents/http.ts', 'SLOWEST_MEAN_BYTES'),
    of('Longest `Retry-After` honoured', 'ms', 'pipelines/sources/documents/http.ts', 'MAX_RETRY_AFTER_MS'),
    of('Redirects', '', 'pipelines/sources/documents/http.ts', 'MAX_REDIRECTS'),
    of('Downloads with a wrong checksum', '', 'pipelines/sources/exchange_a/source.ts', 'MAX_MISMATCHES'),
    of("Issuer's document", 'bytes', 'pipelines/sources/etf/fetch.ts', 'MAX_PAGE_BYTES'),
    of('Holdings of a fund', '', 'pipelines/sources/etf/parse/facts.ts', 'MAX_HOLDINGS'),
    of('Page that a browser renders', 'ms', 'pipelines/sources/etf/open.ts', 'PAGE_TIMEOUT_MS'),
    { setting: 'SVC_BITCOIN_RPC_TIMEOUT_SECONDS', unit: 's' },
    of('Answer of a Bitcoin node', 'bytes', 'pipelines/sources/bitcoin/rpc/client.ts', 'MAX_ANSWER_BYTES'),
    of('Mempool answer of a Bitcoin node', 'bytes', 'pipelines/sources/bitcoin/node.ts', 'MAX_MEMPOOL_BYTES'),
    of('Row of a trade file', 'bytes', 'pipelines/sources', 'MAX_ROW_BYTES'),
    limit('Day of exchange C, unpacked', 'bytes', 'sortBytes'),
  ],
  'The proof log': [
    of('Leaf', 'bytes', 'shared/proof-log/leaf.ts', 'MAX_LEAF_BYTES'),
    of('Row of CSV that is checked', 'bytes', 'shared/proof-log/csv-feed.ts', 'MAX_ROW_BYTES'),
    of('Leaves that a look of `watch-log` reads', '', 'shared/proof-log/watch.ts', 'MAX_LEAVES_A_LOOK'),
    of(
      'Manifest, lineage answer or checkpoint that is checked',
      'bytes',
      'pipelines/cli/commands/check.ts',
      'MAX_TEXT_BYTES',
    ),
    of('Document that is checked', 'bytes', 'pipelines/cli/commands/check.ts', 'MAX_DOCUMENT_BYTES'),
  ],
  'The log': [{ setting: 'SVC_STREAM_MAX_BYTES', unit: 'bytes' }],
  Serving: [
    of('Body of a request', 'bytes', 'serving/http/request.ts', 'MAX_BODY_BYTES'),
    of('Nesting of a request', 'levels', 'shared/strict-json.ts', 'MAX_DEPTH'),
    of('Keys of a request, over all objects', '', 'shared/strict-json.ts', 'MAX_KEYS'),
    of('Fields of a request', '', 'serving/contract/shapes.ts', 'MAX_FIELDS'),
    of('Filters of a request', '', 'serving/contract/filters.ts', 'MAX_FILTERS'),
    of('Values of one `in` or `not_in`', '', 'serving/contract/filters.ts', 'MAX_LIST_VALUES'),
    of('Arrival of request headers', 'ms', 'serving/server.ts', 'HEADERS_TIMEOUT_MS'),
    of('Arrival of a whole request', 'ms', 'serving/server.ts', 'REQUEST_TIMEOUT_MS'),
    { setting: 'SVC_HTTP_PROCESSES', unit: '' },
    limit('Connections with a request in progress', '', 'connections'),
    { setting: 'SVC_CHANGES_MAX_LISTENERS', unit: '' },
    of('Idle connection', 'ms', 'serving/server.ts', 'KEEP_ALIVE_TIMEOUT_MS'),
    { setting: 'SVC_QUERY_MAX_CONCURRENCY', unit: '' },
    { setting: 'SVC_QUERY_MAX_QUEUE', unit: '' },
    { setting: 'SVC_ALIGNED_QUERY_MAX_CONCURRENCY', unit: '' },
    { setting: 'SVC_ALIGNED_QUERY_MAX_QUEUE', unit: '' },
    of('Rows of a small read (newest or random, unfiltered)', '', 'serving/routes/read.ts', 'SMALL_ROWS'),
    of('Window of a small read', 'ms', 'serving/routes/read.ts', 'SMALL_WINDOW_MS'),
    limit('Discovery requests running', '', 'discoveryRunning'),
    of('Discovery request', 'ms', 'serving/discovery/inspector.ts', 'TIMEOUT_MS'),
    of('Running answers at shutdown', 'ms', 'serving/main.ts', 'GRACE_MS'),
    of('Partitions on a page of coverage', '', 'serving/routes/coverage.ts', 'MAX_PAGE'),
    limit('Wait of a read for its slot', 'ms', 'queueMs'),
    limit('First row of a read', 'ms', 'firstRowMs'),
    limit('Next row of a read', 'ms', 'nextRowMs'),
    limit('Client that takes no bytes', 'ms', 'stallMs'),
    of('Rights matrix', 'bytes', 'shared/rights/store.ts', 'MAX_MATRIX_BYTES'),
    of('Legal artifact', 'bytes', 'shared/rights/store.ts', 'MAX_ARTIFACT_BYTES'),
    of('Length of a kline, and of a bucket of a frame', 's', 'serving/contract/shapes.ts', 'MAX_BUCKET_SECONDS'),
    of('Columns of a frame', '', 'serving/contract/frame.ts', 'MAX_FRAME_COLUMNS'),
    of('Oldest value that `max_age` lets a frame carry', 's', 'serving/contract/frame.ts', 'MAX_AGE_SECONDS'),
    of('Warnings in a header with details', 'bytes', 'serving/render/json-rows.ts', 'MAX_WARNINGS_BYTES'),
    of('Columns of a frame in a header', 'bytes', 'serving/render/json-rows.ts', 'MAX_COLUMNS_BYTES'),
  ],
  Exports: [
    { setting: 'SVC_EXPORT_MAX_CONCURRENCY', unit: '' },
    { setting: 'SVC_EXPORT_MAX_QUEUE', unit: '' },
    limit('Rows of an export that is one file', '', 'exportSplitRows'),
    limit('Lease of a worker', 'ms', 'exportLeaseMs'),
    limit('Deaths of workers that fail an export', '', 'exportCrashes'),
    of('Wait for the next row', 'ms', 'serving/exports/service.ts', 'ROW_TIMEOUT_MS'),
  ],
};

/** The value of a module's `const NAME = ...;`. @throws without one, or if its expression is more than arithmetic. */
export function constantIn(source: string, name: string): number {
  const found = new RegExp(`^(?:export )?const ${name} = ([^;]+);`, 'm').exec(source)?.[1];
  if (found === undefined) throw new Error(`constant ${name} not found`);
  const expression = found.replaceAll(/[A-Z][A-Z\d_]*/g, (other) => String(constantIn(source, other)));
  if (!/^[\d_\s*+-]+$/.test(expression)) throw new Error(`${name} is more than arithmetic: ${found}`);
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
