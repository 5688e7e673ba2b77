/** Answers that are one small document. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from '../../shared/logger.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read/types.ts';
import { breakOff } from '../render/response.ts';
import { mediaQuality } from './accept.ts';
import type { Exchange } from './routes.ts';

const JSON_TYPE = 'application/json';

/** @throws Problem NOT_ACCEPTABLE */
export function requireAccept(request: IncomingMessage, mediaType: string): void {
  if (mediaQuality(request.headers.accept, mediaType) > 0) return;
  throw new Problem('NOT_ACCEPTABLE', `This path is served as ${mediaType}.`);
}

/** @throws Problem NOT_ACCEPTABLE */
export const requireJson = (request: IncomingMessage): void => requireAccept(request, JSON_TYPE);

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

/* Problems as answers, and every other fault as one that tells the caller nothing it should not know. */

/** Answers with the problem, or breaks the connection when an answer is already under way. */
export function answerProblem(response: ServerResponse, error: unknown, requestId: string, log: Logger): void {
  const problem =
    error instanceof Problem ? error : new Problem('INTERNAL_ERROR', 'The fault is logged under the request id.');
  const { code } = problem;
  const facts = { code, requestId, err: error instanceof Problem ? error.cause : error };
  // A full queue is load being shed as it should be; thousands of lines about it would be load of their own. Why the
  // service is not ready is logged where it is found, once, and anybody may ask.
  const isExpected = code.endsWith('QUEUE_LIMIT_REACHED') || code === 'NOT_READY';
  if (problem.status >= 500 && !isExpected) log.error(facts, problem.message);
  else log.debug(facts, problem.message);
  if (response.headersSent) {
    breakOff(response);
    return;
  }
  const body = Buffer.from(JSON.stringify(problem.body(requestId)));
  response.writeHead(problem.status, {
    ...problem.headers,
    'Content-Type': 'application/problem+json',
    'Content-Length': String(body.length),
  });
  response.end(body);
}

/** The client closed the connection before its answer was complete. Nobody is left to be told. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone';

  constructor(options?: ErrorOptions) {
    super('the client went away', options);
  }
}

/* What the read core reports, as answers of HTTP: one mapping for every route that reads. */

export const strictProblem = (warnings: StrictRefusal['warnings']) =>
  new Problem('STRICT_MODE_WARNING_FAILURE', warnings.map((warning) => warning.message).join(' '), { warnings });

/** Codes of the same meaning, one set an access style; what is common to all has one code. */
export type ProblemFamily = 'QUERY' | 'HISTORICAL';

/** The fault's own message is meant for the caller. */
const AS_TOLD = null;

const READ_PROBLEMS: Readonly<
  Record<
    ReadFaultKind,
    { readonly code: (family: ProblemFamily) => ProblemCode; readonly detail: string | typeof AS_TOLD }
  >
> = {
  backend: {
    code: (family) => `${family}_BACKEND_ERROR`,
    detail: 'The database is not reachable or could not run the read.',
  },
  runtime: {
    code: (family) => `${family}_RUNTIME_ERROR`,
    detail: 'What is stored is not as declared; the operator has to look at it.',
  },
  aligned_contract: { code: () => 'ALIGNED_STORAGE_CONTRACT_VIOLATION', detail: AS_TOLD },
  timeout: { code: () => 'QUERY_TIMEOUT', detail: 'Narrow the window or the filters, or ask again later.' },
  no_rows: { code: (family) => `${family}_NO_DATA`, detail: AS_TOLD },
  credentials_refused: {
    code: () => 'QUERY_RIGHTS_BYOK_REFUSED',
    detail: 'X-Backend-Token is not the password of the read role.',
  },
  credentials_unfit: {
    code: () => 'QUERY_RIGHTS_RESOLUTION_ERROR',
    detail: 'The role for callers with their own credentials is not fit for it; the operator has to look at it.',
  },
};

/** `contractViolationStatus`: of the dataset that was read. */
export function toProblem(error: unknown, contractViolationStatus?: number, family: ProblemFamily = 'QUERY'): unknown {
  // Nobody is left to be told, and nothing went wrong.
  if (error instanceof Problem || error instanceof ClientGone) return error;
  if (error instanceof StrictRefusal) return strictProblem(error.warnings);
  if (error instanceof ReadFault) {
    const { code: codeOf, detail } = READ_PROBLEMS[error.kind];
    const code = codeOf(family);
    const { warnings } = error;
    return new Problem(code, detail ?? `${error.message[0].toUpperCase()}${error.message.slice(1)}.`, {
      cause: error,
      ...(warnings.length > 0 && { warnings }),
      ...(error.kind === 'aligned_contract' && { status: contractViolationStatus }),
    });
  }
  return new Problem(`${family}_UNKNOWN_ERROR`, 'The fault is logged under the request id.', { cause: error });
}
