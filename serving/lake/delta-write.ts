/** What a writer puts into a Delta log: the schema of a table, the statistics of a file, and checkpoints. */
import { randomUUID } from 'node:crypto';
import { asyncBufferFromFile, parquetMetadataAsync } from 'hyparquet';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { TidemarkError } from '../../shared/errors.ts';
import type { MetaData, Snapshot } from '../../shared/mirror/delta-log.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { type DatasetDefinition, type Dtype, shapeOf } from '../../shared/registry/index.ts';
import { partitionColumns, tableOf } from './format.ts';

/** What every reader and writer of Delta Lake since its first release understands. */
export const PROTOCOL = { minReaderVersion: 1, minWriterVersion: 2 } as const;

const TYPES: Readonly<Record<Dtype, string>> = {
  int64: 'long',
  float64: 'double',
  bool01: 'byte',
  timestamp_utc: 'timestamp',
  string: 'string',
  uuid: 'string',
  json: 'string',
};

const PARTITION_TYPES: Readonly<Record<string, string>> = { date: 'date', year: 'integer', instrument: 'string' };

interface DeltaField {
  readonly name: string;
  readonly type: string;
  readonly nullable: boolean;
  readonly metadata: object;
}

/**
 * The metadata that a table shall have; the one that it has, where that is it. Fields of later releases are added to it, without
 * values in what is there already, and those of earlier ones stay.
 * @throws TidemarkError USAGE where a field has another type or the partitions are others
 */
export function metaDataOf(
  dataset: DatasetDefinition,
  mode: Mode,
  options: { readonly held: MetaData | undefined; readonly keepMs: number; readonly nowMs: number },
): MetaData {
  const { held, keepMs, nowMs } = options;
  const name = tableOf(dataset, mode);
  const columns = partitionColumns(dataset);
  const own = [
    ...shapeOf(dataset, mode).fields.map(
      (field): DeltaField => fieldOf(field.name, TYPES[field.dtype], field.nullable),
    ),
    ...columns.map((column) => fieldOf(column, PARTITION_TYPES[column], true)),
  ];
  const interval = `interval ${Math.ceil(keepMs / 3_600_000)} hours`;
  const configuration = { 'delta.deletedFileRetentionDuration': interval, 'delta.logRetentionDuration': interval };
  if (!held) {
    return {
      id: randomUUID(),
      name,
      format: { provider: 'parquet', options: {} },
      schemaString: schemaString(own),
      partitionColumns: columns,
      configuration,
      createdTime: nowMs,
    };
  }
  const fields = mergedFields(name, (JSON.parse(held.schemaString) as { fields: DeltaField[] }).fields, own);
  if (JSON.stringify(held.partitionColumns) !== JSON.stringify(columns)) {
    throw otherTable(name, `it is partitioned by ${held.partitionColumns.join(', ')}, not by ${columns.join(', ')}`);
  }
  const text = schemaString(fields);
  return text === held.schemaString ? held : { ...held, schemaString: text };
}

const fieldOf = (name: string, type: string, nullable: boolean): DeltaField => ({ name, type, nullable, metadata: {} });
const schemaString = (fields: readonly DeltaField[]): string => JSON.stringify({ type: 'struct', fields });

function mergedFields(table: string, held: readonly DeltaField[], own: readonly DeltaField[]): DeltaField[] {
  const ownOf = new Map(own.map((field) => [field.name, field]));
  const kept = held.map((field) => {
    const now = ownOf.get(field.name);
    ownOf.delete(field.name);
    if (now && now.type !== field.type) {
      throw otherTable(table, `its field ${field.name} is of the type ${field.type}, not ${now.type}`);
    }
    return { ...field, nullable: field.nullable || !now || now.nullable };
  });
  return [...kept, ...[...ownOf.values()].map((field) => ({ ...field, nullable: true }))];
}

const otherTable = (table: string, why: string) =>
  new TidemarkError('USAGE', `The table ${table} of the lake cannot be continued: ${why}`, {
    remedy: 'Begin a lake in another folder.',
  });

