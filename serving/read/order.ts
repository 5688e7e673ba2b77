/** What rows are ordered by, as SQL. */
import { assert } from '../../shared/errors.ts';
import { type DatasetDefinition, type Field, type Mode, shapeOf } from '../../shared/registry/index.ts';

export type OrderTerm = Pick<Field, 'sql' | 'pg' | 'columns'>;

export function orderOf(dataset: DatasetDefinition, mode: Mode): readonly OrderTerm[] {
  const { fields, order } = shapeOf(dataset, mode);
  return order.map((name) => {
    const field = fields.find((one) => one.name === name);
    if (field) {
      // Texts of the native tables compare by code points as they are declared; those of the aligned one are told to.
      const isLocal = mode === 'aligned_1s' && field.pg === 'text';
      return isLocal ? { ...field, sql: `${field.sql} collate "C"` } : field;
    }
    const column = dataset.native.columns.find((one) => one.name === name);
    assert(mode === 'native' && column, `${dataset.key} cannot be ordered by ${name}`);
    return { sql: `t."${name}"`, pg: column.pg, columns: [name] };
  });
}
