/** The route table: paths, the methods each takes, and whether a key is asked for. */
import type { IncomingMessage, ServerResponse } from 'node:http';
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

export interface Match {
  readonly route: Route;
  readonly params: Readonly<Record<string, string>>;
}

/** @throws Problem ROUTE_NOT_FOUND or METHOD_NOT_ALLOWED. */
export function matchRoute(routes: readonly Route[], method: string, path: string): Match {
  const segments = path.split('/');
  const matches = routes.flatMap((route) => {
    const params = matchPath(route.path.split('/'), segments);
    return params ? [{ route, params }] : [];
  });
  if (matches.length === 0) throw new Problem('ROUTE_NOT_FOUND', 'See /docs for the paths there are.');
  // HEAD is GET without its body, which Node leaves out by itself.
  const wanted = method === 'HEAD' ? 'GET' : method;
  const match = matches.find(({ route }) => route.method === wanted);
  if (match) return match;
  const allowed = new Set(matches.flatMap(({ route }) => (route.method === 'GET' ? ['GET', 'HEAD'] : [route.method])));
  const allow = [...allowed].join(', ');
  throw new Problem('METHOD_NOT_ALLOWED', `This path takes ${allow}.`, { headers: { Allow: allow } });
}

function matchPath(pattern: readonly string[], segments: readonly string[]): Record<string, string> | undefined {
  if (pattern.length !== segments.length) return undefined;
  const params: Record<string, string> = {};
  for (const [index, part] of pattern.entries()) {
    const segment = segments[index];
    if (!part.startsWith(':')) {
      if (part !== segment) return undefined;
      continue;
    }
    try {
      params[part.slice(1)] = decodeURIComponent(segment);
    } catch {
      return undefined;
    }
  }
  return params;
}
