/** Every code that a caller can meet, with its status and title. The documentation and OpenAPI are generated from this table. */

export interface ProblemKind {
  readonly status: number;
  readonly title: string;
  /** Seconds after which a retry makes sense; every 503 has it. */
  readonly retryAfter?: number;
}

export const PROBLEMS = {
  // HTTP
  HTTP_REQUEST_MALFORMED: { status: 400, title: 'The bytes are not an HTTP request' },
  HTTP_REQUEST_TIMEOUT: { status: 408, title: 'The request did not arrive in time' },
  HTTP_LENGTH_REQUIRED: { status: 411, title: 'The request does not give the length of its body' },
  HTTP_HEADERS_TOO_LARGE: { status: 431, title: 'The request headers are too large' },
  HTTP_CONNECTION_LIMIT_REACHED: { status: 503, title: 'Too many requests are under way', retryAfter: 1 },
  HTTP_VERSION_UNSUPPORTED: { status: 505, title: 'HTTP/1.0 cannot show the end of this answer' },
  ROUTE_NOT_FOUND: { status: 404, title: 'There is no such path' },
  DATASET_NOT_FOUND: { status: 404, title: 'There is no such dataset' },
  METHOD_NOT_ALLOWED: { status: 405, title: 'The path does not take this method' },
  NOT_ACCEPTABLE: { status: 406, title: 'None of the accepted media types is served here' },
  NOT_READY: { status: 503, title: 'The service is not ready', retryAfter: 5 },
  INTERNAL_ERROR: { status: 500, title: 'The service failed' },

  // key and contract
  AUTH_INVALID_API_KEY: { status: 409, title: 'The X-API-Key header is missing or wrong' },
  AUTH_KEY_EXPIRED: { status: 409, title: 'The key has expired' },
  AUTH_KEY_REVOKED: { status: 409, title: 'The key was revoked or replaced' },
  AUTH_KEYS_UNAVAILABLE: { status: 503, title: 'The key cannot be looked up', retryAfter: 2 },
  AUTH_SCOPE_MISSING: { status: 409, title: 'The key lacks the scope' },
  AUTH_DATASET_NOT_COVERED: { status: 409, title: 'The key does not cover the dataset' },
  RATE_LIMITED: { status: 429, title: 'Too many requests a minute' },
  AUTH_CONCURRENCY_LIMITED: { status: 429, title: 'Too many reads at once', retryAfter: 1 },
  QUERY_CONTRACT_ERROR: { status: 409, title: 'The request does not follow the contract' },

  // rights
  QUERY_RIGHTS_MISSING_STATE: { status: 409, title: 'No rights are declared for the dataset' },
  QUERY_RIGHTS_INGEST_ONLY: { status: 409, title: 'The dataset is kept but may not be served' },
  QUERY_RIGHTS_BYOK_REQUIRED: { status: 409, title: 'The dataset needs the caller’s own storage credentials' },
  QUERY_RIGHTS_BYOK_REFUSED: { status: 409, title: 'The storage credentials were refused' },
  QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING: { status: 409, title: 'The legal sign-off of the dataset cannot be shown' },
  QUERY_RIGHTS_RESOLUTION_ERROR: {
    status: 503,
    title: 'The rights of the dataset cannot be established',
    retryAfter: 30,
  },
  QUERY_SERVING_SHADOW_MODE: { status: 409, title: 'The dataset is not promoted to serving' },

  // the read
  STRICT_MODE_WARNING_FAILURE: { status: 409, title: 'The answer would carry warnings, and strict was asked for' },
  QUERY_QUEUE_LIMIT_REACHED: { status: 503, title: 'Too many reads are waiting', retryAfter: 1 },
  ALIGNED_QUERY_QUEUE_LIMIT_REACHED: { status: 503, title: 'Too many aligned reads are waiting', retryAfter: 1 },
  QUERY_TIMEOUT: { status: 503, title: 'The read found no row within its time budget', retryAfter: 5 },
  // The dataset declares the status: 409 for the Bitcoin streams.
  ALIGNED_STORAGE_CONTRACT_VIOLATION: { status: 503, title: 'The aligned storage is not as declared', retryAfter: 30 },
  QUERY_BACKEND_ERROR: { status: 503, title: 'The database could not answer', retryAfter: 2 },
  QUERY_RUNTIME_ERROR: { status: 503, title: 'Stored data is not as declared', retryAfter: 30 },
  QUERY_UNKNOWN_ERROR: { status: 503, title: 'The read failed', retryAfter: 5 },
  QUERY_NO_DATA: { status: 404, title: 'There are no proved rows for the request' },

  // exports
  EXPORT_CONTRACT_ERROR: { status: 409, title: 'The request does not follow the contract' },
  EXPORT_AUTH_TOKEN_UNSUPPORTED: { status: 409, title: 'An export cannot run with credentials of the caller’s own' },
  EXPORT_RIGHTS_MISSING_STATE: { status: 409, title: 'No rights are declared for the dataset' },
  EXPORT_RIGHTS_INGEST_ONLY: { status: 409, title: 'The dataset is kept but may not be served' },
  EXPORT_RIGHTS_BYOK_REQUIRED: { status: 409, title: 'The dataset needs storage credentials, which no export has' },
  EXPORT_RIGHTS_LEGAL_SIGNOFF_MISSING: { status: 409, title: 'The legal sign-off of the dataset cannot be shown' },
  EXPORT_RIGHTS_RESOLUTION_ERROR: {
    status: 503,
    title: 'The rights of the dataset cannot be established',
    retryAfter: 30,
  },
  EXPORT_WINDOW_NOT_PROVED: { status: 409, title: 'Nothing of the window is proved' },
  EXPORT_IDEMPOTENCY_CONFLICT: { status: 409, title: 'The Idempotency-Key was used for another request' },
  EXPORT_QUEUE_LIMIT_REACHED: { status: 503, title: 'Too many exports are waiting', retryAfter: 10 },
  EXPORT_DISPATCH_ERROR: { status: 503, title: 'The export cannot be queued', retryAfter: 5 },
  EXPORT_RUNTIME_ERROR: { status: 503, title: 'The window of the export cannot be checked', retryAfter: 30 },
  EXPORT_AUDIT_WRITE_ERROR: { status: 503, title: 'The audit log cannot be written', retryAfter: 30 },
  EXPORT_NOT_FOUND: { status: 404, title: 'There is no such export' },
  EXPORT_ALREADY_FINISHED: { status: 409, title: 'The export has finished' },
  EXPORT_STATUS_ERROR: { status: 503, title: 'The database of exports does not answer', retryAfter: 2 },
  EXPORT_STATUS_METADATA_ERROR: {
    status: 503,
    title: 'The stored status of the export cannot be read',
    retryAfter: 60,
  },
  EXPORT_ARTIFACT_NOT_READY: { status: 409, title: 'The export has no artifact' },
  EXPORT_ARTIFACT_SPLIT: { status: 303, title: 'The artifact is split by day' },
  EXPORT_ARTIFACT_EXPIRED: { status: 404, title: 'The artifact has expired' },
  CHANGES_LISTENER_LIMIT_REACHED: { status: 503, title: 'Too many event streams are open', retryAfter: 5 },
  REVISION_NOT_FOUND: { status: 404, title: 'There is no such revision, or it has no differences' },
  PROOF_LOG_NOT_FOUND: { status: 404, title: 'The proof log has no such file' },
  LAKE_NOT_FOUND: { status: 404, title: 'The service has no lake, or its lake no such file' },
  LAKE_FILE_ALTERED: { status: 503, title: 'A file of the lake is not the one that its manifest names', retryAfter: 1 },
  EXPORT_ARTIFACT_METADATA_ERROR: {
    status: 503,
    title: 'A file of the artifact is gone, or not what was written',
    retryAfter: 60,
  },
  EXPORT_PRECONDITION_FAILED: { status: 412, title: 'The file is not the one that the request asks for' },
  EXPORT_RANGE_NOT_SATISFIABLE: { status: 416, title: 'The file has no such bytes' },

  // lineage
  LINEAGE_OFFSET_AMBIGUOUS: { status: 409, title: 'Several partitions hold the offset' },
  LINEAGE_OFFSET_NOT_FOUND: { status: 404, title: 'No proved partition holds the offset' },
  LINEAGE_LOG_UNAVAILABLE: { status: 503, title: 'The log does not answer', retryAfter: 5 },
  LINEAGE_LOG_DAMAGED: { status: 503, title: 'The log no longer holds the frame as it was proved', retryAfter: 60 },
  // The historical routes have these five codes of their own and share all others.
  HISTORICAL_CONTRACT_ERROR: { status: 409, title: 'The request does not follow the contract' },
  HISTORICAL_BACKEND_ERROR: { status: 503, title: 'The database could not answer', retryAfter: 2 },
  HISTORICAL_RUNTIME_ERROR: { status: 503, title: 'Stored data is not as declared', retryAfter: 30 },
  HISTORICAL_UNKNOWN_ERROR: { status: 503, title: 'The read failed', retryAfter: 5 },
  HISTORICAL_NO_DATA: { status: 404, title: 'There are no proved rows for the request' },
} as const satisfies Record<string, ProblemKind>;

