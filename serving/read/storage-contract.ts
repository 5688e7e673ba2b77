/**
 * The aligned storage contract: the columns a dataset needs are there, with the declared types. Asked in the snapshot
 * of every aligned read, so that a drift by hand is met by a code and not by wrong numbers.
 */
import { ALIGNED_COLUMNS, ALIGNED_KEY, ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Statement } from '../db/wire-messages.ts';

/** Rows of the check's result: column, declared type, found type or null, whether the table is there. */
export type ContractRow = readonly (string | null)[];

const statements = new Map<string, Statement>();

/** One row for each column that is not as declared. */
export function contractStatement(dataset: DatasetDefinition): Statement {
  let statement = statements.get(dataset.key);
  if (!statement) {
    const types: Record<string, string> = { ...ALIGNED_KEY };
    for (const field of dataset.aligned.fields) {
      for (const column of field.columns) types[column] = ALIGNED_COLUMNS[column as keyof typeof ALIGNED_COLUMNS];
    }
    const values = Object.entries(types).map(([column, type]) => `('${column}', '${type}')`);
    statement = {
      keep: true,
      text: `select c.name, c.type, t.typname, to_regclass('${ALIGNED_TABLE}') is not null
        from (values ${values.join(', ')}) as c (name, type)
        left join pg_attribute a on a.attrelid = to_regclass('${ALIGNED_TABLE}') and a.attname = c.name
          and a.attnum > 0 and not a.attisdropped
        left join pg_type t on t.oid = a.atttypid
        where t.typname is distinct from c.type`,
    };
    statements.set(dataset.key, statement);
  }
  return statement;
}

/** What is violated, for people; undefined when the storage is as declared. */
export function violationOf(rows: readonly ContractRow[]): string | undefined {
  if (rows.length === 0) return undefined;
  if (rows[0][3] === 'f') return `the table ${ALIGNED_TABLE} is missing`;
  return rows
    .map(([column, declared, found]) =>
      found === null ? `column ${column} is missing` : `column ${column} is ${found}, declared ${declared}`,
    )
    .join('; ');
}
