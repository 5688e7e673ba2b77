/**
 * Calls a Bitcoin node through the `bitcoin-core` package and adds what the package lacks. It keeps numbers as their
 * own text, because the package's parser rounds short ones and turns long ones into strings. It throws the errors
 * inside a batch, distinguishes a truncated answer from a complete one, and has a deadline, retries, a size limit and a
 * limit on parallel calls. Credentials appear in no message and no log line.
 *
 * The package composes the requests. Node's own client sends them and receives the answers: through the package's, a block
 * takes 2 ms more.
 */
import { TidemarkError } from '../../../../shared/errors.ts';
import type { Logger } from '../../../../shared/logger.ts';
import { type Backoff, clientFor, Retryable, withAttempts } from '../../documents/http.ts';
import { JsonCursor, JsonMembers } from './json-cursor.ts';

/**
 * JSON with each number as the text that the node wrote, for small answers. Of a block of 6.6 MB it takes 3.2 times the
 * processor time and 7.6 times the memory of the cursor (docs/dependencies.md), which checks and converts the block as well.
 * @throws SyntaxError
 */
export const parseExactly = (json: Buffer): unknown => JSON.parse(json.toString(), numberAsText);

const numberAsText = (_key: string, value: unknown, { source }: { readonly source?: string } = {}): unknown =>
  typeof value === 'number' ? source : value;

export interface RpcOptions {
  /** The node's address; its credentials apply if `user` and `password` are not given. */
  readonly url: URL;
  readonly user?: string;
  readonly password?: string;
  /** Time limit until an answer is complete. */
  readonly timeoutMs: number;
  readonly maxAttempts: number;
  /** Most calls at a time. */
  readonly parallel: number;
  readonly backoff?: Backoff;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

export interface RpcCall {
  readonly method: string;
  readonly params: readonly unknown[];
}

/** A block of 4 MB at the highest verbosity is about 40 MB of JSON. */
const MAX_ANSWER_BYTES = 128 * 1024 * 1024;

/** Smallest and largest buffer that is kept for the next answer: enough for an ordinary block, and for the largest. */
const LEAST_ANSWER_BYTES = 64 * 1024;
const MAX_KEPT_BYTES = 64 * 1024 * 1024;
const NOTHING: Buffer = Buffer.alloc(0);

const UNAUTHORIZED = new Set([401, 403]);
const WARMING_UP = -28;

/** The part of the package that is used; its own types cover little of it. */
interface CoreClient {
  command(...args: unknown[]): Promise<unknown>;
  request: { postAsync: (request: ComposedRequest) => Promise<HttpAnswer> };
  parser: { rpc(answer: HttpAnswer): unknown };
}
interface ComposedRequest {
  readonly auth?: { readonly user?: string; readonly pass?: string };
  readonly body: string;
  readonly uri: string;
}
interface HttpAnswer {
  readonly status: number;
  readonly body: Buffer;
}

export class RpcClient {
  /** Host and port, for messages. */
  readonly endpoint: string;
  readonly #options: RpcOptions;
  readonly #idle: Connection[];
  readonly #waiting: ((connection: Connection) => void)[] = [];

  private constructor(options: RpcOptions, endpoint: string, connections: Connection[]) {
    this.#options = options;
    this.endpoint = endpoint;
    this.#idle = connections;
  }

  /** Sends nothing yet. */
  static async open(options: RpcOptions): Promise<RpcClient> {
    // Loaded here, so that commands that do not use a node skip its 30 modules.
    const { default: Client } = await import('bitcoin-core');
    const { url } = options;
    const endpoint = url.host;
    const host = `${url.protocol}//${url.host}${url.pathname === '/' ? '' : url.pathname}`;
    const config = {
      host,
      username: options.user ?? credential(url.username),
      password: options.password ?? credential(url.password),
      // The package's own logger would print requests, headers included, if DEBUG is set.
      logger: { debug() {} },
    };
    const connections = Array.from(
      { length: options.parallel },
      () => new Connection(new Client(config) as unknown as CoreClient, host, options.timeoutMs),
    );
    return new RpcClient(options, endpoint, connections);
  }

