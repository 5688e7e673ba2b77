/** GET /v1/lineage/{dataset}/{offset}: traces one event back to its source's bytes, their document and the proof. */
import { z } from 'zod';
import { DAY, DAY_RULE, unlessInCalendar } from '../../shared/dates.ts';
import { codeOf } from '../../shared/errors.ts';
import {
  AmbiguousEvent,
  dateFault,
  type FoundEvent,
  findEvent,
  type RunRows,
} from '../../shared/lineage/find-event.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import { dayKeyOf, dayOfKey, instrumentOfKey } from '../../shared/registry/keys.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { TEXT_RULE, WITHOUT_NUL } from '../contract/filters.ts';
import { INSTRUMENT_HEADERS, instrumentHeader, instrumentKey } from '../contract/instruments.ts';
import { refTo } from '../contract/json-schema.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { Params, text } from '../db/pg-messages.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { Instruments } from '../discovery/instruments.ts';
import type { LogMessageReader } from '../discovery/lineage.ts';
import { describeEvent, lineageAnswer } from '../discovery/lineage.ts';
import { HEAD_SQL, type ProofLog, signedHead } from '../discovery/proof-log.ts';
import { answerJson, requireJson } from '../http/answer.ts';
import { backendToken } from '../http/caller.ts';
import { contractProblem, datasetParam, queryParams } from '../http/request.ts';
import type { Route } from '../http/routes.ts';
import { CATALOG_PROBLEMS, RIGHTS_PROBLEMS, type RouteDoc, SYNTHETIC_HEADER } from '../http/routes.ts';
import type { ConcurrencyLimiter } from '../limits/concurrency-limiter.ts';
import type { Session } from '../read/snapshot/session.ts';
import { admission, checkRights, realRowsProblem } from '../rights/gate.ts';

interface LineageDeps {
  readonly instruments: Instruments;
  readonly inspector: Inspector;
  readonly rights: RightsStore;
  readonly log: LogMessageReader;
  /** Bounds the events read from the log at once. Separate from the catalog's limiter, which must not wait for a slow log. */
  readonly limiter: ConcurrencyLimiter;
  readonly proofLog: ProofLog;
}

const parameters = z.strictObject({
  instrument: instrumentKey,
  date: z
    .string()
    .regex(DAY, { error: ({ input }) => `${DAY_RULE}${unlessInCalendar(input)}` })
    .optional()
    .describe('The file day of a trade, `YYYY-MM-DD`: ids of exchange C begin anew every day.'),
  partition: z
    .string()
    .min(1, { error: 'must name a partition' })
    .regex(WITHOUT_NUL, { error: TEXT_RULE })
    .optional()
    .describe('The partition to choose when several hold the offset.'),
});

export function lineageRoute({ inspector, instruments, rights, log, limiter, proofLog }: LineageDeps): Route {
  return {
    method: 'GET',
    path: '/v1/lineage/:dataset/:offset',
    access: 'read',
    doc: lineageDoc,
    async handle(exchange) {
      const { request, params, url, signal, caller } = exchange;
      requireJson(request);
      const base = datasetParam(params.dataset);
      caller.requireAny(base);
      const { instrument, date, partition: given } = queryParams(url, parameters);
      // Any other text names no partition: it is not found, as for other datasets.
      const isKey = base.trades !== undefined && given !== undefined && /:\d{4}-\d\d-\d\d$/.test(given);
      const ofPartition = isKey ? instrumentOfKey(given) : undefined;
      const dataset =
        instrument === undefined && ofPartition !== undefined
          ? await instruments.ofPath(caller, base, ofPartition, '?partition')
          : await instruments.ofPath(caller, base, instrument);
      const named = ofPartition === undefined && given !== undefined ? dayKeyOf(dataset, given) : given;
      const fault = date === undefined ? undefined : dateFault(dataset, date, named);
      if (fault !== undefined) throw contractProblem([{ pointer: '?date', message: fault }]);
      const partition = date === undefined ? named : dayKeyOf(dataset, date);
      if (!WITHOUT_NUL.test(params.offset)) throw contractProblem([{ pointer: '{offset}', message: TEXT_RULE }]);
      const grant = checkRights(rights, dataset.key, backendToken(request));
      const admit = admission(grant, dataset);
      const inspect = <T>(work: (session: Session) => Promise<T>) =>
        inspector.run({ signal, caller, token: grant.token }, async (session) => {
          await admit?.(session);
          return await work(session);
        });
      const rows: RunRows = (query) => inspect((session) => session.rows(query.text, textParams(query.values)));
      const message = (key: string, sequence: number) => log.message(key, sequence);
      // Rights are checked even where no statement follows, as for an impossible offset: they come before existence.
      if (grant.token !== undefined || admit) await inspect(async () => {});
      const slot = await limiter.acquire(signal, 'any', caller.name ?? '');
      let found: FoundEvent;
      try {
        found = await findEvent({ dataset, rows, message }, params.offset, partition);
      } catch (error) {
        throw toProblem(error, dataset, partition);
      } finally {
        slot.release();
      }
      const { synthetic } = found.partition;
      // The event comes from the log, outside the snapshot that located it, so its frame must be a frame of the sample too.
      const isSynthetic = synthetic && found.frame.synthetic === true;
      const problem = isSynthetic ? undefined : realRowsProblem(grant, dataset.key as DatasetKey);
      if (problem) throw problem;
      const head = signedHead(await inspect((session) => session.rows(HEAD_SQL)));
      const described = await proofLog.describe(found.partition.leaf, head);
      answerJson(exchange, describeEvent(dataset, found, grant, { proofLog: described, head }), {
        ...instrumentHeader(dataset),
        ...(synthetic && { 'X-Svc-Synthetic': 'true' }),
      });
    },
  };
}

