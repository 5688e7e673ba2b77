/** JSON Schema 2020-12, the dialect of OpenAPI 3.1: the parts of the contract that are written by hand. */
export type JsonSchema = { readonly [key: string]: unknown };

/** A reference to a schema among the components of the OpenAPI document. */
export const refTo = (name: string): JsonSchema => ({ $ref: `#/components/schemas/${name}` });

/**
 * A schema fragment about some properties of an object; none of them is required. It states `additionalProperties: true`,
 * which is the standard's default, because some validators treat an object as closed unless the schema says otherwise.
 */
export const properties = (schemas: Readonly<Record<string, unknown>>): JsonSchema => ({
  properties: schemas,
  additionalProperties: true,
});

/**
 * Rules between the members of an object, beside what its members are. They stand under a condition that every object meets,
 * where validators apply them and generators of clients do not look: of a rule they would make types without meaning.
 */
export const ruledBy = (rules: JsonSchema): JsonSchema => conditional({ type: 'object' }, rules);

/** The object has this key. It is named as a property, too, since linters look for what is required among those. */
export const has = (key: string): JsonSchema => ({ ...properties({ [key]: {} }), required: [key] });

/** The object has none of these keys. */
export const without = (keys: readonly string[]): JsonSchema => ({ not: anyOf(keys.map(has)) });

/** One of these, which of one is itself. */
export const anyOf = (schemas: readonly JsonSchema[]): JsonSchema =>
  schemas.length === 1 ? schemas[0] : { anyOf: schemas };

/** `exchange_a_spot_trades` becomes `ExchangeASpotTrades`. */
export const pascal = (name: string): string =>
  name.replaceAll(/(?:^|[^a-z0-9]+)([a-z0-9])/gi, (_, first: string) => first.toUpperCase());

/** Applies `schema` where the body has this value under the key, and `otherwise` elsewhere. */
export const whereIs = (key: string, value: unknown, schema: JsonSchema, otherwise?: JsonSchema): JsonSchema =>
  conditional({ ...properties({ [key]: { const: value } }), required: [key] }, schema, otherwise);

export const conditional = (condition: JsonSchema, schema: JsonSchema, otherwise?: JsonSchema): JsonSchema =>
  Object.fromEntries([['if', condition], ['then', schema], ...(otherwise ? [['else', otherwise]] : [])]);
