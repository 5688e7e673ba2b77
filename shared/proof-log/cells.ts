/** The values of stored columns from the cells of files and answers: layouts of rows, and how fields give each column. */
import { createHash } from 'node:crypto';

export type LayoutType = 'int2' | 'int4' | 'int8' | 'float8' | 'bool' | 'text';

/** How the value of a column follows from the fields of a row, where it is not the value of one field. */
export const COLUMN_RULES = ['field', 'sats', 'fee', 'kind', 'partition', 'vintage', 'provenance'] as const;
export type ColumnRule = (typeof COLUMN_RULES)[number];

export interface LayoutColumn {
  readonly name: string;
  readonly type: LayoutType;
  readonly rule: ColumnRule;
  /** The fields that the rule reads. */
  readonly fields: readonly string[];
}

/** A further field that shows the value of a column, such as the same instant as text. */
export interface ColumnCopy {
  readonly field: string;
  /** Index of the column. */
  readonly column: number;
  /** The column is epoch ms, and the field the same instant as a time. */
  readonly isTime: boolean;
}

/** The columns of a dataset's canonical rows, and how its partitions divide them. */
export interface RowLayout {
  readonly dataset: string;
  readonly partition: 'file_day' | 'height' | 'snapshot' | 'capture' | 'vintage';
  /** For file days: when the day of a key begins, ms after its midnight UTC. */
  readonly startOffsetMs: number;
  /** The fields that tell a row's partition. */
  readonly partitionFields: readonly string[];
  readonly columns: readonly LayoutColumn[];
  /** Indexes of the columns by which the rows are ordered. */
  readonly order: readonly number[];
  readonly copies: readonly ColumnCopy[];
}

/** A value as files and answers have it: JSON, CSV's texts, Parquet's and Arrow's numbers and dates. */
export type Cell = string | number | bigint | boolean | Date | null | undefined;

/** A cell that does not fit its column. */
export class RowFault extends Error {
  override readonly name = 'RowFault';
}

export const fault = (what: string, cell: unknown): never => {
  throw new RowFault(`${JSON.stringify(String(cell)).slice(0, 80)} is not ${what}`);
};

const TIMESTAMP = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,3})?Z$/;

/** Epoch ms; NaN for a text that no instant has. `Date.parse` alone takes 30 February for 1 March, and 24:00 for the next day. */
function timeOf(text: string): number {
  const ms = Date.parse(text);
  return !Number.isNaN(ms) && new Date(ms).toISOString().startsWith(TIMESTAMP.exec(text)![1]) ? ms : Number.NaN;
}

export function integerOf(cell: Cell): number {
  const value =
    cell instanceof Date
      ? cell.getTime()
      : typeof cell === 'string'
        ? TIMESTAMP.test(cell)
          ? timeOf(cell)
          : /^-?\d+$/.test(cell)
            ? Number(cell)
            : Number.NaN
        : Number(cell ?? Number.NaN);
  return Number.isSafeInteger(value) ? value : fault('an integer', cell);
}

const NUMBER = /^-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;

/** The number of decimal text: `Number` alone takes hexadecimal digits and spaces too. @throws RowFault */
export function numberOf(text: string): number {
  const value = NUMBER.test(text) ? Number(text) : Number.NaN;
  return Number.isFinite(value) ? value : fault('a number', text);
}

export function floatOf(cell: Cell): number {
  if (typeof cell === 'string') return numberOf(cell);
  const value = Number(cell ?? Number.NaN);
  return Number.isFinite(value) ? value : fault('a number', cell);
}

export function flagOf(cell: Cell): boolean {
  if (cell === true || cell === 1 || cell === 1n || cell === '1' || cell === 'true') return true;
  if (cell === false || cell === 0 || cell === 0n || cell === '0' || cell === 'false') return false;
  return fault('0 or 1', cell);
}

/** A partition whose rows are expected: its key, the document that it came in, and how many there are, if that is known. */
export interface ExpectedPartition {
  readonly partition: string;
  readonly document_sha256: string | null;
  readonly rows?: number | null;
}

