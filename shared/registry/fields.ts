/** Fields as most datasets have them, and what follows from a dataset's key alone. */
import type { Dtype, Field, PgType, View } from './types.ts';

/** A native field that is a stored column by the same name. */
export function storedField(
  name: string,
  dtype: Dtype,
  pg: PgType,
  doc: string,
  more: { readonly unit?: string; readonly nullable?: boolean } = {},
): Field {
  const { unit, nullable = false } = more;
  return { name, dtype, nullable, unit, doc, sql: `t.${name}`, pg, columns: [name] };
}

/** The event time, stored as epoch ms, as a timestamp. */
export function timeField(name: string, column: string, doc: string): Field {
  return { name, dtype: 'timestamp_utc', nullable: false, doc, sql: `t.${column}`, pg: 'int8', columns: [column] };
}

/** The event time once more, as a timestamp. */
export const datetimeField = (column: string): Field =>
  timeField('datetime', column, `The same instant as \`${column}\`.`);

export const nativeView = (key: string): View => ({ id: `${key}_native`, version: 1 });

/** Of every dataset's aligned rows. */
export const ALIGNED_VIEW: View = { id: 'aligned_1s_raw', version: 1 };
