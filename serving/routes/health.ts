/**
 * GET /healthz: the process answers. GET /readyz: the service can serve, or what prevents it. GET /metrics: numbers for
 * Prometheus.
 */
import { z } from 'zod';
import { answerTo, CHALLENGE_HEADER, IDENTITY_HEADER } from '../../shared/service-identity.ts';
import { Problem } from '../contract/problems.ts';
import { answerJson } from '../http/answer.ts';
import { answerCompressed, ENCODED } from '../http/document.ts';
import { NO_PARAMETERS, queryParams } from '../http/request.ts';
import type { Route, RouteDoc } from '../http/routes.ts';
import type { Metrics } from '../monitoring/metrics.ts';
import { type Checks, FOLLOWING } from '../monitoring/startup.ts';

const checksAnswer = z.record(z.string(), z.string()).describe('Name of a check -> `ok`, or the fault in a word.');

export function healthRoutes(checks: Checks, identity: string | undefined): Route[] {
  return [
    {
      method: 'GET',
      path: '/healthz',
      access: 'open',
      doc: (): RouteDoc => ({
        operation: 'getHealth',
        tag: 'service',
        summary: 'Does the process answer?',
        doc: 'For supervisors. The check covers only the process itself.',
        answers: [
          {
            doc: 'The process answers.',
            content: { 'application/json': z.strictObject({ status: z.literal('ok') }) },
          },
        ],
        problems: [],
        examples: [{ title: 'Alive' }],
      }),
      async handle(exchange) {
        const { [CHALLENGE_HEADER.toLowerCase()]: challenge } = exchange.request.headers;
        const shown = identity === undefined ? undefined : answerTo(identity, challenge as string | undefined);
        answerJson(exchange, { status: 'ok' }, { ...(shown !== undefined && { [IDENTITY_HEADER]: shown }) });
      },
    },
    {
      method: 'GET',
      path: '/readyz',
      access: 'open',
      doc: (): RouteDoc => ({
        operation: 'getReadiness',
        tag: 'service',
        summary: 'Can the service serve, and if not, what prevents it?',
        doc: 'For load balancers. The checks cover the rights matrix, the database, migrations and aligned storage. The answer also names failing followers, which do not make the service unready. While it is not ready, the service still serves what it can.',
        answers: [
          {
            doc: 'The service is ready.',
            content: {
              'application/json': z.strictObject({ status: z.literal('ready'), checks: checksAnswer }),
            },
          },
        ],
        problems: ['NOT_READY'],
        examples: [{ title: 'Ready' }],
      }),
      async handle(exchange) {
        const results = await checks.run();
        const failed = Object.keys(results).filter((name) => results[name] !== 'ok' && name !== FOLLOWING);
        if (failed.length > 0) {
          throw new Problem('NOT_READY', `The service is not ready. Failing checks: ${failed.join(', ')}.`, {
            members: { checks: results },
          });
        }
        answerJson(exchange, { status: 'ready', checks: results });
      },
    },
  ];
}

export function metricsRoute(metrics: Metrics): Route {
  return {
    method: 'GET',
    path: '/metrics',
    access: 'metrics',
    doc: (): RouteDoc => ({
      operation: 'getMetrics',
      tag: 'service',
      summary: 'Numbers for Prometheus',
      doc: 'Lag, coverage, runs, exports and stores of the whole system as recorded in the catalog and the log, and the requests of the process, or of each of several (`SVC_HTTP_PROCESSES`). The route takes the service’s key or `SVC_METRICS_KEY`, which opens no other route, in `X-API-Key` or as `Authorization: Bearer`.\n\nThe service queries the database at most once in five seconds, however often the route is called.',
      query: NO_PARAMETERS,
      answers: [{ doc: 'The metrics.', content: { 'text/plain': { type: 'string' } }, headers: ENCODED }],
      problems: ['QUERY_CONTRACT_ERROR'],
      examples: [{ title: 'All of them' }],
    }),
    async handle(exchange) {
      queryParams(exchange.url, NO_PARAMETERS);
      const body = Buffer.from(await metrics.text());
      await answerCompressed(exchange, body, { 'Content-Type': metrics.contentType, 'Cache-Control': 'no-store' });
    },
  };
}
