/** POST /v1/raw/export, the list of exports, the status of one, and its cancellation. */
import { z } from 'zod';
import { exportSchema, parseExport, requestDigest } from '../contract/export.ts';
import { Problem } from '../contract/problems.ts';
import { datasetKey, oneOf, parsedText } from '../contract/shapes.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { acceptedAnswer, acceptedOf, listAnswer, PREFIX, statusAnswer, statusOf } from '../exports/answers.ts';
import { AUDIT_EVENTS } from '../exports/audit.ts';
import { checkFiles, type ExportDirectories, isExportId } from '../exports/files.ts';
import type { ExportRow } from '../exports/rows.ts';
import { EXPORT_STATES } from '../exports/states.ts';
import type { ExportStore } from '../exports/store.ts';
import { type SubmitDeps, submitExport } from '../exports/submit.ts';
import { answerJson, requireJson } from '../http/answer.ts';
import { contractProblem, NO_PARAMETERS, queryParams, readJson } from '../http/request.ts';
import type { Exchange, Route, RouteDoc } from '../http/routes.ts';
import { REQUEST_HEADERS } from '../http/routes.ts';

export interface ExportRouteDeps extends SubmitDeps {
  readonly directories: ExportDirectories;
  readonly instruments: Instruments;
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
  export_id: { doc: 'Id from the answer to the submission.', schema: { type: 'string', format: 'uuid' } },
};
/** The shell variable that holds an export's id in the examples. */
export const EXPORT_ID = '$EXPORT_ID';

export function exportRoutes(deps: ExportRouteDeps): Route[] {
  return [submitRoute(deps), listRoute(deps), statusRoute(deps), cancelRoute(deps)];
}

