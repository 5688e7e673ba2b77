/** POST /v1/raw/export, the list of exports, the status of one, and its end on demand. */
import { z } from 'zod';
import { DATASET_KEYS } from '../../shared/registry/index.ts';
import { exportSchema, parseExport, requestDigest } from '../contract/export.ts';
import { Problem } from '../contract/problems.ts';
import { parsedText } from '../contract/shapes.ts';
import { acceptedAnswer, acceptedOf, listAnswer, PREFIX, statusAnswer, statusOf } from '../exports/answers.ts';
import { AUDIT_EVENTS } from '../exports/audit.ts';
import { checkFiles, type ExportDirectories, isExportId } from '../exports/files.ts';
import type { ExportRow } from '../exports/rows.ts';
import { EXPORT_STATES } from '../exports/states.ts';
import type { ExportStore } from '../exports/store.ts';
import { type SubmitDeps, submitExport } from '../exports/submit.ts';
import { answerJson, requireJson } from '../http/answer.ts';
import { contractProblem, queryParams, readJson } from '../http/request.ts';
import type { Exchange, Route, RouteDoc } from '../http/routes.ts';
import { REQUEST_HEADERS } from '../http/routes.ts';

export interface ExportRouteDeps extends SubmitDeps {
  readonly places: ExportDirectories;
  readonly maxBodyBytes: number;
}

const CODE = 'EXPORT_CONTRACT_ERROR';
const SAMPLE = 'exchange_a_spot_trades';

export const EXPORT_RIGHTS_PROBLEMS = [
  'EXPORT_RIGHTS_MISSING_STATE',
  'EXPORT_RIGHTS_INGEST_ONLY',
  'EXPORT_RIGHTS_BYOK_REQUIRED',
  'EXPORT_RIGHTS_LEGAL_SIGNOFF_MISSING',
  'EXPORT_RIGHTS_RESOLUTION_ERROR',
  'QUERY_SERVING_SHADOW_MODE',
] as const;

export const exportSegment = {
  export_id: { doc: 'Of the answer to the submit.', schema: { type: 'string', format: 'uuid' } },
};
export const NO_PARAMETERS = z.strictObject({});
/** In the shell of whoever pastes examples: the id of an export of theirs. */
export const EXPORT_ID = '$EXPORT_ID';

export function exportRoutes(deps: ExportRouteDeps): Route[] {
  return [submitRoute(deps), listRoute(deps), statusRoute(deps), cancelRoute(deps)];
}

// ---- submit --------------------------------------------------------------------------------------------------------

function submitRoute(deps: ExportRouteDeps): Route {
  const { audit, maxBodyBytes } = deps;
  return {
    method: 'POST',
    path: PREFIX,
    access: 'key',
    doc: submitDoc,
    keyRefused: (exchange) => audit.refusedKey(factsOf(exchange)),
    async handle(exchange) {
      let facts = factsOf(exchange);
      try {
        requireJson(exchange.request);
        const { request, response, signal, url } = exchange;
        const body = await readJson(request, response, { maxBytes: maxBodyBytes, code: CODE });
        facts = { ...facts, request_sha256: requestDigest(body) };
        const parsed = parseExport(body);
        const strays = [
          ...[...url.searchParams.keys()].map((key) => ({
            pointer: `?${key}`,
            message: 'is no parameter here; the request goes into the JSON body',
          })),
          ...idempotencyFaults(request),
        ];
        if ('faults' in parsed || strays.length > 0) {
          throw contractProblem([...strays, ...('faults' in parsed ? parsed.faults : [])], CODE);
        }
        const { value } = parsed;
        facts = { ...facts, dataset: value.datasetKey, mode: value.mode, format: value.format };
        if (value.hasAuthToken) {
          throw new Problem('EXPORT_AUTH_TOKEN_UNSUPPORTED', 'Leave auth_token out.', {
            errors: [{ pointer: '/auth_token', message: 'is not supported: an export runs without the caller' }],
          });
        }
        const { row, isNew } = await submitExport(deps, {
          request: value,
          requestSha256: String(facts.request_sha256),
          idempotencyKey: (request.headers['idempotency-key'] as string | undefined) ?? null,
          facts,
          signal,
        });
        answerJson(
          exchange,
          acceptedOf(row),
          { Location: acceptedOf(row).status_path, ...(!isNew && { 'Idempotency-Replayed': 'true' }) },
          202,
        );
      } catch (error) {
        if (error instanceof Problem) await audit.rejected(error.code, facts);
        throw error;
      }
    },
  };
}

/** Who asked, as far as it can be told: there is one key. */
export function factsOf({ request, requestId, url }: Exchange): Readonly<Record<string, string | null>> {
  return {
    request_id: requestId,
    client_address: request.socket.remoteAddress ?? null,
    action: `${request.method} ${url.pathname.slice(0, 200)}`,
  };
}

