/**
 * Rules between the keys of a body. Each rule is defined once: `faults` finds what breaks it, and `schema` states it in the
 * contract's documents. `faults` reads the raw body, so that its findings are reported beside wrong types.
 */

import type { Mode } from '../../shared/registry/definition.ts';
import { DATASET_KEYS, DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import { has, type JsonSchema, properties, refTo, without } from './json-schema.ts';
import type { ContractFault } from './problems.ts';
import { type Columns, fieldsTo, MAX_FIELDS, MODES } from './shapes.ts';

export interface Rule {
  /** @param columns those of the body's dataset and mode, where these are known */
  faults(raw: JsonObject, columns?: Columns): readonly ContractFault[];
  /** Keywords of an object schema; absent where JSON Schema cannot express the rule. */
  readonly schema?: JsonSchema;
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The mode of a body: native where the body names no mode or an unknown one. */
export const modeOf = (raw: JsonObject): Mode => MODES.find((known) => known === raw.mode) ?? 'native';

export const faultsBetween = (rules: readonly Rule[], raw: JsonObject, columns?: Columns): ContractFault[] =>
  rules.flatMap((rule) => rule.faults(raw, columns));

/** The rules as keywords that are added to the schema of the body. */
export const schemaOfRules = (rules: readonly Rule[]): JsonSchema => ({
  allOf: rules.map(({ schema }) => schema).filter((schema) => schema !== undefined),
});

/** A body may select its window in at most one way; a way is one key or several. */
export function oneWindow(selectors: readonly (readonly string[])[]): Rule {
  const excluded = selectors.flatMap((keys) => {
    const others = selectors.filter((other) => other !== keys).flat();
    return keys.map((key) => [key, without(others)]);
  });
  return {
    faults: (raw) => selectorFaults(raw, selectors),
    schema: { dependentSchemas: Object.fromEntries(excluded) },
  };
}

function selectorFaults(raw: JsonObject, selectors: readonly (readonly string[])[]): ContractFault[] {
  const given = selectors.map((keys) => keys.filter((key) => key in raw)).filter((keys) => keys.length > 0);
  if (given.length < 2) return [];
  return given.flatMap((keys) => {
    const others = given.filter((other) => other !== keys).flat();
    const message = `cannot be given together with ${others.join(', ')}: a request has one window`;
    return keys.map((key) => ({ pointer: `/${key}`, message }));
  });
}

/** A body must have at least one of these keys. */
export const needsOneOf = (keys: readonly string[], message: string): Rule => ({
  faults: (raw) => (keys.some((key) => key in raw) ? [] : [{ pointer: '', message }]),
  schema: { anyOf: keys.map(has) },
});

/** A key that is only valid beside another. */
export const onlyWith = (key: string, other: string): Rule => ({
  faults: (raw) =>
    key in raw && !(other in raw) ? [{ pointer: `/${key}`, message: `is only valid together with ${other}` }] : [],
  schema: { dependentRequired: { [key]: [other] } },
});

/** Two keys that must be given together. */
export const together = (one: string, other: string): Rule => ({
  faults(raw) {
    if (one in raw === other in raw) return [];
    const [given, missing] = one in raw ? [one, other] : [other, one];
    return [{ pointer: `/${given}`, message: `must be given together with ${missing}` }];
  },
  schema: { dependentRequired: { [one]: [other], [other]: [one] } },
});

/** How a body names its dataset. */
export interface DatasetPointer {
  datasetOf(raw: JsonObject): DatasetDefinition | undefined;
  /** Keywords of an object schema: the body names one of these datasets. */
  isOneOf(keys: readonly string[]): JsonSchema;
}

/** Whether the dataset keeps each published version of a value by the time at which it was known. */
export const hasVintages = ({ partition }: DatasetDefinition): boolean =>
  partition.kind === 'vintage' || partition.kind === 'capture';

export function asOfOnlyWhereVintagesAre({ datasetOf, isOneOf }: DatasetPointer): Rule {
  const keys = DATASET_KEYS.filter((key) => hasVintages(DATASETS.get(key)!));
  return {
    faults(raw) {
      const dataset = datasetOf(raw);
      if (!('as_of' in raw) || !dataset || hasVintages(dataset)) return [];
      return [{ pointer: '/as_of', message: `is only for datasets that keep vintages: ${keys.join(', ')}` }];
    },
    schema: { dependentSchemas: { as_of: isOneOf(keys) } },
  };
}

export const FIELDS_ONCE: Rule = {
  faults({ fields }, columns) {
    if (!Array.isArray(fields)) return [];
    const allowed = columns ? `; ${fieldsTo(columns)}` : '';
    const names: readonly Json[] = fields.slice(0, MAX_FIELDS);
    return names.flatMap((name, index) => {
      const first = names.indexOf(name);
      return first < index ? [{ pointer: `/fields/${index}`, message: `repeats /fields/${first}${allowed}` }] : [];
    });
  },
  schema: properties({ fields: { uniqueItems: true } }),
};

/** Names of the OpenAPI components that list the values of `fields` and `filters` for these columns. */
export const fieldNamesOf = ({ name }: Columns): string => `${name}Field`;
/** The name of the component of their rows. */
export const rowOf = ({ name }: Columns): string => `${name}Row`;
export const clausesOf = ({ name }: Columns): string => `${name}Filter`;

/** The schema counterpart of `selection` and `filtersOf` for these columns. */
export const ofColumns = (columns: Columns): Readonly<Record<string, JsonSchema>> => ({
  fields: { items: refTo(fieldNamesOf(columns)) },
  filters: { items: refTo(clausesOf(columns)) },
});
