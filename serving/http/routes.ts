/** The route table: paths, the methods each takes, the scope that a key needs, and how each route is documented. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import Router from '@koa/router';
import type Koa from 'koa';
import type { z } from 'zod';
import type { Scope } from '../../shared/keys/key.ts';
import type { Logger } from '../../shared/logger.ts';
import { editDistance } from '../../shared/nearest.ts';
import type { JsonSchema } from '../contract/json-schema.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import type { Caller } from './caller.ts';

export interface RequestHeader {
  readonly doc: string;
  /** A value that does not match is a contract fault. A header without a pattern is ignored, or used as documented. */
  readonly pattern?: RegExp;
}

/** The request headers that the service reads. The OpenAPI document and preflights are generated from this table. */
export const REQUEST_HEADERS = {
  'X-Request-Id': {
    doc: 'Names the request in the answer and in logs: 1 to 128 letters, digits, `.`, `_`, `-`. The service replaces any other value by an id of its own.',
  },
  'X-Backend-Token': {
    doc: 'The caller’s own password of the read-only database role, for datasets whose rights are `BYOK Required`.',
  },
  'Accept-Encoding': { doc: 'Content codings that the client can read: `zstd`, `gzip`.' },
  'Idempotency-Key': {
    doc: 'Identifies this submission: 1 to 255 printable ASCII characters, without a space at either end. The same key with the same body returns the same export; with another body the service refuses it.',
    pattern: /^[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?$/,
  },
  Range: {
    doc: 'One range of bytes, such as `bytes=0-1023`, `bytes=1024-` or `bytes=-512`. For several ranges or an unreadable one the service sends the whole file.',
  },
  'If-Range': {
    doc: 'The `ETag` of the file that `Range` continues. If the file is another one, the service sends it whole.',
  },
  'If-Match': { doc: 'The `ETag`s that the client accepts, or `*`. For any other file the service answers 412.' },
  'If-None-Match': { doc: 'The `ETag`s that the client already has. For one of them the service answers 304.' },
  'Last-Event-ID': { doc: 'The number of the last change that the client has. It outranks `since`.' },
  'If-Modified-Since': {
    doc: 'If the file has not changed since, the service answers 304. Ignored beside `If-None-Match`.',
  },
  'If-Unmodified-Since': { doc: 'If the file changed since, the service answers 412. Ignored beside `If-Match`.' },
} as const satisfies Record<string, RequestHeader>;

export type RequestHeaderName = keyof typeof REQUEST_HEADERS;

export const TAGS = {
  rows: 'Rows of a dataset, whole or in part',
  discovery: 'Datasets, their proved coverage, the cost of a request, and the origin of a row',
  export: 'Files made in the background',
  lake: 'A folder of Parquet files that holds all proved rows',
  proofs: 'The proof log, which holds the service to what it proved',
  operations: 'The state of the system, for operators and monitors',
  service: 'The service itself',
} as const;

export interface SegmentDoc {
  readonly doc: string;
  readonly schema: JsonSchema;
}

export interface AnswerDoc {
  /** Default 200. */
  readonly status?: number;
  readonly doc: string;
  /** By media type. A zod schema describes the answer completely: tests compare answers with it. */
  readonly content: Readonly<Record<string, z.ZodType | JsonSchema>>;
  readonly headers?: AnswerHeaders;
}

/** The schema of a file's bytes: what generators of clients make a download of. */
export const FILE_BYTES = { type: 'string', format: 'binary' } as const satisfies JsonSchema;

/** The content of an answer that is a file of one of these types, or a part of it: a part of JSON is none. */
export const fileContent = (types: readonly string[], { isPart = false } = {}): Readonly<Record<string, JsonSchema>> =>
  Object.fromEntries(
    types.map((type) => [type, type === 'application/json' && !isPart ? { type: 'object' } : bytesOf(type)]),
  );

const bytesOf = (type: string): JsonSchema => (type.startsWith('text/') ? { type: 'string' } : FILE_BYTES);

/** Headers of an answer: name -> meaning. */
export type AnswerHeaders = Readonly<Record<string, string>>;

/** The header of answers whose rows no vendor published. */
export const SYNTHETIC_HEADER = {
  'X-Svc-Synthetic': '`true` when the rows belong to the sample: no vendor published them.',
} as const satisfies AnswerHeaders;

/** The header of answers with rows that names the state of the proof log. */
export const CHECKPOINT_HEADERS = {
  'X-Svc-Checkpoint':
    'The signed checkpoint of the proof log that the rows were read under, in base64. Absent before the first.',
} as const satisfies AnswerHeaders;

/** Headers of reads with filters. */
export const SEARCHED_HEADERS = {
  'X-Svc-Partitions-Read':
    'Proved file days of the window that the read searches. Only with filters, for the trade datasets; also where no row passes.',
  'X-Svc-Partitions-Skipped': 'Those that it leaves out, because the ranges of their values say that no row passes.',
} as const satisfies AnswerHeaders;

/** Headers of answers that a client may cache and revalidate. */
export const VALIDATOR_HEADERS = {
  ETag: 'Identifies exactly these bytes.',
  'Last-Modified': 'Time at which they were written.',
} as const satisfies AnswerHeaders;

/** A request that works on the sample of every new system, so that whoever pastes it sees rows. */
export interface ExampleDoc {
  readonly title: string;
  /** Values of the path's segments. */
  readonly path?: Readonly<Record<string, string>>;
  readonly query?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** Status of the answer, where it is not that of the route's first answer. */
  readonly status?: number;
}

/** How a route describes itself. `/openapi.json` and `/docs` are generated from it, and a test runs every example. */
export interface RouteDoc {
  /** Its name in the OpenAPI document and in clients made from it, a verb first. The document leaves out a route without one: a page. */
  readonly operation?: string;
  readonly tag: keyof typeof TAGS;
  readonly summary: string;
  /** Paragraphs separated by blank lines; words in backticks are code. */
  readonly doc: string;
  /** A description of every `:segment` of the path. */
  readonly segments?: Readonly<Record<string, SegmentDoc>>;
  /** The schema that checks the query parameters. */
  readonly query?: z.ZodObject;
  /** Request headers the route reads, beside those that every route reads. */
  readonly headers?: readonly RequestHeaderName[];
  /** The schema that checks the body. */
  readonly body?: z.ZodType;
  readonly answers: readonly [AnswerDoc, ...AnswerDoc[]];
  /** Codes beside those of every route: ROUTE_NOT_FOUND and its kind, and the key's. */
  readonly problems: readonly ProblemCode[];
  readonly examples: readonly ExampleDoc[];
  /** Makes HEAD an operation of the document, for a GET route whose HEAD is useful. Every GET route answers HEAD. */
  readonly hasHead?: boolean;
}

/** Problems of routes that check the rights of a dataset. */
export const RIGHTS_PROBLEMS = [
  'AUTH_DATASET_NOT_COVERED',
  'QUERY_RIGHTS_MISSING_STATE',
  'QUERY_RIGHTS_INGEST_ONLY',
  'QUERY_RIGHTS_BYOK_REQUIRED',
  'QUERY_RIGHTS_BYOK_REFUSED',
  'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING',
  'QUERY_RIGHTS_RESOLUTION_ERROR',
  'QUERY_SERVING_SHADOW_MODE',
] as const satisfies readonly ProblemCode[];

/** Problems of routes that read the catalog. */
export const CATALOG_PROBLEMS = [
  'QUERY_QUEUE_LIMIT_REACHED',
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

/** Problems of routes that answer with rows. */
export const READ_PROBLEMS = [
  'QUERY_CONTRACT_ERROR',
  ...COMMON_READ_PROBLEMS,
  'QUERY_BACKEND_ERROR',
  'QUERY_RUNTIME_ERROR',
  'QUERY_UNKNOWN_ERROR',
  'QUERY_NO_DATA',
] as const satisfies readonly ProblemCode[];

/** The same for the historical routes. */
export const HISTORICAL_PROBLEMS = [
  'HISTORICAL_CONTRACT_ERROR',
  ...COMMON_READ_PROBLEMS,
  'HISTORICAL_BACKEND_ERROR',
  'HISTORICAL_RUNTIME_ERROR',
  'HISTORICAL_UNKNOWN_ERROR',
  'HISTORICAL_NO_DATA',
] as const satisfies readonly ProblemCode[];

/** What a handler receives. It answers through `response`, or throws a Problem. */
export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly url: URL;
  /** Values of the path's `:name` segments. */
  readonly params: Readonly<Record<string, string>>;
  readonly requestId: string;
  readonly caller: Caller;
  readonly log: Logger;
  /** Aborted when the client closes the connection or its key ceases to hold. */
  readonly signal: AbortSignal;
}

export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Segments; `:name` matches any one segment. */
  readonly path: string;
  /** The scope that a key needs; open routes need no key. */
  readonly access: Scope | 'open';
  /** The route's description, built on demand. */
  readonly doc: () => RouteDoc;
  handle(exchange: Exchange): Promise<void>;
  /** Called when the key was refused, before the service answers. */
  keyRefused?(exchange: Exchange, code: ProblemCode): Promise<void>;
}

