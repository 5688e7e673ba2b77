/** Builds the OpenAPI 3.1 document from the route table, the routes' descriptions, the registry and the table of problems. */
import type { z } from 'zod';
import { type JsonSchema, pascal, refTo } from '../contract/json-schema.ts';
import { PROBLEMS, type ProblemCode, type ProblemKind } from '../contract/problems.ts';
import {
  type AnswerDoc,
  type AnswerHeaders,
  type ExampleDoc,
  REQUEST_HEADERS,
  type RequestHeader,
  type RequestHeaderName,
  type Route,
  type RouteDoc,
  TAGS,
} from '../http/routes.ts';
import { componentOf, componentSchemas, partOf } from './row-docs.ts';

/** A body of up to this many characters stays on one line, which fits a phone. */
const MAX_LINE = 72;

/** Whether a value is a shell variable, which the output of another command fills. */
const isVariable = (value: string): boolean => /^\$[A-Z_]+$/.test(value);

const segment = (value: string) => (isVariable(value) ? value : encodeURIComponent(value));

/** The path of a request with its segments and parameters. */
function targetOf(route: Pick<Route, 'path'>, { path = {}, query = {} }: ExampleDoc): string {
  const filled = route.path.replaceAll(/:(\w+)/g, (_, name: string) => segment(path[name] ?? ''));
  const parameters = new URLSearchParams(query).toString();
  return parameters === '' ? filled : `${filled}?${parameters}`;
}

/** An example as a command to paste; it uses `$TIDEMARK_URL` and `$TIDEMARK_KEY`, which the page sets at its top. */
export function curlOf(route: Pick<Route, 'path' | 'access' | 'method'>, example: ExampleDoc): string {
  const { headers = {}, body } = example;
  const options = [
    ...(route.method === 'DELETE' ? ['-X DELETE'] : []),
    ...(route.access !== 'open' ? ['-H "X-API-Key: $TIDEMARK_KEY"'] : []),
    ...Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
    ...(body === undefined ? [] : [`-d ${quoted(bodyText(body))}`]),
  ];
  return [`curl -s "$TIDEMARK_URL${targetOf(route, example)}"`, ...options].join(' \\\n  ');
}

function bodyText(body: unknown): string {
  const json = JSON.stringify(body);
  if (json.length <= MAX_LINE) return json;
  const members = Object.entries(body as Record<string, unknown>).map(
    ([key, value]) => `  ${JSON.stringify(key)}: ${JSON.stringify(value)}`,
  );
  return `{\n${members.join(',\n')}\n}`;
}

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

export interface About {
  readonly license: { readonly name: string; readonly identifier: string };
  readonly title: string;
  readonly version: string;
  readonly description: string;
}

/** A route with its description, evaluated once. */
export interface Documented {
  readonly route: Route;
  readonly doc: RouteDoc;
  readonly problems: readonly ProblemCode[];
}

export function documented(routes: readonly Route[]): Documented[] {
  return routes.map((route) => {
    const doc = route.doc();
    const scope = route.access === 'open' ? '' : `\n\nA named key needs the scope \`${route.access}\`.`;
    return {
      route,
      doc: { ...doc, doc: `${doc.doc}${scope}` },
      problems: [...new Set([...commonProblems(route), ...doc.problems])],
    };
  });
}

/** Problems of bytes that are not a request. Any operation may have been meant. */
const HTTP_PROBLEMS = (Object.keys(PROBLEMS) as ProblemCode[]).filter((code) => code.startsWith('HTTP_'));

/** Problems of routes that need a key. */
const KEY_PROBLEMS = [
  'AUTH_INVALID_API_KEY',
  'AUTH_KEY_EXPIRED',
  'AUTH_KEY_REVOKED',
  'AUTH_KEYS_UNAVAILABLE',
  'AUTH_SCOPE_MISSING',
  'RATE_LIMITED',
] as const satisfies readonly ProblemCode[];

/** The problems that any route may answer with. Unknown paths and methods belong to no operation. */
const commonProblems = ({ access, path }: Route): readonly ProblemCode[] => [
  ...HTTP_PROBLEMS,
  ...(access !== 'open' ? KEY_PROBLEMS : []),
  ...(access === 'read' ? (['AUTH_CONCURRENCY_LIMITED'] as const) : []),
  'NOT_ACCEPTABLE',
  // A segment with a slash or a dot segment in it is that of no path.
  ...(path.includes('/:') ? (['ROUTE_NOT_FOUND'] as const) : []),
  'INTERNAL_ERROR',
];

