/**
 * What the OpenAPI document of a running service allows, judged by ajv and nothing of the service's. JSON Schema cannot
 * compare two values: that a window ends after it starts is asked here.
 */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import type { Json } from './command.ts';
import { parseTime } from './oracle/time.ts';

export class ContractSchemas {
  readonly #ajv = new Ajv2020({ strict: false, validateFormats: false, allErrors: true });
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
    return isInOrder(body) ? { allows: true, why: 'valid' } : { allows: false, why: 'it ends before it starts' };
  }
}

/** @param body one that is valid by its schema */
function isInOrder({ time_range: range, start_date: first, end_date: last }: Json): boolean {
  if (range) return parseTime(range[0])!.ns < parseTime(range[1])!.ns;
  return first === undefined || last === undefined || first <= last;
}
