/** How a field's binary value is read, by what it means and how it is stored. */
import { assert } from '../../shared/errors.ts';
import type { Dtype, Field, PgType } from '../../shared/registry/index.ts';

export const CELL = {
  int8: 0,
  int4: 1,
  int2: 2,
  float8: 3,
  bool: 4,
  /** int8 of epoch milliseconds, shown as a timestamp */
  epochMs: 5,
  timestamptz: 6,
  text: 7,
  uuid: 8,
  /** No cell of the row: the end of its validity, known when the next row is. */
  validTo: 9,
} as const;

export type Cell = (typeof CELL)[keyof typeof CELL];

const CELLS: Readonly<Record<Dtype, Partial<Record<PgType, Cell>>>> = {
  int64: { int8: CELL.int8, int4: CELL.int4, int2: CELL.int2 },
  float64: { float8: CELL.float8 },
  bool01: { bool: CELL.bool },
  timestamp_utc: { int8: CELL.epochMs, timestamptz: CELL.timestamptz },
  string: { text: CELL.text },
  json: { text: CELL.text },
  uuid: { uuid: CELL.uuid },
};

export function cellOf(field: Pick<Field, 'name' | 'dtype' | 'pg'>): Cell {
  const cell = CELLS[field.dtype][field.pg];
  assert(cell !== undefined, `${field.name}: a ${field.dtype} cannot be stored as ${field.pg}`);
  return cell;
}

/** A column of a result: the field, and whether its value comes in the row or from the next one. */
export interface Column {
  readonly field: Field;
  readonly cell: Cell;
}

/** What a writer of rows has to know of them. */
export interface RowShape {
  readonly columns: readonly Column[];
  /** Rows start with a cell that is not shown: the time that ends the validity of the row before. */
  readonly hiddenFirst: boolean;
}
