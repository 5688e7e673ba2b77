/** Types of the read core: parts and slices of time, the SQL of their rows, and the faults that a read reports. */
import type { Range } from '../../shared/ranges.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Warning } from '../contract/problems.ts';
import type { Params, Statement } from '../db/pg-messages.ts';

/** One stretch of time that rows are read from, and how long its rows can be valid. */
export interface Part extends Range {
  /** The end of the whole stretch, even when only some of it is searched: a following row may lie up to here. */
  readonly until: number;
  /** End of the stretch's proved time. Undefined: the rows lie beyond it, and each is valid for its second. */
  readonly provedTo: number | undefined;
  /** Whether nothing later is proved: the end is then the end of coverage, not a gap. */
  readonly isLast: boolean;
  /** Only these ranges of it are searched, ascending; absent where all of it is. Clipped to the part, they may be fewer. */
  readonly ranges?: readonly Range[];
}

/** The number of rows that a statement or a whole read must yield. */
export interface RowCount {
  readonly rows: number;
  /** Whether partitions that cross the window's border may add rows. */
  readonly isMinimum?: boolean;
  /** The time range of the partitions. */
  readonly window: Range;
  /** The partitions, if they are few. */
  readonly partitions?: readonly string[];
}

/** How much of the window a read searches: the partitions and frames that its filters leave, and those that they rule out. */
export interface Searched {
  readonly partitionsRead: number;
  readonly partitionsSkipped: number;
  readonly framesRead: number;
  readonly framesSkipped: number;
  /** Rows of what is searched, whole frames of it. */
  readonly rows: number;
  readonly rowsPerMs: number;
}

/** The first row of an answer: its time, and its key in the order of the rows. */
export interface FirstRow {
  readonly ms: number;
  readonly key: readonly string[];
}

/** The identity of an aligned row. */
export interface SeriesRow {
  readonly seriesId: number;
  readonly ms: number;
}

/** The rows just outside a slice. */
interface BoundaryRows {
  /** Rows from before the window that are still valid when it begins; only the window's first slice has them. */
  readonly carried: readonly SeriesRow[];
  /** The first row of each series after the slice. */
  readonly next: readonly SeriesRow[];
}

export interface Slice {
  readonly from: number;
  readonly to: number;
  /** The part that the slice belongs to. Time after the slice may still be proved. */
  readonly part: Part;
  /** Only these ranges of the slice are searched, in the order in which their rows are read. */
  readonly ranges?: readonly Range[];
  /** Where to search for the row after the slice's last one; by default the rest of the part. */
  readonly following?: Range;
  /** For a dataset of many series: the rows just outside the slice, by series. */
  readonly boundary?: BoundaryRows;
  /** The number of rows that the slice must hold, if it covers whole partitions. */
  readonly count?: RowCount;
}

/** How the rows of a statement may be read by several, each for a section of its time. */
export interface Sections extends Range {
  readonly dataset: number;
  /** The number of rows, if it is proved. */
  readonly rows?: number;
  /** The statements that yield the same rows, one after the other; one if they are too few for that. */
  cut(): Promise<readonly Statement[]>;
}

/** How the end of a row's validity is determined. */
export type ValidityRule =
  /** The request does not need it. */
  | 'none'
  /** The renderer takes it from the next row of the answer, which has all rows in order. */
  | 'lookahead'
  /** The database takes it from the next stored row, because a filter or sample omits rows, or series are mixed. */
  | 'computed';

/** SQL of ordered rows for any slice of them: the rows of a table, or klines that aggregate them. */
export interface Rows<S> {
  /** `from ... where ...`, with the rows under the alias `t`; `where` is a further condition over it. */
  from(slice: S, params: Params, more?: { readonly where?: string }): string;
  /** The answer's columns of these rows, in order. */
  select(slice: S, params: Params, where?: string): string;
  /** The terms that order these rows of a slice. */
  order(direction?: string, slice?: S): string;
  /** SQL of the order's values as text. */
  readonly key: readonly string[];
  readonly timeMs: string;
  /** SQL of a number that depends only on the row's identity and a seed. */
  hash(seed: string): string;
  /** Whether statements over such a slice have a text that is likely to come again; absent where none have. */
  isRecurring?(slice: S): boolean;
}

/** Why a read yields no answer, in the terms of the read core. Each access style maps the kinds to its own codes. */
export type ReadFaultKind =
  /** The database is unreachable, or could not run the statement. */
  | 'backend'
  /** Stored data differs from its declaration. */
  | 'runtime'
  | 'aligned_contract'
  | 'timeout'
  | 'no_rows'
  | 'credentials_refused'
  /** The role takes any password, or is not restricted. The operator has to repair it. */
  | 'credentials_unfit';

export class ReadFault extends Error {
  override readonly name = 'ReadFault';
  readonly kind: ReadFaultKind;
  /** The warnings that the answer would have carried. They may explain why there are no rows. */
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

/** The database does not hold the rows that were proved. The reader requests a recount of their partitions. */
export class LostRows extends ReadFault {
  readonly count: RowCount;

  constructor(message: string, count: RowCount) {
    super('runtime', message);
    this.count = count;
  }
}

/** The storage of aligned rows is not as declared; the dataset says with which status its reads are refused. */
export class ContractViolation extends ReadFault {
  readonly status: DatasetDefinition['contractViolationStatus'];

  constructor({ contractViolationStatus }: DatasetDefinition, violation: string) {
    super('aligned_contract', violation);
    this.status = contractViolationStatus;
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
