/**
 * What the OpenAPI document of a running service allows, judged by ajv and nothing of the service's. JSON Schema cannot
 * compare two values, and few dialects of patterns know surrogates: that a window ends after it starts, and that a filter's
 * text has no half of a pair, is asked here.
 */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import type { Json } from './command.ts';
import { parseTime } from './oracle/time.ts';

/** Only the size of integers is looked at, to the digits of a double. */
const FORMATS = {
  ...Object.fromEntries(['binary', 'date-time', 'double', 'uuid'].map((name) => [name, true as const])),
  int64: { type: 'number', validate: (value: number) => value >= -(2 ** 63) && value < 2 ** 63 },
} as const;

export class ContractSchemas {
  readonly #ajv = new Ajv2020({ strict: false, formats: FORMATS, allErrors: true });
  readonly #compiled = new Map<string, ValidateFunction>();

  constructor(openapi: Json) {
    this.#ajv.addSchema(openapi, 'contract');
  }

  /** The schema at a place of the document. */
  at(...place: readonly (string | number)[]): ValidateFunction {
    const parts = place.map((part) => encodeURIComponent(String(part).replaceAll('~', '~0').replaceAll('/', '~1')));
    const $ref = `contract#/${parts.join('/')}`;
    let compiled = this.#compiled.get($ref);
    if (!compiled) {
      compiled = this.#ajv.compile({ $ref });
      this.#compiled.set($ref, compiled);
    }
    return compiled;
  }

  /** Whether a route's schema allows this body, and if not, why. */
  verdict(path: string, text: string): { readonly allows: boolean; readonly why: string } {
    let body: Json;
    try {
      body = JSON.parse(text);
    } catch {
      return { allows: false, why: 'no JSON' };
    }
    const validate = this.at('paths', path, 'post', 'requestBody', 'content', 'application/json', 'schema');
    if (!validate(body)) return { allows: false, why: JSON.stringify(validate.errors).slice(0, 2000) };
    if (!isInOrder(body)) return { allows: false, why: 'it ends before it starts' };
    return isWellFormed(body) ? { allows: true, why: 'valid' } : { allows: false, why: 'half a surrogate pair' };
  }
}

/** @param body one that is valid by its schema */
const isWellFormed = ({ filters = [] }: Json): boolean =>
  filters.every(({ value }: Json) => [value].flat().every((one) => typeof one !== 'string' || one.isWellFormed()));

/** @param body one that is valid by its schema */
function isInOrder({ time_range: range, start_date: first, end_date: last }: Json): boolean {
  if (range) return parseTime(range[0])!.ns < parseTime(range[1])!.ns;
  return first === undefined || last === undefined || first <= last;
}
