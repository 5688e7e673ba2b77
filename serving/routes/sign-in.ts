/**
 * POST /page/sign-in: exchanges the token of the link that `./tidemark up` shows on its terminal for the key, once. The token is in
 * the link's fragment, which browsers send to nobody; no key is in any address, log or history.
 */

import { randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { z } from 'zod';
import { Problem } from '../contract/problems.ts';
import { answerJson } from '../http/answer.ts';
import { contractProblem, NO_PARAMETERS, queryParams, readJson } from '../http/request.ts';
import type { Route, RouteDoc } from '../http/routes.ts';

const VALID_MS = 10 * 60_000;

/** What one link is good for: one exchange, for ten minutes. */
export class SignIn {
  /** Short enough that the link fits a narrow terminal. */
  readonly token = randomBytes(16).toString('base64url');
  readonly #now: () => number;
  readonly #untilMs: number;
  #key: string | undefined;

  /** @param now a clock that is never set */
  constructor(key: string, now: () => number = () => performance.now()) {
    this.#key = key;
    this.#now = now;
    this.#untilMs = now() + VALID_MS;
  }

  /** @returns the key; undefined for another token, after ten minutes, and from the second time on */
  exchange(token: string): string | undefined {
    const [given, own] = [Buffer.from(token), Buffer.from(this.token)];
    if (given.length !== own.length || !timingSafeEqual(given, own) || this.#now() > this.#untilMs) return undefined;
    const key = this.#key;
    this.#key = undefined;
    return key;
  }
}

const BODY = z.strictObject({ token: z.string().meta({ description: 'The token of the link.' }) });
const ANSWER = z.strictObject({ key: z.string().meta({ description: 'The key of this service.' }) });

const LOOPBACK = /^(?:127\.\d+\.\d+\.\d+|localhost|\[::1\])$/;

/**
 * Whether the page of this service on this machine asks: not another site's page, also one whose name leads here, and nobody behind a
 * proxy, whose connections come from this machine as well.
 */
function isOwnPage({ socket, headers }: IncomingMessage): boolean {
  const address = socket.remoteAddress?.replace(/^::ffff:/, '') ?? '';
  const { host = '', origin, forwarded, 'x-forwarded-for': forwardedFor, 'sec-fetch-site': site } = headers;
  return (
    (address === '::1' || LOOPBACK.test(address)) &&
    LOOPBACK.test(host.replace(/:\d+$/, '')) &&
    forwarded === undefined &&
    forwardedFor === undefined &&
    (origin === undefined || origin === `http://${host}`) &&
    (site === undefined || site === 'same-origin')
  );
}

/** Not a part of the API: the OpenAPI document does not list it. */
export const signInRoute = (signIn: SignIn): Route => ({
  method: 'POST',
  path: '/page/sign-in',
  access: 'open',
  doc: (): RouteDoc => ({
    tag: 'operations',
    summary: 'The key for the token of a link',
    doc: 'For the operator’s page on this machine alone, once, within ten minutes of the start.',
    query: NO_PARAMETERS,
    body: BODY,
    answers: [{ doc: 'The key.', content: { 'application/json': ANSWER } }],
    problems: ['QUERY_CONTRACT_ERROR', 'AUTH_INVALID_API_KEY'],
    examples: [],
  }),
  async handle(exchange) {
    const { request, response, url } = exchange;
    queryParams(url, NO_PARAMETERS);
    const { success, data } = BODY.safeParse(await readJson(request, response, 'QUERY_CONTRACT_ERROR'));
    if (!success) throw contractProblem([{ pointer: '/token', message: 'must be the token of the link' }]);
    const key = isOwnPage(request) ? signIn.exchange(data.token) : undefined;
    if (key === undefined)
      throw new Problem(
        'AUTH_INVALID_API_KEY',
        'The link was used, is older than ten minutes, or was opened elsewhere than on its machine. Enter the key: ./tidemark env prints it.',
      );
    answerJson(exchange, { key }, { 'Cache-Control': 'no-store' });
  },
});
