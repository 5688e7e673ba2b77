/** GET /v1/revisions: which revision was served when, and what a vendor changed; and the file that says which rows. */
import { z } from 'zod';
import { keptObject } from '../../shared/config/settings.ts';
import { openRegular } from '../../shared/regular-file.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { TEXT_RULE, WITHOUT_NUL } from '../contract/filters.ts';
import { INSTRUMENT_HEADERS, instrumentHeader, instrumentKey } from '../contract/instruments.ts';
import { Problem } from '../contract/problems.ts';
import { datasetKey, parsedText } from '../contract/shapes.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { findDiff, readRevisions, revisionsAnswer } from '../discovery/revisions.ts';
import type { ProvedFiles } from '../exports/files.ts';
import { requireAccept } from '../http/answer.ts';
import { backendToken } from '../http/caller.ts';
import { answerList, LIST_HEADERS, listType } from '../http/list-answer.ts';
import { datasetParam, NO_PARAMETERS, queryParams } from '../http/request.ts';
import {
  CATALOG_PROBLEMS,
  fileContent,
  RIGHTS_PROBLEMS,
  type Route,
  type RouteDoc,
  VALIDATOR_HEADERS,
} from '../http/routes.ts';
import { sendFile } from '../http/send-file.ts';
import { admission, checkRights, openers } from '../rights/gate.ts';

const MAX_PAGE = 1000;
const DEFAULT_PAGE = 366;
const NUMBER = /^[1-9]\d{0,14}$/;

const parameters = z.strictObject({
  dataset: datasetKey.meta({ description: 'Revisions of this dataset.' }),
  instrument: instrumentKey,
  partition: z
    .string()
    .min(1, { error: 'must name a partition' })
    .regex(WITHOUT_NUL, { error: TEXT_RULE })
    .optional()
    .meta({ description: 'Revisions of this partition alone, as the answer and `/v1/coverage` spell it.' }),
  limit: parsedText((text) => {
    const limit = /^[1-9]\d{0,3}$/.test(text) ? Number(text) : 0;
    return limit >= 1 && limit <= MAX_PAGE ? limit : undefined;
  }, `must be a whole number from 1 to ${MAX_PAGE}`)
    .optional()
    .meta({
      type: 'integer',
      ...{ minimum: 1, maximum: MAX_PAGE, default: DEFAULT_PAGE },
      description: 'Revisions on a page.',
    }),
  cursor: parsedText((text) => (NUMBER.test(text) ? Number(text) : undefined), 'must be the next_cursor of an answer')
    .optional()
    .meta({ description: 'The `next_cursor` of the page before.' }),
});

/** Of CSV. */
const COLUMNS = [
  ...[
    'id',
    'dataset',
    'instrument',
    'partition',
    'revision',
    'state',
    'from_change',
    'to_change',
    'from_utc',
    'to_utc',
  ],
  ...['found_utc', 'taken_back_utc', 'synthetic', 'rows'],
  ...['name', 'sha256', 'etag', 'last_modified', 'fetched_utc'].map((name) => `document.${name}`),
  ...['added', 'removed', 'altered', 'sha256', 'bytes'].map((name) => `differences.${name}`),
  'fault',
];

interface RevisionsDeps {
  readonly inspector: Inspector;
  readonly instruments: Instruments;
  readonly rights: RightsStore;
  /** Where the files are. */
  readonly folder: string;
  readonly files: ProvedFiles;
  readonly stallTimeoutMs: number;
}

export const revisionRoutes = (deps: RevisionsDeps): Route[] => [listRoute(deps), diffRoute(deps)];

function listRoute({ inspector, instruments, rights }: RevisionsDeps): Route {
  return {
    method: 'GET',
    path: '/v1/revisions',
    access: 'read',
    doc: (): RouteDoc => ({
      operation: 'listRevisions',
      tag: 'discovery',
      summary: 'Which revision of each partition was served when, and what its vendor changed since',
      doc: 'In the order of the changes. A document that the vendor published in place of a proved one was never served: its `from_change` is null until an operator reingests it, which is another revision.',
      query: parameters,
      answers: [
        {
          doc: 'A page of revisions.',
          content: {
            'application/json': revisionsAnswer,
            'application/x-ndjson': { type: 'string' },
            'text/csv': { type: 'string' },
          },
          headers: { ...LIST_HEADERS, ...INSTRUMENT_HEADERS },
        },
      ],
      problems: ['QUERY_CONTRACT_ERROR', 'NOT_ACCEPTABLE', 'AUTH_DATASET_NOT_COVERED', ...CATALOG_PROBLEMS],
      examples: [{ title: 'The first two', query: { dataset: 'exchange_a_spot_trades', limit: '2' } }],
    }),
    async handle(exchange) {
      const { url, caller, response } = exchange;
      const type = listType(exchange);
      const { dataset: key, instrument, partition, limit = DEFAULT_PAGE, cursor } = queryParams(url, parameters);
      const base = datasetParam(key);
      caller.requireAny(base);
      const dataset = await instruments.ofPath(caller, base, instrument);
      const mayOpen = openers(rights);
      const answer = await inspector.run(exchange, (session) =>
        readRevisions(session, dataset, { partition, after: cursor ?? 0, limit }, mayOpen),
      );
      for (const [name, value] of Object.entries(instrumentHeader(dataset))) response.setHeader(name, value);
      answerList(exchange, type, { answer, name: 'revisions', columns: COLUMNS });
    },
  };
}