export type ProblemCode = keyof typeof PROBLEMS;

/** One fault of a request: its location (a JSON pointer into the body) and what is wrong. */
export interface ContractFault {
  readonly pointer: string;
  readonly message: string;
}

export interface Warning {
  readonly code: string;
  readonly message: string;
  readonly details: Readonly<Record<string, unknown>>;
}

interface ProblemMore {
  readonly errors?: readonly ContractFault[];
  readonly warnings?: readonly Warning[];
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** Further members of the envelope. */
  readonly members?: Readonly<Record<string, unknown>>;
  /** Goes to the log, never to the caller. */
  readonly cause?: unknown;
}

/** An answer other than 2xx. The caller reads `detail`, so it holds no SQL, path or credential. */
export class Problem extends Error {
  override readonly name = 'Problem';
  readonly code: ProblemCode;
  readonly status: number;
  readonly more: ProblemMore;

  constructor(code: ProblemCode, detail: string, more: ProblemMore = {}) {
    super(clipped(detail), more.cause === undefined ? undefined : { cause: more.cause });
    this.code = code;
    this.status = more.status ?? PROBLEMS[code].status;
    this.more = more;
  }

  get headers(): Record<string, string> {
    const { retryAfter }: ProblemKind = PROBLEMS[this.code];
    const headers: Record<string, string> = { ...this.more.headers };
    if (this.status === 503) headers['Retry-After'] = String(retryAfter ?? 5);
    return headers;
  }

