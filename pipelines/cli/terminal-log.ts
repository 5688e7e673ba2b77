/**
 * The log of a command that runs on a terminal: every line goes to a file of bounded size in the state folder, and
 * warnings and errors are also shown in words. Children of the command write to the same file, through the command.
 */
import { closeSync, fstatSync, mkdirSync, openSync, renameSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';

/** Two files of this size at most: the one that is written to, and the one before it (`.1`). */
const MAX_BYTES = 8 << 20;
/** Another command may have rotated the file: looked at each time this much was written. */
const LOOK_EVERY_BYTES = 64 << 10;
/** Words that were shown are not repeated for this long; the file has every line. */
const REPEAT_MS = 60_000;
const MAX_REMEMBERED = 1000;
const WARNING = 40;
const ERROR = 50;

/** Set for a child whose lines its parent shows on a terminal. */
export const TERMINAL_VARIABLE = 'TIDEMARK_TERMINAL';
/** Member of a log line that a line for people accompanies: it is not shown a second time. */
export const SHOWN_BY_PARENT = { told: true } as const;

export interface TerminalLogOptions {
  readonly path: string;
  /** Shows a line to the operator. */
  readonly show: (line: string) => void;
  readonly maxBytes?: number;
}

export class TerminalLog {
  readonly path: string;
  readonly #show: TerminalLogOptions['show'];
  readonly #maxBytes: number;
  readonly #shownAt = new Map<string, number>();
  #file: { readonly descriptor: number; readonly inode: number } | undefined;
  #sinceLook = 0;

  constructor({ path, show, maxBytes = MAX_BYTES }: TerminalLogOptions) {
    this.path = path;
    this.#show = show;
    this.#maxBytes = maxBytes;
  }

  /** @param text one line of our own logger, with its end. */
  write(text: string): void {
    const line = text.trimEnd();
    const words = inWords(JSON.parse(line) as LogRecord);
    this.#keep(line);
    if (words !== undefined) this.#showOnce(words);
  }

  /** @param line what a child wrote to its standard error: its log, lines for people, or the trace of a crash. */
  writeOf(child: string, line: string): void {
    if (line.startsWith('{')) {
      try {
        this.write(line);
        return;
      } catch {
        // Not of our logger.
      }
    }
    if (line.trim() === '') return;
    this.#keep(JSON.stringify({ level: ERROR, time: new Date().toISOString(), process: child, msg: line }));
    if (!/^\s+at |^Node\.js v/.test(line)) this.#show(line);
  }

  #showOnce(words: string): void {
    const now = performance.now();
    if (now - (this.#shownAt.get(words) ?? Number.NEGATIVE_INFINITY) < REPEAT_MS) return;
    if (this.#shownAt.size >= MAX_REMEMBERED) this.#shownAt.clear();
    this.#shownAt.set(words, now);
    this.#show(words);
  }

  /** A log that cannot be kept (a full disk, a folder that may not be written to) is no reason to end the work. */
  #keep(line: string): void {
    try {
      if (this.#file === undefined || this.#sinceLook >= Math.min(LOOK_EVERY_BYTES, this.#maxBytes)) this.#look();
      this.#sinceLook += writeSync(this.#file!.descriptor, `${line}\n`);
    } catch {
      // It is tried again with the next line.
    }
  }

  /** Opens the file, again where it was rotated, and rotates it once it is full. */
  #look(): void {
    const size = statSync(this.path, { throwIfNoEntry: false })?.size ?? 0;
    if (size >= this.#maxBytes) renameSync(this.path, `${this.path}.1`);
    const inode = statSync(this.path, { throwIfNoEntry: false })?.ino;
    if (this.#file === undefined || this.#file.inode !== inode) {
      if (this.#file) closeSync(this.#file.descriptor);
      this.#file = undefined;
      mkdirSync(dirname(this.path), { recursive: true });
      const descriptor = openSync(this.path, 'a', 0o640);
      this.#file = { descriptor, inode: fstatSync(descriptor).ino };
    }
    this.#sinceLook = 0;
  }
}

type LogRecord = Readonly<Record<string, unknown>> & { readonly level: number; readonly msg?: string };

/** @returns undefined for what is no warning, or was told already. */
function inWords(record: LogRecord): string | undefined {
  const { level, time: _time, process: name, msg, told, fault, faults, err, reason, ...facts } = record;
  if (level < WARNING || told) return undefined;
  const why = [fault, faults, err, reason].flatMap((one) => (one === undefined ? [] : [plain(one)]));
  const known = Object.entries(facts).map(([key, value]) => `${key} ${plain(value)}`);
  const about = known.length > 0 ? ` (${known.join(', ')})` : '';
  return `${level >= ERROR ? 'error' : 'warning'}: ${name}: ${msg ?? ''}${about}${why.length > 0 ? `: ${why.join('; ')}` : ''}`;
}

function plain(value: unknown): string {
  if (Array.isArray(value)) return value.map(plain).join('; ');
  if (typeof value !== 'object' || value === null) return String(value);
  const { message } = value as { readonly message?: unknown };
  return typeof message === 'string' ? message : JSON.stringify(value);
}
