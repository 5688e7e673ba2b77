/** Requests made from an OpenAPI document: of every operation, valid by its schemas, at their limits, and broken. */
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import type { Json } from '../support/command.ts';
import { HOSTILE_TEXTS } from '../support/oracle/requests.ts';
import { below, mutated, oneOf, type Random } from './mutate.ts';

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
    const choices = schema.oneOf ?? schema.anyOf;
    if (choices && !schema.properties) return this.#value(name, oneOf(random, choices as Json[]), random, depth + 1);
    const [first] = [schema.type].flat();
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
