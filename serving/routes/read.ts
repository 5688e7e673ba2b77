/**
 * The steps that every route with rows takes, in the order of the contract's checks: representation, body, contract, datasets
 * of the key, rights, strict, queue, storage. A route consists of its path, the parser of its body and the members of its envelope.
 */
import type { ServerResponse } from 'node:http';
import { finished } from 'node:stream/promises';
import { isoOf } from '../../shared/dates.ts';
import type { Logger } from '../../shared/logger.ts';
import { DATASETS, type DatasetDefinition, type DatasetKey, shapeOf } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import type { Json } from '../../shared/strict-json.ts';
import { type FrameRequest, parseFrame } from '../contract/frame.ts';
import { type HistoricalKind, historicalParser } from '../contract/historical.ts';
import { type FindInstrument, instrumentHeader, instrumentMember } from '../contract/instruments.ts';
import type { ProblemCode } from '../contract/problems.ts';
import { parseQuery, type Query } from '../contract/query.ts';
import type { ReadRequest } from '../contract/read-request.ts';
import type { Parsed } from '../contract/shapes.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { CHECKPOINT_HEADER } from '../discovery/proof-log.ts';
import { type CodePrefix, strictProblem, toProblem, versionProblem } from '../http/answer.ts';
import { backendToken } from '../http/caller.ts';
import { contractProblem, readJson } from '../http/request.ts';
import type { Exchange, Route } from '../http/routes.ts';
import type { ConcurrencyLimiter, ReadSize, Slot } from '../limits/concurrency-limiter.ts';
import { frameDoc, historicalDoc, queryDoc } from '../openapi/row-docs.ts';
import type { Flow, Reader, ReadFacts } from '../read/execute/answer.ts';
import { mutableWindowWarning, type WarningEvaluation } from '../read/execute/warnings.ts';
import { asOfText, type FrameFacts, type FrameReader, frameFields } from '../read/frame/frame.ts';
import { unitOf } from '../read/frame/values.ts';
import { OutputBuffer, type RowWriter } from '../render/cells.ts';
import { type Envelope, envelopeHeaders } from '../render/json-rows.ts';
import { type Accepted, accepted, withFormulas } from '../render/representations.ts';
import { type BufferPool, breakOff, MAX_GATHERED_BYTES, ResponseBody } from '../render/response.ts';
import { type Admission, admission, checkRights, type Grant, mostRestrictive } from '../rights/gate.ts';

/** A client that is behind for less than this keeps its slot: to give it up and take it again would only cost others. */
const PARK_AFTER_MS = 250;

/** Pauses a read while its client is behind, and meanwhile gives the read's slot to others. */
class BackpressureFlow implements Flow {
  readonly #flow: Flow;
  readonly #slot: Slot;
  readonly #evict: () => void;
  #timer: NodeJS.Timeout | undefined;

  /** @param evict ends the read: too many reads are parked, and this one has been parked for longest. */
  constructor(flow: Flow, slot: Slot, evict: () => void) {
    this.#flow = flow;
    this.#slot = slot;
    this.#evict = evict;
  }

  pause(): void {
    this.#flow.pause();
    this.#timer = setTimeout(() => this.#slot.park(this.#evict), PARK_AFTER_MS);
  }

  resume(): void {
    this.end();
    this.#slot.unpark().then(() => this.#flow.resume());
  }