  /** Returns the result with numbers as texts. @throws TidemarkError SOURCE_*, NODE_*. */
  async call(method: string, ...params: readonly unknown[]): Promise<unknown> {
    const answer = await this.#send({ method, params }, (connection, signal) =>
      connection.command([method, ...params], signal),
    );
    return resultOf(answer, method, this.endpoint);
  }

  /** Returns what `read` takes from the bytes; for answers of many megabytes. */
  async read<T>(
    options: AnswerOptions & { readonly read: (cursor: JsonCursor) => T },
    method: string,
    ...params: readonly unknown[]
  ): Promise<T> {
    const answer = await this.#send({ method, params }, (connection, signal) =>
      connection.command([method, ...params], signal, options),
    );
    return resultOf(answer, method, this.endpoint) as T;
  }

  /** Returns the results in order. @throws TidemarkError if a call failed; its message names the call. */
  async batch(calls: readonly RpcCall[]): Promise<unknown[]> {
    if (calls.length === 0) return [];
    const sent = calls.map(({ method, params }) => ({ method, parameters: params }));
    return await this.#send({ method: `${calls.length} calls`, params: [] }, async (connection, signal) => {
      const answers = await connection.command([sent], signal);
      if (!Array.isArray(answers) || answers.length !== calls.length) {
        const found = Array.isArray(answers) ? `${answers.length} answers` : 'no list';
        throw new TidemarkError('NODE_ANSWER_INVALID', `${this.endpoint} answered ${calls.length} calls with ${found}`);
      }
      return answers.map((answer, index) => {
        // The package ends the ids of a batch with the call's number.
        if (!String((answer as Partial<RpcEnvelope>)?.id).endsWith(`-${index}`)) {
          throw new TidemarkError('NODE_ANSWER_INVALID', `${this.endpoint} answered the calls of a batch out of order`);
        }
        return resultOf(answer, `${calls[index].method} (${index + 1} of ${calls.length})`, this.endpoint);
      });
    });
  }

  async #send<T>(call: RpcCall, send: (connection: Connection, signal?: AbortSignal) => Promise<T>): Promise<T> {
    const { maxAttempts, backoff, signal, log } = this.#options;
    const onRetry = (fault: TidemarkError, attempt: number, waitMs: number) =>
      log?.warn({ node: this.endpoint, method: call.method, attempt, wait_ms: Math.round(waitMs) }, fault.message);
    return await withAttempts({ maxAttempts, backoff, signal, onRetry }, async () => {
      const connection = this.#idle.pop() ?? (await new Promise<Connection>((take) => this.#waiting.push(take)));
      try {
        signal?.throwIfAborted();
        return await send(connection, signal);
      } finally {
        const next = this.#waiting.shift();
        if (next) next(connection);
        else this.#idle.push(connection);
      }
    });
  }
}

/** Runs one call at a time through one instance of the package, so that a single call can be cancelled. */
class Connection {
  readonly #client: CoreClient;
  readonly #host: string;
  readonly #endpoint: string;
  readonly #timeoutMs: number;
  #signal: AbortSignal | undefined;
  /** How to read the answer of the current call. */
  #answerOptions: AnswerOptions = {};
  /** The buffer for the next answer. The previous answer in it was read by then. */
  #answer = NOTHING;

