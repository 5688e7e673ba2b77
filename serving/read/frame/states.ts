/**
 * States at the ends of buckets: the last value of a series that was known then. A value counts for a bucket if its time lies
 * before the bucket's end and, where the frame is as of each row, if it was known at that end. Nothing here reads a store.
 */
import { DAY_MS, SECOND_MS } from '../../../shared/dates.ts';
import type { Range } from '../../../shared/ranges.ts';
import { lastValid, type ProvedRun } from '../snapshot/proved-runs.ts';
import type { RowValues } from './values.ts';

/** Blocks next to each other differ in time by hours at most. */
const NEIGHBOURS_MS = 2 * DAY_MS;

/** A value of a series, or of a block. */
export interface State {
  readonly ms: number;
  /** The end of the time for which it is proved that nothing follows. */
  readonly validToMs: number;
  /** When it became known; its own time where no other is known. */
  readonly knownMs: number;
  readonly values: RowValues;
}

/** A row of a series whose values are revised. */
export interface Revision {
  readonly ms: number;
  readonly knownMs: number;
  /** Whether it has a value; otherwise it states that there is none. */
  readonly isPresent: boolean;
  readonly values: RowValues;
}

/** The state of a series with revisions: of the latest time with a value, in the best revision that was known. */
export class RevisedSeries {
  readonly #rows: readonly Revision[];
  readonly #runs: readonly ProvedRun[];
  /** By when a row counts, epoch ms. */
  readonly #countsFrom: readonly number[];
  readonly #order: readonly number[];
  /** How long after a value's time the next may become known. */
  readonly #delayOf: (row: Revision) => number;
  /** Times that have a row, ascending, and the position of the best row of each. */
  readonly #times: number[] = [];
  readonly #best = new Map<number, number>();
  #next = 0;
  /** The last answer, and the position of its row: a frame asks for each of its buckets. */
  #last: { readonly position: number; readonly state: State } | undefined;

  /**
   * @param rows by time, and the rows of one time from the best to the worst
   * @param byRow whether a row counts only when it was known
   * @param isLate whether the next value is expected as long after its time as this one was known
   */
  constructor(
    rows: readonly Revision[],
    runs: readonly ProvedRun[],
    { byRow, isLate }: { readonly byRow: boolean; readonly isLate: boolean },
  ) {
    this.#rows = rows;
    this.#runs = runs;
    this.#countsFrom = rows.map(({ ms, knownMs }) => (byRow ? Math.max(knownMs, ms + 1) : ms + 1));
    this.#order = rows.map((_, index) => index).sort((a, b) => this.#countsFrom[a] - this.#countsFrom[b]);
    this.#delayOf = byRow && isLate ? ({ ms, knownMs }) => Math.max(0, knownMs - ms) : () => 0;
  }

  /** When the state may change, epoch ms, ascending. */
  get changes(): number[] {
    return this.#order.map((position) => this.#countsFrom[position]);
  }

  /** The state at the end of a bucket. Ends must ascend. */
  at(endMs: number): State | undefined {
    while (this.#next < this.#order.length && this.#countsFrom[this.#order[this.#next]] <= endMs) {
      this.#add(this.#order[this.#next++]);
    }
    for (let index = this.#times.length - 1; index >= 0; index--) {
      const position = this.#best.get(this.#times[index])!;
      if (this.#rows[position].isPresent) return this.#stateOf(position);
    }
    return undefined;
  }

  #stateOf(position: number): State {
    if (this.#last?.position !== position) {
      const row = this.#rows[position];
      const validToMs = lastValid(this.#runs, row.ms) + this.#delayOf(row);
      this.#last = { position, state: { ms: row.ms, validToMs, knownMs: row.knownMs, values: row.values } };
    }
    return this.#last!.state;
  }

  #add(position: number): void {
    const { ms } = this.#rows[position];
    const best = this.#best.get(ms);
    if (best === undefined) this.#insert(ms);
    if (best === undefined || position < best) this.#best.set(ms, position);
  }

  #insert(ms: number): void {
    let at = this.#times.length;
    while (at > 0 && this.#times[at - 1] > ms) at--;
    this.#times.splice(at, 0, ms);
  }
}

/** When blocks are known. */
export interface BlockKnowledge {
  /** Blocks that must follow. */
  readonly depth: number;
  /** The proved heights, ascending and disjoint. */
  readonly proved: readonly Range[];
  /** When a followed block arrived, epoch ms; undefined for one that was filled in. */
  arrivedMs(height: number): number | undefined;
}

/**
 * Follows which blocks are known as time passes. A block is known when its own time and those of all blocks up to
 * height + depth have passed. A median time past would not do: it lies before the block.
 */
