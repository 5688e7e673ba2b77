/** GET /healthz: the process answers. GET /readyz: it can serve, and what stands in the way if not. */

import { z } from 'zod';
import { Problem } from '../contract/problems.ts';
import { answerBytes, answerJson } from '../http/answer.ts';
import { queryParams } from '../http/request.ts';
import type { Route, RouteDoc } from '../http/routes.ts';
import type { Metrics } from '../monitoring/metrics.ts';
import { type Checks, FOLLOWING } from '../monitoring/startup.ts';
import { NO_PARAMETERS } from './datasets.ts';

const checksAnswer = z.record(z.string(), z.string()).describe('Name of a check -> `ok`, or what is wrong in a word.');

export function healthRoutes(checks: Checks): Route[] {
  return [
    {
      method: 'GET',
      path: '/healthz',
      access: 'open',
      doc: (): RouteDoc => ({
        tag: 'service',
        summary: 'Does the process answer?',
        doc: 'For supervisors: it looks at nothing but itself.',
        answers: [
          {
            doc: 'It does.',
            content: { 'application/json': z.strictObject({ status: z.literal('ok') }) },
          },
        ],
        problems: [],
        examples: [{ title: 'Alive' }],
      }),
      handle: async (exchange) => answerJson(exchange, { status: 'ok' }),
    },
    {
      method: 'GET',
      path: '/readyz',
      access: 'open',
      doc: (): RouteDoc => ({
        tag: 'service',
        summary: 'Can it serve, and what stands in the way if not?',
        doc: 'For load balancers: rights matrix, database, migrations, aligned storage. What is followed and fails is told and keeps it from nothing. What can be served is served while it is not ready.',
        answers: [
          {
            doc: 'It can.',
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
          throw new Problem('NOT_READY', `Not ready: ${failed.join(', ')}.`, { members: { checks: results } });
        }
        answerJson(exchange, { status: 'ready', checks: results });
      },
    },
  ];
}

/* GET /metrics, for Prometheus. */

export function metricsRoute(metrics: Metrics): Route {
  return {
    method: 'GET',
    path: '/metrics',
    access: 'metrics',
    doc: (): RouteDoc => ({
      tag: 'service',
      summary: 'Numbers for Prometheus',
      doc: 'Lag, coverage, runs, exports and stores of the whole system as the catalog and the log have them, and the requests of this process. The key of the service opens it, and so does `SVC_METRICS_KEY`, which opens nothing else; either in `X-API-Key` or as `Authorization: Bearer`.\n\nHowever often it is asked, the database is asked once in five seconds at most.',
      query: NO_PARAMETERS,
      answers: [{ doc: 'The metrics.', content: { 'text/plain': {} } }],
      problems: ['QUERY_CONTRACT_ERROR'],
      examples: [{ title: 'All of them' }],
    }),
    async handle(exchange) {
      queryParams(exchange.url, NO_PARAMETERS);
      const body = Buffer.from(await metrics.text());
      answerBytes(exchange, body, { 'Content-Type': metrics.contentType, 'Cache-Control': 'no-store' });
    },
  };
}
