/** JSON Schemas out of what requests and rows are checked and made by: zod schemas, and the registry's fields. */
import { z } from 'zod';
import { DATASETS, DTYPES, type Dtype, type Field } from '../../shared/registry/index.ts';
import { clauseSchema, comparisonOf, comparisonSchema, OPERATORS_OF } from '../contract/filters.ts';
import { klineColumns, tradeColumns } from '../contract/historical.ts';
import { refTo } from '../contract/json-schema.ts';
import { columnsOf } from '../contract/raw.ts';
import { clausesOf, fieldNamesOf } from '../contract/rules.ts';
import { MODES } from '../contract/shapes.ts';
import { warning } from '../discovery/schemas.ts';
import type { JsonSchema } from './route-doc.ts';

/** What a caller sends, or gets. */
export function schemaOf(schema: z.ZodType | JsonSchema, io: 'input' | 'output'): JsonSchema {
  if (!(schema instanceof z.ZodType)) return schema;
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io, unrepresentable: 'any' });
  return rest;
}

export { refTo };

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
    ...MODES.map((mode) => ({
      columns: columnsOf(dataset, mode),
      doc: `A row of ${dataset.key} in mode ${mode}.`,
    })),
    ...(dataset.trades ? [{ columns: tradeColumns(dataset), doc: `A trade of ${dataset.key}.` }] : []),
  ]);
  const klines = MODES.map((mode) => ({ columns: klineColumns(mode), doc: `A kline in mode ${mode}.` }));
  const shapes = [...rows, ...klines].flatMap(({ columns, doc }) => [
    [columns.name, rowSchema(doc, columns.all)],
    [fieldNamesOf(columns), { type: 'string', enum: columns.all.map(({ name }) => name) }],
    [clausesOf(columns), clauseSchema(columns.all)],
  ]);
  const filtered = DTYPES.filter((dtype) => OPERATORS_OF[dtype].length > 0);
  const comparisons = filtered.map((dtype) => [comparisonOf(dtype), comparisonSchema(dtype)]);
  return { Problem: schemaOf(problem, 'output'), ...Object.fromEntries([...shapes, ...comparisons]) };
}