const KEY_RULE = 'must be 1 to 255 printable ASCII characters, given once';

function idempotencyFaults({ headersDistinct }: Exchange['request']) {
  const { pattern } = REQUEST_HEADERS['Idempotency-Key'];
  // Several are joined in `headers`, and would name an export by a key that nobody chose.
  const [key, ...more] = headersDistinct['idempotency-key'] ?? [];
  if (key === undefined || (more.length === 0 && pattern.test(key))) return [];
  return [{ pointer: 'Idempotency-Key', message: KEY_RULE }];
}

const submitDoc = (): RouteDoc => ({
  tag: 'export',
  summary: 'Rows of any dataset, as a file made in the background',
  doc: 'Exactly one of `month_year`, `time_range`, `n_rows`, `n_random`. Answers as soon as the export is on record and queued; ask for its status until it is `succeeded` or `failed`. With the header `Idempotency-Key` (1 to 255 characters of your choice) the same request sent again is the same export, whatever became of the first answer. The commands of the other routes here take its id from the shell’s `EXPORT_ID`.\n\nThe file holds what is proved when the run begins. The same request on the same proved data is the same bytes.',
  headers: ['Idempotency-Key'],
  body: exportSchema,
  answers: [
    {
      status: 202,
      doc: 'It is queued.',
      content: { 'application/json': acceptedAnswer },
      headers: {
        Location: 'Path of its status.',
        'Idempotency-Replayed': '`true` where the key named an export that was there already.',
      },
    },
  ],
  problems: [
    CODE,
    'EXPORT_AUTH_TOKEN_UNSUPPORTED',
    ...EXPORT_RIGHTS_PROBLEMS,
    'EXPORT_IDEMPOTENCY_CONFLICT',
    'STRICT_MODE_WARNING_FAILURE',
    'EXPORT_QUEUE_LIMIT_REACHED',
    'DISCOVERY_QUEUE_LIMIT_REACHED',
    'EXPORT_WINDOW_NOT_PROVED',
    'ALIGNED_STORAGE_CONTRACT_VIOLATION',
    'EXPORT_RUNTIME_ERROR',
    'EXPORT_AUDIT_WRITE_ERROR',
    'EXPORT_DISPATCH_ERROR',
  ],
  examples: [
    { title: 'The latest trades, as CSV', body: { dataset: SAMPLE, format: 'csv', n_rows: 1000 }, status: 202 },
    {
      title: 'Seconds of a long window, some fields, as Parquet',
      body: {
        dataset: SAMPLE,
        mode: 'aligned_1s',
        format: 'parquet',
        time_range: ['2020-01-01T00:00:00Z', '2040-01-01T00:00:00Z'],
        fields: ['aligned_at_utc', 'close_price', 'trade_count'],
      },
      status: 202,
    },
  ],
});

// ---- status and list -----------------------------------------------------------------------------------------------

function statusRoute(deps: ExportRouteDeps): Route {
  const { store, places } = deps;
  return {
    method: 'GET',
    path: `${PREFIX}/:export_id`,
    access: 'key',
    doc: (): RouteDoc => ({
      tag: 'export',
      summary: 'How far an export has come',
      doc: 'Of a succeeded one it says where the file is, after a look whether it is still there as it was written: a file that is gone or was changed is 503, with the code that says which.',
      segments: exportSegment,
      query: NO_PARAMETERS,
      answers: [{ doc: 'Its status.', content: { 'application/json': statusAnswer } }],
      problems: [
        CODE,
        'EXPORT_NOT_FOUND',
        'EXPORT_STATUS_ERROR',
        'EXPORT_STATUS_METADATA_ERROR',
        'EXPORT_ARTIFACT_MISSING',
        'EXPORT_ARTIFACT_METADATA_ERROR',
      ],
      examples: [{ title: 'Of yours', path: { export_id: EXPORT_ID } }],
    }),
    async handle(exchange) {
      requireJson(exchange.request);
      exportParams(exchange.url, NO_PARAMETERS);
      const row = await exportOf(store, exchange);
      const answer = statusOf(row);
      if (row.artifact && !row.isExpired) {
        await checkFiles(places.artifact(row.exportId, row.artifactFence!), row.artifact);
      }
      answerJson(exchange, answer, { 'Cache-Control': 'no-store' });
    },
  };
}

/** The export that the path names. @throws Problem EXPORT_NOT_FOUND, EXPORT_STATUS_ERROR */
export async function exportOf(store: ExportStore, { params }: Exchange): Promise<ExportRow> {
  const row = isExportId(params.export_id) ? await asking(store.find(params.export_id)) : undefined;
  if (!row) throw new Problem('EXPORT_NOT_FOUND', 'No export has this id.');
  return row;
}

async function asking<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (cause) {
    throw new Problem('EXPORT_STATUS_ERROR', 'The database of exports does not answer.', { cause });
  }
}

