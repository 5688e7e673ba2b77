/** The route table: paths, the methods each takes, and whether a key is asked for. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import Router from '@koa/router';
import type Koa from 'koa';
import type { Logger } from '../../shared/log/logger.ts';
import { Problem } from '../contract/problems.ts';

/** What a handler gets. It answers through `response`, or throws a Problem. */
export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly url: URL;
  /** Values of the path's `:name` segments. */
  readonly params: Readonly<Record<string, string>>;
  readonly requestId: string;
  readonly log: Logger;
  /** Aborted when the client goes away. */
  readonly signal: AbortSignal;
}

export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Segments; `:name` matches any one. */
  readonly path: string;
  /** Open routes answer without X-API-Key. */
  readonly access: 'key' | 'open';
  handle(exchange: Exchange): Promise<void>;
}

/** Leads requests to their routes. @throws Problem ROUTE_NOT_FOUND or METHOD_NOT_ALLOWED for those that have none. */
export function routerOf(
  routes: readonly Route[],
  handle: (route: Route, context: Koa.Context, params: Readonly<Record<string, string>>) => Promise<void>,
): Koa.Middleware {
  // Exact paths: `/V1/raw/query/` is another path, and saying so beats answering by luck.
  const router = new Router({ sensitive: true, strict: true });
  for (const route of routes) {
    router.register(route.path, [route.method], (context) => handle(route, context, context.params));
  }
  const known = routes.map(({ method, path }) => `${method} ${path}`).join(', ');
  const routed = router.routes() as Koa.Middleware;
  return async (context, next) => {
    const match = router.match(context.path, context.method);
    if (match.path.length === 0) throw new Problem('ROUTE_NOT_FOUND', `There are: ${known}.`);
    if (!match.route) {
      const allow = [...new Set(match.path.flatMap((layer) => layer.methods.toReversed()))].join(', ');
      throw new Problem('METHOD_NOT_ALLOWED', `This path takes ${allow}.`, { headers: { Allow: allow } });
    }
    await routed(context, next);
  };
}
