/** JSON Schemas out of what requests and rows are checked and made by: zod schemas, and the registry's fields. */
import { z } from 'zod';
import { DATASETS, type Dtype, type Field, type Mode } from '../../shared/registry/index.ts';
import { KLINE_FIELDS } from '../../shared/registry/klines.ts';
import { tradeColumns } from '../contract/historical.ts';
import { columnsOf } from '../contract/raw.ts';
import { MODES } from '../contract/shapes.ts';
import { warning } from '../discovery/schemas.ts';
import type { JsonSchema } from './route-doc.ts';

/** What a caller sends, or gets. */
export function schemaOf(schema: z.ZodType | JsonSchema, io: 'input' | 'output'): JsonSchema {
  if (!(schema instanceof z.ZodType)) return schema;
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io, unrepresentable: 'any' });
  return rest;
}

export const refTo = (name: string): JsonSchema => ({ $ref: `#/components/schemas/${name}` });

const TYPES: Readonly<Record<Dtype, JsonSchema>> = {
  int64: { type: 'integer', format: 'int64' },
  float64: { type: 'number', format: 'double' },
  string: { type: 'string' },
  bool01: { type: 'integer', enum: [0, 1] },
  timestamp_utc: { type: 'string', format: 'date-time' },
  uuid: { type: 'string', format: 'uuid' },
  json: { type: 'string', contentMediaType: 'application/json' },
};

/** No field is required: an answer holds those that were asked for. */
function rowSchema(description: string, fields: readonly Field[]): JsonSchema {
  const properties = fields.map(({ name, dtype, nullable, unit, doc }) => {
    const { enum: values, ...type } = TYPES[dtype];
    return [
      name,
      {
        ...type,
        ...(nullable && { type: [type.type, 'null'] }),
        ...(values !== undefined && { enum: [...(values as readonly unknown[]), ...(nullable ? [null] : [])] }),
        description: unit === undefined ? doc : `${doc} Unit: ${unit}.`,
      },
    ];
  });
  return { type: 'object', description, properties: Object.fromEntries(properties), additionalProperties: false };
}

/** Names of row schemas among the components. */
export const rowsOf = (key: string, mode: Mode): string => `${key}.${mode}`;
export const klinesOf = (mode: Mode): string => `klines.${mode}`;
/** Rows of a trade route: the columns all exchanges have, beside the dataset's own. */
export const tradesOf = (key: string): string => `${key}.trades`;

const problem = z
  .looseObject({
    type: z.string().describe('A URN of the code.'),
    title: z.string().describe('The meaning of the code.'),
    status: z.int().describe('The HTTP status once more.'),
    detail: z.string().describe('What is wrong with this request, for people.'),
    code: z.string().describe('Stable; what programs go by.'),
    request_id: z.string().describe('Also in `X-Request-Id`; name it when you ask the operator.'),
    errors: z
      .array(z.strictObject({ pointer: z.string(), message: z.string() }))
      .optional()
      .describe('Every fault of the request: a JSON pointer into the body, or `?name` of a parameter.'),
    warnings: z.array(warning).optional().describe('Those that a strict request failed with.'),
  })
  .describe('RFC 9457. Every answer that is not 2xx is one.');

export function componentSchemas(): Record<string, JsonSchema> {
  const rows = [...DATASETS.values()].flatMap((dataset) => [
    ...MODES.map((mode) => {
      const title = `A row of ${dataset.key} in mode ${mode}.`;
      return [rowsOf(dataset.key, mode), rowSchema(title, columnsOf(dataset, mode).all)];
    }),
    ...(dataset.trades
      ? [[tradesOf(dataset.key), rowSchema(`A trade of ${dataset.key}.`, tradeColumns(dataset).all)]]
      : []),
  ]);
  const klines = MODES.map((mode) => [klinesOf(mode), rowSchema(`A kline in mode ${mode}.`, KLINE_FIELDS[mode])]);
  return { Problem: schemaOf(problem, 'output'), ...Object.fromEntries([...rows, ...klines]) };
}
