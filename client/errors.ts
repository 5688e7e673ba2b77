/** What can go wrong with a request, as classes: catch by class, branch by `code`, never by message. */

/** A fault of the request: a JSON pointer into its body, and what is wrong there. */
export interface Fault {
  readonly pointer: string;
  readonly message: string;
}

export interface Warning {
  readonly code: string;
  readonly message: string;
  readonly details: Readonly<Record<string, unknown>>;
}

/** The service's answer to a request it did not fulfil (`application/problem+json`, RFC 9457). */
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

/** Base of everything this client throws on purpose. An aborted signal's reason is thrown as it is. */
export class HistoricalDataError extends Error {
  override name = 'HistoricalDataError';
}

/** The service refused or failed; which subclass goes by its code. */
export class ServiceError extends HistoricalDataError {
  override name = 'ServiceError';
  readonly problem: Problem;

  constructor(problem: Problem) {
    // Of one fault the detail says it all.
    const faults = (problem.errors ?? []).map(({ pointer, message }) => `\n  ${pointer || '(body)'} ${message}`);
    super(`${problem.code}: ${problem.detail}${faults.length > 1 ? faults.join('') : ''}`);
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

/** The API key is missing or wrong. */
export class KeyError extends ServiceError {
  override name = 'KeyError';
}

/** The dataset may not be served to this caller: rights, legal sign-off, the caller's own credential, serving state. */
export class RightsError extends ServiceError {
  override name = 'RightsError';
}

/** `strict` was asked for and there are warnings; `problem.warnings` lists them. */
export class StrictWarningError extends ServiceError {
  override name = 'StrictWarningError';
}

/** No proved row lies in the window and passes the filters; the message says what is proved. */
export class NoRowsError extends ServiceError {
  override name = 'NoRowsError';
}

/** The service could not answer: not after the last attempt, or it takes an operator, or a smaller request. */
export class UnavailableError extends ServiceError {
  override name = 'UnavailableError';
}

/** The service could not be reached, or does not speak its own protocol. */
export class ConnectionError extends HistoricalDataError {
  override name = 'ConnectionError';
}

/** The answer broke off: what was read until then is correct, and not all of it. */
export class IncompleteAnswerError extends HistoricalDataError {
  override name = 'IncompleteAnswerError';
}

/** An export failed, or was canceled; `code` says why. */
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

/** An integer past 2^53 does not fit a number; `arrow()` holds it exactly. */
export class UnsafeIntegerError extends HistoricalDataError {
  override name = 'UnsafeIntegerError';
}

type ServiceErrorClass = new (problem: Problem) => ServiceError;

/** First match wins; what matches none is by status. */
const BY_CODE: readonly (readonly [pattern: RegExp, type: ServiceErrorClass])[] = [
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
