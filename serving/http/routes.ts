/** The route table: paths, the methods each takes, and whether a key is asked for. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import Router from '@koa/router';
import type Koa from 'koa';
import type { Logger } from '../../shared/log/logger.ts';
import { distance } from '../contract/nearest.ts';
import { Problem } from '../contract/problems.ts';
import type { RouteDoc } from '../openapi/route-doc.ts';

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
  /** Open routes answer without a key; `metrics` takes the service's and one for scrapers, as a bearer token too. */
  readonly access: 'key' | 'metrics' | 'open';
  /** What it says of itself, made when somebody asks for it. */
  readonly doc: () => RouteDoc;
  handle(exchange: Exchange): Promise<void>;
  /** Told when the key was missing or wrong, before that is answered. */
  keyRefused?(exchange: Exchange): Promise<void>;
}

/** A path as it was probably meant: lower case, no slash too many. */
const plain = (path: string) =>
  path
    .toLowerCase()
    .replaceAll(/\/{2,}/g, '/')
    .replace(/(.)\/$/, '$1');

/** Longer ones are no slips of the pen. */
const MAX_MISTYPED = 200;
const MAX_MISTAKES = 3;

/** The route whose path is most like it, with a few letters wrong at most; what `:name` stands for is as it was written. */
function meantRoute(path: string, routes: readonly Route[]): Route | undefined {
  if (path.length > MAX_MISTYPED) return undefined;
  const segments = plain(path).split('/');
  let best: Route | undefined;
  let least = MAX_MISTAKES + 1;
  for (const route of routes) {
    const known = route.path.split('/');
    if (known.length !== segments.length) continue;
    const mistakes = known.map((name, at) => {
      if (name.startsWith(':')) return segments[at] === '' ? Number.POSITIVE_INFINITY : 0;
      const far = distance(segments[at], name);
      // A segment of which hardly anything is right is another word.
      return far > name.length / 2 ? Number.POSITIVE_INFINITY : far;
    });
    const far = mistakes.reduce((sum, each) => sum + each, 0);
    if (far < least) {
      best = route;
      least = far;
    }
  }
  return best;
}

/** Leads requests to their routes. @throws Problem ROUTE_NOT_FOUND or METHOD_NOT_ALLOWED for those that have none. */
export function routerOf(
  routes: readonly Route[],
  handle: (route: Route, context: Koa.Context, params: Readonly<Record<string, string>>) => Promise<void>,
  /** May answer a method that the path does not take; told those it does. @returns whether it did. */
  answerOther: (context: Koa.Context, methods: readonly string[]) => boolean,
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
    if (match.path.length === 0) {
      const meant = meantRoute(context.path, routes);
      const hint = meant ? `Did you mean ${meant.method} ${meant.path}?` : `There are: ${known}.`;
      throw new Problem('ROUTE_NOT_FOUND', hint);
    }
    if (!match.route) {
      const methods = [...new Set(match.path.flatMap((layer) => layer.methods.toReversed()))];
      if (answerOther(context, methods)) return;
      const allow = methods.join(', ');
      throw new Problem('METHOD_NOT_ALLOWED', `This path takes ${allow}.`, { headers: { Allow: allow } });
    }
    await routed(context, next);
  };
}
