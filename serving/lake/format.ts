/** The layout of a lake: its tables, and how their rows are cut into files. docs/lake.md describes both. */
import { createHash } from 'node:crypto';
import { defaultInstrument } from '../../shared/config/instruments.ts';
import type { Settings } from '../../shared/config/settings.ts';
import { DAY_MS } from '../../shared/dates.ts';
import type { Range } from '../../shared/ranges.ts';
import type { Mode, PartitionKind } from '../../shared/registry/definition.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

export const MODES: readonly Mode[] = ['native', 'aligned_1s'];

/** How long a file is. */
export interface Span {
  /** The column of the table's partitions. */
  readonly column: 'date' | 'year';
  /** SQL of the span's number, over the SQL of a time in epoch ms. */
  numberSql(ms: string): string;
  /** The name of a span, as in `date=` or `year=`. */
  dateOf(number: number): string;
  dateAt(ms: number): string;
  windowOf(date: string): Range;
  /** Whether a row can end the validity of one in any earlier file: a series of a fund or of macro data may have no row for years. */
  readonly reachesFar: boolean;
  /** Files before a change whose rows it may make valid for longer or shorter. */
  readonly prolonged: number;
}

const DAY: Span = {
  column: 'date',
  numberSql: (ms) => `floor(${ms} / ${DAY_MS}.0)::int8`,
  dateOf: (number) => new Date(number * DAY_MS).toISOString().slice(0, 10),
  dateAt: (ms) => new Date(ms).toISOString().slice(0, 10),
  windowOf: (date) => {
    const from = Date.parse(`${date}T00:00:00Z`);
    return { from, to: from + DAY_MS };
  },
  reachesFar: false,
  prolonged: 1,
};

const YEAR: Span = {
  column: 'year',
  numberSql: (ms) => `extract(year from to_timestamp(${ms} / 1000.0) at time zone 'UTC')::int8`,
  dateOf: (number) => String(number).padStart(4, '0'),
  dateAt: (ms) => new Date(ms).toISOString().slice(0, 4),
  windowOf: (date) => ({ from: Date.UTC(Number(date), 0), to: Date.UTC(Number(date) + 1, 0) }),
  reachesFar: true,
  prolonged: 1,
};

/** Blocks are valid up to the median time of the last eleven, which may lie on as many dates. */
const BLOCK_DAY: Span = { ...DAY, prolonged: 11 };

/** A day of captures or vintages has a handful of rows. */
export const SPANS: Readonly<Record<PartitionKind['kind'], Span>> = {
  file_day: DAY,
  height: BLOCK_DAY,
  snapshot: DAY,
  capture: YEAR,
  vintage: YEAR,
};

/** The rows of a dataset, or of its instrument, in a mode on a day or in a year. */
export interface LakeFile {
  readonly dataset: DatasetDefinition;
  readonly mode: Mode;
  readonly date: string;
  /** Below its table, which has the rows of all instruments. */
  readonly folder: string;
}

/** A table's folder below the lake. Without `key=value`, which readers would take for partitions. */
export const tableOf = ({ key }: Pick<DatasetDefinition, 'key'>, mode: Mode): string => `${key}/${mode}`;

/** The columns that a table is partitioned by, in the order of its folders. A table cannot get one later. */
export const partitionColumns = ({ partition, trades }: DatasetDefinition): readonly string[] => [
  SPANS[partition.kind].column,
  ...(trades ? ['instrument'] : []),
];

/** The folder of a file below its table. */
export function folderOf(settings: Settings, dataset: DatasetDefinition, date: string): string {
  const instrument = dataset.instrument ?? defaultInstrument(settings, dataset);
  const folder = `${SPANS[dataset.partition.kind].column}=${date}`;
  return instrument === undefined ? folder : `${folder}/instrument=${instrument}`;
}

/** The values of the partition columns, which a folder's name has. */
export const valuesOf = (folder: string): Readonly<Record<string, string>> =>
  Object.fromEntries(folder.split('/').map((name) => name.split('=')));

export const sha256Of = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');