const lineageDoc = (): RouteDoc => ({
  operation: 'getLineage',
  tag: 'discovery',
  summary: 'One event: its source’s own bytes, the document they came in, and the proof',
  doc: 'An offset identifies a record in its source: a trade id, a height, `<height>:<index>:<txid>` for a transaction, `<snapshot, ms>:<txid>` for the mempool, a `metric_id`. The service reads the bytes from the immutable log, not from the database. The answer adds their sha256, the document’s sha256, and the counts of document and database, so that anyone with the vendor’s file can trace a row to its line.',
  segments: {
    dataset: { doc: 'Key of the dataset.', schema: refTo('DatasetKey') },
    offset: {
      doc: 'Offset of the event in its source: a trade id, a height, a `metric_id`.',
      schema: { type: 'string', pattern: WITHOUT_NUL.source },
    },
  },
  query: parameters,
  answers: [
    {
      doc: 'The event.',
      content: { 'application/json': lineageAnswer },
      headers: { ...SYNTHETIC_HEADER, ...INSTRUMENT_HEADERS },
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
});

function textParams(values: readonly string[]): Params {
  const params = new Params();
  for (const value of values) params.add(text(value));
  return params;
}

const PROBLEM_OF: Readonly<Record<string, { readonly code: ProblemCode; readonly detail: string }>> = {
  LOG_UNAVAILABLE: {
    code: 'LINEAGE_LOG_UNAVAILABLE',
    detail: 'The log does not answer, and lineage needs it. Try again later; rows are served without the log.',
  },
  LOG_REWOUND: {
    code: 'LINEAGE_LOG_DAMAGED',
    detail: 'The log no longer holds the proved frame. The rows stay proved; the operator has to repair the log.',
  },
  LOG_DAMAGED: {
    code: 'LINEAGE_LOG_DAMAGED',
    detail: 'The log no longer holds the proved partition. The rows stay proved; the operator has to ingest it again.',
  },
};

/** The most days that a message names; `partitions` has more. */
const MAX_SHOWN_DAYS = 10;
/** The most characters of the caller's text that a message quotes. */
const MAX_ECHO = 80;

function toProblem(error: unknown, dataset: DatasetDefinition, partition: string | undefined): unknown {
  if (codeOf(error) === 'EVENT_UNKNOWN') {
    const where =
      partition === undefined
        ? `proved partition of ${dataset.key}`
        : `proved partition ${partition.slice(0, MAX_ECHO)}`;
    return new Problem(
      'LINEAGE_OFFSET_NOT_FOUND',
      `No ${where} holds this offset. An offset of ${dataset.key} is ${dataset.offset.doc}. GET /v1/coverage/${dataset.key} lists what is proved.`,
      { cause: error },
    );
  }
  if (error instanceof AmbiguousEvent) {
    return new Problem(
      'LINEAGE_OFFSET_AMBIGUOUS',
      dataset.partition.kind === 'file_day'
        ? `Several days have this offset: ${error.partitions.slice(0, MAX_SHOWN_DAYS).map(dayOfKey).join(', ')}${error.partitions.length > MAX_SHOWN_DAYS ? ' and others' : ''}. Choose one of them with ?date=.`
        : 'Several partitions hold this offset. Choose one of them with ?partition=.',
      {
        members: { partitions: error.partitions },
      },
    );
  }
  const known = PROBLEM_OF[codeOf(error) ?? ''];
  return known ? new Problem(known.code, known.detail, { cause: error }) : error;
}
