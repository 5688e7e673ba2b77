/**
 * Every setting of the service, in one table. `.env.example` is generated from it (`npm run docs`), and a test keeps
 * the two equal. Precedence when read: command-line flag, environment, `.env`, default.
 */

type Kind = 'string' | 'integer' | 'url' | 'path' | 'boolean' | 'choice' | 'list';

export interface Setting {
  readonly kind: Kind;
  /** Default as text; undefined = unset (optional) unless `required`. */
  readonly default?: string;
  readonly min?: number;
  readonly max?: number;
  readonly choices?: readonly string[];
  /** URL schemes allowed, with their colon. */
  readonly schemes?: readonly string[];
  readonly secret?: boolean;
  readonly unit?: string;
  readonly group: string;
  readonly doc: string;
}

const MIB = 1024 * 1024;

export const SETTINGS = {
  SVC_STATE_DIR: {
    group: 'Stack',
    kind: 'path',
    default: '.tidemark',
    doc: 'Folder of the embedded stack: database and log files, ports, generated secrets.',
  },
  SVC_DATABASE_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['postgres:', 'postgresql:'],
    secret: true,
    doc: 'A PostgreSQL with TimescaleDB to use instead of the embedded one.',
  },
  SVC_NATS_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['nats:', 'tls:'],
    secret: true,
    doc: 'A nats-server with JetStream to use instead of the embedded one.',
  },
  SVC_SAMPLE: {
    group: 'Stack',
    kind: 'boolean',
    default: 'true',
    doc: 'Load a small synthetic sample into an empty system at start; never for a dataset whose source location is set.',
  },

  SVC_HTTP_HOST: { group: 'HTTP', kind: 'string', default: '127.0.0.1', doc: 'Address to listen on.' },
  SVC_HTTP_PORT: {
    group: 'HTTP',
    kind: 'integer',
    min: 0,
    max: 65535,
    doc: 'Port to listen on. Unset: 8080, or the next free one. 0: any free port.',
  },
  SVC_HTTP_MAX_BODY_BYTES: {
    group: 'HTTP',
    kind: 'integer',
    unit: 'bytes',
    default: String(MIB),
    min: 1024,
    max: 16 * MIB,
    doc: 'Largest request body that is read.',
  },
  SVC_INTERNAL_API_KEY: {
    group: 'HTTP',
    kind: 'string',
    secret: true,
    doc: 'The key callers send as X-API-Key. Generated once by the embedded stack; required with SVC_DATABASE_URL.',
  },
  SVC_INTERNAL_API_KEY_PREVIOUS: {
    group: 'HTTP',
    kind: 'string',
    secret: true,
    doc: 'A second accepted key, for rotation.',
  },
  SVC_SOURCE_RIGHTS_MATRIX_PATH: {
    group: 'Rights',
    kind: 'path',
    doc: 'The rights matrix (JSON). The embedded stack has a sample one; required with SVC_DATABASE_URL.',
  },
  SVC_BYOK_DATABASE_ROLE: {
    group: 'Rights',
    kind: 'string',
    doc: 'Read-only database role of callers who bring their own credentials; X-Backend-Token is its password.',
  },
  SVC_QUERY_MAX_CONCURRENCY: {
    group: 'Limits',
    kind: 'integer',
    default: '8',
    min: 1,
    max: 1000,
    doc: 'Native reads running at once.',
  },
  SVC_QUERY_MAX_QUEUE: {
    group: 'Limits',
    kind: 'integer',
    default: '64',
    min: 0,
    max: 100_000,
    doc: 'Native reads waiting; one more is 503.',
  },
  SVC_ALIGNED_QUERY_MAX_CONCURRENCY: {
    group: 'Limits',
    kind: 'integer',
    default: '8',
    min: 1,
    max: 1000,
    doc: 'Aligned reads running at once.',
  },
  SVC_ALIGNED_QUERY_MAX_QUEUE: {
    group: 'Limits',
    kind: 'integer',
    default: '64',
    min: 0,
    max: 100_000,
    doc: 'Aligned reads waiting; one more is 503.',
  },
  SVC_QUERY_QUEUE_TIMEOUT_MS: {
    group: 'Limits',
    kind: 'integer',
    unit: 'ms',
    default: '10000',
    min: 1,
    max: 600_000,
    doc: 'Longest wait for a read slot before 503.',
  },
  SVC_QUERY_FIRST_ROW_TIMEOUT_MS: {
    group: 'Limits',
    kind: 'integer',
    unit: 'ms',
    default: '30000',
    min: 100,
    max: 3_600_000,
    doc: 'Time budget of a read until its first row; past it the answer is 503 QUERY_TIMEOUT.',
  },
  SVC_QUERY_STALL_TIMEOUT_MS: {
    group: 'Limits',
    kind: 'integer',
    unit: 'ms',
    default: '60000',
    min: 1000,
    max: 3_600_000,
    doc: 'A reader that takes no bytes for this long loses its connection, its slot and its database backend.',
  },
  SVC_ALIGNED_FRESHNESS_MAX_AGE_SECONDS: {
    group: 'Freshness',
    kind: 'integer',
    unit: 's',
    default: '172800',
    min: 1,
    max: 10 * 366 * 86400,
    doc: 'Lag above which an aligned answer carries ALIGNED_FRESHNESS_STALE. Trade files come a day late.',
  },

  SVC_EXCHANGE_A_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Archive of exchange A: spot/daily/trades/SYMBOL/SYMBOL-trades-YYYY-MM-DD.zip below it, each with .CHECKSUM.',
  },
  SVC_EXCHANGE_B_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Archive of exchange B: trades/daily/YYYYMMDD/INSTRUMENT-trades-YYYY-MM-DD.zip below it. Not together with SVC_EXCHANGE_B_LINK_URL.',
  },
  SVC_EXCHANGE_B_LINK_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:'],
    doc: 'Endpoint of exchange B that tells, by POST, where the zip of a day is; called at most once in 0.75 s by all processes of this host.',
  },
  SVC_EXCHANGE_B_INSTRUMENT: {
    group: 'Sources',
    kind: 'string',
    default: 'BTC-USDT',
    doc: 'Instrument of exchange B; rows of another are refused.',
  },
  SVC_EXCHANGE_C_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Archive of exchange C: trading/SYMBOL/SYMBOLYYYY-MM-DD.csv.gz below it.',
  },
  SVC_EXCHANGE_C_SYMBOL: {
    group: 'Sources',
    kind: 'string',
    default: 'BTCUSDT',
    doc: 'Symbol of exchange C; rows of another are refused.',
  },
  SVC_EXCHANGE_C_MAX_SORT_BYTES: {
    group: 'Sources',
    kind: 'integer',
    unit: 'bytes',
    default: String(2048 * MIB),
    min: MIB,
    max: 65536 * MIB,
    doc: 'Largest unpacked day of exchange C: its rows come in any order, so a day is held in memory to be sorted.',
  },
  SVC_EXCHANGE_A_SYMBOL: { group: 'Sources', kind: 'string', default: 'BTCUSDT', doc: 'Symbol of exchange A.' },
  SVC_SOURCE_TIMEOUT_SECONDS: {
    group: 'Sources',
    kind: 'integer',
    unit: 's',
    default: '60',
    min: 1,
    max: 3600,
    doc: 'A source that sends nothing for this long is given up, then retried.',
  },
  SVC_SOURCE_MAX_ATTEMPTS: {
    group: 'Sources',
    kind: 'integer',
    default: '4',
    min: 1,
    max: 20,
    doc: 'Tries for one document, with backoff between.',
  },
  SVC_SOURCE_MAX_DOCUMENT_BYTES: {
    group: 'Sources',
    kind: 'integer',
    unit: 'bytes',
    default: String(4096 * MIB),
    min: MIB,
    max: 65536 * MIB,
    doc: 'Largest document downloaded.',
  },
  SVC_SOURCE_MAX_UNPACKED_BYTES: {
    group: 'Sources',
    kind: 'integer',
    unit: 'bytes',
    default: String(65536 * MIB),
    min: MIB,
    max: 1048576 * MIB,
    doc: 'Largest unpacked size of an archive member; more is refused as a bomb.',
  },

  SVC_FRAME_RAW_BYTES: {
    group: 'Log',
    kind: 'integer',
    unit: 'bytes',
    default: String(MIB),
    min: 4096,
    max: 2 * MIB,
    doc: 'Event bytes gathered into one frame before compression. Digests do not depend on it.',
  },
  SVC_PUBLISH_WINDOW: {
    group: 'Log',
    kind: 'integer',
    unit: 'frames',
    default: '32',
    min: 1,
    max: 256,
    doc: 'Frames in flight to the log.',
  },
  SVC_STREAM_MAX_BYTES: {
    group: 'Log',
    kind: 'integer',
    unit: 'bytes',
    default: String(8 * 1024 * MIB),
    min: MIB,
    max: 1024 * 1024 * 1024 * MIB,
    doc: 'Byte limit of each stream, reserved on the disk of the log. A full stream stops the publisher; nothing is dropped.',
  },
  SVC_PULL_MAX_BYTES: {
    group: 'Log',
    kind: 'integer',
    unit: 'bytes',
    default: String(8 * MIB),
    min: 2 * MIB,
    max: 64 * MIB,
    doc: 'Bytes the projector asks for at once.',
  },
  SVC_ATTEMPT_SILENCE_MS: {
    group: 'Log',
    kind: 'integer',
    unit: 'ms',
    default: '30000',
    min: 100,
    max: 3_600_000,
    doc: 'An attempt that sends no frame for this long is rolled back; it is read again when it goes on.',
  },
  SVC_LOG_LEVEL: {
    group: 'Logs',
    kind: 'choice',
    choices: ['trace', 'debug', 'info', 'warn', 'error', 'silent'],
    default: 'info',
    doc: 'Least severe level written, one JSON object a line on stderr; on a terminal the default shows warnings and above.',
  },
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof SETTINGS;

type ValueOf<S extends Setting> = S['kind'] extends 'integer'
  ? number
  : S['kind'] extends 'boolean'
    ? boolean
    : S['kind'] extends 'url'
      ? URL
      : S['kind'] extends 'list'
        ? readonly string[]
        : string;

/** Parsed settings; a setting without a default may be undefined. */
export type Settings = {
  readonly [N in SettingName]: (typeof SETTINGS)[N] extends { readonly default: string }
    ? ValueOf<(typeof SETTINGS)[N]>
    : ValueOf<(typeof SETTINGS)[N]> | undefined;
};
