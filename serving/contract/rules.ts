/**
 * Rules between the keys of a body. Each is said once: `faults` finds what breaks it, `schema` says it to whoever reads
 * the contract's documents. Faults are looked for in the raw body, so that they are reported beside wrong types.
 */
import { DATASET_KEYS, DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import type { Mode } from '../../shared/registry/types.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import { type JsonSchema, properties, refTo } from './json-schema.ts';
import type { ContractFault } from './problems.ts';
import { type Columns, MAX_FIELDS, MODES } from './shapes.ts';

export interface Rule {
  faults(raw: JsonObject): readonly ContractFault[];
  /** Keywords of an object schema; absent where JSON Schema cannot say it. */
  readonly schema?: JsonSchema;
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Native where the body says nothing, or nothing that is a mode. */
export const modeOf = (raw: JsonObject): Mode => MODES.find((known) => known === raw.mode) ?? 'native';

export const faultsBetween = (rules: readonly Rule[], raw: JsonObject): ContractFault[] =>
  rules.flatMap((rule) => rule.faults(raw));

/** The rules as keywords beside those of the body's own schema. */
export const schemaOfRules = (rules: readonly Rule[]): JsonSchema => ({
  allOf: rules.map(({ schema }) => schema).filter((schema) => schema !== undefined),
});

/** At most one way to say the window; each is one key or several. */
export function oneWindow(selectors: readonly (readonly string[])[]): Rule {
  const excluded = selectors.flatMap((keys) => {
    const others = selectors.filter((other) => other !== keys).flat();
    return keys.map((key) => [key, properties(Object.fromEntries(others.map((other) => [other, false])))]);
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

/** One of these keys at least. */
export const needsOneOf = (keys: readonly string[], message: string): Rule => ({
  faults: (raw) => (keys.some((key) => key in raw) ? [] : [{ pointer: '', message }]),
  schema: { anyOf: keys.map((key) => ({ ...properties({ [key]: true }), required: [key] })) },
});

/** A key that says more of another. */
export const onlyWith = (key: string, other: string): Rule => ({
  faults: (raw) => (key in raw && !(other in raw) ? [{ pointer: `/${key}`, message: `is only for ${other}` }] : []),
  schema: { dependentRequired: { [key]: [other] } },
});

/** Two keys that mean nothing without each other. */
export const together = (one: string, other: string): Rule => ({
  faults(raw) {
    if (one in raw === other in raw) return [];
    const [given, missing] = one in raw ? [one, other] : [other, one];
    return [{ pointer: `/${given}`, message: `must be given together with ${missing}` }];
  },
  schema: { dependentRequired: { [one]: [other], [other]: [one] } },
});

/** Where a body names its dataset. */
export interface DatasetPointer {
  datasetOf(raw: JsonObject): DatasetDefinition | undefined;
  /** Keywords of an object schema: the body names one of these. */
  isOneOf(keys: readonly string[]): JsonSchema;
}

/** Whether what was published of it is kept by when it was published. */
export const hasVintages = ({ partition }: DatasetDefinition): boolean => partition.kind === 'vintage';

export function asOfOnlyWhereVintagesAre({ datasetOf, isOneOf }: DatasetPointer): Rule {
  const keys = DATASET_KEYS.filter((key) => hasVintages(DATASETS.get(key)!));
  return {
    faults(raw) {
      const dataset = datasetOf(raw);
      if (!('as_of' in raw) || !dataset || hasVintages(dataset)) return [];
      return [{ pointer: '/as_of', message: `is only for datasets whose vintages are kept: ${keys.join(', ')}` }];
    },
    schema: { dependentSchemas: { as_of: isOneOf(keys) } },
  };
}

export const FIELDS_ONCE: Rule = {
  faults({ fields }) {
    if (!Array.isArray(fields)) return [];
    const names: readonly Json[] = fields.slice(0, MAX_FIELDS);
    return names.flatMap((name, index) => {
      const first = names.indexOf(name);
      return first < index ? [{ pointer: `/fields/${index}`, message: `repeats /fields/${first}` }] : [];
    });
  },
  schema: properties({ fields: { uniqueItems: true } }),
};

/** Names of the components that say what `fields` and `filters` take of these columns. */
export const fieldNamesOf = ({ name }: Columns): string => `${name}.field`;
export const clausesOf = ({ name }: Columns): string => `${name}.filter`;

/** What a body may say of these columns: the schema's side of `selection` and `filtersOf`. */
export const ofColumns = (columns: Columns): Readonly<Record<string, JsonSchema>> => ({
  fields: { items: refTo(fieldNamesOf(columns)) },
  filters: { items: refTo(clausesOf(columns)) },
});
