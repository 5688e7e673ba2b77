/** Sends made requests to a service, and holds every answer against its OpenAPI document. */
import { Agent, request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { gunzipSync, zstdDecompressSync } from 'node:zlib';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import type { Json } from '../support/command.ts';
import { ContractSchemas } from '../support/contract-schema.ts';
import { HOSTILE_TEXTS } from '../support/oracle/requests.ts';
import { below, mutated, oneOf, type Random } from './mutate.ts';

export interface ServiceUnderTest {
  readonly url: string;
  readonly key: string;
  /** Texts that no answer may show: names of servers and of storage, passwords, paths. */
  readonly secrets: readonly string[];
}

export interface RequestsReport {
  readonly requests: number;
  /** By operation and status. */
  readonly outcomes: Readonly<Record<string, Readonly<Record<string, number>>>>;
  readonly findings: readonly string[];
  readonly seconds: number;
  readonly slowestMs: number;
}

interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  readonly isWhole: boolean;
}

const PARALLEL = 8;
const MAX_FINDINGS = 30;
/** An answer that takes longer is one that does not come. */
const LIMIT_MS = 60_000;
/** An event stream never ends: so long is listened to it. */
const STREAM_MS = 100;
const MAX_BODY_BYTES = 8 * 1024 * 1024;

