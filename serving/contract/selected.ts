/** What a checked body selects: its filters, its fields, and the windows that count rows. */
import { randomInt } from 'node:crypto';
import type { Field } from '../../shared/registry/index.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import type { Window } from '../read/types.ts';
import { type Filter, MAX_FILTERS, OPERATORS, parseFilter } from './filters.ts';
import { type ContractFault, MAX_FAULTS } from './problems.ts';
import { isObject } from './rules.ts';
import type { Columns } from './shapes.ts';

/** The filters of the clauses that are well-formed; what is wrong with their values is added to the faults. */
export function filtersOf(raw: JsonObject, columns: Columns | undefined, faults: ContractFault[]): Filter[] {
  if (!Array.isArray(raw.filters) || !columns) return [];
  const filters: Filter[] = [];
  raw.filters.slice(0, MAX_FILTERS).forEach((clause: Json, index) => {
    if (!isObject(clause) || clause.value === undefined || faults.length > MAX_FAULTS) return;
    const field = columns.all.find((known) => known.name === clause.field);
    const op = OPERATORS.find((known) => known === clause.op);
    if (!field || !op) return;
    const parsed = parseFilter(field, op, clause.value, `/filters/${index}`);
    if ('field' in parsed) filters.push(parsed);
    else faults.push(...parsed);
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
