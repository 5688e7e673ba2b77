/**
 * The log of a command for people: every line goes to a file of bounded size in the state folder, and warnings and errors are
 * also shown in words. Children of the command write to the same file, through the command.
 */
import { closeSync, fstatSync, mkdirSync, openSync, renameSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import type { ParsedCommand } from './options.ts';

/** Size limit of each of two files: the current one and the previous one (`.1`). */
const MAX_BYTES = 8 << 20;
/** Another command may have rotated the file, so it is checked after this many bytes. */
const CHECK_EVERY_BYTES = 64 << 10;
/** A sentence is shown at most once in this time; the file has every line. */
const REPEAT_MS = 60_000;
const MAX_REMEMBERED = 1000;
const WARNING = 40;
const ERROR = 50;

/** Set for a child whose log lines its parent shows on a terminal. */
export const TERMINAL_VARIABLE = 'TIDEMARK_TERMINAL';
/** Marks a log line that accompanies a note to the operator, so that it is not shown again. */
export const SHOWN_BY_PARENT = { reported: true } as const;

/** Commands that run until they are stopped: off a terminal their standard error is the log of a service, which somebody collects. */
const SERVICES: ReadonlySet<string> = new Set(['up', 'follow', 'export-worker']);

/**
 * Whether a command shows its log in words: always on a terminal, and off one where it ends by itself, for then its standard error
 * is read by people and by their scripts. With --json everything is for programs.
 */
export function logsInWords(
  { json, io, values }: Pick<ParsedCommand, 'json' | 'io' | 'values'>,
  name: string,
): boolean {
  if (json) return false;
  if (io.stderr.isTTY === true) return true;
  const isChild = io.env[TERMINAL_VARIABLE] !== undefined;
  const goesOn = SERVICES.has(name) || values.follow === true || values.every !== undefined;
  return !isChild && !goesOn && io.log === undefined;
}

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
  #sinceCheck = 0;

  constructor({ path, show, maxBytes = MAX_BYTES }: TerminalLogOptions) {
    this.path = path;
    this.#show = show;
    this.#maxBytes = maxBytes;
  }

  /** @param text one line of this program's logger, with its line end. */
  write(text: string): void {
    const line = text.trimEnd();
    const words = inWords(JSON.parse(line) as LogRecord);
    this.#keep(line);
    if (words !== undefined) this.#showOnce(words);
  }

  /** @param line a line of a child's standard error: a log record, a note for people, or a stack trace. */
  writeOf(child: string, line: string): void {
    if (line.startsWith('{')) {
      try {
        this.write(line);
        return;
      } catch {
        // Not a record of this program's logger.
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

  /** A log that cannot be written (full disk, missing rights) must not end the work. */
  #keep(line: string): void {
    try {
      if (this.#file === undefined || this.#sinceCheck >= Math.min(CHECK_EVERY_BYTES, this.#maxBytes)) this.#reopen();
      this.#sinceCheck += writeSync(this.#file!.descriptor, `${line}\n`);
    } catch {
      // The next line tries again.
    }
  }

  /** Opens the file, again if it was rotated, and rotates it when it is full. */
  #reopen(): void {
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
    this.#sinceCheck = 0;
  }
}

type LogRecord = Readonly<Record<string, unknown>> & { readonly level: number; readonly msg?: string };

/** @returns undefined if the record is not a warning, or was shown already. */
function inWords(record: LogRecord): string | undefined {
  const { level, time: _time, process: name, msg, reported, fault, faults, err, reason, ...facts } = record;
  if (level < WARNING || reported) return undefined;
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
