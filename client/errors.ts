/** The errors of the client. Catch them by class and distinguish them by `code`, never by message. */

/** A fault of the request: a JSON pointer into its body, and what is wrong at that place. */
export interface Fault {
  readonly pointer: string;
  readonly message: string;
}

export interface Warning {
  readonly code: string;
  readonly message: string;
  readonly details: Readonly<Record<string, unknown>>;
}

/** The service's answer to a request that it did not fulfil (`application/problem+json`, RFC 9457). */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  /** Stable, upper snake case. */
  readonly code: string;
  readonly request_id: string;
  readonly errors?: readonly Fault[];
  readonly warnings?: readonly Warning[];
}

/** A line with words of others: a control character would move the cursor of a terminal, or begin a line of its own. */
const printable = (line: string): string =>
  line.replaceAll(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (found) => `\\u{${found.codePointAt(0)!.toString(16)}}`);

/** The base class of the client's errors. After an abort the signal's reason is thrown unchanged. */
export class HistoricalDataError extends Error {
  override name = 'HistoricalDataError';

  /** @param message lines, whose other control characters are escaped */
  constructor(message: string, options?: ErrorOptions) {
    super(message.split('\n').map(printable).join('\n'), options);
  }
}

/** The service refused the request or failed; the code decides the subclass. */
export class ServiceError extends HistoricalDataError {
  override name = 'ServiceError';
  readonly problem: Problem;

  constructor(problem: Problem) {
    // The detail of a problem with one fault names it already.
    const faults = (problem.errors ?? []).map(
      ({ pointer, message }) => `\n  ${printable(`${pointer || '(body)'} ${message}`)}`,
    );
    super(`${printable(`${problem.code}: ${problem.detail}`)}${faults.length > 1 ? faults.join('') : ''}`);
    this.problem = problem;
  }

  get status(): number {
    return this.problem.status;
  }

  get code(): string {
    return this.problem.code;
  }

  /** For the operator's log. */
  get requestId(): string {
    return this.problem.request_id;
  }
}

/** The request does not follow the contract; `problem.errors` lists every fault. */
export class ContractError extends ServiceError {
  override name = 'ContractError';
}

/** The API key is missing, wrong or ended, or does not cover the request. */
export class KeyError extends ServiceError {
  override name = 'KeyError';
}

/** The service may not serve the dataset to this caller: rights, legal sign-off, the caller's credential, serving state. */
export class RightsError extends ServiceError {
  override name = 'RightsError';
}

/** The request is `strict` and there are warnings; `problem.warnings` lists them. */
export class StrictWarningError extends ServiceError {
  override name = 'StrictWarningError';
}

/** No proved row lies in the window and passes the filters; the message says what is proved. */
export class NoRowsError extends ServiceError {
  override name = 'NoRowsError';
}

/** The service cannot answer: the last attempt failed or met a limit, or it needs an operator, or a smaller request. */
export class UnavailableError extends ServiceError {
  override name = 'UnavailableError';
}

/** The client cannot reach the service, or the answer is not one of the service. */
export class ConnectionError extends HistoricalDataError {
  override name = 'ConnectionError';
}

/** The answer broke off: what was read until then is correct but incomplete. */
export class IncompleteAnswerError extends HistoricalDataError {
  override name = 'IncompleteAnswerError';
}

/** An export failed or was canceled; `code` gives the reason. */
export class ExportFailedError extends HistoricalDataError {
  override name = 'ExportFailedError';
  readonly exportId: string;
  readonly code: string;

  constructor(exportId: string, code: string, message: string) {
    super(`${code}: ${message}`);
    this.exportId = exportId;
    this.code = code;
  }
}

/** An integer above 2^53 does not fit into a number; `arrow()` returns it exactly. */
export class UnsafeIntegerError extends HistoricalDataError {
  override name = 'UnsafeIntegerError';
}

type ServiceErrorClass = new (problem: Problem) => ServiceError;

/** The class of a code: the first match. Other codes are classified by status. */
const BY_CODE: readonly (readonly [pattern: RegExp, type: ServiceErrorClass])[] = [
  // The key itself may be right.
  [/^AUTH_KEYS_UNAVAILABLE$|_LIMITED$/, UnavailableError],
  [/^AUTH_/, KeyError],
  [/_CONTRACT_ERROR$/, ContractError],
  [/_RIGHTS_RESOLUTION_ERROR$/, UnavailableError],
  [/_RIGHTS_|_SERVING_STATE|_SHADOW|^EXPORT_AUTH_TOKEN_/, RightsError],
  [/^STRICT_/, StrictWarningError],
  [/_NO_DATA$/, NoRowsError],
];

export function serviceError(problem: Problem): ServiceError {
  const byCode = BY_CODE.find(([pattern]) => pattern.test(problem.code))?.[1];
  return new (byCode ?? (problem.status === 503 ? UnavailableError : ServiceError))(problem);
}
