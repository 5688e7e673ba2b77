/** The operator's output: answers on stdout (text or one JSON object), everything else on stderr. */
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

/** Whether standard error is a terminal, and the command is for people. */
export const isOnTerminal = ({ json, io }: Pick<ParsedCommand, 'json' | 'io'>): boolean =>
  io.stderr.isTTY === true && !json;

export function createOutput(options: Pick<ParsedCommand, 'json' | 'progress' | 'io'>): Output {
  const { stdout, stderr } = options.io;
  const terminal = isOnTerminal(options);
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
      stdout.write(options.json ? `${JSON.stringify(value, jsonValue)}\n` : `${text()}\n`);
    },
    note(line) {
      clear();
      if (!options.json) stderr.write(`${line}\n`);
    },
    progress(line) {
      const now = performance.now();
      if (!tty || now - lastDrawn < PROGRESS_INTERVAL_MS) return;
      lastDrawn = now;
      stderr.write(`\r\x1b[K${line.slice(0, (stderr.columns ?? 80) - 1)}`);
      drawn = true;
    },
  };
}

/** A line with words of others: a control character would move the cursor, or begin a line of its own. */
export const printable = (line: string): string =>
  line.replaceAll(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (found) => `\\u{${found.codePointAt(0)!.toString(16)}}`);

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