const MAX_PAGE = 100;
const DEFAULT_PAGE = 20;

function parseLimit(value: string): number | undefined {
  const limit = /^[1-9]\d{0,2}$/.test(value) ? Number(value) : 0;
  return limit >= 1 && limit <= MAX_PAGE ? limit : undefined;
}

const CURSOR_RULE = 'must be the next_cursor of an answer';

const listParameters = z.strictObject({
  status: z
    .enum(EXPORT_STATES, { error: `must be one of ${EXPORT_STATES.join(', ')}` })
    .optional()
    .meta({ description: 'Exports in this state.' }),
  dataset: z
    .enum(DATASET_KEYS, { error: `must be one of ${DATASET_KEYS.join(', ')}` })
    .optional()
    .meta({ description: 'Exports of this dataset.' }),
  limit: parsedText(parseLimit, `must be a whole number from 1 to ${MAX_PAGE}`).optional().meta({
    type: 'integer',
    minimum: 1,
    maximum: MAX_PAGE,
    default: DEFAULT_PAGE,
    description: 'Exports on a page.',
  }),
  cursor: z
    .string({ error: CURSOR_RULE })
    .regex(/^[1-9]\d{0,17}$/, { error: CURSOR_RULE })
    .optional()
    .meta({ description: 'The `next_cursor` of the page before.' }),
});

function listRoute({ store }: ExportRouteDeps): Route {
  return {
    method: 'GET',
    path: PREFIX,
    access: 'key',
    doc: (): RouteDoc => ({
      tag: 'export',
      summary: 'The exports there are, newest first',
      doc: 'All that were accepted under the service’s key. Files are not looked at: the status of one does that.',
      query: listParameters,
      answers: [{ doc: 'A page of them.', content: { 'application/json': listAnswer } }],
      problems: [CODE, 'EXPORT_STATUS_ERROR', 'EXPORT_STATUS_METADATA_ERROR'],
      examples: [{ title: 'The last two', query: { limit: '2' } }],
    }),
    async handle(exchange) {
      requireJson(exchange.request);
      const { status, dataset, limit = DEFAULT_PAGE, cursor } = exportParams(exchange.url, listParameters);
      const rows = await asking(store.page({ state: status, dataset, before: cursor, limit: limit + 1 }));
      const shown = rows.slice(0, limit);
      answerJson(
        exchange,
        { exports: shown.map(statusOf), next_cursor: rows.length > limit ? shown[limit - 1].number : null },
        { 'Cache-Control': 'no-store' },
      );
    },
  };
}

/** @throws Problem EXPORT_CONTRACT_ERROR */
export function exportParams<S extends z.ZodObject>(url: URL, schema: S): z.output<S> {
  try {
    return queryParams(url, schema);
  } catch (error) {
    if (error instanceof Problem && error.more.errors) throw contractProblem(error.more.errors, CODE);
    throw error;
  }
}

// ---- cancel --------------------------------------------------------------------------------------------------------

function cancelRoute({ store, audit }: ExportRouteDeps): Route {
  return {
    method: 'DELETE',
    path: `${PREFIX}/:export_id`,
    access: 'key',
    keyRefused: (exchange) => audit.refusedKey(factsOf(exchange)),
    doc: (): RouteDoc => ({
      tag: 'export',
      summary: 'An export is wanted no longer',
      doc: 'It is `failed` with `EXPORT_RUN_CANCELED` from then on; a run under way ends within seconds and leaves no file. One that is over cannot be canceled.',
      segments: exportSegment,
      query: NO_PARAMETERS,
      answers: [{ doc: 'Its status after that.', content: { 'application/json': statusAnswer } }],
      problems: [
        CODE,
        'EXPORT_NOT_FOUND',
        'EXPORT_ALREADY_FINISHED',
        'EXPORT_STATUS_ERROR',
        'EXPORT_STATUS_METADATA_ERROR',
      ],
      examples: [{ title: 'Of yours', path: { export_id: EXPORT_ID } }],
    }),
    async handle(exchange) {
      requireJson(exchange.request);
      exportParams(exchange.url, NO_PARAMETERS);
      const { exportId } = await exportOf(store, exchange);
      await audit.note(AUDIT_EVENTS.cancel, exportId, factsOf(exchange));
      const outcome = await asking(store.cancel(exportId, 'EXPORT_RUN_CANCELED', 'The caller canceled it.'));
      if (outcome.kind === 'unknown') throw new Problem('EXPORT_NOT_FOUND', 'No export has this id.');
      if (outcome.kind !== 'done') {
        throw new Problem(
          'EXPORT_ALREADY_FINISHED',
          `It is ${outcome.row.state}; only what is not over can be canceled.`,
        );
      }
      answerJson(exchange, statusOf(outcome.row), { 'Cache-Control': 'no-store' });
    },
  };
}
