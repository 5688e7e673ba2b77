import type { Range } from '../../shared/ranges.ts';
import type { Warning } from '../contract/problems.ts';
import type { ReadRequest } from '../contract/read-request.ts';
import type { Params } from '../db/params.ts';

// ---- parts ---------------------------------------------------------------------------------------------------------

/** One stretch of time that rows are read from, and how long its rows can be valid at most. */
export interface Part extends Range {
  /** Where the stretch ends, also when only some of it is searched: as far as there may be a following row. */
  readonly until: number;
  /** End of the proved time the stretch is of. Undefined: rows later than what is proved through, each valid its second. */
  readonly provedTo: number | undefined;
  /** Nothing later is proved: the end is what has been proved so far, not a gap. */
  readonly isLast: boolean;
}

/** How many rows a statement, or a whole read, must yield. */
export interface RowCount {
  readonly rows: number;
  /** Partitions that only some of the window's rows are of may add to them. */
  readonly isMinimum?: boolean;
  /** The time that the partitions lie in. */
  readonly window: Range;
  /** The partitions, where they are few. */
  readonly partitions?: readonly string[];
}

/** A row by what identifies it. */
export interface SeriesRow {
  readonly seriesId: number;
  readonly ms: number;
}

/** What lies beyond a slice. */
export interface BoundaryRows {
  /** Rows of before the window that are still valid when it begins: they come with its first slice. */
  readonly carried: readonly SeriesRow[];
  /** The first row of each series after the slice. */
  readonly next: readonly SeriesRow[];
}

export interface Slice {
  readonly from: number;
  readonly to: number;
  /** The part the slice is of: what comes after the slice may still be proved. */
  readonly part: Part;
  /** Where the row after the slice's last is looked for; the rest of the part unless it is known better. */
  readonly following?: Range;
  /** Of a dataset of many series: what lies beyond the slice, by series. */
  readonly edges?: BoundaryRows;
  /** The rows it must hold, where it is of whole partitions. */
  readonly count?: RowCount;
}

/** How the end of a row's validity is found. */
export type ValidityRule =
  /** Not asked for. */
  | 'none'
  /** From the row that follows in the answer, by the renderer: all rows are there, in order. */
  | 'lookahead'
  /** From the row that follows in the storage, by the database: a filter or a sample leaves rows out, or series mix. */
  | 'computed';

/* Rows in their order, as SQL for any slice of them: those of a table, or klines made of them. */

export interface Rows<S> {
  /** `from ... where ...`, with the rows under the alias `t`; `where` is one more test over it. */
  from(slice: S, params: Params, more?: { readonly where?: string }): string;
  /** The answer's columns of these rows, in order. */
  select(slice: S, params: Params, where?: string): string;
  order(direction?: string): string;
  /** The order's values as text. */
  readonly key: readonly string[];
  readonly timeMs: string;
  /** A number that depends on the row's identity and a seed alone. */
  hash(seed: string): string;
}

/* Reads as of a time: which vintages were known then, and what would have been said of them. */

type Asked = Pick<ReadRequest, 'dataset' | 'asOfMs'>;

/** Start of the date of the newest vintage that was known, epoch ms; undefined where the request asks for what is known now. */
export function newestKnown({ dataset: { partition }, asOfMs }: Asked): number | undefined {
  if (asOfMs === undefined || partition.kind !== 'vintage') return undefined;
  return asOfMs - partition.knownAfterMs;
}

/** A test over partitions `p`: it was known. Undefined where all are. */
export function knownTest(request: Asked): string | undefined {
  const newest = newestKnown(request);
  return newest === undefined ? undefined : `lower(p.span) <= ${newest}`;
}

/** The time that the answer is of: what was not known then is neither missing nor late. */
export const clockOf = ({ asOfMs }: Pick<ReadRequest, 'asOfMs'>, nowMs: number): number =>
  Math.min(nowMs, asOfMs ?? nowMs);

/* Why a read gave no answer, in the words of the read core; each access style maps them to its own codes. */

export type ReadFaultKind =
  /** The database is not reached, or could not run the statement. */
  | 'backend'
  /** Stored data is not as declared. */
  | 'runtime'
  | 'aligned_contract'
  | 'timeout'
  | 'no_rows'
  | 'credentials_refused'
  /** Any password would do, or the role is no restricted one: the operator's to put right. */
  | 'credentials_unfit';

export class ReadFault extends Error {
  override readonly name = 'ReadFault';
  readonly kind: ReadFaultKind;
  /** What the answer would have carried: why there are no rows, perhaps. */
  readonly warnings: readonly Warning[];

  constructor(
    kind: ReadFaultKind,
    message: string,
    options: { readonly cause?: unknown; readonly warnings?: readonly Warning[] } = {},
  ) {
    super(message, options);
    this.kind = kind;
    this.warnings = options.warnings ?? [];
  }
}

/** The database does not hold the rows that were proved: a recount of their partitions is asked for. */
export class LostRows extends ReadFault {
  readonly count: RowCount;

  constructor(message: string, count: RowCount) {
    super('runtime', message);
    this.count = count;
  }
}

/** The answer would carry warnings, and the request is strict. */
export class StrictRefusal extends Error {
  override readonly name = 'StrictRefusal';
  readonly warnings: readonly Warning[];

  constructor(warnings: readonly Warning[]) {
    super('the answer would carry warnings');
    this.warnings = warnings;
  }
}
