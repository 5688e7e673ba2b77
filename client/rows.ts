/**
 * The rows of one request. The request is sent only when its rows are read in one of these ways:
 *
 *   const { rows, warnings } = await data.get_...(request)         all rows at once
 *   for await (const row of data.get_...(request)) { ... }         rows as they arrive, in constant memory
 *   const bytes = await data.get_...(request).arrow()              an Arrow IPC stream, for Arrow's readers
 */
import {
  ConnectionError,
  HistoricalDataError,
  IncompleteAnswerError,
  UnsafeIntegerError,
  type Warning,
} from './errors.ts';
import { bytesOf, textOf } from './stall.ts';
import type { Transport } from './transport.ts';

export type Dtype = 'int64' | 'float64' | 'string' | 'bool01' | 'timestamp_utc' | 'uuid' | 'json';

export interface Answer<Row> {
  readonly mode: 'native' | 'aligned_1s';
  readonly source: string;
  readonly sources: readonly string[];
  /** Absent for the default. */
  readonly instrument?: string;
  readonly row_count: number;
  /** Names and types of the columns, in order. */
  readonly schema: readonly { readonly name: string; readonly dtype: Dtype }[];
  readonly warnings: readonly Warning[];
  readonly rows: readonly Row[];
  readonly rights_state: string;
  readonly rights_provisional: boolean;
}

/** The answer of a frame. */
export interface FrameAnswer<Row>
  extends Pick<
    Answer<Row>,
    'sources' | 'row_count' | 'schema' | 'warnings' | 'rows' | 'rights_state' | 'rights_provisional'
  > {
  readonly grid_seconds: number;
  readonly as_of: string | null;
  readonly fill: 'null' | 'previous';
  /** What is proved of each column, and the codes of the warnings that concern it. */
  readonly columns: readonly {
    readonly name: string;
    readonly dataset: string;
    /** Absent for the default. */
    readonly instrument?: string;
    readonly field: string;
    readonly aggregate: string | null;
    readonly unit: string | null;
    readonly proved_from_utc: string | null;
    readonly proved_through_utc: string | null;
    readonly warnings: readonly string[];
  }[];
  /** Digest of the rows: the same for as long as nothing that they depend on changes. */
  readonly rows_sha256: string;
}

export interface StreamedAnswer<Row> {
  /** Absent for the default, and of a frame. */
  readonly instrument?: string;
  readonly schema: Answer<Row>['schema'];
  /** Long warnings come without their details. */
  readonly warnings: readonly Warning[];
  readonly rows: AsyncGenerator<Row, void, undefined>;
  /** Ends the read at the service, whether or not a row was read. */
  close(): Promise<void>;
}

export interface RowsSource {
  readonly transport: Transport;
  readonly path: string;
  readonly body: unknown;
  readonly signal: AbortSignal | undefined;
}

