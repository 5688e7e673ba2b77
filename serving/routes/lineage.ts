/** GET /v1/lineage/{dataset}/{offset}: one event back to its source's bytes, their document and the proof. */
import { z } from 'zod';
import { codeOf } from '../../shared/errors.ts';
import { AmbiguousEvent, type FoundEvent, findEvent, type RunRows } from '../../shared/lineage/find-event.ts';
import { DATASET_KEYS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { STORABLE_TEXT, TEXT_RULE } from '../contract/filters.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { Params, text } from '../db/params.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { LogMessageReader } from '../discovery/lineage.ts';
import { describeEvent, lineageAnswer } from '../discovery/lineage.ts';
import { backendToken } from '../http/access.ts';
import { answerJson, requireJson } from '../http/answer.ts';
import { contractProblem, datasetParam, queryParams } from '../http/request.ts';
import type { Route } from '../http/routes.ts';
import { CATALOG_PROBLEMS, RIGHTS_PROBLEMS, type RouteDoc, SYNTHETIC_HEADER } from '../http/routes.ts';
import type { ConcurrencyLimiter } from '../limits/concurrency-limiter.ts';
import type { Session } from '../read/snapshot/session.ts';
import { admission, checkRights, realRowsProblem } from '../rights/gate.ts';

export interface LineageDeps {
  readonly inspector: Inspector;
  readonly rights: RightsStore;
  readonly log: LogMessageReader;
  /** Events read from the log at once: apart from looks into the catalog, which go on while the log is slow. */
  readonly slots: ConcurrencyLimiter;
}

const parameters = z.strictObject({
  partition: z
    .string()
    .min(1, { error: 'must name a partition' })
    .regex(STORABLE_TEXT, { error: TEXT_RULE })
    .optional()
    .describe('Which partition, where several hold the offset.'),
});

export function lineageRoute({ inspector, rights, log, slots }: LineageDeps): Route {
  return {
    method: 'GET',
    path: '/v1/lineage/:dataset/:offset',
    access: 'key',
    doc: (): RouteDoc => ({
      tag: 'discovery',
      summary: 'One event: its source’s own bytes, the document they came in, and the proof',
      doc: 'An offset is what the source calls its record: a trade id, a height, `<height>:<place>:<txid>` of a transaction, `<snapshot, ms>:<txid>` of the mempool, a `metric_id`. The bytes are read from the immutable log, not from the database; their sha256, the document’s and the counts of document and database are beside them, so that a row can be followed to a line of the vendor’s file by anyone who has it.',
      segments: {
        dataset: { doc: 'Key of the dataset.', schema: { type: 'string', enum: [...DATASET_KEYS] } },
        offset: {
          doc: 'Offset of the event in its source: a trade id, a height, a `metric_id`.',
          schema: { type: 'string', pattern: STORABLE_TEXT.source },
        },
      },
      query: parameters,
      answers: [
        {
          doc: 'The event.',
          content: { 'application/json': lineageAnswer },
          headers: SYNTHETIC_HEADER,
        },
      ],
      problems: [
        'DATASET_NOT_FOUND',
        'QUERY_CONTRACT_ERROR',
        ...RIGHTS_PROBLEMS,
        ...CATALOG_PROBLEMS,
        'LINEAGE_OFFSET_AMBIGUOUS',
        'LINEAGE_OFFSET_NOT_FOUND',
        'LINEAGE_LOG_UNAVAILABLE',
        'LINEAGE_LOG_DAMAGED',
      ],
      examples: [{ title: 'The first trade of the sample', path: { dataset: 'exchange_a_spot_trades', offset: '1' } }],
    }),
    async handle(exchange) {
      const { request, params, url, signal } = exchange;
      requireJson(request);
      const dataset = datasetParam(params.dataset);
      const { partition } = queryParams(url, parameters);
      if (!STORABLE_TEXT.test(params.offset)) throw contractProblem([{ pointer: '{offset}', message: TEXT_RULE }]);
      const grant = checkRights(rights, dataset.key, backendToken(request));
      const admit = admission(grant, dataset);
      const look = <T>(work: (session: Session) => Promise<T>) =>
        inspector.run({ signal, token: grant.token }, async (session) => {
          await admit?.(session);
          return await work(session);
        });
      const rows: RunRows = (query) => look((session) => session.rows(query.text, textParams(query.values)));
      const message = (key: string, sequence: number) => log.message(key, sequence);
      // Also where no statement follows, as for an offset that can be none: rights come before what is there.
      if (grant.token !== undefined || admit) await look(async () => {});
      const slot = await slots.acquire(signal);
      let found: FoundEvent;
      try {
        found = await findEvent({ dataset, rows, message }, params.offset, partition);
      } catch (error) {
        throw toProblem(error, dataset, partition);
      } finally {
        slot.release();
      }
      const { synthetic } = found.partition;
      // The event comes from the log, behind the snapshot that said which: it has to be the sample's there too.
      const isSynthetic = synthetic && found.frame.synthetic === true;
      const problem = isSynthetic ? undefined : realRowsProblem(grant, dataset.key as DatasetKey);
      if (problem) throw problem;
      answerJson(exchange, describeEvent(dataset, found, grant), { ...(synthetic && { 'X-Svc-Synthetic': 'true' }) });
    },
  };
}

function textParams(values: readonly string[]): Params {
  const params = new Params();
  for (const value of values) params.add(text(value));
  return params;
}

const PROBLEM_OF: Readonly<Record<string, { readonly code: ProblemCode; readonly detail: string }>> = {
  LOG_UNAVAILABLE: {
    code: 'LINEAGE_LOG_UNAVAILABLE',
    detail: 'Events are read from the log; rows are served without it.',
  },
  LOG_REWOUND: { code: 'LINEAGE_LOG_DAMAGED', detail: 'The rows stay proved; the operator has to look at the log.' },
  LOG_FRAME_CORRUPT: {
    code: 'LINEAGE_LOG_DAMAGED',
    detail: 'The rows stay proved; the operator has to look at the log.',
  },
};

/** Of what the caller wrote, in a text for people. */
const MAX_ECHO = 80;

function toProblem(error: unknown, dataset: DatasetDefinition, partition: string | undefined): unknown {
  if (codeOf(error) === 'EVENT_UNKNOWN') {
    const where =
      partition === undefined
        ? `proved partition of ${dataset.key}`
        : `proved partition ${partition.slice(0, MAX_ECHO)}`;
    return new Problem(
      'LINEAGE_OFFSET_NOT_FOUND',
      `No ${where} holds this offset. An offset of ${dataset.key} is ${dataset.offset.doc}; GET /v1/coverage/${dataset.key} tells what is proved.`,
      { cause: error },
    );
  }
  if (error instanceof AmbiguousEvent) {
    return new Problem('LINEAGE_OFFSET_AMBIGUOUS', 'Name one of the partitions with ?partition=.', {
      members: { partitions: error.partitions },
    });
  }
  const known = PROBLEM_OF[codeOf(error) ?? ''];
  return known ? new Problem(known.code, known.detail, { cause: error }) : error;
}
