/** GET /metrics, for Prometheus. */
import { answerBytes } from '../http/answer.ts';
import { queryParams } from '../http/params.ts';
import type { Route } from '../http/routes.ts';
import type { Metrics } from '../monitoring/metrics.ts';
import type { RouteDoc } from '../openapi/route-doc.ts';
import { NO_PARAMETERS } from './no-parameters.ts';

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