/** The first is its type; clients that generators make know the second alone. */
const DIFF_TYPES = ['application/x-ndjson', 'application/octet-stream'] as const;
const NOT_FOUND = 'No revision with differences has this id. List the revisions with GET /v1/revisions?dataset=.';

function diffRoute({ inspector, rights, folder, files, stallTimeoutMs }: RevisionsDeps): Route {
  return {
    method: 'GET',
    path: '/v1/revisions/:id/diff',
    access: 'operate',
    doc: diffDoc,
    async handle(exchange) {
      const { request, params, url, signal, caller } = exchange;
      const type = requireAccept(request, ...DIFF_TYPES);
      queryParams(url, NO_PARAMETERS);
      const id = NUMBER.test(params.id) ? Number(params.id) : undefined;
      const found = id === undefined ? undefined : await inspector.run(exchange, (session) => findDiff(session, id));
      if (!found) throw new Problem('REVISION_NOT_FOUND', NOT_FOUND);
      const { dataset } = found;
      caller.requireDatasets([dataset]);
      const grant = checkRights(rights, dataset.key, backendToken(request));
      const admit = admission(grant, dataset);
      await inspector.run({ signal, caller, token: grant.token }, async (session) => await admit?.(session));
      const handle = await openRegular(keptObject(folder, found.sha256)).catch((cause) => {
        throw gone('cannot be read', cause);
      });
      try {
        if ((await files.digestOf(handle)) !== found.sha256) throw gone('is not what was written');
        await sendFile(exchange, {
          handle,
          etag: `"${found.sha256}"`,
          bytes: found.bytes,
          modifiedMs: found.foundMs,
          stallTimeoutMs,
          headers: {
            'Content-Type': type,
            'Content-Disposition': `attachment; filename="revision-${id}.ndjson"`,
            'X-Content-Type-Options': 'nosniff',
            'Cache-Control': 'private, no-cache',
            'X-Svc-Proved': 'false',
          },
        });
      } finally {
        await handle.close();
      }
    },
  };
}

const gone = (what: string, cause?: unknown) =>
  new Problem(
    'QUERY_RUNTIME_ERROR',
    `The file of the differences ${what}. The operator has to put back the kept documents.`,
    {
      cause,
    },
  );

const diffHeaders = { ...VALIDATOR_HEADERS, ETag: 'The sha256 of the file.', 'Accept-Ranges': '`bytes`.' };

const diffDoc = (): RouteDoc => ({
  operation: 'downloadDiff',
  tag: 'discovery',
  summary: 'The rows that a document of the vendor adds, removes and alters',
  doc: 'The first line names the partition, both documents and the counts, and says `proved: false`: nothing of the file is proved. Each other line is a row in the order of ids, with `kind` and its values as `served` and as `found`.',
  segments: { id: { doc: 'Id of the revision.', schema: { type: 'string', pattern: NUMBER.source } } },
  query: NO_PARAMETERS,
  headers: ['Range', 'If-Range', 'If-Match', 'If-None-Match', 'If-Modified-Since', 'If-Unmodified-Since'],
  answers: [
    {
      doc: 'The file.',
      content: fileContent(DIFF_TYPES),
      headers: { ...diffHeaders, 'Content-Disposition': 'A file name.', 'X-Svc-Proved': '`false`.' },
    },
    {
      status: 206,
      doc: 'The part of the file that `Range` asks for.',
      content: fileContent(DIFF_TYPES, { isPart: true }),
      headers: { ...diffHeaders, 'Content-Range': 'The part that the answer holds.' },
    },
    { status: 304, doc: 'The client already has the file.', content: {}, headers: diffHeaders },
  ],
  problems: [
    'QUERY_CONTRACT_ERROR',
    'NOT_ACCEPTABLE',
    'REVISION_NOT_FOUND',
    ...RIGHTS_PROBLEMS,
    'EXPORT_PRECONDITION_FAILED',
    'EXPORT_RANGE_NOT_SATISFIABLE',
    ...CATALOG_PROBLEMS,
  ],
  examples: [{ title: 'Of a revision that was found', path: { id: '120' }, status: 404 }],
});
