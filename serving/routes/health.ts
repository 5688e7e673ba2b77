/** GET /healthz: the process answers. GET /readyz: it can serve, and what stands in the way if not. */
import { z } from 'zod';
import { Problem } from '../contract/problems.ts';
import { answerJson } from '../http/answer.ts';
import type { Route } from '../http/routes.ts';
import type { RouteDoc } from '../openapi/route-doc.ts';
import { type Checks, FOLLOWING } from '../startup.ts';

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
