/** Problems as answers, and every other fault as one that tells the caller nothing it should not know. */
import type { ServerResponse } from 'node:http';
import type { Logger } from '../../shared/log/logger.ts';
import { Problem } from '../contract/problems.ts';

/** Answers with the problem, or breaks the connection when an answer is already under way. */
export function answerProblem(response: ServerResponse, error: unknown, requestId: string, log: Logger): void {
  const problem =
    error instanceof Problem ? error : new Problem('INTERNAL_ERROR', 'The fault is logged under the request id.');
  if (problem.status >= 500) {
    log.error({ code: problem.code, requestId, err: error instanceof Problem ? error.cause : error }, problem.message);
  }
  if (response.headersSent) {
    response.destroy();
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
