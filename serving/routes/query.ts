/** POST /v1/raw/query */
import type { Logger } from '../../shared/log/logger.ts';
import { shapeOf } from '../../shared/registry/index.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { parseQuery, type Query } from '../contract/query.ts';
import { chooseRepresentation } from '../http/accept.ts';
import { readJson } from '../http/body.ts';
import { headerBytes } from '../http/key.ts';
import type { Exchange, Route } from '../http/routes.ts';
import type { Slots } from '../limits/slots.ts';
import type { ReadFacts } from '../read/answer.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read/faults.ts';
import { mutableWindowWarning } from '../read/freshness.ts';
import type { Reader } from '../read/reader.ts';
import type { ReadRequest } from '../read/types.ts';
import { Out } from '../rendering/out.ts';
import type { Envelope, Representation, RowWriter } from '../rendering/representations.ts';
import { type BufferPool, ResponseBody } from '../rendering/response.ts';
import { checkRights, type Grant } from '../rights/gate.ts';
import type { RightsStore } from '../rights/store.ts';

export interface QueryDeps {
  readonly reader: Reader;
  readonly rights: RightsStore;
  readonly plainSlots: Slots;
  readonly alignedSlots: Slots;
  readonly buffers: BufferPool;
  readonly maxBodyBytes: number;
  readonly stallTimeoutMs: number;
  readonly log: Logger;
}

export function queryRoute(deps: QueryDeps): Route {
  return {
    method: 'POST',
    path: '/v1/raw/query',
    access: 'key',
    async handle(exchange) {
      const representation = chooseRepresentation(exchange.request);
      const query = await parseRequest(exchange, deps.maxBodyBytes);
      const token = exchange.request.headers['x-backend-token'];
      const grant = checkRights(
        deps.rights,
        query.datasetKey,
        typeof token === 'string' ? headerBytes(token).toString() : undefined,
      );
      const mutable = mutableWindowWarning(query.window);
      if (query.strict && mutable.length > 0) throw strictProblem(mutable);
      if (!query.read) throw new Problem('QUERY_NO_DATA', `Nothing of ${query.datasetKey} is proved yet.`);
      const slots = query.mode === 'native' ? deps.plainSlots : deps.alignedSlots;
      const release = await slots.acquire(exchange.signal);
      try {
        await answer(exchange, deps, query.read, grant, representation);
      } finally {
        release();
      }
    },
  };
}

async function parseRequest(exchange: Exchange, maxBytes: number): Promise<Query> {
  const code: ProblemCode = 'QUERY_CONTRACT_ERROR';
  const body = await readJson(exchange.request, exchange.response, { maxBytes, code });
  const parsed = parseQuery(body);
  // A parameter in the URL would be ignored, and its sender would take the answer for what was asked.
  const strays = [...exchange.url.searchParams.keys()].map((key) => ({
    pointer: `?${key}`,
    message: 'the URL takes no parameters; the request is the JSON body',
  }));
  if ('faults' in parsed || strays.length > 0) {
    const errors = [...strays, ...('faults' in parsed ? parsed.faults : [])];
    const [first] = errors;
    const more = errors.length > 1 ? ` (and ${errors.length - 1} more)` : '';
    throw new Problem(code, `${first.pointer || 'The body'} ${first.message}${more}.`, { errors });
  }
  return (parsed as { value: Query }).value;
}

/** Partly filled buffers leave after this long, so that slow reads show that they live. */
const FLUSH_INTERVAL_MS = 1000;

async function answer(
  exchange: Exchange,
  deps: QueryDeps,
  request: ReadRequest,
  grant: Grant,
  representation: Representation,
): Promise<void> {
  let facts: ReadFacts | undefined;
  let writer: RowWriter | undefined;
  const headers = () => ({
    'Content-Type': representation.mediaType,
    ...(facts?.synthetic && { 'X-Svc-Synthetic': 'true' }),
  });
  const body = new ResponseBody(exchange.response, {
    headers,
    buffers: deps.buffers,
    stallTimeoutMs: deps.stallTimeoutMs,
  });
  const out = new Out(body);
  const flusher = setInterval(() => {
    if (writer && writer.rows > 0 && !writer.isOpen) out.flush();
  }, FLUSH_INTERVAL_MS);
  try {
    const rows = await deps.reader.read({
      request,
      signal: exchange.signal,
      token: grant.token,
      open(found, flow) {
        facts = found;
        body.flow = flow;
        representation.begin(out, envelopeOf(request, grant, found));
        writer = representation.rows(out, found.columns, found.hiddenFirst);
        return writer;
      },
    });
    representation.end(out, rows);
    body.end(out.bytes.subarray(0, out.at));
  } catch (error) {
    deps.buffers.give(out.bytes);
    throw toProblem(error, request);
  } finally {
    clearInterval(flusher);
  }
}

function envelopeOf(request: ReadRequest, grant: Grant, facts: ReadFacts): Envelope {
  const { dataset, mode, fields } = request;
  const { view } = shapeOf(dataset, mode);
  return {
    mode,
    source: dataset.key,
    sources: [dataset.key],
    warnings: facts.warnings,
    freshness: facts.freshness,
    schema: fields.map(({ name, dtype }) => ({ name, dtype })),
    view_id: view.id,
    view_version: view.version,
    rights_state: grant.state,
    rights_provisional: grant.provisional,
  };
}

const strictProblem = (warnings: StrictRefusal['warnings']) =>
  new Problem('STRICT_MODE_WARNING_FAILURE', warnings.map((warning) => warning.message).join(' '), { warnings });

const READ_PROBLEMS: Readonly<Record<ReadFaultKind, { readonly code: ProblemCode; readonly detail: string }>> = {
  backend: { code: 'QUERY_BACKEND_ERROR', detail: 'The database is not reachable or could not run the read.' },
  runtime: {
    code: 'QUERY_RUNTIME_ERROR',
    detail: 'What is stored is not as declared; the operator has to look at it.',
  },
  aligned_contract: { code: 'ALIGNED_STORAGE_CONTRACT_VIOLATION', detail: '' },
  timeout: { code: 'QUERY_TIMEOUT', detail: 'Narrow the window or the filters, or ask again later.' },
  no_rows: { code: 'QUERY_NO_DATA', detail: 'No proved row of the dataset lies in the window and passes the filters.' },
  credentials_refused: {
    code: 'QUERY_RIGHTS_BYOK_REFUSED',
    detail: 'X-Backend-Token is not the password of the read role.',
  },
};

function toProblem(error: unknown, request: ReadRequest): unknown {
  if (error instanceof Problem) return error;
  if (error instanceof StrictRefusal) return strictProblem(error.warnings);
  if (error instanceof ReadFault) {
    const { code, detail } = READ_PROBLEMS[error.kind];
    if (error.kind !== 'aligned_contract') return new Problem(code, detail, { cause: error });
    const violation = error.message[0].toUpperCase() + error.message.slice(1);
    return new Problem(code, `${violation}.`, { cause: error, status: request.dataset.contractViolationStatus });
  }
  return new Problem('QUERY_UNKNOWN_ERROR', 'The fault is logged under the request id.', { cause: error });
}