export class KnownBlocks {
  readonly #knowledge: BlockKnowledge;
  /** All proved heights below it have passed. */
  #next: number;
  readonly #later = new Set<number>();

  /** @param first the lowest height whose time has not passed yet */
  constructor(knowledge: BlockKnowledge, first: number) {
    this.#knowledge = knowledge;
    this.#next = this.#proved(first);
  }

  /** The time of the block has passed. */
  pass(height: number): void {
    if (height < this.#next) return;
    this.#later.add(height);
    while (this.#later.delete(this.#next)) this.#next = this.#proved(this.#next + 1);
  }

  isKnown(height: number, atMs: number): boolean {
    const { depth, proved, arrivedMs } = this.#knowledge;
    if (height + depth >= this.#next) return false;
    // The blocks up to height + depth must be there, and not beyond a gap.
    if (!proved.some(({ from, to }) => from <= height && height + depth < to)) return false;
    return (arrivedMs(height) ?? 0) <= atMs;
  }

  /** The lowest proved height from this one on. */
  #proved(height: number): number {
    for (const { from, to } of this.#knowledge.proved) if (height < to) return Math.max(height, from);
    return Number.POSITIVE_INFINITY;
  }
}

/** A row of blocks or snapshots. */
export interface TimedRow {
  readonly ms: number;
  /** First and last height of the blocks that it is made of; undefined where it is made of none. */
  readonly first: number | undefined;
  readonly last: number | undefined;
  /** Whether it passes the column's filters; its blocks count either way. */
  readonly passes: boolean;
  readonly values: RowValues;
}

/** The state of rows that come in the order of their times. */
export class TimedStates {
  readonly #runs: readonly ProvedRun[];
  readonly #blocks: { pass(height: number): void; isKnown(height: number, atMs: number): boolean } | undefined;
  /** Rows whose time has not come. */
  readonly #coming: TimedRow[] = [];
  /** Rows whose time has come and that are not known yet, in their order. */
  #waiting: { readonly row: TimedRow; readonly number: number }[] = [];
  #count = 0;
  #run = 0;
  #state: { readonly state: State; readonly number: number } | undefined;

  /** @param blocks undefined: every row is known at its time */
  constructor(
    runs: readonly ProvedRun[],
    blocks?: { pass(height: number): void; isKnown(height: number, atMs: number): boolean },
  ) {
    this.#runs = runs;
    this.#blocks = blocks;
  }

  /** Takes the next row. Its time must not lie before those of the rows before it. */
  add(row: TimedRow): void {
    this.#coming.push(row);
  }

  /** The state at the end of a bucket. Ends must ascend, and all rows up to the end must have been added. */
  at(endMs: number): State | undefined {
    let passed = 0;
    for (const row of this.#coming) {
      if (row.ms > endMs) break;
      for (let height = row.first ?? 0; height <= (row.last ?? -1); height++) this.#blocks?.pass(height);
      if (row.passes) this.#waiting.push({ row, number: this.#count });
      this.#count++;
      passed++;
    }
    if (passed > 0) this.#coming.splice(0, passed);
    if (this.#waiting.length > 0) {
      // A block at the very end of a bucket belongs to the next one.
      const isWaiting = ({ row }: { readonly row: TimedRow }) => row.ms >= endMs || !this.#isKnown(row, endMs);
      const last = this.#waiting.findLast((one) => !isWaiting(one));
      this.#waiting = this.#waiting.filter(isWaiting);
      if (last && last.number >= (this.#state?.number ?? 0)) {
        const { ms, values } = last.row;
        this.#state = { state: { ms, validToMs: this.#validTo(ms), knownMs: ms, values }, number: last.number };
      }
    }
    return this.#state?.state;
  }

  #isKnown({ first = 0, last = -1 }: TimedRow, endMs: number): boolean {
    if (!this.#blocks) return true;
    for (let height = first; height <= last; height++) if (!this.#blocks.isKnown(height, endMs)) return false;
    return true;
  }

  /** As `lastValid`, for times that ascend: a chain with many gaps has thousands of runs. */
  #validTo(ms: number): number {
    const runs = this.#runs;
    while (this.#run < runs.length && runs[this.#run].to <= ms) this.#run++;
    // A run's first block may be earlier than that of the run before it.
    for (let index = this.#run; index < runs.length && runs[index].from <= ms + NEIGHBOURS_MS; index++) {
      if (runs[index].from <= ms) return Math.max(runs[index].to, ms + SECOND_MS);
    }
    return ms + SECOND_MS;
  }
}
