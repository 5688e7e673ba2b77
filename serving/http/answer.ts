/** Answers that are one small document, and the mapping of every fault to a problem that tells the caller nothing secret. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from '../../shared/logger.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { ContractViolation, ReadFault, type ReadFaultKind, StrictRefusal } from '../read/read-model.ts';
import { mediaQuality } from '../render/representations.ts';
import { breakOff } from '../render/response.ts';
import type { Exchange } from './routes.ts';
import { discardBody } from './unread-body.ts';

const JSON_TYPE = 'application/json';

/** A response emits this event when it becomes an event stream: its connection then counts among no others. */
export const DEDICATED = 'dedicated';

/** A response emits this event when it refuses a request whose body has not arrived: it is the last of its connection. */
export const LAST = 'last';

/** @returns the first of the types that the client accepts. @throws Problem NOT_ACCEPTABLE */
export function requireAccept(request: IncomingMessage, ...mediaTypes: readonly string[]): string {
  const accepted = mediaTypes.find((type) => mediaQuality(request.headers.accept, type) > 0);
  if (accepted !== undefined) return accepted;
  const [types, those] =
    mediaTypes.length === 1 ? [mediaTypes[0], 'the only type'] : [mediaTypes.join(' and '), 'the types'];
  throw new Problem('NOT_ACCEPTABLE', `The Accept header rules out ${types}, ${those} of this path. Accept it.`);
}

/** @throws Problem NOT_ACCEPTABLE */
export const requireJson = (request: IncomingMessage): void => void requireAccept(request, JSON_TYPE);

export function answerJson(
  exchange: Exchange,
  value: unknown,
  headers: Readonly<Record<string, string>> = {},
  status = 200,
): void {
  answerBytes(exchange, Buffer.from(JSON.stringify(value)), { 'Content-Type': JSON_TYPE, ...headers }, status);
}

export function answerBytes(
  { response }: Exchange,
  body: Buffer,
  headers: Readonly<Record<string, string>>,
  status = 200,
): void {
  response.writeHead(status, { ...headers, 'Content-Length': String(body.length) });
  response.end(body);
}

const EXPECTED: ReadonlySet<ProblemCode> = new Set(['NOT_READY', 'AUTH_KEYS_UNAVAILABLE', 'HTTP_VERSION_UNSUPPORTED']);

/** Answers with the problem, or breaks the connection when an answer has already started. */
export function answerProblem(response: ServerResponse, error: unknown, requestId: string, log: Logger): void {
  const problem =
    error instanceof Problem
      ? error
      : new Problem(
          'INTERNAL_ERROR',
          'The service logged the fault under the request id. Give that id to the operator.',
        );
  const { code } = problem;
  const facts = { code, requestId, err: error instanceof Problem ? error.cause : error };
  // A full queue sheds load as it should; thousands of log lines about it would be load themselves. The readiness checks
  // log once why the service is not ready, and anybody may ask for readiness, or send what may be a key. The version of HTTP is
  // the client's fault.
  const isExpected = code.endsWith('_LIMIT_REACHED') || EXPECTED.has(code);
  if (problem.status >= 500 && !isExpected) log.error(facts, problem.message);
  else log.debug(facts, problem.message);
  if (response.headersSent) {
    breakOff(response);
    return;
  }
  const body = Buffer.from(JSON.stringify(problem.body(requestId)));
  // The rest of the body may come later or never, so nothing tells where the next request begins.
  const isLast = !response.req.complete;
  response.writeHead(problem.status, {
    ...problem.headers,
    'Content-Type': 'application/problem+json',
    'Content-Length': String(body.length),
    ...(isLast && { Connection: 'close' }),
  });
  if (!isLast) {
    response.end(body);
    return;
  }
  response.emit(LAST);
  response.write(body);
  void discardBody(response.req).then(() => response.end());
}