/** The statistics of a file, as `add` has them: rows, and of each column the bounds and the number of nulls. */
export async function statsOf(path: string): Promise<string> {
  const metadata = await parquetMetadataAsync(await asyncBufferFromFile(path));
  const minValues: Record<string, unknown> = {};
  const maxValues: Record<string, unknown> = {};
  const nullCount: Record<string, number> = {};
  const unbounded = new Set<string>();
  for (const { columns } of metadata.row_groups) {
    for (const { meta_data: column } of columns) {
      const [name] = column!.path_in_schema;
      const { min_value: min, max_value: max, null_count: nulls = 0n } = column!.statistics ?? {};
      nullCount[name] = (nullCount[name] ?? 0) + Number(nulls);
      // A group without bounds, unless it has nulls alone, leaves the file without them.
      if (min === undefined || max === undefined) {
        if (nulls !== column!.num_values) unbounded.add(name);
        continue;
      }
      if (!(name in minValues) || isLess(min, minValues[name])) minValues[name] = min;
      if (!(name in maxValues) || isLess(maxValues[name], max)) maxValues[name] = max;
    }
  }
  for (const name of unbounded) {
    delete minValues[name];
    delete maxValues[name];
  }
  return JSON.stringify({ numRecords: Number(metadata.num_rows), minValues, maxValues, nullCount }, exact);
}

/** Of two bounds of one column, which have one type. Engines compare the bytes of texts, which `<` does not. */
const isLess = (one: unknown, other: unknown): boolean =>
  typeof one === 'string'
    ? Buffer.compare(Buffer.from(one), Buffer.from(other as string)) < 0
    : (one as number) < (other as number);

/** An integer of any size as it is: a text would be compared as one. */
const exact = (_: string, value: unknown) =>
  typeof value === 'bigint' ? (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON(String(value)) : value;

type Element = NonNullable<Parameters<typeof parquetWriteBuffer>[0]['schema']>[number];

const leaf = (name: string, more: Partial<Element>): Element[] => [{ name, repetition_type: 'OPTIONAL', ...more }];
const utf8 = (name: string, repetition_type: Element['repetition_type'] = 'OPTIONAL') =>
  leaf(name, { type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type });
const long = (name: string) => leaf(name, { type: 'INT64' });
const integer = (name: string) => leaf(name, { type: 'INT32' });
const boolean = (name: string) => leaf(name, { type: 'BOOLEAN' });
const group = (name: string, members: readonly Element[][], more: Partial<Element> = {}): Element[] => [
  ...leaf(name, { num_children: members.length, ...more }),
  ...members.flat(),
];
const map = (name: string) =>
  group(name, [group('key_value', [utf8('key', 'REQUIRED'), utf8('value')], { repetition_type: 'REPEATED' })], {
    converted_type: 'MAP',
  });
const list = (name: string) =>
  group(name, [group('list', [utf8('element')], { repetition_type: 'REPEATED' })], { converted_type: 'LIST' });

const CHECKPOINT_SCHEMA: Element[] = [
  { name: 'schema', num_children: 5 },
  ...group('txn', [utf8('appId'), long('version'), long('lastUpdated')]),
  ...group('add', [
    ...[utf8('path'), map('partitionValues'), long('size'), long('modificationTime')],
    ...[boolean('dataChange'), utf8('stats')],
  ]),
  ...group('remove', [
    ...[utf8('path'), long('deletionTimestamp'), boolean('dataChange'), boolean('extendedFileMetadata')],
    ...[map('partitionValues'), long('size')],
  ]),
  ...group('metaData', [
    ...[utf8('id'), utf8('name'), utf8('description'), group('format', [utf8('provider'), map('options')])],
    ...[utf8('schemaString'), list('partitionColumns'), map('configuration'), long('createdTime')],
  ]),
  ...group('protocol', [integer('minReaderVersion'), integer('minWriterVersion')]),
];

const LONGS: ReadonlySet<string> = new Set([
  ...['version', 'lastUpdated', 'size', 'modificationTime', 'deletionTimestamp', 'createdTime'],
]);

/** A checkpoint of the table, and the number of its rows. */
export function checkpointOf(snapshot: Snapshot): { readonly bytes: Buffer; readonly size: number } {
  const { protocol, metaData, txns, files, removed } = snapshot;
  const rows: Readonly<Record<string, object>>[] = [
    { protocol: protocol! },
    { metaData: metaData! },
    ...[...txns.values()].map((txn) => ({ txn })),
    ...[...files.values()].map((add) => ({ add: { ...add, dataChange: false } })),
    ...[...removed.values()].map((remove) => ({ remove: { ...remove, dataChange: false } })),
  ];
  const columnData = ['txn', 'add', 'remove', 'metaData', 'protocol'].map((name) => ({
    name,
    data: rows.map((row) => (row[name] ? withLongs(row[name]) : null)),
  }));
  const bytes = parquetWriteBuffer({ schema: CHECKPOINT_SCHEMA, columnData, statistics: false });
  return { bytes: Buffer.from(bytes), size: rows.length };
}

const withLongs = (row: object): object =>
  Object.fromEntries(
    Object.entries(row).map(([name, value]) => [
      name,
      LONGS.has(name) && typeof value === 'number' ? BigInt(value) : value,
    ]),
  );
