/** GET /v1/ops/status and /v1/ops/history: the state of the system, for the operator's page and for monitors. */

import { isoOf } from '../../shared/dates.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import type { ChangeFeed } from '../changes/change-feed.ts';
import { Problem } from '../contract/problems.ts';
import { datasetKey } from '../discovery/schemas.ts';
import { answerJson, requireJson } from '../http/answer.ts';
import { NO_PARAMETERS, queryParams } from '../http/request.ts';
import type { Exchange, Route, RouteDoc } from '../http/routes.ts';
import type { ConcurrencyLimiter } from '../limits/concurrency-limiter.ts';
import type { StreamPlaces } from '../limits/stream-places.ts';
import { eachSeries, type Monitor, SAMPLE_INTERVAL_MS } from '../monitoring/monitor.ts';
import { type HistoryAnswer, historyAnswer, type OpsStatusAnswer, statusAnswer } from '../monitoring/ops-answer.ts';
import type { Checks } from '../monitoring/startup.ts';

interface OpsDeps {
  readonly monitor: Monitor;
  readonly checks: Checks;
  readonly queues: Readonly<Record<string, ConcurrencyLimiter>>;
  readonly changes: Pick<ChangeFeed, 'last'>;
  readonly places: Pick<StreamPlaces, 'taken' | 'limit'>;
}

export function opsRoutes(deps: OpsDeps): Route[] {
  return [
    opsRoute('/v1/ops/status', (): Promise<OpsStatusAnswer> => statusOf(deps), {
      operation: 'getSystemStatus',
      summary: 'The state of the whole system',
      doc: 'Lag, coverage, work in progress, exports and queues: the numbers of `/metrics` and of `tidemark status --json`, from the same computation. The service collects them at most once in five seconds, however many callers ask.',
      answers: [{ doc: 'The state at one moment.', content: { 'application/json': statusAnswer } }],
      examples: [{ title: 'Now' }],
    }),
    opsRoute('/v1/ops/history', async (): Promise<HistoryAnswer> => historyOf(deps.monitor), {
      operation: 'getSystemHistory',
      summary: 'Samples of the last hour',
      doc: 'For plots. The process takes a sample every 15 seconds and keeps one hour of samples in memory. For longer histories use Prometheus.',
      answers: [
        { doc: 'A list of times, and series of as many numbers.', content: { 'application/json': historyAnswer } },
      ],
      examples: [{ title: 'The last hour' }],
    }),
  ];
}

function opsRoute(
  path: string,
  answer: () => Promise<unknown>,
  doc: Pick<RouteDoc, 'operation' | 'summary' | 'doc' | 'answers' | 'examples'>,
): Route {
  return {
    method: 'GET',
    path,
    access: 'operate',
    doc: (): RouteDoc => ({
      ...doc,
      tag: 'operations',
      query: NO_PARAMETERS,
      problems: ['QUERY_CONTRACT_ERROR', 'QUERY_BACKEND_ERROR'],
    }),
    async handle(exchange: Exchange) {
      requireJson(exchange.request);
      queryParams(exchange.url, NO_PARAMETERS);
      answerJson(exchange, await answer(), { 'Cache-Control': 'no-store' });
    },
  };
}

function unanswered(cause: unknown): never {
  throw new Problem('QUERY_BACKEND_ERROR', 'The database does not answer. Try again later.', { cause });
}

async function statusOf({ monitor, checks, queues, changes, places }: OpsDeps): Promise<OpsStatusAnswer> {
  const status = await monitor.status().catch(unanswered);
  return {
    at_utc: isoOf(status.atMs),
    collect_ms: Math.round(status.collectMs),
    log_fault: status.logFault ?? null,
    database_bytes: status.databaseBytes,
    columnstore: status.columnstore ? [...status.columnstore] : null,
    proof_log: status.proofLog,
    lakes: [...status.lakes],
    checks: { ...(await checks.run()) },
    datasets: status.statuses.map(({ overview }) => ({ ...overview, dataset: datasetKey.parse(overview.dataset) })),
    runs: [...status.runs],
    exports: status.exports ?? null,
    changes: {
      last: await changes.last().catch(unanswered),
      listeners: places.taken,
      max_listeners: places.limit,
    },
    queues: Object.entries(queues).map(([queue, { load, limits, rejected }]) => ({
      queue,
      ...load,
      max_running: limits.running,
      max_waiting: limits.waiting,
      rejected: rejected.full + rejected.timeout,
    })),
  };
}

function historyOf({ history }: Monitor): HistoryAnswer {
  return {
    interval_seconds: SAMPLE_INTERVAL_MS / 1000,
    at_utc: history.atMs.map(isoOf),
    datasets: [...DATASETS.keys()].map((dataset) => ({
      dataset: datasetKey.parse(dataset),
      ...copied(history.of(dataset)),
    })),
  };
}

const copied = (series: ReturnType<Monitor['history']['of']>) => eachSeries((name) => [...series[name]]);