  /** Call it when the read has ended; the flow then parks no more. */
  end(): void {
    clearTimeout(this.#timer);
  }
}

export interface ReadRouteDeps {
  readonly reader: Reader;
  readonly instruments: Instruments;
  readonly rights: RightsStore;
  readonly plainLimiter: ConcurrencyLimiter;
  readonly alignedLimiter: ConcurrencyLimiter;
  readonly buffers: BufferPool;
  readonly stallTimeoutMs: number;
  readonly log: Logger;
  /** Called for each answer that was sent completely. */
  readonly observe: (labels: { readonly route: string; readonly mode: string }, seconds: number, rows: number) => void;
}

interface ReadRouteSpec {
  readonly path: string;
  readonly prefix: CodePrefix;
  readonly doc: Route['doc'];
  parse(body: Json, find?: FindInstrument): Parsed<Query>;
  /** The members of the answer beside `rows` and `row_count`. */
  envelope(request: ReadRequest, grant: Grant, facts: ReadFacts): Envelope;
}

function readRoute(spec: ReadRouteSpec, deps: ReadRouteDeps): Route {
  return {
    method: 'POST',
    path: spec.path,
    access: 'read',
    doc: spec.doc,
    async handle(exchange) {
      const startedAt = performance.now();
      const negotiated = accepted(exchange.request, exchange.response);
      const query = await parseRequest(exchange, deps.instruments, spec);
      const form = formOf(negotiated, query, spec.prefix);
      exchange.caller.requireDatasets([query.read.dataset]);
      const grant = checkRights(deps.rights, query.datasetKey, backendToken(exchange.request));
      const admit = admission(grant, query.read.dataset);
      const mutable = mutableWindowWarning(query.window);
      // Rights come before strict. Where rights depend on the rows, the read itself checks both, in this order.
      if (query.strict && mutable.length > 0 && !admit) throw strictProblem(mutable);
      const limiter = query.mode === 'native' ? deps.plainLimiter : deps.alignedLimiter;
      const slot = await limiter.acquire(exchange.signal, sizeOf(query.read), exchange.caller.name ?? '');
      try {
        const rows = await answer(exchange, spec, deps, { request: query.read, grant, admit, form, slot });
        deps.observe({ route: spec.path, mode: query.mode }, (performance.now() - startedAt) / 1000, rows);
      } finally {
        slot.release();
      }
    },
  };
}

/** A read of at most this size takes tens of milliseconds; a read of a whole history takes hours. */
const SMALL_ROWS = 10_000;
const SMALL_WINDOW_MS = 3_600_000;

function sizeOf({ window, filters, klineMs }: ReadRequest): ReadSize {
  switch (window.kind) {
    case 'latest':
    case 'random':
      // With a filter the read may have to scan everything.
      return window.rows <= SMALL_ROWS && filters.length === 0 && klineMs === undefined ? 'small' : 'any';
    case 'range':
      return window.toMs! - window.fromMs! <= SMALL_WINDOW_MS ? 'small' : 'any';
    case 'history':
      return 'any';
  }
}

/** Parses the body of a route with rows. @throws Problem with every fault of body and URL. */
export async function parseRequest<T>(
  exchange: Exchange,
  instruments: Instruments,
  { parse, prefix = 'QUERY' }: { parse(body: Json, find?: FindInstrument): Parsed<T>; readonly prefix?: CodePrefix },
): Promise<T> {
  const code: ProblemCode = `${prefix}_CONTRACT_ERROR`;
  const body = await readJson(exchange.request, exchange.response, code);
  const parsed = await instruments.parse(exchange.caller, (find) => parse(body, find));
  // A parameter in the URL would be ignored, and its sender would mistake the answer.
  const strays = [...exchange.url.searchParams.keys()].map((key) => ({
    pointer: `?${key}`,
    message: 'is not a parameter of this path; put it into the JSON body',
  }));
  if ('faults' in parsed || strays.length > 0) {
    throw contractProblem([...strays, ...('faults' in parsed ? parsed.faults : [])], code);
  }
  return (parsed as { value: T }).value;
}

/** The form of the answer to a body that may ask for escaped cells. @throws Problem for a form without such cells */
function formOf(form: Accepted, { csvFormulas }: Pick<Query, 'csvFormulas'>, prefix: CodePrefix): Accepted {
  const wanted = withFormulas(form, csvFormulas);
  if (wanted) return wanted;
  const message = `is of CSV alone, and this answer is ${form.representation.mediaType}; send Accept: text/csv`;
  throw contractProblem([{ pointer: '/csv_formulas', message }], `${prefix}_CONTRACT_ERROR`);
}

/** Partly filled buffers are sent after this time, so that a slow read shows progress. */
const FLUSH_INTERVAL_MS = 1000;

/** A request that has passed all checks and holds a slot. */
interface Admitted {
  readonly request: ReadRequest;
  readonly grant: Grant;
  readonly admit: Admission | undefined;
  readonly form: Accepted;
  readonly slot: Slot;
}

async function answer(
  exchange: Exchange,
  spec: ReadRouteSpec,
  deps: ReadRouteDeps,
  { request, grant, admit, form, slot }: Admitted,
): Promise<number> {
  return await sendRows(exchange, deps, {
    form,
    slot,
    dataset: request.dataset,
    envelope: (facts: ReadFacts) => spec.envelope(request, grant, facts),
    async read(open, signal) {
      const isAlone = () => isOnlyOne([deps.plainLimiter, deps.alignedLimiter]);
      return { rows: await deps.reader.read({ request, signal, token: grant.token, admit, open, isAlone }) };
    },
    problem: (error) => toProblem(error, spec.prefix),
  });
}

/** Whether one read runs and none waits. */
function isOnlyOne(limiters: readonly ConcurrencyLimiter[]): boolean {
  const loads = limiters.map(({ load }) => load);
  return loads.every(({ waiting }) => waiting === 0) && loads.reduce((sum, { running }) => sum + running, 0) === 1;
}

/** An answer with rows, as its route makes it. */
interface RowsAnswer<F extends ReadFacts> {
  readonly form: Accepted;
  readonly slot: Slot;
  /** Of answers for one dataset. */
  readonly dataset?: DatasetDefinition;
  /** The members of the answer beside `rows` and `row_count`. */
  envelope(facts: F): Envelope;
  /** Names of the members that are known after the last row. */
  readonly closing?: readonly string[];
  /** Reads the rows into the writer that `open` gives, until the signal is aborted. */
  read(
    open: (facts: F, flow: Flow) => RowWriter,
    signal: AbortSignal,
  ): Promise<{
    readonly rows: number;
    readonly closing?: Readonly<Record<string, string>>;
  }>;
  problem(error: unknown): unknown;
}

/** Renders the rows of a read into the answer. @returns their number. @throws Problem */
async function sendRows<F extends ReadFacts>(
  exchange: Exchange,
  deps: Pick<ReadRouteDeps, 'buffers' | 'stallTimeoutMs'>,
  { form, slot, dataset, envelope: envelopeOf, closing, read, problem }: RowsAnswer<F>,
): Promise<number> {
  const { representation, coding } = form;
  const { contentType, rowsOnly } = representation;
  let backpressure: BackpressureFlow | undefined;
  let envelope: Envelope = {};
  let facts: F | undefined;
  let writer: RowWriter | undefined;
  let last: Readonly<Record<string, string>> = {};
  let hasEnded = false;
  const headers = () => ({
    'Content-Type': contentType,
    ...(dataset && instrumentHeader(dataset)),
    ...(rowsOnly && envelopeHeaders(envelope)),
    ...(facts?.synthetic && { 'X-Svc-Synthetic': 'true' }),
  });
  const tooLarge = new AbortController();
  const body = new ResponseBody(exchange.response, {
    headers,
    buffers: deps.buffers,
    stallTimeoutMs: deps.stallTimeoutMs,
    coding,
    proved: rowsOnly,
    closing,
    onTooLarge: () =>
      tooLarge.abort(
        versionProblem(
          `The answer is longer than ${MAX_GATHERED_BYTES} bytes`,
          ', narrow the window, or ask for application/json',
        ),
      ),
  });
  const signal = body.mustBeGathered ? AbortSignal.any([exchange.signal, tooLarge.signal]) : exchange.signal;
  const output = new OutputBuffer(body);
  const flusher = setInterval(() => {
    if (!writer?.rows) return;
    writer.flush();
    body.flush();
  }, FLUSH_INTERVAL_MS);
  try {
    const done = await read((found, flow) => {
      facts = found;
      if (found.searched) {
        // Not in writeHead: an answer without rows has them, too, and another status.
        exchange.response.setHeader('X-Svc-Partitions-Read', found.searched.partitionsRead);
        exchange.response.setHeader('X-Svc-Partitions-Skipped', found.searched.partitionsSkipped);
      }
      if (found.checkpoint) {
        exchange.response.setHeader(CHECKPOINT_HEADER, Buffer.from(found.checkpoint).toString('base64'));
      }
      backpressure = new BackpressureFlow(flow, slot, () => breakOff(exchange.response));
      body.flow = backpressure;
      envelope = envelopeOf(found);
      writer = representation.open(output, found, envelope, () => last);
      return writer;
    }, signal);
    last = done.closing ?? {};
    writer?.end();
    hasEnded = true;
    await body.end(output.bytes.subarray(0, output.at), done.rows, last);
    tooLarge.signal.throwIfAborted();
    if (body.wasGathered) await taken(exchange.response, slot);
    return done.rows;
  } catch (error) {
    if (!hasEnded) deps.buffers.give(output.bytes);
    throw problem(tooLarge.signal.aborted ? tooLarge.signal.reason : error);
  } finally {
    clearInterval(flusher);
    backpressure?.end();
  }
}

/** Waits until the client has a gathered answer. A slow client gives the slot to others, and is cut off like one of a stream. */
async function taken(response: ServerResponse, slot: Slot): Promise<void> {
  const timer = setTimeout(() => slot.park(() => breakOff(response)), PARK_AFTER_MS);
  // Fails where the client goes first; nobody is left to answer.
  await finished(response).catch(() => {});
  clearTimeout(timer);
}

/** POST /v1/raw/query. */
export function queryRoute(deps: ReadRouteDeps): Route {
  return readRoute(
    {
      path: '/v1/raw/query',
      prefix: 'QUERY',
      doc: queryDoc,
      parse: parseQuery,
      envelope: queryEnvelope,
    },
    deps,
  );
}

/** The members of a query's answer beside its rows. */
export function queryEnvelope(
  { dataset, mode, fields }: ReadRequest,
  grant: Grant,
  { warnings, freshness }: WarningEvaluation,
): Envelope {
  const { view } = shapeOf(dataset, mode);
  return {
    mode,
    source: dataset.key,
    sources: [dataset.key],
    ...instrumentMember(dataset),
    warnings,
    freshness,
    schema: fields.map(({ name, dtype }) => ({ name, dtype })),
    view_id: view.id,
    view_version: view.version,
    rights_state: grant.state,
    rights_provisional: grant.provisional,
  };
}

const PREFIX = '/v1/historical';

/** POST /v1/historical/...: one route per registered dataset, and one more for klines per dataset with trades. */
export function historicalRoutes(deps: ReadRouteDeps): Route[] {
  return [...DATASETS.values()].flatMap((dataset) => [
    historicalRoute(dataset, 'rows', `${PREFIX}/${dataset.historicalPath}`, deps),
    ...(dataset.trades ? [historicalRoute(dataset, 'klines', `${PREFIX}/${dataset.trades.klinesPath}`, deps)] : []),
  ]);
}

function historicalRoute(dataset: DatasetDefinition, kind: HistoricalKind, path: string, deps: ReadRouteDeps): Route {
  return readRoute(
    {
      path,
      prefix: 'HISTORICAL',
      doc: () => historicalDoc(dataset, kind),
      parse: historicalParser(dataset, kind),
      // The contract allows these members, `rows` and `row_count`, and no others.
      envelope: ({ mode, fields, dataset: { instrument } }, grant, { warnings }) => ({
        mode,
        source: dataset.key,
        sources: [dataset.key],
        ...instrumentMember({ instrument }),
        warnings,
        schema: fields.map(({ name, dtype }) => ({ name, dtype })),
        rights_state: grant.state,
        rights_provisional: grant.provisional,
      }),
    },
    deps,
  );
}

/** The member that is the digest of a frame's rows, whatever they are rendered as. */
const ROWS_SHA256 = 'rows_sha256';

/** POST /v1/frame. */
export function frameRoute(deps: ReadRouteDeps & { readonly frames: FrameReader }): Route {
  const path = '/v1/frame';
  return {
    method: 'POST',
    path,
    access: 'read',
    doc: frameDoc,
    async handle(exchange) {
      const startedAt = performance.now();
      const negotiated = accepted(exchange.request, exchange.response);
      const request = await parseRequest(exchange, deps.instruments, { parse: parseFrame });
      const form = formOf(negotiated, request, 'QUERY');
      exchange.caller.requireDatasets(request.columns.map(({ dataset }) => dataset));
      const rights = frameRights(deps.rights, request, backendToken(exchange.request));
      const mutable = mutableWindowWarning(request.window);
      if (request.strict && mutable.length > 0 && rights.admit.length === 0) throw strictProblem(mutable);
      const slot = await deps.alignedLimiter.acquire(exchange.signal, frameSize(request), exchange.caller.name ?? '');
      try {
        const rows = await sendRows(exchange, deps, {
          form,
          slot,
          envelope: (facts: FrameFacts) => frameEnvelope(request, rights, facts),
          closing: [ROWS_SHA256],
          async read(open, signal) {
            const { token, admit } = rights;
            const { rows: count, sha256 } = await deps.frames.read({
              request,
              signal,
              token,
              admit,
              open,
            });
            return { rows: count, closing: { [ROWS_SHA256]: sha256 } };
          },
          problem: (error) => toProblem(error),
        });
        deps.observe({ route: path, mode: 'native' }, (performance.now() - startedAt) / 1000, rows);
      } finally {
        slot.release();
      }
    },
  };
}

function frameSize({ window, gridMs }: FrameRequest): ReadSize {
  const lengthMs =
    window.kind === 'range'
      ? window.toMs! - window.fromMs!
      : window.kind === 'latest'
        ? window.rows * gridMs
        : Infinity;
  return lengthMs <= SMALL_WINDOW_MS ? 'small' : 'any';
}

/** The rights of all datasets of a frame together. */
export interface FrameRights extends Pick<Grant, 'state' | 'provisional' | 'token'> {
  readonly admit: readonly Admission[];
}

/** @throws Problem where any of the datasets may not be served. */
export function frameRights(rights: RightsStore, { columns }: FrameRequest, token: string | undefined): FrameRights {
  const datasets = [...new Set(columns.map(({ dataset }) => dataset))];
  const grants = datasets.map((dataset) => checkRights(rights, dataset.key as DatasetKey, token));
  return {
    state: mostRestrictive(grants),
    provisional: grants.some(({ provisional }) => provisional),
    token: grants.find((grant) => grant.token !== undefined)?.token,
    admit: datasets.flatMap((dataset, index) => admission(grants[index], dataset) ?? []),
  };
}

const isoOrNull = (ms: number | undefined) => (ms === undefined ? null : isoOf(ms));

/** The members of a frame's answer beside its rows. */
export function frameEnvelope(
  request: FrameRequest,
  rights: FrameRights,
  { warnings, columnFacts }: FrameFacts,
): Envelope {
  return {
    grid_seconds: request.gridMs / 1000,
    as_of: asOfText(request.asOf),
    fill: request.fill,
    sources: [...new Set(request.columns.map(({ dataset }) => dataset.key))],
    columns: columnFacts.map(({ column, provedFromMs, provedThroughMs, warnings: codes }) => ({
      name: column.name,
      dataset: column.dataset.key,
      ...instrumentMember(column.dataset),
      field: column.field.name,
      aggregate: column.aggregate ?? null,
      unit: unitOf(column) ?? null,
      proved_from_utc: isoOrNull(provedFromMs),
      proved_through_utc: isoOrNull(provedThroughMs),
      warnings: codes,
    })),
    warnings,
    schema: frameFields(request).map(({ name, dtype }) => ({ name, dtype })),
    rights_state: rights.state,
    rights_provisional: rights.provisional,
  };
}