  /** The RFC 9457 envelope. */
  body(requestId: string): Record<string, unknown> {
    const { errors, warnings, members } = this.more;
    return {
      type: `urn:tidemark:problem:${this.code}`,
      title: PROBLEMS[this.code].title,
      status: this.status,
      detail: this.message,
      code: this.code,
      request_id: requestId,
      ...(errors && { errors: capped(errors) }),
      ...(warnings && { warnings }),
      ...members,
    };
  }
}

/** Bounds the answer to a body with a hundred thousand faults. Parsers stop collecting faults past it. */
export const MAX_FAULTS = 100;
/** Bounds the answer to a fault that quotes a megabyte of the body. */
const MAX_FAULT_CHARACTERS = 2000;

function capped(errors: readonly ContractFault[]): readonly ContractFault[] {
  const named = errors
    .slice(0, MAX_FAULTS)
    .map(({ pointer, message }) => ({ pointer: clipped(pointer), message: clipped(message) }));
  if (errors.length <= MAX_FAULTS) return named;
  // The parsers stopped at the limit, so the total is unknown.
  return [...named, { pointer: '', message: 'and more' }];
}

const clipped = (text: string) =>
  text.length <= MAX_FAULT_CHARACTERS ? text : `${text.slice(0, MAX_FAULT_CHARACTERS)}…`;