function submitRoute(deps: ExportRouteDeps): Route {
  const { audit } = deps;
  return {
    method: 'POST',
    path: PREFIX,
    access: 'export',
    doc: submitDoc,
    keyRefused: (exchange, code) => audit.refusedKey({ ...factsOf(exchange), code }),
    async handle(exchange) {
      let facts = factsOf(exchange);
      try {
        requireJson(exchange.request);
        const { request, response, signal, url } = exchange;
        const body = await readJson(request, response, CODE);
        facts = { ...facts, request_sha256: requestDigest(body) };
        const parsed = await deps.instruments.parse(exchange.caller, (find) => parseExport(body, find));
        const strays = [
          ...[...url.searchParams.keys()].map((key) => ({
            pointer: `?${key}`,
            message: 'is not a parameter of this path; put it into the JSON body',
          })),
          ...idempotencyFaults(request),
        ];
        if ('faults' in parsed || strays.length > 0) {
          throw contractProblem([...strays, ...('faults' in parsed ? parsed.faults : [])], CODE);
        }
        const { value } = parsed;
        facts = {
          ...facts,
          dataset: value.datasets
            .map(({ key, instrument }) => (instrument === undefined ? key : `${key}:${instrument}`))
            .join(','),
          mode: value.mode,
          format: value.format,
        };
        if (value.hasAuthToken) {
          throw new Problem(
            'EXPORT_AUTH_TOKEN_UNSUPPORTED',
            'An export runs without the caller’s credentials. Leave auth_token out.',
            {
              errors: [
                {
                  pointer: '/auth_token',
                  message: 'must be left out: an export runs without the caller’s credentials',
                },
              ],
            },
          );
        }
        exchange.caller.requireDatasets(value.datasets);
        const { row, isNew } = await submitExport(deps, {
          caller: exchange.caller,
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

/** Facts about the caller for the audit log. */
export function factsOf({ request, requestId, url, caller }: Exchange): Readonly<Record<string, string | null>> {
  return {
    request_id: requestId,
    api_key: caller.name,
    client_address: request.socket.remoteAddress ?? null,
    action: `${request.method} ${url.pathname.slice(0, 200)}`,
  };
}

const KEY_RULE = 'must be 1 to 255 printable ASCII characters, given once';

function idempotencyFaults({ headersDistinct }: Exchange['request']) {
  const { pattern } = REQUEST_HEADERS['Idempotency-Key'];
  // `headers` joins repeated values, which would name an export by a key that nobody chose.
  const [key, ...more] = headersDistinct['idempotency-key'] ?? [];
  if (key === undefined || (more.length === 0 && pattern.test(key))) return [];
  return [{ pointer: 'Idempotency-Key', message: KEY_RULE }];
}

const submitDoc = (): RouteDoc => ({
  operation: 'createExport',
  tag: 'export',
  summary: 'Export rows of any dataset to a file, in the background',
  doc: 'The body has exactly one of `month_year`, `time_range`, `n_rows`, `n_random`. The service answers as soon as it has recorded and queued the export; poll its status until it is `succeeded` or `failed`. With the header `Idempotency-Key` (1 to 255 characters of your choice) a repeated request returns the same export, even if the first answer was lost. The commands of the other export routes take the id from the shell variable `EXPORT_ID`.\n\nThe file holds the rows that are proved when the run begins. The same request on the same proved data yields the same bytes.',
  headers: ['Idempotency-Key'],
  body: exportSchema,
  answers: [
    {
      status: 202,
      doc: 'The export is queued.',
      content: { 'application/json': acceptedAnswer },
      headers: {
        Location: 'Path of the export’s status.',
        'Idempotency-Replayed': '`true` when the key names an existing export.',
      },
    },
  ],
  problems: [
    CODE,
    'EXPORT_AUTH_TOKEN_UNSUPPORTED',
    'AUTH_DATASET_NOT_COVERED',
    ...EXPORT_RIGHTS_PROBLEMS,
    'EXPORT_IDEMPOTENCY_CONFLICT',
    'STRICT_MODE_WARNING_FAILURE',
    'EXPORT_QUEUE_LIMIT_REACHED',
    'QUERY_QUEUE_LIMIT_REACHED',
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

function statusRoute(deps: ExportRouteDeps): Route {
  const { store, directories } = deps;
  return {
    method: 'GET',
    path: `${PREFIX}/:export_id`,
    access: 'export',
    doc: (): RouteDoc => ({
      operation: 'getExport',
      tag: 'export',
      summary: 'The status of an export',
      doc: 'For a succeeded export the status locates the file, after the service has checked that the file is unchanged. If a file is missing or was changed, the answer is 503 with a code for either case.',
      segments: exportSegment,
      query: NO_PARAMETERS,
      answers: [{ doc: 'The status.', content: { 'application/json': statusAnswer } }],
      problems: [
        CODE,
        'EXPORT_NOT_FOUND',
        'EXPORT_STATUS_ERROR',
        'EXPORT_STATUS_METADATA_ERROR',
        'EXPORT_ARTIFACT_METADATA_ERROR',
      ],
      examples: [{ title: 'One of your exports', path: { export_id: EXPORT_ID } }],
    }),
    async handle(exchange) {
      requireJson(exchange.request);
      exportParams(exchange.url, NO_PARAMETERS);
      const row = await exportOf(store, exchange);
      const answer = statusOf(row);
      if (row.artifact && !row.isExpired) {
        await checkFiles(directories.artifact(row.exportId, row.artifactFence!), row.artifact);
      }
      answerJson(exchange, answer, { 'Cache-Control': 'no-store' });
    },
  };
}

/**
 * The export that the path names. To a key that did not submit it, it is unknown; the owner sees all.
 * @throws Problem EXPORT_NOT_FOUND, EXPORT_STATUS_ERROR
 */
export async function exportOf(store: ExportStore, { params, caller }: Exchange): Promise<ExportRow> {
  const row = isExportId(params.export_id) ? await queried(store.find(params.export_id)) : undefined;
  if (!row || !(caller.isOwner || row.apiKey === caller.name))
    throw new Problem('EXPORT_NOT_FOUND', 'No export has this id. List the exports with GET /v1/raw/export.');
  return row;
}

async function queried<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (cause) {
    throw new Problem('EXPORT_STATUS_ERROR', 'The database of exports does not answer. Try again later.', { cause });
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
  status: z.enum(EXPORT_STATES, oneOf(EXPORT_STATES)).optional().meta({ description: 'Exports in this state.' }),
  dataset: datasetKey.optional().meta({ description: 'Exports that read this dataset.' }),
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
    access: 'export',
    doc: (): RouteDoc => ({
      operation: 'listExports',
      tag: 'export',
      summary: 'All exports, newest first',
      doc: 'All exports that the service accepted; for a named key, its own. The list does not check their files; the status of an export does.',
      query: listParameters,
      answers: [{ doc: 'A page of exports.', content: { 'application/json': listAnswer } }],
      problems: [CODE, 'EXPORT_STATUS_ERROR', 'EXPORT_STATUS_METADATA_ERROR'],
      examples: [{ title: 'The last two', query: { limit: '2' } }],
    }),
    async handle(exchange) {
      requireJson(exchange.request);
      const { status, dataset, limit = DEFAULT_PAGE, cursor } = exportParams(exchange.url, listParameters);
      const apiKey = exchange.caller.isOwner ? undefined : exchange.caller.name!;
      const rows = await queried(store.page({ apiKey, state: status, dataset, before: cursor, limit: limit + 1 }));
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

function cancelRoute({ store, audit }: ExportRouteDeps): Route {
  return {
    method: 'DELETE',
    path: `${PREFIX}/:export_id`,
    access: 'export',
    keyRefused: (exchange, code) => audit.refusedKey({ ...factsOf(exchange), code }),
    doc: (): RouteDoc => ({
      operation: 'cancelExport',
      tag: 'export',
      summary: 'Cancel an export',
      doc: 'The export becomes `failed` with `EXPORT_RUN_CANCELED`. A run in progress ends within seconds and leaves no file. A finished export cannot be canceled.',
      segments: exportSegment,
      query: NO_PARAMETERS,
      answers: [{ doc: 'The status after the cancellation.', content: { 'application/json': statusAnswer } }],
      problems: [
        CODE,
        'EXPORT_NOT_FOUND',
        'EXPORT_ALREADY_FINISHED',
        'EXPORT_STATUS_ERROR',
        'EXPORT_STATUS_METADATA_ERROR',
      ],
      examples: [{ title: 'One of your exports', path: { export_id: EXPORT_ID } }],
    }),
    async handle(exchange) {
      requireJson(exchange.request);
      exportParams(exchange.url, NO_PARAMETERS);
      const { exportId } = await exportOf(store, exchange);
      await audit.note(AUDIT_EVENTS.cancel, exportId, factsOf(exchange));
      const outcome = await queried(store.cancel(exportId, 'EXPORT_RUN_CANCELED', 'The caller canceled it.'));
      if (outcome.kind === 'unknown')
        throw new Problem('EXPORT_NOT_FOUND', 'No export has this id. List the exports with GET /v1/raw/export.');
      if (outcome.kind !== 'done') {
        throw new Problem(
          'EXPORT_ALREADY_FINISHED',
          `The export is ${outcome.row.state}. Only an export that has not finished can be canceled.`,
        );
      }
      answerJson(exchange, statusOf(outcome.row), { 'Cache-Control': 'no-store' });
    },
  };
}
