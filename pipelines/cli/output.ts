/**
 * The operator's output: answers on stdout (text or one JSON object), everything else on stderr. An ingest reports its units:
 * progress on the terminal, a line each, a table at the end, one exit code.
 */
import type { RunCounts } from '../../shared/db/runs.ts';
import { printable, printableJson, printableLines } from '../../shared/proof-log/printable.ts';
import type { UnitResult } from '../publisher/backfill.ts';
import type { PublishProgress } from '../publisher/publisher.ts';
import type { Feed } from '../sources/feed-types.ts';
import type { ParsedCommand } from './options.ts';

export interface Output {
  readonly json: boolean;
  /** Whether stderr is a terminal: notes for people, and log lines as sentences. */
  readonly terminal: boolean;
  /** Writes the answer: `value` as JSON, or `text()` for people. */
  answer(value: object, text: () => string): void;
  /** Writes a line for people to stderr; nothing with --json. */
  note(line: string): void;
  /** Replaces the progress line on a terminal. */
  progress(line: string): void;
}

/** Most frequent redraw, so that the terminal costs no noticeable time. */
const PROGRESS_INTERVAL_MS = 100;

export function createOutput(options: Pick<ParsedCommand, 'json' | 'progress' | 'io'>): Output {
  const { stdout, stderr } = options.io;
  const terminal = stderr.isTTY === true && !options.json;
  const tty = options.progress && terminal;
  let drawn = false;
  let lastDrawn = 0;
  const clear = () => {
    if (drawn) stderr.write('\r\x1b[K');
    drawn = false;
  };
  return {
    json: options.json,
    terminal,
    answer(value, text) {
      clear();
      // Whatever words of others are in it.
      const shown = options.json ? printableJson(JSON.stringify(value, jsonValue)) : printableLines(text());
      stdout.write(`${shown}\n`);
    },
    note(line) {
      clear();
      if (!options.json) stderr.write(`${printableLines(line)}\n`);
    },
    progress(line) {
      const now = performance.now();
      if (!tty || now - lastDrawn < PROGRESS_INTERVAL_MS) return;
      lastDrawn = now;
      stderr.write(`\r\x1b[K${printable(line).slice(0, (stderr.columns ?? 80) - 1)}`);
      drawn = true;
    },
  };
}

const jsonValue = (_key: string, value: unknown) => (typeof value === 'bigint' ? value.toString() : value);

/** Columns padded to their widest cell; numbers are right-aligned. */
export function table(header: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  const texts = rows.map((row) => row.map((cell) => (typeof cell === 'number' ? grouped(cell) : cell)));
  const widths = header.map((name, column) => Math.max(name.length, ...texts.map((row) => row[column].length)));
  const line = (cells: readonly string[], row?: readonly (string | number)[]) =>
    cells
      .map((cell, column) =>
        typeof row?.[column] === 'number' ? cell.padStart(widths[column]) : cell.padEnd(widths[column]),
      )
      .join('  ')
      .trimEnd();
  return [line(header), ...texts.map((cells, index) => line(cells, rows[index]))].join('\n');
}

/** A number for people: with commas between thousands, at most three decimals. Loading `Intl` for it costs a command 30 ms. */
export function grouped(value: number): string {
  const [whole, decimals] = String(Math.round(value * 1000) / 1000).split('.');
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',');
  return decimals === undefined ? grouped : `${grouped}.${decimals}`;
}

export const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;

/** Progress bar of `width` characters. */
export function bar(done: number, total: number, width = 24): string {
  const filled = total > 0 ? Math.round((Math.min(done, total) / total) * width) : 0;
  return `[${'#'.repeat(filled)}${'.'.repeat(width - filled)}]`;
}

/** Lines for units of a feed that failed with one code: a range may begin years before the vendor's first document. */
const MAX_ALIKE = 10;
/** Most units in the answer; a feed that is followed for months has more. */
const MAX_REPORTED = 10_000;

const STATES = ['proved', 'unchanged', 'refused', 'quarantined', 'failed'] as const;
type Counts = Record<(typeof STATES)[number] | 'rows', number>;

/** The result of one feed. */
export interface FeedSummary extends Counts {
  readonly feed: string;
  /** Partitions of the plan; null if the source lists documents only as it goes. */
  planned: number | null;
  elapsed_ms: number;
  /** Why none or not all of its units were attempted. */
  error: { readonly code: string; readonly message: string } | null;
}

export class Summary {
  readonly #command: string;
  readonly #output: Output;
  readonly #startedAt = performance.now();
  readonly #feeds = new Map<string, FeedSummary>();
  readonly #units: UnitResult[] = [];
  readonly #isSeveral: boolean;
  /** Units that failed, by feed and code. */
  readonly #alike = new Map<string, { count: number; last: string }>();
  /** The last line's reason, which is not repeated. */
  #lastReason = '';

  constructor(command: string, feeds: readonly Feed[], output: Output) {
    this.#command = command;
    this.#output = output;
    this.#isSeveral = feeds.length > 1 || feeds.some(({ datasets }) => datasets.length > 1);
    for (const { name: feed } of feeds) {
      const counts = { proved: 0, unchanged: 0, refused: 0, quarantined: 0, failed: 0, rows: 0 };
      this.#feeds.set(feed, { feed, planned: null, ...counts, elapsed_ms: 0, error: null });
    }
  }

  of({ name }: Feed): FeedSummary {
    return this.#feeds.get(name)!;
  }