  /** @param host the address without credentials, to which the package appends the path of a request. */
  constructor(client: CoreClient, host: string, timeoutMs: number) {
    this.#client = client;
    this.#host = host;
    this.#endpoint = new URL(host).host;
    this.#timeoutMs = timeoutMs;
    client.parser = { rpc: (answer) => this.#parse(answer) };
    client.request.postAsync = (request) => this.#post(request);
  }

  /** Returns envelopes, not results: see resultOf. */
  async command(
    args: readonly unknown[],
    signal: AbortSignal | undefined,
    options: AnswerOptions = {},
  ): Promise<unknown> {
    this.#signal = signal;
    this.#answerOptions = options;
    return await this.#client.command(...args);
  }

  #post({ auth, body, uri }: ComposedRequest): Promise<HttpAnswer> {
    const { promise, resolve, reject } = Promise.withResolvers<HttpAnswer>();
    const signal = this.#signal;
    const { maxBytes = MAX_ANSWER_BYTES, keepsBytes = false } = this.#answerOptions;
    const received = new Received(this.#answer, maxBytes);
    // Owned by this call: data of a cancelled call may still arrive.
    this.#answer = NOTHING;
    const lost = (error: unknown) => {
      const { bytes } = received;
      if (bytes > 0) reject(this.#cut(`${reasonOf(error)} after ${bytes} bytes`, error));
      else reject(new Retryable(this.#unreachable(`cannot be reached: ${reasonOf(error)}`)));
    };
    const url = new URL(`${this.#host}${uri}`);
    const request = clientFor(url).request(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) },
      ...(auth && { auth: `${auth.user ?? ''}:${auth.pass ?? ''}` }),
    });
    const giveUp = (fault: unknown) => {
      reject(fault);
      request.destroy();
    };
    request.on('error', lost).on('response', (response) => {
      received.expect(Number(response.headers['content-length']));
      response.on('error', lost).on('data', (piece: Buffer) => {
        if (received.add(piece)) return;
        const message = `The Bitcoin node at ${this.#endpoint} sent more than ${maxBytes} bytes`;
        giveUp(new TidemarkError('NODE_ANSWER_INVALID', message, { details: { max_bytes: maxBytes } }));
      });
      response.on('end', () => {
        if (!keepsBytes) this.#answer = received.reusable;
        resolve({ status: response.statusCode ?? 0, body: received.body });
      });
    });
    request.end(body);
    const timer = setTimeout(
      () => giveUp(new Retryable(this.#unreachable(`did not answer within ${this.#timeoutMs} ms`))),
      this.#timeoutMs,
    );
    const onAbort = () => giveUp(signal?.reason);
    signal?.addEventListener('abort', onAbort);
    return promise.finally(() => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
    });
  }

  #parse({ status, body }: HttpAnswer): unknown {
    const at = { node: this.#endpoint, status };
    if (UNAUTHORIZED.has(status)) {
      const message = `The Bitcoin node at ${this.#endpoint} refused the user name or password (HTTP ${status})`;
      throw new TidemarkError('NODE_UNSUITABLE', message, {
        details: at,
        remedy: 'Check SVC_BITCOIN_RPC_USER and SVC_BITCOIN_RPC_PASSWORD.',
      });
    }
    const { read } = this.#answerOptions;
    const taken = status === 200 && read ? this.#read(body, read) : undefined;
    if (taken) return taken;
    let parsed: unknown;
    try {
      parsed = parseExactly(body);
    } catch (cause) {
      // Errors outside a call are plain text or a page: a full work queue, or a proxy's message.
      if (status !== 200) throw new Retryable(this.#unreachable(`answered HTTP ${status}`));
      throw this.#cut('it is not complete JSON', cause);
    }
    if (isEnvelope(parsed) || (Array.isArray(parsed) && parsed.every(isEnvelope))) return parsed;
    throw new TidemarkError(
      'NODE_ANSWER_INVALID',
      `The server at ${this.#endpoint} does not answer like a Bitcoin node`,
      {
        details: at,
      },
    );
  }

  /** Undefined if the answer has no result; the general parser reads it then. */
  #read(body: Buffer, reader: (cursor: JsonCursor) => unknown): RpcEnvelope | undefined {
    const cursor = new JsonCursor(body);
    let result: { readonly is: unknown } | undefined;
    try {
      if (!cursor.isObject) return undefined;
      cursor.object();
      while (cursor.member()) {
        const name = ENVELOPE.nameAt(cursor);
        const isNull = name !== undefined && cursor.peek() === NULL;
        if (name === 'result' && !isNull) result = { is: reader(cursor) };
        else if (name === 'error' && !isNull) return undefined;
        else cursor.skip();
      }
      cursor.finish();
    } catch (error) {
      if (error instanceof SyntaxError) throw this.#cut('it is not complete JSON', error);
      throw error;
    }
    return result && { id: undefined, result: result.is, error: null };
  }

  /** The message holds the reason, so it has no cause: the reason would be printed twice. */
  #unreachable(what: string): TidemarkError {
    const message = `The Bitcoin node at ${this.#endpoint} ${what}`;
    return new TidemarkError('NODE_UNREACHABLE', message, { details: { node: this.#endpoint } });
  }

  #cut(what: string, cause?: unknown): Retryable {
    const message = `The answer of the Bitcoin node at ${this.#endpoint} was truncated: ${what}`;
    return new Retryable(
      new TidemarkError('NODE_UNREACHABLE', message, {
        details: { node: this.#endpoint },
        remedy: 'The connection to the node broke in the middle of an answer; try again.',
        cause,
      }),
    );
  }
}

/**
 * The bytes of an answer, in one buffer. Pieces are copied as they arrive: keeping them would leave a thousand objects per
 * block to the garbage collector.
 */
class Received {
  readonly maxBytes: number;
  #buffer: Buffer;
  #bytes = 0;

  /** @param buffer memory to reuse. */
  constructor(buffer: Buffer, maxBytes: number) {
    this.#buffer = buffer;
    this.maxBytes = maxBytes;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get body(): Buffer {
    return this.#buffer.subarray(0, this.#bytes);
  }

  /** The buffer, for the next answer; empty if it is too large to be kept. */
  get reusable(): Buffer {
    return this.#buffer.length <= MAX_KEPT_BYTES ? this.#buffer : NOTHING;
  }

  /** Makes room for an answer of this size, as far as the size is plausible. */
  expect(bytes: number): void {
    if (bytes <= this.maxBytes) this.#reserve(bytes);
  }

  /** Copies a piece. @returns false where the answer is larger than allowed */
  add(piece: Buffer): boolean {
    const bytes = this.#bytes + piece.length;
    if (bytes > this.maxBytes) return false;
    this.#reserve(bytes);
    this.#buffer.set(piece, this.#bytes);
    this.#bytes = bytes;
    return true;
  }

  #reserve(bytes: number): void {
    if (bytes <= this.#buffer.length) return;
    // A quarter more, because the next answer may need slightly more.
    const larger = Buffer.allocUnsafeSlow(Math.max(bytes + (bytes >> 2), LEAST_ANSWER_BYTES));
    this.#buffer.copy(larger, 0, 0, this.#bytes);
    this.#buffer = larger;
  }
}

const ENVELOPE = new JsonMembers('result', 'error');
/** `n` of null; the results that are read this way are objects. */
const NULL = 0x6e;

interface AnswerOptions {
  /** Reads the result from the bytes. */
  readonly read?: (cursor: JsonCursor) => unknown;
  readonly maxBytes?: number;
  /** The result refers to the bytes. Otherwise the next answer overwrites them. */
  readonly keepsBytes?: boolean;
}

interface RpcEnvelope {
  readonly id: unknown;
  readonly result: unknown;
  readonly error: { readonly code?: unknown; readonly message?: unknown } | null;
}

function isEnvelope(value: unknown): value is RpcEnvelope {
  return typeof value === 'object' && value !== null && 'result' in value && 'error' in value;
}

function resultOf(answer: unknown, method: string, endpoint: string): unknown {
  const { error, result } = answer as RpcEnvelope;
  if (error === null) return result;
  const code = Number(error.code);
  const message = `The Bitcoin node at ${endpoint} refused ${method}: ${String(error.message)}`;
  if (code === WARMING_UP) throw new Retryable(new TidemarkError('NODE_UNREACHABLE', message));
  throw new TidemarkError('NODE_ANSWER_INVALID', message, {
    details: { node: endpoint, method, rpc_code: code },
    remedy: 'The message gives the reason for which the node refused the call.',
  });
}

/** Decodes a credential of the URL. @throws TidemarkError CONFIGURATION_INVALID, which does not repeat it */
function credential(encoded: string): string | undefined {
  try {
    return decodeURIComponent(encoded) || undefined;
  } catch {
    throw new TidemarkError(
      'CONFIGURATION_INVALID',
      'SVC_BITCOIN_RPC_URL: a % in its user or password does not begin an escape; write it as %25',
    );
  }
}

/** Connection errors of Node may have an empty message and the reason in their code. */
function reasonOf(error: unknown): string {
  const first = error instanceof AggregateError ? error.errors[0] : error;
  if (!(first instanceof Error)) return String(first);
  return first.message || ((first as NodeJS.ErrnoException).code ?? first.name);
}