export class Rows<Row, Whole extends Pick<Answer<Row>, 'rows' | 'schema'> = Answer<Row>>
  implements PromiseLike<Whole>, AsyncIterable<Row>
{
  readonly #source: RowsSource;

  constructor(source: RowsSource) {
    this.#source = source;
  }

  /** Lets callers await the request. @throws HistoricalDataError */
  // biome-ignore lint/suspicious/noThenProperty: callers await the request to get its rows
  then<A = Whole, B = never>(
    resolve?: ((answer: Whole) => A | PromiseLike<A>) | null,
    reject?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.all().then(resolve, reject);
  }

  /** Reads all rows at once; if an answer breaks off, it requests the whole answer once more. @throws HistoricalDataError */
  async all(): Promise<Whole> {
    return parseAnswer<Whole>(await this.#whole('application/json', textOf));
  }

  /** Yields rows as they arrive. Leaving the loop ends the read at the service too. @throws HistoricalDataError */
  async *[Symbol.asyncIterator](): AsyncGenerator<Row, void, undefined> {
    yield* (await this.stream()).rows;
  }

  /** Returns instrument, schema and warnings before the first row, and the rows as they arrive. Read them to the end, or call `close`. */
  async stream(): Promise<StreamedAnswer<Row>> {
    const response = await this.#open('application/x-ndjson');
    const schema = headerOf(response, 'schema') as Schema;
    const warnings = headerOf(response, 'warnings') as readonly Warning[];
    const instrument = response.headers.get('x-svc-instrument');
    const rows = rowsOf<Row>(response, schema, this.#source.signal);
    const close = async () => {
      await rows.return();
      // Rows that were never read have not locked the body, so that it has to be cancelled here.
      if (!response.body?.locked) await response.body?.cancel();
    };
    return { ...(instrument !== null && { instrument }), schema, warnings, rows, close };
  }

  /** Returns all rows as an Arrow IPC stream; like `all`, it requests an answer that breaks off once more. @throws HistoricalDataError */
  async arrow(): Promise<Uint8Array> {
    return await this.#whole('application/vnd.apache.arrow.stream', bytesOf);
  }

  /** Returns the answer in any media type that the service offers; the caller reads its body. */
  async response(accept: string): Promise<Response> {
    return await this.#open(accept);
  }

  async #whole<T>(accept: string, read: (response: Response) => Promise<T>): Promise<T> {
    for (let mayRetry = true; ; mayRetry = false) {
      const response = await this.#open(accept);
      const whole = await reading(read(response), this.#source.signal).catch((error) => {
        if (!mayRetry || !(error instanceof IncompleteAnswerError)) throw error;
      });
      if (whole !== undefined) return whole;
    }
  }

  #open(accept: string): Promise<Response> {
    const { transport, path, body, signal } = this.#source;
    return transport.post(path, body, accept, signal);
  }
}

type Schema = Answer<unknown>['schema'];

/** @throws the signal's reason after an abort, in place of the error that the abort caused. */
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
      `The answer has no X-Svc header with its ${name}; a browser shows it only if SVC_HTTP_CORS_ORIGINS allows the page`,
    );
  }
  return JSON.parse(header);
}

async function* rowsOf<Row>(response: Response, schema: Schema, signal: AbortSignal | undefined) {
  for await (const lines of wholeLines(response, signal)) yield* parseRows<Row>(lines, schema);
}

/** Yields the body in pieces of whole lines. */
async function* wholeLines(response: Response, signal: AbortSignal | undefined): AsyncGenerator<string> {
  if (!response.body) throw new IncompleteAnswerError('The answer has no body');
  const reader = response.body.pipeThrough(new TextDecoderStream('utf-8', { fatal: true })).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reading(reader.read(), signal).catch((cause: unknown) => {
        if (signal?.aborted || cause instanceof HistoricalDataError) throw cause;
        throw new IncompleteAnswerError('The answer is not complete UTF-8 text', { cause });
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
    // If the caller stops early, this closes the connection, and the service stops its read.
    await reader.cancel().catch(() => {});
  }
  if (rest !== '') throw new IncompleteAnswerError('The answer broke off within a row');
}

/** Parses many rows with one call of the parser; a call for each row would take twice the time. */
function parseRows<Row>(lines: string, schema: Schema): Row[] {
  const rows = JSON.parse(`[${lines.replaceAll('\n', ',')}]`) as Row[];
  checkIntegers(rows, schema);
  return rows;
}

function parseAnswer<Whole extends Pick<Answer<unknown>, 'rows' | 'schema'>>(text: string): Whole {
  let answer: Whole;
  try {
    answer = JSON.parse(text) as Whole;
  } catch (cause) {
    throw new ConnectionError('The answer is not one of the service', { cause });
  }
  checkIntegers(answer.rows, answer.schema);
  return answer;
}

/** The service sends 64-bit integers exactly, and a number holds those below 2^53. A larger one is an error, never rounded. */
function checkIntegers(rows: readonly unknown[], schema: Schema): void {
  for (const { name, dtype } of schema) {
    if (dtype !== 'int64') continue;
    for (const row of rows as readonly Record<string, unknown>[]) {
      const value = row[name];
      if (typeof value === 'number' && !Number.isSafeInteger(value)) {
        throw new UnsafeIntegerError(`${name} is about ${value}, which exceeds 2^53; read it with arrow()`);
      }
    }
  }
}