  /** `quiet`: prints no line for this unit, which is one of many without a change. */
  add(feed: Feed, unit: UnitResult, quiet = false): void {
    const counts = this.of(feed);
    counts[unit.state]++;
    if (unit.state === 'proved') counts.rows += unit.rows;
    counts.elapsed_ms = Math.round(performance.now() - this.#startedAt);
    if (this.#units.length < MAX_REPORTED) this.#units.push(unit);
    if (!quiet && !this.#isOneTooMany(feed, unit)) this.#output.note(this.#line(unit));
  }

  /** Whether the unit failed as others have whose lines suffice. Who follows a feed for months wants to see each. */
  #isOneTooMany({ name }: Feed, { state, code, partition }: UnitResult): boolean {
    if (state !== 'failed' || this.#command === 'follow') return false;
    const kind = `${name}: ${code}`;
    const alike = this.#alike.get(kind) ?? { count: 0, last: '' };
    this.#alike.set(kind, { count: alike.count + 1, last: partition });
    return alike.count >= MAX_ALIKE;
  }

  #noteAlike(): void {
    for (const [kind, { count, last }] of this.#alike) {
      if (count > MAX_ALIKE) this.#output.note(`${kind}: ${grouped(count - MAX_ALIKE)} more, the last is ${last}`);
    }
  }

  #line(unit: UnitResult): string {
    const head = `${this.#isSeveral ? `${unit.dataset}  ` : ''}${unit.partition}  ${unit.state.padEnd(11)}`;
    if (unit.state === 'proved' || unit.state === 'unchanged') {
      return `${head} ${grouped(unit.rows)} rows`;
    }
    // The six datasets of one block fail for one reason with one remedy.
    const why = printable(`${unit.code}: ${unit.reason}`);
    const isRepeated = why === this.#lastReason;
    this.#lastReason = why;
    if (isRepeated) return `${head} ${unit.code}, as above`;
    return `${head} ${why}${unit.remedy ? `\n            ${unit.remedy}` : ''}`;
  }

  /** Prints the answer. @returns whether everything succeeded. */
  answer(interrupted: boolean): boolean {
    this.#noteAlike();
    const feeds = [...this.#feeds.values()];
    const total = Object.fromEntries(
      [...STATES, 'rows' as const].map((name) => [name, feeds.reduce((sum, feed) => sum + feed[name], 0)]),
    ) as Counts;
    const elapsedMs = performance.now() - this.#startedAt;
    const faults = total.refused + total.quarantined + total.failed + feeds.filter(({ error }) => error).length;
    const ok = !interrupted && faults === 0;
    const summary = {
      command: this.#command,
      feed: feeds.map(({ feed }) => feed).join(' '),
      ok,
      interrupted,
      ...total,
      elapsed_ms: Math.round(elapsedMs),
      rows_per_second: Math.round(total.rows / (elapsedMs / 1000)),
      feeds,
      units: this.#units,
    };
    this.#output.answer(summary, () => {
      const head = interrupted ? 'Interrupted; the same command continues where it stopped.\n' : '';
      const speed = `${grouped(summary.rows_per_second)} rows/s`;
      const foot = `${grouped(total.rows)} rows proved in ${seconds(elapsedMs)} (${speed})`;
      return `${head}${tableOf(feeds)}\n${foot}`;
    });
    return ok;
  }
}

function tableOf(feeds: readonly FeedSummary[]): string {
  const rows = feeds.map((feed) => [
    feed.feed,
    feed.planned ?? '-',
    ...STATES.map((state) => feed[state]),
    feed.rows,
    feed.error ? printable(`${feed.error.code}: ${feed.error.message}`) : '',
  ]);
  return table(['feed', 'planned', ...STATES, 'rows', ''], rows);
}

/** The progress line of a feed on the terminal, and its counts so far. */
export class IngestProgress {
  readonly #output: Output;
  readonly #feed: string;
  readonly #total: number | undefined;
  readonly #startedAt = performance.now();
  readonly #counts = { proved: 0, unchanged: 0, refused: 0, quarantined: 0, failed: 0, rows: 0 };
  #done = 0;
  #at: PublishProgress | undefined;
  /** Rows of the partitions that were published before this one. */
  #before = 0;

  constructor(output: Output, feed: string, total: number | undefined) {
    this.#output = output;
    this.#feed = feed;
    this.#total = total;
  }

  get counts(): RunCounts {
    return { ...this.#counts };
  }

  count({ state, rows }: UnitResult): RunCounts {
    this.#counts[state]++;
    if (state === 'proved') this.#counts.rows += rows;
    return this.counts;
  }

  /** A partition has come to its end. */
  ended(): void {
    this.#done++;
    this.#draw();
  }

  show(at: PublishProgress): void {
    if (this.#at && at.partition !== this.#at.partition) this.#before += this.#at.rows;
    this.#at = at;
    this.#draw();
  }

  #draw(): void {
    const [done, total] = [this.#done, this.#total];
    const share = total === undefined ? `${done}` : `${bar(done, total)} ${done}/${total}`;
    this.#output.progress([this.#feed, share, ...(this.#at ? this.#publishing(this.#at) : [])].join('  '));
  }

  #publishing({ partition, rows, bytes }: PublishProgress): string[] {
    const perSecond = (this.#before + rows) / Math.max((performance.now() - this.#startedAt) / 1000, 0.001);
    return [
      partition,
      `${grouped(rows)} rows`,
      `${(bytes / 1e6).toFixed(1)} MB`,
      `${grouped(Math.round(perSecond))} rows/s`,
    ];
  }
}
