/** Settings of the HTTP service (connections, rights, limits, freshness) and of exports. */
import { boolean, choice, origins, path, type Setting, text, whole } from './setting.ts';

export const SERVING = {
  SVC_HTTP_HOST: {
    group: 'HTTP',
    schema: text,
    default: '127.0.0.1',
    doc: 'Address to listen on.',
  },
  SVC_HTTP_PORT: {
    group: 'HTTP',
    schema: whole(0, 65_535),
    doc: 'Port to listen on. Unset: 8080, or the next free one. 0: any free port.',
  },
  SVC_HTTP_PROCESSES: {
    group: 'HTTP',
    schema: whole(1, 64),
    default: '1',
    doc: 'Processes that answer on the port. With several, the limits below of connections, event streams, reads and queues are divided among them, rounded up; the first process runs exports. Each counts the limits of named keys for itself.',
  },
  SVC_INTERNAL_API_KEY: {
    group: 'HTTP',
    schema: text,
    secret: true,
    doc: 'The key callers send as X-API-Key. Generated once by the embedded stack; required with SVC_DATABASE_URL.',
  },
  SVC_INTERNAL_API_KEY_PREVIOUS: {
    group: 'HTTP',
    schema: text,
    secret: true,
    doc: 'A second accepted key, for rotation.',
  },
  SVC_METRICS_KEY: {
    group: 'HTTP',
    schema: text,
    secret: true,
    doc: 'A key for /metrics alone, so that a scraper need not hold the key of the service.',
  },
  SVC_HTTP_CORS_ORIGINS: {
    group: 'HTTP',
    schema: origins,
    default: '',
    doc: 'Origins whose browser pages may call the service, separated by commas; * allows any. None by default.',
  },
  SVC_CHANGES_MAX_LISTENERS: {
    group: 'HTTP',
    schema: whole(0, 1_000_000),
    default: '10000',
    doc: 'Event streams of /v1/changes at once, beside the connections of other requests. Beyond it the key that holds most gives way, or the new one is 503. Each takes a file descriptor and about 75 KB.',
  },
  SVC_SOURCE_RIGHTS_MATRIX_PATH: {
    group: 'Rights',
    schema: path,
    doc: 'The rights matrix (JSON); `./tidemark rights init` writes one of your own. The embedded stack has a sample matrix, which covers synthetic rows only; required with SVC_DATABASE_URL.',
  },
  SVC_BYOK_DATABASE_ROLE: {
    group: 'Rights',
    schema: text,
    doc: 'Read-only database role of callers who bring their own credentials; X-Backend-Token is its password.',
  },
  SVC_ETF_QUERY_SERVING_STATE: {
    group: 'Rights',
    schema: choice('shadow', 'promoted'),
    default: 'promoted',
    doc: 'Whether etf_daily_metrics is served. In `shadow` it is ingested and proved, and every read of it is refused.',
  },
  SVC_MACRO_QUERY_SERVING_STATE: {
    group: 'Rights',
    schema: choice('shadow', 'promoted'),
    default: 'promoted',
    doc: 'The same for macro_series_metrics.',
  },
  SVC_QUERY_MAX_CONCURRENCY: {
    group: 'Limits',
    schema: whole(1, 1000),
    default: '8',
    doc: 'Native reads running at once.',
  },
  SVC_QUERY_MAX_QUEUE: {
    group: 'Limits',
    schema: whole(0, 100_000),
    default: '64',
    doc: 'Native reads waiting; one more is 503.',
  },
  SVC_ALIGNED_QUERY_MAX_CONCURRENCY: {
    group: 'Limits',
    schema: whole(1, 1000),
    default: '8',
    doc: 'Aligned reads running at once.',
  },
  SVC_ALIGNED_QUERY_MAX_QUEUE: {
    group: 'Limits',
    schema: whole(0, 100_000),
    default: '64',
    doc: 'Aligned reads waiting; one more is 503.',
  },
  SVC_ALIGNED_FRESHNESS_MAX_AGE_SECONDS: {
    group: 'Freshness',
    schema: whole(1, 3660 * 86_400, 's'),
    default: '172800',
    doc: 'Lag above which an aligned answer carries ALIGNED_FRESHNESS_STALE. Vendors publish trade files a day late.',
  },
  SVC_ETF_DAILY_STALE_MAX_AGE_DAYS: {
    group: 'Freshness',
    schema: whole(1, 10_000, 'market days'),
    default: '3',
    doc: 'An answer carries ETF_DAILY_STALE_RECORDS when more US market days than this have passed since the latest day of its window.',
  },
  SVC_MACRO_SOURCE_PUBLISH_STALE_MAX_AGE_DAYS: {
    group: 'Freshness',
    schema: whole(1, 10_000, 'days'),
    doc: 'An answer carries MACRO_SOURCE_PUBLISH_STALE for a series whose source last published longer ago than this. Unset: 5 days for daily series, 45 for monthly ones.',
  },
} as const satisfies Record<string, Setting>;

/** Settings of exports (how many, where, for how long) and of their audit log. */
export const EXPORTS = {
  SVC_LAKE_FOLDER: {
    group: 'Exports',
    schema: path,
    doc: 'Folder in which `up` keeps a lake of every proved partition, as `./tidemark lake --follow` does, and which /v1/lake serves. Unset: none.',
  },
  SVC_EXPORT_MAX_CONCURRENCY: {
    group: 'Exports',
    schema: whole(1, 100),
    default: '2',
    doc: 'Exports running at once in one worker.',
  },
  SVC_EXPORT_MAX_QUEUE: {
    group: 'Exports',
    schema: whole(0, 100_000),
    default: '16',
    doc: 'Exports waiting, over all callers and serving processes together; one more is 503.',
  },
  SVC_EXPORT_IN_PROCESS: {
    group: 'Exports',
    schema: boolean,
    default: 'true',
    doc: 'Whether the HTTP service runs exports itself; false: only `./tidemark up --only exports` runs them.',
  },
  SVC_EXPORT_ROOT_DIR: {
    group: 'Exports',
    schema: path,
    doc: 'Folder of artifacts; workers and serving processes on several machines share it. Unset: `exports` in the state folder.',
  },
  SVC_EXPORT_ARTIFACT_TTL_SECONDS: {
    group: 'Exports',
    schema: whole(1, 3660 * 86_400, 's'),
    default: '604800',
    doc: 'The service deletes an artifact this long after its export succeeded.',
  },
  SVC_EXPORT_AUDIT_LOG_PATH: {
    group: 'Exports',
    schema: path,
    doc: 'Folder of the hash-chained audit log of exports. Unset: `export-audit` in the state folder.',
  },
  SVC_AUDIT_LOG_RETENTION_DAYS: {
    group: 'Exports',
    schema: whole(365, 36_500, 'days'),
    default: '365',
    doc: 'Segments of the audit log younger than this are never deleted; only `./tidemark audit prune` deletes older ones.',
  },
} as const satisfies Record<string, Setting>;
