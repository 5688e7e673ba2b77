/** The route table: paths, the methods each takes, and whether a key is asked for. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import Router from '@koa/router';
import type Koa from 'koa';
import type { z } from 'zod';
import type { Logger } from '../../shared/logger.ts';
import type { JsonSchema } from '../contract/json-schema.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { editDistance } from '../contract/shapes.ts';

/** The request headers that the service heeds, once: the OpenAPI document and preflights are made from this table. */

export interface RequestHeader {
  readonly doc: string;
  /** A value that does not match is refused as a fault of the contract. Without a pattern: ignored, or as documented. */
  readonly pattern?: RegExp;
}

export const REQUEST_HEADERS = {
  'X-Request-Id': {
    doc: 'Names the request in the answer and in logs: 1 to 128 letters, digits, `.`, `_`, `-`. Any other value is replaced by one that the service makes.',
  },
  'X-Backend-Token': {
    doc: 'The caller’s own password of the read-only database role: for datasets whose rights are `BYOK Required`.',
  },
  'Accept-Encoding': { doc: 'Content codings that the client can read: `zstd`, `gzip`.' },
  'Idempotency-Key': {
    doc: 'Names this submit: 1 to 255 printable ASCII characters, without a space at either end. The same key with the same body is the same export; with another body it is refused.',
    pattern: /^[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?$/,
  },
  Range: {
    doc: 'One range of bytes, such as `bytes=0-1023`, `bytes=1024-` or `bytes=-512`. Several ranges, and what is no range, get the whole file.',
  },
  'If-Range': { doc: 'The `ETag` that `Range` goes on from. Of another file the whole is sent.' },
  'If-Match': { doc: 'The `ETag`s of the files that will do, or `*`. Any other file is refused with 412.' },
  'If-None-Match': { doc: 'The `ETag`s of the files that the client has already. One of them is answered with 304.' },
  'If-Modified-Since': {
    doc: 'A file that has not changed since is answered with 304. Not asked beside `If-None-Match`.',
  },
  'If-Unmodified-Since': { doc: 'A file that changed since is refused with 412. Not asked beside `If-Match`.' },
} as const satisfies Record<string, RequestHeader>;

export type RequestHeaderName = keyof typeof REQUEST_HEADERS;

/* What a route says of itself. `/openapi.json` and `/docs` are made from it; every example is run by a test. */

export type { JsonSchema };

export const TAGS = {
  rows: 'Rows of a dataset, whole or in part',
  discovery: 'What there is: datasets, what of them is proved, what a request would cost, where a row comes from',
  export: 'Files made in the background',
  operations: 'How it stands: for operators and monitors',
  service: 'The service itself',
} as const;

export interface SegmentDoc {
  readonly doc: string;
  readonly schema: JsonSchema;
}

export interface AnswerDoc {
  /** 200 unless said otherwise. */
  readonly status?: number;
  readonly doc: string;
  /** By media type. A zod schema is what the answer is, to the key: tests hold answers against it. */
  readonly content: Readonly<Record<string, z.ZodType | JsonSchema>>;
  readonly headers?: AnswerHeaders;
}

/** Names of an answer's headers, and what each says. */
export type AnswerHeaders = Readonly<Record<string, string>>;

/** Of what was not published by any vendor. */
export const SYNTHETIC_HEADER = {
  'X-Svc-Synthetic': '`true` where rows are of the sample: no vendor published them.',
} as const satisfies AnswerHeaders;

/** Of answers that a client may keep and ask about again. */
export const VALIDATOR_HEADERS = {
  ETag: 'Names these very bytes.',
  'Last-Modified': 'When they were written.',
} as const satisfies AnswerHeaders;

/** A request that works on the sample every new system has, so that whoever pastes it sees rows. */
export interface ExampleDoc {
  readonly title: string;
  /** Values of the path's segments. */
  readonly path?: Readonly<Record<string, string>>;
  readonly query?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** Of the answer, where it is not the first of the route's answers. */
  readonly status?: number;
}

export interface RouteDoc {
  readonly tag: keyof typeof TAGS;
  readonly summary: string;
  /** Paragraphs, parted by blank lines; words in backticks are code. */
  readonly doc: string;
  /** Every `:segment` of the path. */
  readonly segments?: Readonly<Record<string, SegmentDoc>>;
  /** Parameters behind the question mark; the schema that checks them. */
  readonly query?: z.ZodObject;
  /** Request headers it heeds, beside those that every route does. */
  readonly headers?: readonly RequestHeaderName[];
  /** The schema that checks the body. */
  readonly body?: z.ZodType;
  readonly answers: readonly [AnswerDoc, ...AnswerDoc[]];
  /** Codes beside those every route has: ROUTE_NOT_FOUND and its kind, and the key's. */
  readonly problems: readonly ProblemCode[];
  readonly examples: readonly ExampleDoc[];
  /** Of a GET route whose HEAD is worth asking for: HEAD becomes an operation too. Every GET route answers it. */
  readonly hasHead?: boolean;
}

/** Of routes that pass the rights of a dataset. */
export const RIGHTS_PROBLEMS = [
  'QUERY_RIGHTS_MISSING_STATE',
  'QUERY_RIGHTS_INGEST_ONLY',
  'QUERY_RIGHTS_BYOK_REQUIRED',
  'QUERY_RIGHTS_BYOK_REFUSED',
  'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING',
  'QUERY_RIGHTS_RESOLUTION_ERROR',
  'QUERY_SERVING_SHADOW_MODE',
] as const satisfies readonly ProblemCode[];

/** Of routes that look into the catalog. */
export const CATALOG_PROBLEMS = [
  'DISCOVERY_QUEUE_LIMIT_REACHED',
  'QUERY_TIMEOUT',
  'QUERY_BACKEND_ERROR',
  'QUERY_RUNTIME_ERROR',
  'QUERY_UNKNOWN_ERROR',
] as const satisfies readonly ProblemCode[];

const COMMON_READ_PROBLEMS = [
  ...RIGHTS_PROBLEMS,
  'STRICT_MODE_WARNING_FAILURE',
  'QUERY_QUEUE_LIMIT_REACHED',
  'ALIGNED_QUERY_QUEUE_LIMIT_REACHED',
  'QUERY_TIMEOUT',
  'ALIGNED_STORAGE_CONTRACT_VIOLATION',
] as const satisfies readonly ProblemCode[];

/** Of routes that answer with rows. */
export const READ_PROBLEMS = [
  'QUERY_CONTRACT_ERROR',
  ...COMMON_READ_PROBLEMS,
  'QUERY_BACKEND_ERROR',
  'QUERY_RUNTIME_ERROR',
  'QUERY_UNKNOWN_ERROR',
  'QUERY_NO_DATA',
] as const satisfies readonly ProblemCode[];

/** The same of the historical routes. */
export const HISTORICAL_PROBLEMS = [
  'HISTORICAL_CONTRACT_ERROR',
  ...COMMON_READ_PROBLEMS,
  'HISTORICAL_BACKEND_ERROR',
  'HISTORICAL_RUNTIME_ERROR',
  'HISTORICAL_UNKNOWN_ERROR',
  'HISTORICAL_NO_DATA',
] as const satisfies readonly ProblemCode[];

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
      const far = editDistance(segments[at], name);
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
