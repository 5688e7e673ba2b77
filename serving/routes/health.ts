/** GET /healthz: the process answers. GET /readyz: it can serve, and what stands in the way if not. */
import type { ServerResponse } from 'node:http';
import { Problem } from '../contract/problems.ts';
import type { Route } from '../http/routes.ts';
import type { Checks } from '../startup.ts';

export function healthRoutes(checks: Checks): Route[] {
  return [
    {
      method: 'GET',
      path: '/healthz',
      access: 'open',
      handle: async ({ response }) => sendJson(response, { status: 'ok' }),
    },
    {
      method: 'GET',
      path: '/readyz',
      access: 'open',
      async handle({ response }) {
        const results = await checks.run();
        const failed = Object.keys(results).filter((name) => results[name] !== 'ok');
        if (failed.length > 0) {
          throw new Problem('NOT_READY', `Not ready: ${failed.join(', ')}.`, { members: { checks: results } });
        }
        sendJson(response, { status: 'ready', checks: results });
      },
    },
  ];
}

function sendJson(response: ServerResponse, value: unknown): void {
  const body = Buffer.from(JSON.stringify(value));
  response.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': String(body.length) });
  response.end(body);
}