/** A service adds to `provenance_json` the document of the partition. The stored text lacks it. */
const ADDED_DOCUMENT =
  /"artifact_id":"(?<id>[0-9a-f]{64})","artifact_sha256":"(?<sha256>[0-9a-f]{64})",(?="fetch_method":)/;
/** It also adds when the source last changed the series, which no leaf has. */
const ADDED_TIME = /"last_updated_utc":"[^"]*",(?="realtime_start":)/;

const SATS_A_BTC = 100_000_000;

/** The value of a column from the cells of its fields, and from the row's partition. */
export const RULES: Readonly<Record<ColumnRule, (cells: readonly Cell[], partition: ExpectedPartition) => Cell>> = {
  field: ([cell]) => cell,
  sats: ([btc]) => {
    const sats = Math.round(floatOf(btc) * SATS_A_BTC);
    return sats / SATS_A_BTC === floatOf(btc) ? sats : fault('an amount in whole satoshis', btc);
  },
  fee: ([rate, vsize]) => {
    const sats = Math.round(floatOf(rate) * integerOf(vsize));
    return sats / integerOf(vsize) === floatOf(rate) ? sats : fault('a rate of whole satoshis', rate);
  },
  kind: ([text, int, float, bool]) => kindOf(text, { int, float, bool }),
  partition: (_, { partition }) => partition,
  vintage: (_, { partition }) => partition.split(':')[1],
  provenance: ([text], expected) => (typeof text === 'string' ? storedProvenance(text, expected) : text),
};

/** The channels of a value are computed from its text and its kind, so that those that are set tell the kind. @throws RowFault */
function kindOf(text: Cell, { int, float, bool }: Readonly<Record<'int' | 'float' | 'bool', Cell>>): string {
  if (!isSet(text)) {
    if (isSet(int) || isSet(float) || isSet(bool)) fault('a value without its text', int ?? float ?? bool);
    return 'null';
  }
  if (isSet(bool)) {
    if (isSet(int) || isSet(float) || flagOf(bool) !== (text === 'true')) fault(`the value of ${text}`, bool);
    return 'bool';
  }
  if (!isSet(float)) return isSet(int) ? fault(`the value of ${text}, without a float`, int) : 'string';
  if (floatOf(float) !== floatOf(text)) fault(`the value of ${text}`, float);
  if (!isSet(int)) return 'float';
  if (integerOf(int) !== Number(text)) fault(`the value of ${text}`, int);
  return 'int';
}

/** The provenance as it was stored. @throws RowFault where it names another document, or none where a service adds one */
function storedProvenance(text: string, { partition, document_sha256: document }: ExpectedPartition): string {
  const added = ADDED_DOCUMENT.exec(text)?.groups;
  if (!added && document !== null && text.includes('"fetch_method":')) fault('provenance with its document', text);
  if (added && document !== null) {
    const { source_uri: uri } = JSON.parse(text) as { readonly source_uri?: string };
    const id = createHash('sha256')
      .update(`${partition.split(':')[0]}|${uri}|${document}`)
      .digest('hex');
    if (added.sha256 !== document || added.id !== id) fault(`the document ${document} of the leaf`, added.sha256);
  }
  return text.replace(ADDED_DOCUMENT, '').replace(ADDED_TIME, '');
}

/** Whether a copy is the value of a column of the type. */
export function isSame(type: LayoutType, a: Cell, b: Cell, isTime: boolean): boolean {
  if (!isSet(a) || !isSet(b)) return isSet(a) === isSet(b);
  if (isTime && typeof a === 'string') return a === new Date(integerOf(b)).toISOString();
  if (type === 'text') return a === b;
  if (type === 'bool') return flagOf(a) === flagOf(b);
  return type === 'float8' ? floatOf(a) === floatOf(b) : integerOf(a) === integerOf(b);
}

export const isSet = (cell: Cell): boolean => cell !== null && cell !== undefined;
