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

/** Applies `schema` where the body has this value under the key, and `otherwise` elsewhere. */
export const whereIs = (key: string, value: unknown, schema: JsonSchema, otherwise?: JsonSchema): JsonSchema =>
  conditional({ ...properties({ [key]: { const: value } }), required: [key] }, schema, otherwise);

export const conditional = (condition: JsonSchema, schema: JsonSchema, otherwise?: JsonSchema): JsonSchema =>
  Object.fromEntries([['if', condition], ['then', schema], ...(otherwise ? [['else', otherwise]] : [])]);