/** An answer that shows its end neither by itself nor by its length. @param what is the answer, as the subject of a sentence. */
export const versionProblem = (what: string, remedy: string): Problem =>
  new Problem(
    'HTTP_VERSION_UNSUPPORTED',
    `${what}. The request came over HTTP/1.0, which ends such an answer with the connection, so that a cut answer looks whole. Send HTTP/1.1 (in nginx: \`proxy_http_version 1.1;\`)${remedy}.`,
  );

/** The client closed the connection before its answer was complete, so nobody receives the error. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone';

  constructor(options?: ErrorOptions) {
    super('the client closed the connection', options);
  }
}

/** Of windows that count rows: another moment, or another seed, answers them differently. */
const ALWAYS_WARNED: ReadonlySet<string> = new Set(['WINDOW_LATEST_ROWS_MUTABLE', 'WINDOW_RANDOM_SAMPLE']);

export function strictProblem(warnings: StrictRefusal['warnings']): Problem {
  const said = warnings.map(({ message }) => message).join(' ');
  const remedy = warnings.some(({ code }) => ALWAYS_WARNED.has(code))
    ? 'Such a window always has a warning: give a window of time, or leave `strict` out.'
    : 'Without `strict`, warnings refuse nothing.';
  return new Problem('STRICT_MODE_WARNING_FAILURE', `${said} ${remedy}`, { warnings });
}

/** Each access style has codes of its own for these faults; the other codes are common to all. */
export type CodePrefix = 'QUERY' | 'HISTORICAL';

/** The fault's own message is written for the caller and becomes the detail. */
const FAULT_MESSAGE = null;

/** Maps the faults of a read to problems, for every route that reads. */
const READ_PROBLEMS: Readonly<
  Record<
    ReadFaultKind,
    { readonly code: (prefix: CodePrefix) => ProblemCode; readonly detail: string | typeof FAULT_MESSAGE }
  >
> = {
  backend: {
    code: (prefix) => `${prefix}_BACKEND_ERROR`,
    detail: 'The database is unreachable or could not run the read. Try again later.',
  },
  runtime: {
    code: (prefix) => `${prefix}_RUNTIME_ERROR`,
    detail: 'Stored data differs from its declaration. The operator has to repair it.',
  },
  aligned_contract: { code: () => 'ALIGNED_STORAGE_CONTRACT_VIOLATION', detail: FAULT_MESSAGE },
  timeout: {
    code: () => 'QUERY_TIMEOUT',
    detail: 'The read found no row within its time budget. Narrow the window or the filters, or try again later.',
  },
  no_rows: { code: (prefix) => `${prefix}_NO_DATA`, detail: FAULT_MESSAGE },
  credentials_refused: {
    code: () => 'QUERY_RIGHTS_BYOK_REFUSED',
    detail: 'The database refused X-Backend-Token. Send the password of the read role.',
  },
  credentials_unfit: {
    code: () => 'QUERY_RIGHTS_RESOLUTION_ERROR',
    detail: 'The role for callers with their own credentials has the wrong privileges. The operator has to repair it.',
  },
};

/** Maps any error to a problem. */
export function toProblem(error: unknown, prefix: CodePrefix = 'QUERY'): unknown {
  // A problem is already an answer, and a client that is gone receives none.
  if (error instanceof Problem || error instanceof ClientGone) return error;
  if (error instanceof StrictRefusal) return strictProblem(error.warnings);
  if (error instanceof ReadFault) {
    const { code: codeOf, detail } = READ_PROBLEMS[error.kind];
    const code = codeOf(prefix);
    const { warnings } = error;
    return new Problem(code, detail ?? `${error.message[0].toUpperCase()}${error.message.slice(1)}.`, {
      cause: error,
      ...(warnings.length > 0 && { warnings }),
      ...(error instanceof ContractViolation && { status: error.status }),
    });
  }
  return new Problem(
    `${prefix}_UNKNOWN_ERROR`,
    'The service logged the fault under the request id. Give that id to the operator.',
    { cause: error },
  );
}