/** Normalizes a path for comparison: lower case, no repeated and no trailing slash. */
const plain = (path: string) =>
  path
    .toLowerCase()
    .replaceAll(/\/{2,}/g, '/')
    .replace(/(.)\/$/, '$1');

/** A longer path is no misspelling. */
const MAX_MISTYPED = 200;
const MAX_MISTAKES = 3;

/** The route with the most similar path, if only a few letters differ. A `:name` segment matches any value. */
function meantRoute(path: string, routes: readonly Route[]): Route | undefined {
  if (path.length > MAX_MISTYPED) return undefined;
  const segments = plain(path).split('/');
  let best: Route | undefined;
  let least = MAX_MISTAKES + 1;
  for (const route of routes) {
    const known = route.path.split('/');
    if (known.length !== segments.length) continue;
    const mistakes = known.map((name, index) => {
      if (name.startsWith(':')) return segments[index] === '' ? Number.POSITIVE_INFINITY : 0;
      const distance = editDistance(segments[index], name);
      // A segment with most letters wrong is another word.
      return distance > name.length / 2 ? Number.POSITIVE_INFINITY : distance;
    });
    const total = mistakes.reduce((sum, each) => sum + each, 0);
    if (total < least) {
      best = route;
      least = total;
    }
  }
  return best;
}

/** Dispatches requests to their routes. @throws Problem ROUTE_NOT_FOUND or METHOD_NOT_ALLOWED for requests without one. */
export function routerOf(
  routes: readonly Route[],
  handle: (route: Route, context: Koa.Context, params: Readonly<Record<string, string>>) => Promise<void>,
  /** May answer a method that the path does not take; it receives those that the path takes. @returns whether it answered. */
  answerOther: (context: Koa.Context, methods: readonly string[]) => boolean,
): Koa.Middleware {
  // Paths match exactly: `/V1/raw/query/` is another path, and the service refuses it instead of guessing.
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
      const hint = meant ? `Did you mean ${meant.method} ${meant.path}?` : `The paths are ${known}.`;
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
