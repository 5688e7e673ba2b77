/** Problems as answers, and every other fault as one that tells the caller nothing it should not know. */
import type { ServerResponse } from 'node:http';
import type { Logger } from '../../shared/log/logger.ts';
import { Problem } from '../contract/problems.ts';
import { breakOff } from '../rendering/response.ts';

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