/** What may stand in no answer: stacks, paths of files, SQL, tables, addresses of servers. */
const INTERNALS =
  /\bat \S+ \(|\bat .*\.ts:\d|node_modules|file:\/\/\/|\/(?:tmp|work|home|root|usr)\/|pg_catalog|postgres(?:ql)?:\/\/|nats:\/\/|SQLSTATE|\bselect\b.+\bfrom\b|canonical_aligned|\[object Object\]|ECONNREFUSED|syntax error at/i;

/** Faults of a request that its schema cannot state. */
const NOT_OF_THE_SCHEMA: readonly ((fault: { pointer: string; message: string }, body: string) => boolean)[] = [
  // What a frame's column takes as filters and aggregates depends on its field (docs/discovery.md).
  ({ pointer }) => /^\/columns\/\d+\/(?:filter|aggregate)\b/.test(pointer),
  // Which instruments there are is the service's own; in the worlds of this test, the defaults.
  ({ pointer, message }, body) =>
    /\/instrument$/.test(pointer) &&
    /must be an instrument of/.test(message) &&
    !/"instrument":"(?:BTCUSDT|BTC-USDT)"/.test(body),
  // To ajv, which sees doubles, 1E400 is a number.
  ({ message }) => /must be a finite number/.test(message),
  // Whether an answer is CSV stands in the header Accept.
  ({ pointer }, body) => pointer === '/csv_formulas' && /"escape"/.test(body),
  // Of a header beside the body.
  ({ pointer }) => /^header/i.test(pointer) || pointer === 'Idempotency-Key',
];

export async function fuzzRequests(
  service: ServiceUnderTest,
  options: {
    readonly seed: number;
    readonly count: number;
    readonly only?: number;
    readonly note?: (line: string) => void;
  },
): Promise<RequestsReport> {
  return await new Sender(service, options).run();
}

class Sender {
  readonly #service: ServiceUnderTest;
  readonly #options: Parameters<typeof fuzzRequests>[1];
  readonly #agent = new Agent({ keepAlive: true, maxSockets: PARALLEL });
  readonly #outcomes = new Map<string, Map<string, number>>();
  readonly #findings = new Map<string, string>();
  readonly #exports: string[] = [];
  #openapi: Json;
  #schemas!: ContractSchemas;
  #slowestMs = 0;

  constructor(service: ServiceUnderTest, options: Parameters<typeof fuzzRequests>[1]) {
    this.#service = service;
    this.#options = options;
  }

  async run(): Promise<RequestsReport> {
    const { seed, count, only } = this.#options;
    this.#openapi = JSON.parse(
      (await this.#send({ method: 'GET', path: '/openapi.json', headers: {}, key: 'none' })).text,
    );
    this.#schemas = new ContractSchemas(this.#openapi);
    const listed = JSON.parse(
      (await this.#send({ method: 'GET', path: '/v1/datasets', headers: {}, key: 'right' })).text,
    );
    const datasets: string[] = listed.datasets.map(({ dataset, key }: Json) => dataset ?? key);
    const maker = new RequestMaker(this.#openapi, { datasets, exports: this.#exports }, seed);
    const startedAt = performance.now();
    let next = only ?? 0;
    const last = only === undefined ? count : only + 1;
    let done = 0;
    const work = async () => {
      while (next < last && this.#findings.size < MAX_FINDINGS) {
        await this.#hold(maker.make(next++));
        if (++done % 10_000 === 0) this.#options.note?.(`${done} requests`);
      }
    };
    await Promise.all(Array.from({ length: only === undefined ? PARALLEL : 1 }, work));
    this.#agent.destroy();
    return {
      requests: done,
      outcomes: Object.fromEntries([...this.#outcomes].map(([name, statuses]) => [name, Object.fromEntries(statuses)])),
      findings: [...this.#findings.values()],
      seconds: (performance.now() - startedAt) / 1000,
      slowestMs: this.#slowestMs,
    };
  }

  async #hold(request: MadeRequest): Promise<void> {
    const startedAt = performance.now();
    let answer: Answer | undefined;
    let faults: string[];
    try {
      answer = await this.#send(request);
      faults = this.#faults(request, answer);
    } catch (error) {
      const { message, stack } = error instanceof Error ? error : new Error(String(error));
      faults = [`no answer: ${message}${answer ? stack : ''}`];
    }
    this.#slowestMs = Math.max(this.#slowestMs, performance.now() - startedAt);
    const name = `${request.method} ${request.template}`;
    const statuses = this.#outcomes.get(name) ?? new Map<string, number>();
    const status = String(answer?.status ?? 'none');
    this.#outcomes.set(name, statuses.set(status, (statuses.get(status) ?? 0) + 1));
    for (const fault of faults) this.#find(request, answer, fault);
  }

  #find(request: MadeRequest, answer: Answer | undefined, fault: string): void {
    const kind = `${request.method} ${request.template} ${answer?.status} ${fault.replaceAll(/\d+|"[^"]*"/g, '#').slice(0, 80)}`;
    if (this.#findings.has(kind)) return;
    const { seed } = this.#options;
    const { number, method, path, headers, body } = request;
    const line = [
      `FOUND  seed ${seed}, request ${number}: ${fault}`,
      `  npm run fuzz -- requests --seed ${seed} --only ${number}`,
      `  ${method} ${path.slice(0, 500)} ${JSON.stringify(headers)} ${body?.subarray(0, 1500)}`,
      `  ${answer?.status} ${JSON.stringify(answer?.headers)} ${answer?.text.slice(0, 800)}`,
    ].join('\n');
    this.#findings.set(kind, line);
    this.#options.note?.(line);
  }

  /** What is wrong with an answer. */
  #faults(request: MadeRequest, answer: Answer): string[] {
    const { status, headers, text, isWhole } = answer;
    const { method, template } = request;
    const faults: string[] = [];
    if (status === 500) faults.push('500');
    // An empty segment makes another path of it.
    if (
      status === 404 &&
      text.includes('"ROUTE_NOT_FOUND"') &&
      /[\\/](?:[\\/]|\?|$)|\/\.\.?(?:\/|\?|$)/.test(request.path)
    )
      return faults;
    const declared = this.#openapi.paths[template][method.toLowerCase()].responses[status];
    if (!declared) return [...faults, `the status ${status} is not declared`];
    const [type] = (headers['content-type'] ?? '').split(';');
    const content = this.#resolved(declared).content ?? {};
    const hasBody = text !== '' && method !== 'HEAD' && status !== 304;
    if (hasBody && !content[type]) faults.push(`the content type ${type} is not declared for ${status}`);
    const isJson = status !== 206 && /^application\/(problem\+)?json$/.test(type);
    if (hasBody && isJson && isWhole) {
      const json = JSON.parse(text);
      const validate = this.#schemas.at(
        'paths',
        template,
        method.toLowerCase(),
        'responses',
        status,
        ...(declared.$ref ? [] : ['content', type, 'schema']),
      );
      if (!declared.$ref && !validate(json))
        faults.push(`the body is not of its schema: ${JSON.stringify(validate.errors).slice(0, 300)}`);
      if (json.export_id && status < 300 && this.#exports.length < 200) this.#exports.push(json.export_id);
      if (status >= 400) {
        faults.push(...this.#problemFaults(answer, json));
        if (!content[type]?.['x-codes']?.includes(json.code)) faults.push(`${json.code} is not declared for ${status}`);
      }
      faults.push(...this.#disagreement(request, status, json));
    } else if (hasBody && status >= 400) faults.push(`a problem of the type ${type}`);
    if (headers['x-request-id'] === undefined) faults.push('no X-Request-Id');
    const shown = `${JSON.stringify(headers)}${status >= 400 ? withoutEcho(text) : ''}`;
    const leak =
      INTERNALS.exec(shown)?.[0] ??
      this.#service.secrets.find((secret) => shown.includes(secret) || text.includes(secret));
    if (leak !== undefined) faults.push(`shows internals: ${JSON.stringify(leak)}`);
    return faults;
  }

  #problemFaults({ status, headers, text }: Answer, json: Json): string[] {
    const faults: string[] = [];
    if (json.type !== `urn:tidemark:problem:${json.code}` || json.status !== status || !json.title || !json.detail)
      faults.push('a problem without its members');
    if (json.request_id !== headers['x-request-id']) faults.push('the problem has another request id than the header');
    if ((headers['retry-after'] !== undefined) !== (status === 503 || status === 429))
      faults.push(`Retry-After is ${headers['retry-after']} beside ${status}`);
    // The stores are there: what fails without a known reason is a fault of the service.
    if (/_(?:UNKNOWN|RUNTIME)_ERROR$/.test(json.code)) faults.push(json.code);
    if (/_CONTRACT_ERROR$/.test(json.code)) {
      const isNamed =
        json.errors?.length > 0 &&
        json.errors.every(({ pointer, message }: Json) => typeof pointer === 'string' && message);
      if (!isNamed) faults.push('a fault of the contract names no place');
    }
    if (text.length > 200_000) faults.push(`a problem of ${text.length} bytes`);
    return faults;
  }

  /** Whether schema and service judge a body otherwise. */
  #disagreement({ template, method, body, key, path }: MadeRequest, status: number, json: Json): string[] {
    if (method !== 'POST' || !body || key !== 'right' || [406, 413, 415, 429].includes(status) || path.includes('?'))
      return [];
    // The service takes a byte order mark, and JSON.parse does not.
    const text = body.toString().replace(/^\ufeff/, '');
    if (!text.isWellFormed() || text.includes('\ufffd')) return [];
    const { allows, why } = this.#schemas.verdict(template, text);
    const isFault = status === 409 && /_CONTRACT_ERROR$/.test(json.code);
    if (allows !== isFault) return [];
    // JSON.parse takes what the strict parser refuses: a member twice, or more than its limits. No schema says that the names of
    // columns differ.
    const unsaid = /second time|deeper than|more than|exceeds|at offset|repeats \/columns/;
    if (isFault && json.errors?.some(({ message }: Json) => unsaid.test(message))) return [];
    // To ajv, which sees doubles, some integers below -2^63 are -2^63.
    if (
      isFault &&
      [...text.matchAll(/-\d{19}/g)].some(([one]) => Number(one) === -(2 ** 63) && BigInt(one) < MIN_INT64)
    )
      return [];
    if (isFault && json.errors?.every((fault: Json) => NOT_OF_THE_SCHEMA.some((isOne) => isOne(fault, text))))
      return [];
    return [
      `the schema ${allows ? 'allows' : 'forbids'} what the service ${isFault ? 'refuses' : 'takes'}: ${why.slice(0, 300)}`,
    ];
  }

  #resolved(one: Json): Json {
    if (!one.$ref) return one;
    return one.$ref
      .slice(2)
      .split('/')
      .reduce((at: Json, name: string) => at[name], this.#openapi);
  }

  #send({
    method,
    path,
    headers,
    body,
    key,
  }: Pick<MadeRequest, 'method' | 'path' | 'headers' | 'body' | 'key'>): Promise<Answer> {
    const { url, key: right } = this.#service;
    const target = new URL(url);
    return new Promise((resolve, reject) => {
      const outgoing = httpRequest({
        agent: this.#agent,
        host: target.hostname,
        port: target.port,
        method,
        path: path.replaceAll(/[^\x21-\x7e]/g, ''),
        timeout: LIMIT_MS,
        headers: {
          ...(key !== 'none' && { 'X-API-Key': key === 'right' ? right : 'wrong' }),
          ...(body && { 'Content-Length': String(body.length) }),
          ...headers,
        },
      });
      outgoing.on('timeout', () => outgoing.destroy(new Error(`no answer within ${LIMIT_MS} ms`)));
      outgoing.on('error', reject);
      outgoing.on('response', (response) => {
        const chunks: Buffer[] = [];
        let bytes = 0;
        const done = (isWhole: boolean) =>
          resolve({
            status: response.statusCode!,
            headers: response.headers,
            text: isWhole ? uncoded(Buffer.concat(chunks), response.headers['content-encoding']) : '',
            isWhole,
          });
        const isStream = response.headers['content-type']?.startsWith('text/event-stream');
        const stop = () => {
          done(false);
          response.destroy();
        };
        if (isStream) setTimeout(stop, STREAM_MS);
        response.on('data', (chunk: Buffer) => {
          bytes += chunk.length;
          if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
        });
        response.on('end', () => done(bytes <= MAX_BODY_BYTES));
        response.on('error', (error) => (isStream ? undefined : reject(error)));
      });
      outgoing.end(body);
    });
  }
}

/** A problem repeats some of what was asked, which says nothing of the service: texts that look like SQL, or like paths. */
const withoutEcho = (text: string): string => HOSTILE.reduce((rest, one) => rest.replaceAll(one, ''), text);

const MIN_INT64 = -(2n ** 63n);
const HOSTILE = HOSTILE_TEXTS.filter((text) => text.length > 6).map((text) => JSON.stringify(text).slice(1, -1));

/** The body as it was before its coding. */
function uncoded(bytes: Buffer, coding: string | undefined): string {
  if (coding === 'gzip') return gunzipSync(bytes).toString();
  return (coding === 'zstd' ? zstdDecompressSync(bytes) : bytes).toString();
}

// Requests made from an OpenAPI document: of every operation, valid by its schemas, at their limits, and broken.

export interface MadeRequest {
  readonly number: number;
  readonly method: string;
  /** As the document has it. */
  readonly template: string;
  /** Path and query. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: Buffer;
  readonly key: 'right' | 'wrong' | 'none';
}

/** Values that are worth trying wherever a parameter or a member is one of them by name. */
export interface Known {
  readonly datasets: readonly string[];
  readonly exports: readonly string[];
}

const TIMES = [
  ...['2024-03-01T00:00:00Z', '2024-03-02T12:00:00.5+01:00', '2024-03-05T00:00:00Z', '2024-02-30T00:00:00Z'],
  ...['0001-01-01T00:00:00Z', '9999-12-31T23:59:59.999Z', '2024-03-01', '2024-03-01T24:00:00Z'],
];
const LIMITS = [0, 1, -1, 2, 100, 2 ** 31, 2 ** 53 - 1, 2 ** 53, -(2 ** 53), 1e300, 0.5];
const ACCEPTS = [
  ...['application/json', '*/*', 'text/csv', 'application/x-ndjson', 'application/vnd.apache.arrow.stream'],
  ...['text/html', 'image/png', 'application/json;q=0', 'text/csv;q=x', ';;;,', 'text/event-stream'],
];
const HEADER_TEXTS = [
  '',
  '*',
  '"x"',
  'W/"x"',
  'bytes=0-9',
  'bytes=9-1',
  'bytes=-5',
  'bytes=0-0,5-9',
  'x'.repeat(300),
  '0',
  '-1',
  '7',
];
const MORE_HEADERS = ['zstd', 'gzip;q=0', 'identity', 'Wed, 21 Oct 2015 07:28:00 GMT', 'Wed, 99 Foo', 'b c', '\u00e9'];

export class RequestMaker {
  readonly #openapi: Json;
  readonly #operations: readonly { readonly template: string; readonly method: string; readonly operation: Json }[];
  readonly #known: Known;
  readonly #seed: number;

  constructor(openapi: Json, known: Known, seed: number) {
    this.#openapi = openapi;
    this.#known = known;
    this.#seed = seed;
    this.#operations = Object.entries<Json>(openapi.paths).flatMap(([template, methods]) =>
      Object.entries<Json>(methods).map(([method, operation]) => ({
        template,
        method: method.toUpperCase(),
        operation,
      })),
    );
  }

  /** The request of this number, which depends on the seed and the number alone. */
  make(number: number): MadeRequest {
    const random = seededRandom((Math.imul(this.#seed, 0x9e3779b1) ^ Math.imul(number, 0x85ebca6b)) >>> 0);
    // Bodies have the most to go wrong.
    const withBody = this.#operations.filter(({ operation }) => operation.requestBody);
    const { template, method, operation } = oneOf(random, random() < 0.6 ? withBody : this.#operations);
    const parameters: Json[] = (operation.parameters ?? []).map((one: Json) => this.#resolved(one));
    const headers: Record<string, string> = {};
    const query = new URLSearchParams();
    let path = template;
    for (const { name, in: place, schema, required } of parameters) {
      if (place === 'path') path = path.replace(`{${name}}`, encode(this.#text(name, schema, random), random));
      else if (random() > 0.25 && !required) continue;
      else if (place === 'query') query.append(name, this.#text(name, schema, random));
      else
        headers[name] = headerText(
          random() < 0.3 ? this.#text(name, schema, random) : oneOf(random, [...HEADER_TEXTS, ...MORE_HEADERS]),
        );
    }
    if (random() < 0.04)
      query.append(oneOf(random, ['stray', ...HOSTILE_TEXTS.filter((text) => text.isWellFormed())]), '1');
    if (random() < 0.1) headers.Accept = oneOf(random, ACCEPTS);
    const body = operation.requestBody
      ? this.#body(operation, random)
      : random() < 0.02
        ? Buffer.from('{}')
        : undefined;
    if (body && random() < 0.1)
      headers['Content-Type'] = oneOf(random, [
        'application/json',
        'text/plain',
        'x',
        'application/json; charset=latin1',
      ]);
    const search = query.size > 0 ? `?${query}` : '';
    const key = random() < 0.95 ? 'right' : oneOf(random, ['wrong', 'none'] as const);
    return { number, method, template, path: path + search, headers, body, key };
  }

  #resolved(one: Json): Json {
    if (!one?.$ref) return one ?? {};
    return this.#resolved(
      one.$ref
        .slice(2)
        .split('/')
        .reduce((at: Json, name: string) => at[name.replaceAll('~1', '/').replaceAll('~0', '~')], this.#openapi),
    );
  }

  /** Text of a parameter: mostly what its schema takes. */
  #text(name: string, schema: Json, random: Random): string {
    if (random() < 0.12)
      return oneOf(random, [...HOSTILE_TEXTS.filter((text) => text.isWellFormed()), 'x'.repeat(2000)]);
    if (name === 'dataset' && random() < 0.9) return oneOf(random, this.#known.datasets);
    if (name === 'export_id' && this.#known.exports.length > 0 && random() < 0.7)
      return oneOf(random, this.#known.exports);
    if (name === 'offset' && random() < 0.7) return String(1000 + below(random, 150));
    const value = this.#value(name, schema, random, 0);
    return typeof value === 'string' ? value : JSON.stringify(value ?? '');
  }

  #body({ requestBody }: Json, random: Random): Buffer {
    const content = requestBody.content['application/json'];
    const examples: Json[] = [
      ...Object.values<Json>(content.examples ?? {}).map((one) => this.#resolved(one).value),
      ...(content.example === undefined ? [] : [content.example]),
    ];
    const value =
      examples.length > 0 && random() < 0.4
        ? structuredClone(oneOf(random, examples))
        : this.#value('', content.schema, random, 0);
    const whole = Buffer.from(JSON.stringify(value ?? null));
    if (random() < 0.45) return whole;
    return mutated(whole, random, {
      form: 'json',
      others: [whole],
      words: ['"n_rows":1', '"mode":"aligned_1s"', 'null'],
    });
  }

  /** A value that the schema mostly allows. */
  #value(name: string, given: Json, random: Random, depth: number): Json {
    const schema = this.#resolved(given);
    if (depth > 8) return null;
    if (schema.const !== undefined) return schema.const;
    // Most rules are of trades.
    if (name === 'dataset' && random() < 0.5) return 'exchange_a_spot_trades';
    if (Array.isArray(schema.enum)) return oneOf(random, schema.enum as Json[]);
    const [first] = [schema.type].flat();
    // What generators of clients cannot read stands under a condition that always holds.
    const choices = schema.oneOf ?? schema.anyOf ?? (first === undefined ? schema.then?.anyOf : undefined);
    if (choices && !schema.properties) return this.#value(name, oneOf(random, choices as Json[]), random, depth + 1);
    switch (first ?? (schema.properties ? 'object' : undefined)) {
      case 'object':
        return this.#object(schema, random, depth);
      case 'array': {
        const count = Math.max(schema.minItems ?? 0, Math.min(schema.maxItems ?? 3, 1 + below(random, 2)));
        return Array.from({ length: count }, (_, index) =>
          this.#value(name, schema.prefixItems?.[index] ?? schema.items, random, depth + 1),
        );
      }
      case 'integer':
      case 'number':
        return oneOf(
          random,
          random() < 0.7 ? [schema.minimum ?? 1, 5, 60] : [...LIMITS, schema.maximum ?? 7, (schema.maximum ?? 7) + 1],
        );
      case 'boolean':
        return random() < 0.5;
      case 'null':
        return null;
      default:
        // The value of a clause, which may be anything.
        if (first === undefined && random() < 0.8) return oneOf(random, [2 ** 53, 2 ** 60, 1e20, ...LIMITS]);
        return this.#string(name, schema, random);
    }
  }

  #string(name: string, schema: Json, random: Random): string {
    const examples = [schema.examples, schema.example].flat().filter((one) => typeof one === 'string');
    const fitting = [
      ...examples,
      ...TIMES,
      ...this.#known.datasets,
      'price',
      'datetime',
      '1h',
      '000',
      '7',
      'main.js',
      'mode=native',
      'date=2024-03-01',
    ];
    const matching = schema.pattern ? fitting.filter((one) => new RegExp(schema.pattern, 'u').test(one)) : fitting;
    if (name === 'field' && random() < 0.7) return oneOf(random, ['price', 'quantity', 'trade_id', 'timestamp']);
    if (name === 'cursor' && random() < 0.5) return Buffer.from(`{"x":${below(random, 9)}}`).toString('base64url');
    return oneOf(random, matching.length > 0 && random() < 0.9 ? matching : [...HOSTILE_TEXTS]);
  }

  #object(
    { properties = {}, required = [], anyOf, oneOf: exclusive, allOf }: Json,
    random: Random,
    depth: number,
  ): Json {
    const made: Record<string, Json> = {};
    const members = Object.entries<Json>(properties);
    for (const [name, schema] of members) {
      if (required.includes(name) || random() < 2 / (members.length + 1))
        made[name] = this.#value(name, schema, random, depth + 1);
    }
    for (const part of [
      allOf ?? [],
      anyOf ? [oneOf(random, anyOf)] : [],
      exclusive ? [oneOf(random, exclusive)] : [],
    ].flat()) {
      const more = this.#resolved(part);
      if (!more.properties) continue;
      for (const name of more.required ?? [])
        made[name] ??= this.#value(name, more.properties[name] ?? {}, random, depth + 1);
    }
    return made;
  }
}

/** A segment: escaped, as clients do; now and then as it is. */
const encode = (text: string, random: Random): string =>
  random() < 0.95 || !/^[\x21-\x7e]*$/.test(text)
    ? encodeURIComponent(text.toWellFormed())
    : text.replaceAll(/[?#]/g, '');

/** What an HTTP client lets through. */
const headerText = (text: string): string =>
  Buffer.from(text.toWellFormed())
    .toString('latin1')
    .replaceAll(/[^\t\x20-\x7e\x80-\xff]/g, '');