export function openapiDocument(routes: readonly Documented[], about: About): JsonSchema {
  const paths: Record<string, Record<string, unknown>> = {};
  const schemas = componentSchemas();
  for (const { route, doc, problems } of routes) {
    if (doc.operation === undefined) continue;
    const described = operation(doc.operation, { route, doc, problems }, schemas);
    paths[templateOf(route.path)] = {
      ...paths[templateOf(route.path)],
      [route.method.toLowerCase()]: described,
      ...(doc.hasHead && { head: headOf(described) }),
    };
  }
  return {
    openapi: '3.1.0',
    info: { ...about },
    servers: [{ url: '/', description: 'This service.' }],
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
    paths,
    components: {
      schemas,
      parameters: componentParameters(),
      headers: HEADERS,
      securitySchemes: {
        key: {
          type: 'apiKey',
          in: 'header',
          name: 'X-API-Key',
          description: 'A key of the service: the configured one, or a named one with the scope of the path.',
        },
        bearer: {
          type: 'http',
          scheme: 'bearer',
          description: 'For scrapers: the key of the service, one with the scope `metrics`, or SVC_METRICS_KEY.',
        },
      },
    },
  };
}

type Schemas = ReturnType<typeof componentSchemas>;

/** The security schemes, with the scope that they need; any one of a route's schemes is enough. */
function securityOf({ access }: Route): readonly JsonSchema[] {
  if (access === 'open') return [];
  return [{ key: [access] }, ...(access === 'metrics' ? [{ bearer: [access] }] : [])];
}

/** `/v1/coverage/:dataset` becomes `/v1/coverage/{dataset}`. */
export const templateOf = (path: string): string => path.replaceAll(/:(\w+)/g, '{$1}');

function operation(operationId: string, { route, doc, problems }: Documented, schemas: Schemas): JsonSchema {
  const parameters = [
    ...segmentParameters(doc),
    ...queryParameters(doc, schemas),
    ...headersOf({ doc, problems }).map(refToHeader),
  ];
  return {
    operationId,
    tags: [doc.tag],
    summary: doc.summary,
    description: doc.doc,
    ...(parameters.length > 0 && { parameters }),
    ...(doc.body && {
      requestBody: requestBody(doc, (body) => componentOf(body, 'input', `${pascal(operationId)}Request`, schemas)),
    }),
    responses: {
      ...Object.fromEntries(
        doc.answers.map((one) =>
          answer(one, headersOfAll(route), (json) =>
            componentOf(json, 'output', `${pascal(operationId)}Answer`, schemas),
          ),
        ),
      ),
      ...problemResponses(problems, headersOfAll(route)),
    },
    security: securityOf(route),
  };
}

/** The operation HEAD beside a GET operation: the same headers without content. */
function headOf({ operationId, responses, ...get }: JsonSchema): JsonSchema {
  const answers = Object.entries(responses as Readonly<Record<string, JsonSchema>>);
  return {
    operationId: String(operationId).replace(/^[a-z]+/, 'head'),
    ...get,
    responses: Object.fromEntries(answers.map(([status, { content: _, ...answer }]) => [status, answer])),
  };
}

function segmentParameters({ segments = {}, examples }: RouteDoc): JsonSchema[] {
  return Object.entries(segments).map(([name, { doc, schema }]) => ({
    name,
    in: 'path',
    required: true,
    description: doc,
    schema,
    ...examplesOf(examples, ({ path }) => (isVariable(path?.[name] ?? '') ? undefined : path?.[name])),
  }));
}

function queryParameters({ query, examples }: RouteDoc, schemas: Schemas): JsonSchema[] {
  if (!query) return [];
  const { properties = {}, required = [] } = partOf(query, 'input', schemas) as {
    readonly properties?: Readonly<Record<string, JsonSchema>>;
    readonly required?: readonly string[];
  };
  return Object.entries(properties).map(([name, { description, ...schema }]) => ({
    name,
    in: 'query',
    required: required.includes(name),
    ...(description !== undefined && { description }),
    schema,
    ...examplesOf(examples, ({ query: values }) => parameterValue(schema, values?.[name])),
  }));
}

/** A parameter's text, converted to the type of its schema. */
const parameterValue = ({ type }: JsonSchema, text: string | undefined) =>
  type === 'integer' && text !== undefined ? Number(text) : text;

/** The request headers that a route reads. */
export const headersOf = ({ doc, problems }: Pick<Documented, 'doc' | 'problems'>): readonly RequestHeaderName[] => [
  'X-Request-Id',
  ...(problems.includes('QUERY_RIGHTS_BYOK_REQUIRED') ? (['X-Backend-Token'] as const) : []),
  ...(doc.headers ?? []),
];

const refToHeader = (name: RequestHeaderName): JsonSchema => ({ $ref: `#/components/parameters/${name}` });

