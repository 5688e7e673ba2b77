/** GET /v1/coverage/{dataset}: what is proved, what is missing, and the proof of every partition. */
import { z } from 'zod';
import { ceilMs, INSTANT, INSTANT_RULE, parseInstant } from '../../shared/dates.ts';
import { PARTITION_STATES } from '../../shared/db/schema.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { INSTRUMENT_HEADERS, instrumentHeader, instrumentKey } from '../contract/instruments.ts';
import { refTo } from '../contract/json-schema.ts';
import { parsedText } from '../contract/shapes.ts';
import { coverageAnswer, parseCursor, readCoverage } from '../discovery/coverage-answer.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { Instruments } from '../discovery/instruments.ts';
import type { ProofLog } from '../discovery/proof-log.ts';
import { answerJson, requireJson } from '../http/answer.ts';
import { contractProblem, datasetParam, queryParams } from '../http/request.ts';
import type { Route } from '../http/routes.ts';
import { CATALOG_PROBLEMS, type RouteDoc, SYNTHETIC_HEADER } from '../http/routes.ts';
import { openers } from '../rights/gate.ts';

const MAX_PAGE = 1000;
/** A year of file days. */
const DEFAULT_PAGE = 366;

const LIMIT_RULE = `must be a whole number from 1 to ${MAX_PAGE}`;

function parseLimit(text: string): number | undefined {
  const limit = /^[1-9]\d{0,3}$/.test(text) ? Number(text) : 0;
  return limit >= 1 && limit <= MAX_PAGE ? limit : undefined;
}

const instant = (doc: string) => parsedText(parseInstant, INSTANT_RULE, INSTANT).optional().meta({ description: doc });

const parameters = z.strictObject({
  instrument: instrumentKey,
  from: instant('Partitions that end after this time.'),
  to: instant('Partitions that begin before this time.'),
  state: z
    .enum(PARTITION_STATES, { error: `must be one of ${PARTITION_STATES.join(', ')}` })
    .optional()
    .meta({ description: 'Partitions in this state.' }),
  limit: parsedText(parseLimit, LIMIT_RULE).optional().meta({
    type: 'integer',
    minimum: 1,
    maximum: MAX_PAGE,
    default: DEFAULT_PAGE,
    description: 'Partitions on a page.',
  }),
  cursor: parsedText(parseCursor, 'must be the next_cursor of an answer')
    .optional()
    .meta({ description: 'The `next_cursor` of the page before.' }),
});

interface CoverageDeps {
  readonly instruments: Instruments;
  readonly inspector: Inspector;
  readonly proofLog: ProofLog;
  readonly rights: RightsStore;
}

export function coverageRoute({ inspector, instruments, proofLog, rights }: CoverageDeps): Route {
  return {
    method: 'GET',
    path: '/v1/coverage/:dataset',
    access: 'read',
    doc: (): RouteDoc => ({
      operation: 'getCoverage',
      tag: 'discovery',
      summary: 'What of a dataset is proved, what is missing, and the proof of each partition',
      doc: 'The answer lists the proved stretches, the gaps between them, and the partitions behind them. A partition comes with its document and the digests that proved it; a quarantined one comes with the reason. The parameters select partitions; everything else describes the whole dataset at one moment.',
      segments: { dataset: { doc: 'Key of the dataset.', schema: refTo('DatasetKey') } },
      query: parameters,
      answers: [
        {
          doc: 'Its coverage.',
          content: { 'application/json': coverageAnswer },
          headers: { ...SYNTHETIC_HEADER, ...INSTRUMENT_HEADERS },
        },
      ],
      problems: ['DATASET_NOT_FOUND', 'AUTH_DATASET_NOT_COVERED', 'QUERY_CONTRACT_ERROR', ...CATALOG_PROBLEMS],
      examples: [
        { title: 'The first two partitions', path: { dataset: 'exchange_a_spot_trades' }, query: { limit: '2' } },
        { title: 'What is quarantined', path: { dataset: 'exchange_a_spot_trades' }, query: { state: 'quarantined' } },
      ],
    }),
    async handle(exchange) {
      const { request, params, url, caller } = exchange;
      requireJson(request);
      const base = datasetParam(params.dataset);
      caller.requireAny(base);
      const { instrument, from, to, state, limit = DEFAULT_PAGE, cursor } = queryParams(url, parameters);
      const dataset = await instruments.ofPath(caller, base, instrument);
      const [fromMs, toMs] = [from && ceilMs(from), to && ceilMs(to)];
      if (fromMs !== undefined && toMs !== undefined && fromMs >= toMs) {
        throw contractProblem([{ pointer: '?from', message: 'must be before to' }]);
      }
      const page = { fromMs, toMs, state, limit, after: cursor };
      const listed = instruments.listed(dataset);
      const logged = { proofLog, mayOpen: openers(rights) };
      const answer = await inspector.run(exchange, (session) =>
        readCoverage(session, dataset, { ...page, listed }, logged),
      );
      answerJson(exchange, answer, {
        ...instrumentHeader(dataset),
        ...(answer.synthetic && { 'X-Svc-Synthetic': 'true' }),
      });
    },
  };
}
