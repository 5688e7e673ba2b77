/**
 * The rows of one request. Nothing is sent before they are asked for, one way or the other:
 *
 *   const { rows, warnings } = await data.get_...(request)         everything at once
 *   for await (const row of data.get_...(request)) { ... }         as they arrive, in flat memory
 *   const bytes = await data.get_...(request).arrow()              an Arrow IPC stream, for Arrow's readers
 */
import { HistoricalDataError, IncompleteAnswerError, UnsafeIntegerError, type Warning } from './errors.ts';
import { bytesOf, textOf } from './stall.ts';
import type { Transport } from './transport.ts';

export type Dtype = 'int64' | 'float64' | 'string' | 'bool01' | 'timestamp_utc' | 'uuid' | 'json';

export interface Answer<Row> {
  readonly mode: 'native' | 'aligned_1s';
  readonly source: string;
  readonly sources: readonly string[];
  readonly row_count: number;
  /** Names and types of the columns, in order. */
  readonly schema: readonly { readonly name: string; readonly dtype: Dtype }[];
  readonly warnings: readonly Warning[];
  readonly rows: readonly Row[];
  readonly rights_state: string;
  readonly rights_provisional: boolean;
}

export interface StreamedAnswer<Row> {
  readonly schema: Answer<Row>['schema'];
  /** Long ones come without their details. */
  readonly warnings: readonly Warning[];
  readonly rows: AsyncGenerator<Row, void, undefined>;
  /** Ends the read at the service, whether or not a row was taken. */
  close(): Promise<void>;
}

export interface RowsSource {
  readonly transport: Transport;
  readonly path: string;
  readonly body: unknown;
  readonly signal: AbortSignal | undefined;
}

export class Rows<Row> implements PromiseLike<Answer<Row>>, AsyncIterable<Row> {
  readonly #source: RowsSource;

  constructor(source: RowsSource) {
    this.#source = source;
  }

  /** So that it can be awaited. @throws HistoricalDataError */
  // biome-ignore lint/suspicious/noThenProperty: awaiting the request is the plain way to its rows
  then<A = Answer<Row>, B = never>(
    resolve?: ((answer: Answer<Row>) => A | PromiseLike<A>) | null,
    reject?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.all().then(resolve, reject);
  }

  /** Everything at once; a broken answer is asked for once more, whole. @throws HistoricalDataError */
  async all(): Promise<Answer<Row>> {
    for (let again = true; ; again = false) {
      const response = await this.#open('application/json');
      const text = await reading(textOf(response), this.#source.signal).catch((error) => {
        if (!again || !(error instanceof IncompleteAnswerError)) throw error;
      });
      if (text !== undefined) return parseAnswer<Row>(text);
    }
  }

  /** Row by row, as they arrive. Leaving the loop ends the read at the service too. @throws HistoricalDataError */
  async *[Symbol.asyncIterator](): AsyncGenerator<Row, void, undefined> {
    yield* (await this.stream()).rows;
  }

  /** What is known before the first row, and the rows as they arrive: read them to their end, leave the loop, or close. */
  async stream(): Promise<StreamedAnswer<Row>> {
    const response = await this.#open('application/x-ndjson');
    const schema = headerOf(response, 'schema') as Schema;
    const warnings = headerOf(response, 'warnings') as readonly Warning[];
    const rows = rowsOf<Row>(response, schema, this.#source.signal);
    const close = async () => {
      await rows.return();
      // Rows that were never begun have taken no hold of the body; one that is held was let go by them.
      if (!response.body?.locked) await response.body?.cancel();
    };
    return { schema, warnings, rows, close };
  }

  /** The rows as an Arrow IPC stream, whole. @throws HistoricalDataError */
  async arrow(): Promise<Uint8Array> {
    const response = await this.#open('application/vnd.apache.arrow.stream');
    return await reading(bytesOf(response), this.#source.signal);
  }

  /** The answer as the service sends it, as any media type it serves; its body is the caller's to read. */
  async response(accept: string): Promise<Response> {
    return await this.#open(accept);
  }

  #open(accept: string): Promise<Response> {
    const { transport, path, body, signal } = this.#source;
    return transport.post(path, body, accept, signal);
  }
}

type Schema = Answer<unknown>['schema'];

/** @throws the signal's reason where it was aborted, whatever that broke. */
async function reading<T>(body: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  try {
    return await body;
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}

function headerOf(response: Response, name: 'schema' | 'warnings'): unknown {
  const header = response.headers.get(`x-svc-${name}`);
  if (header === null) {
    throw new HistoricalDataError(
      `The answer has no X-Svc header of its ${name} (a browser shows it only with CORS set up)`,
    );
  }
  return JSON.parse(header);
}

async function* rowsOf<Row>(response: Response, schema: Schema, signal: AbortSignal | undefined) {
  for await (const lines of wholeLines(response, signal)) yield* parseRows<Row>(lines, schema);
}

/** The body in pieces that end at line ends. */
async function* wholeLines(response: Response, signal: AbortSignal | undefined): AsyncGenerator<string> {
  if (!response.body) throw new IncompleteAnswerError('The answer has no body');
  const reader = response.body.pipeThrough(new TextDecoderStream('utf-8', { fatal: true })).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reading(reader.read(), signal).catch((cause: unknown) => {
        if (signal?.aborted || cause instanceof HistoricalDataError) throw cause;
        throw new IncompleteAnswerError('The answer is no whole UTF-8 text', { cause });
      });
      if (done) break;
      const end = value.lastIndexOf('\n');
      if (end < 0) {
        rest += value;
        continue;
      }
      yield rest + value.slice(0, end);
      rest = value.slice(end + 1);
    }
  } finally {
    // A caller that stops early closes the connection; the service then stops its read.
    await reader.cancel().catch(() => {});
  }
  if (rest !== '') throw new IncompleteAnswerError('The answer broke off inside a row');
}

/** Rows are parsed a piece at a time: one call of the parser for each would cost twice as much. */
function parseRows<Row>(lines: string, schema: Schema): Row[] {
  const rows = JSON.parse(`[${lines.replaceAll('\n', ',')}]`) as Row[];
  checkIntegers(rows, schema);
  return rows;
}

function parseAnswer<Row>(text: string): Answer<Row> {
  const answer = JSON.parse(text) as Answer<Row>;
  checkIntegers(answer.rows, answer.schema);
  return answer;
}

/** 64-bit integers are exact on the wire; a number holds them below 2^53, and what is larger is an error, never rounded. */
function checkIntegers(rows: readonly unknown[], schema: Schema): void {
  for (const { name, dtype } of schema) {
    if (dtype !== 'int64') continue;
    for (const row of rows as readonly Record<string, unknown>[]) {
      const value = row[name];
      if (typeof value === 'number' && !Number.isSafeInteger(value)) {
        throw new UnsafeIntegerError(`${name} holds about ${value}, past 2^53; read it with arrow()`);
      }
    }
  }
}
