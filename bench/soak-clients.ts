/** Clients of the soak: they send requests, and count what becomes of them by route, status and code. */
import { Agent, request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { percentile } from './load-loops.ts';

export const API_KEY = 'bench';

/** A client that was refused tries again after this time. */
const RETRY_MS = 100;
/** Of a larger answer only the beginning is kept. */
const KEPT_BYTES = 64 * 1024;
/** The codes of refusals by a limit. A 503 with another code is a fault, although it has a Retry-After too. */
const REFUSALS = /^[A-Z_]+_(?:LIMIT_REACHED|RATE_LIMITED|CONCURRENCY_LIMITED)$/;

interface Reply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
}

export interface Asked {
  readonly method?: string;
  readonly path: string;
  readonly body?: object;
  readonly headers?: Record<string, string>;
  /** Ends the answer from this side after so long. */
  readonly cutMs?: number;
}

interface Route {
  /** Of answers with 2xx. */
  readonly latencies: number[];
  /** Answers by status, and by code where they have one. */
  readonly answers: Record<string, number>;
  refused: number;
  errors: number;
}

/** The code of a problem; undefined where the answer is none. */
function codeOf({ headers, body }: Reply): string | undefined {
  if (!headers['content-type']?.startsWith('application/problem+json')) return undefined;
  return (JSON.parse(String(body)) as { code?: string }).code;
}

const isRefusal = (status: number, code: string | undefined, { headers }: Reply): boolean =>
  [429, 503].includes(status) && headers['retry-after'] !== undefined && REFUSALS.test(code ?? '');

export class Clients {
  readonly errors: string[] = [];
  readonly #routes = new Map<string, Route>();
  readonly #url: string;
  readonly #agent = new Agent({ keepAlive: true });
  /** Errors are counted always. */
  isCounting = false;

  constructor(url: string) {
    this.#url = url;
  }

  /** @returns the answer; undefined when there is none to go on with. */
  async ask(name: string, asked: Asked): Promise<Reply | undefined> {
    const startedAt = performance.now();
    try {
      const reply = await this.#send(asked);
      const { status } = reply;
      const isFine = status >= 200 && status < 300;
      const code = isFine ? undefined : codeOf(reply);
      const isRefused = isRefusal(status, code, reply);
      if (this.isCounting) {
        const route = this.#route(name);
        const answer = code === undefined ? String(status) : `${status} ${code}`;
        route.answers[answer] = (route.answers[answer] ?? 0) + 1;
        if (isFine) route.latencies.push(performance.now() - startedAt);
        if (isRefused) route.refused++;
      }
      if (isFine) return reply;
      if (!isRefused) this.fault(name, `${status} ${reply.body.toString('utf8', 0, 300)}`);
    } catch (error) {
      this.fault(name, String(error));
    }
    await delay(RETRY_MS);
    return undefined;
  }

  #route(name: string): Route {
    const route = this.#routes.get(name) ?? { latencies: [], answers: {}, refused: 0, errors: 0 };
    this.#routes.set(name, route);
    return route;
  }

  fault(name: string, what: string): void {
    this.errors.push(`${name}: ${what}`);
    this.#route(name).errors++;
  }

  #send({ method, path, body, headers, cutMs }: Asked): Promise<Reply> {
    const text = body === undefined ? undefined : JSON.stringify(body);
    return new Promise((resolve, reject) => {
      const outgoing = httpRequest(
        `${this.#url}${path}`,
        {
          agent: cutMs === undefined ? this.#agent : undefined,
          method: method ?? (text === undefined ? 'GET' : 'POST'),
          headers: { 'X-API-Key': API_KEY, ...(text && { 'Content-Length': Buffer.byteLength(text) }), ...headers },
        },
        (response) => {
          const chunks: Buffer[] = [];
          let bytes = 0;
          let isCut = false;
          const end = () =>
            resolve({ status: response.statusCode!, headers: response.headers, body: Buffer.concat(chunks) });
          response.on('data', (chunk: Buffer) => {
            if (bytes < KEPT_BYTES) chunks.push(chunk);
            bytes += chunk.length;
          });
          response.on('end', () => (response.complete ? end() : reject(new Error('the answer broke off'))));
          response.on('error', (error) => (isCut ? end() : reject(error)));
          if (cutMs !== undefined) {
            setTimeout(() => {
              isCut = true;
              response.destroy();
              end();
            }, cutMs);
          }
        },
      );
      outgoing.on('error', reject);
      outgoing.end(text);
    });
  }

  /** Answers of all routes by status and code. */
  answers(): Record<string, number> {
    const sums: Record<string, number> = {};
    for (const { answers } of this.#routes.values()) {
      for (const [answer, count] of Object.entries(answers)) sums[answer] = (sums[answer] ?? 0) + count;
    }
    return sums;
  }

  figures() {
    return [...this.#routes]
      .toSorted(([one], [other]) => one.localeCompare(other))
      .map(([route, { latencies, refused, errors }]) => ({
        route,
        answers: latencies.length,
        p50_ms: percentile(latencies, 0.5),
        p99_ms: percentile(latencies, 0.99),
        refused,
        errors,
      }));
  }

  close(): void {
    this.#agent.destroy();
  }
}
