/** Rules between the keys of a body. They look at the raw body, so that they are reported beside wrong types. */
import { randomInt } from 'node:crypto';
import { DATASETS, type DatasetDefinition, type Field } from '../../shared/registry/index.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import type { Window } from '../read/types.ts';
import { type Filter, MAX_FILTERS, OPERATORS, parseFilter } from './filters.ts';
import type { ContractFault } from './problems.ts';
import { type Columns, MAX_FIELDS } from './shapes.ts';

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** At most one way to say the window; each is one key or several. */
export function selectorFaults(raw: JsonObject, selectors: readonly (readonly string[])[]): ContractFault[] {
  const given = selectors.map((keys) => keys.filter((key) => key in raw)).filter((keys) => keys.length > 0);
  if (given.length < 2) return [];
  return given.flatMap((keys) => {
    const others = given.filter((other) => other !== keys).flat();
    const message = `cannot be given together with ${others.join(', ')}: a request has one window`;
    return keys.map((key) => ({ pointer: `/${key}`, message }));
  });
}

export function seedFaults(raw: JsonObject, selector: string): ContractFault[] {
  return 'random_seed' in raw && !(selector in raw)
    ? [{ pointer: '/random_seed', message: `is only for ${selector}` }]
    : [];
}

/** Whether what was published of it is kept by when it was published. */
export const hasVintages = ({ partition }: DatasetDefinition): boolean => partition.kind === 'vintage';

export function asOfFaults(raw: JsonObject, dataset: DatasetDefinition | undefined): ContractFault[] {
  if (!('as_of' in raw) || !dataset || hasVintages(dataset)) return [];
  const keys = [...DATASETS.values()].filter(hasVintages).map(({ key }) => key);
  return [{ pointer: '/as_of', message: `is only for datasets whose vintages are kept: ${keys.join(', ')}` }];
}

export function repeatFaults({ fields }: JsonObject): ContractFault[] {
  if (!Array.isArray(fields)) return [];
  const names: readonly Json[] = fields.slice(0, MAX_FIELDS);
  return names.flatMap((name, index) => {
    const first = names.indexOf(name);
    return first < index ? [{ pointer: `/fields/${index}`, message: `repeats /fields/${first}` }] : [];
  });
}

/** The filters of the clauses that are well-formed; what is wrong with their values is added to the faults. */
export function filtersOf(raw: JsonObject, columns: Columns | undefined, faults: ContractFault[]): Filter[] {
  if (!Array.isArray(raw.filters) || !columns) return [];
  const filters: Filter[] = [];
  raw.filters.slice(0, MAX_FILTERS).forEach((clause: Json, index) => {
    if (!isObject(clause)) return;
    const field = columns.all.find((known) => known.name === clause.field);
    const op = OPERATORS.find((known) => known === clause.op);
    if (!('value' in clause)) faults.push({ pointer: `/filters/${index}/value`, message: 'is missing' });
    else if (field && op) {
      const parsed = parseFilter(field, op, clause.value, `/filters/${index}`);
      if ('field' in parsed) filters.push(parsed);
      else faults.push(...parsed);
    }
  });
  return filters;
}

/** The columns asked for, in the order they were named. */
export function fieldsOf(names: readonly string[] | undefined, columns: Columns): readonly Field[] {
  return names?.map((name) => columns.all.find((field) => field.name === name)!) ?? columns.default;
}

/** The window of a selector that counts rows; `selector` is the key it was given by. */
export const latestWindow = (rows: number, selector: string): Window => ({ kind: 'latest', rows, selector });

/** Without a seed one is drawn: the answer says which. */
export const randomWindow = (rows: number, seed: number | undefined, selector: string): Window => ({
  kind: 'random',
  rows,
  seed: seed ?? randomInt(2 ** 47),
  selector,
});
