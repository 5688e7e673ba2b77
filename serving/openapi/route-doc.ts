/** What a route says of itself. `/openapi.json` and `/docs` are made from it; every example is run by a test. */
import type { z } from 'zod';
import type { JsonSchema } from '../contract/json-schema.ts';
import type { ProblemCode } from '../contract/problems.ts';
import type { RequestHeaderName } from '../http/request-headers.ts';

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
