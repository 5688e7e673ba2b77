/** JSON Schema 2020-12, the dialect of OpenAPI 3.1, as far as the contract is written in it by hand. */
export type JsonSchema = { readonly [key: string]: unknown };

/** A schema that the OpenAPI document keeps among its components. */
export const refTo = (name: string): JsonSchema => ({ $ref: `#/components/schemas/${name}` });

/**
 * A fragment about some properties of an object, none of them required. It says that there may be others, as the
 * standard has it anyway: some validators take objects for closed unless they are told.
 */
export const properties = (schemas: Readonly<Record<string, unknown>>): JsonSchema => ({
  properties: schemas,
  additionalProperties: true,
});

/** `schema` where a body has this value under the key, and `otherwise` where it has not. */
export const whereIs = (key: string, value: unknown, schema: JsonSchema, otherwise?: JsonSchema): JsonSchema =>
  conditional({ ...properties({ [key]: { const: value } }), required: [key] }, schema, otherwise);

export const conditional = (condition: JsonSchema, schema: JsonSchema, otherwise?: JsonSchema): JsonSchema =>
  Object.fromEntries([['if', condition], ['then', schema], ...(otherwise ? [['else', otherwise]] : [])]);
