/** Why a read gave no answer, in the words of the read core; each access style maps them to its own codes. */
import type { Warning } from '../contract/problems.ts';
import type { RowCount } from './counted.ts';

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