function componentParameters(): JsonSchema {
  return Object.fromEntries(
    Object.entries<RequestHeader>(REQUEST_HEADERS).map(([name, { doc, pattern }]) => [
      name,
      {
        name,
        in: 'header',
        required: false,
        description: doc,
        schema: { type: 'string', ...(pattern && { pattern: pattern.source }) },
      },
    ]),
  );
}

function requestBody({ body, examples }: RouteDoc, schemaOf: (body: z.ZodType) => JsonSchema): JsonSchema {
  return {
    required: true,
    description:
      'The service reads the body as JSON, whatever its Content-Type. It refuses unknown keys and coerces nothing.',
    content: {
      'application/json': { schema: schemaOf(body!), ...examplesOf(examples, (example) => example.body) },
    },
  };
}

/** The examples that have a value for the picked property, by their titles. */
function examplesOf(examples: readonly ExampleDoc[], pick: (example: ExampleDoc) => unknown): JsonSchema {
  const found = examples.flatMap((example) => {
    const value = pick(example);
    return value === undefined ? [] : [[slug(example.title), { summary: example.title, value }]];
  });
  return found.length === 0 ? {} : { examples: Object.fromEntries(found) };
}

const slug = (title: string) =>
  title
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, '_')
    .replaceAll(/^_|_$/g, '');

/** The headers of answers that most operations have. */
const HEADERS = {
  'X-Request-Id': { description: 'Id of this request.', schema: { type: 'string' } },
  'RateLimit-Policy': {
    description: 'Where the key has one: `"requests";q=` and the requests that it may make in `w` seconds.',
    schema: { type: 'string' },
  },
  RateLimit: {
    description: 'With it: `"requests";r=` and the requests that are left, of which there is one more in `t` seconds.',
    schema: { type: 'string' },
  },
  'Retry-After': { description: 'Seconds to wait before a retry.', schema: { type: 'integer' } },
} as const;

const headers = (...names: readonly (keyof typeof HEADERS)[]): JsonSchema =>
  Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));

/** The headers that every answer of a route may have. */
const headersOfAll = ({ access }: Route): JsonSchema =>
  headers('X-Request-Id', ...(access === 'open' ? [] : (['RateLimit-Policy', 'RateLimit'] as const)));

function answer(
  { status = 200, doc, content, headers: own = {} }: AnswerDoc,
  all: JsonSchema,
  schemaOf: (schema: z.ZodType | JsonSchema) => JsonSchema,
): [string, JsonSchema] {
  return [
    String(status),
    {
      description: doc,
      headers: { ...all, ...describedHeaders(own) },
      content: Object.fromEntries(
        Object.entries(content).map(([type, schema]) => [type, { schema: schemaOf(schema) }]),
      ),
    },
  ];
}

const describedHeaders = (headers: AnswerHeaders): JsonSchema =>
  Object.fromEntries(
    Object.entries(headers).map(([name, description]) => [name, { description, schema: { type: 'string' } }]),
  );

/** The statuses of a code. One code has two, depending on the dataset. */
export function statusesOf(code: ProblemCode): readonly number[] {
  return code === 'ALIGNED_STORAGE_CONTRACT_VIOLATION' ? [409, PROBLEMS[code].status] : [PROBLEMS[code].status];
}

function problemResponses(codes: readonly ProblemCode[], all: JsonSchema): JsonSchema {
  const byStatus = Map.groupBy(
    codes.flatMap((code) => statusesOf(code).map((status) => ({ code, status }))),
    ({ status }) => status,
  );
  return Object.fromEntries(
    [...byStatus].map(([status, group]) => [
      String(status),
      {
        description: group.map(({ code }) => `\`${code}\`: ${PROBLEMS[code].title}.`).join('\n'),
        headers: {
          ...all,
          ...(group.some(({ code }) => retries(code)) && headers('Retry-After')),
          ...describedHeaders(Object.assign({}, ...group.map(({ code }) => PROBLEM_HEADERS[code]))),
        },
        content: {
          'application/problem+json': {
            schema: refTo('Problem'),
            // Beside the schema: one type for all problems is what callers of generated clients can use.
            'x-codes': group.map(({ code }) => code),
          },
        },
      },
    ]),
  );
}

/** Headers that some problems add. */
const PROBLEM_HEADERS: Readonly<Partial<Record<ProblemCode, AnswerHeaders>>> = {
  RATE_LIMITED: { 'Retry-After': 'Seconds until the key may make another request.' },
  EXPORT_PRECONDITION_FAILED: { ETag: 'Tag of the current file.' },
  EXPORT_RANGE_NOT_SATISFIABLE: { 'Content-Range': 'Size of the file.' },
};

const retries = (code: ProblemCode) => (PROBLEMS[code] as ProblemKind).retryAfter !== undefined;
