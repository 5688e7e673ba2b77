/** The columns that the proof log's digest of rows covers, and how an answer's fields give them. */
import { assert } from '../errors.ts';
import type { ColumnCopy, ColumnRule, LayoutColumn, LayoutType, RowLayout } from '../proof-log/cells.ts';
import type { DatasetDefinition, StoredColumn } from './definition.ts';

/** The stored columns that the digest covers, in table order. */
export const loggedColumns = ({ native }: DatasetDefinition): readonly StoredColumn[] =>
  native.columns.filter(({ shown }) => shown !== 'none');

const TYPES: ReadonlySet<string> = new Set<LayoutType>(['int2', 'int4', 'int8', 'float8', 'bool', 'text']);

/** The fields that tell the partition of a row, by kind of partition. */
const METRIC_FIELDS = ['source_id', 'provenance_json', 'observed_at_utc'];

/** The layout of a dataset's canonical rows. */
export function rowLayoutOf(dataset: DatasetDefinition): RowLayout {
  const { native, partition } = dataset;
  const columns = loggedColumns(dataset).map((column): LayoutColumn => {
    assert(TYPES.has(column.pg), `${column.name} has a type that a digest covers`);
    const rule = (column.shown ?? 'field') as ColumnRule;
    return { name: column.name, type: column.pg as LayoutType, rule, fields: fieldsOf(dataset, column, rule) };
  });
  const isMetric = partition.kind === 'capture' || partition.kind === 'vintage';
  const key = native.scope.kind === 'window' ? native.time.column : native.scope.column;
  return {
    dataset: dataset.key,
    partition: partition.kind,
    startOffsetMs: partition.kind === 'file_day' ? partition.startOffsetMs : 0,
    partitionFields: isMetric ? METRIC_FIELDS : [fieldWith(dataset, key)],
    columns,
    order: native.identity.map((name) => columns.findIndex((column) => column.name === name)),
    copies: native.fields.flatMap((field): ColumnCopy[] => {
      const at = columns.findIndex(({ name, rule }) => name === field.column && rule === 'field');
      if (at < 0 || columns[at].fields[0] === field.name) return [];
      return [{ field: field.name, column: at, isTime: field.dtype === 'timestamp_utc' }];
    }),
  };
}

function fieldsOf(dataset: DatasetDefinition, { name }: StoredColumn, rule: ColumnRule): string[] {
  switch (rule) {
    case 'field':
      return [fieldWith(dataset, name)];
    case 'sats':
      return [dataset.native.fields.find(({ columns }) => columns.length === 1 && columns[0] === name)!.name];
    case 'fee':
      return ['fee_rate_sat_vb', 'vsize'];
    case 'kind':
      return ['metric_value_string', 'metric_value_int', 'metric_value_float', 'metric_value_bool'];
    case 'provenance':
      return ['provenance_json'];
    case 'partition':
    case 'vintage':
      return [];
  }
}

/** The first field that is the stored column unchanged; a number before the same instant as text. */
function fieldWith({ key, native }: DatasetDefinition, column: string): string {
  const fields = native.fields.filter((field) => field.column === column);
  const field = fields.find(({ dtype }) => dtype !== 'timestamp_utc') ?? fields[0];
  assert(field, `${key} shows the column ${column}`);
  return field.name;
}
