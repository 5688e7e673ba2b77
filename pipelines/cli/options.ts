/** Options of commands, checked as they are read, and what was typed. */
import { InvalidArgumentError, Option } from 'commander';
import type { SettingName } from '../../shared/config/settings.ts';
import { parseDay, unlessInCalendar } from '../../shared/dates.ts';
import type { Io } from './io.ts';

export interface ParsedCommand {
  /** The command line as typed, without settings, because some are secret. */
  readonly line: string;
  readonly positionals: readonly string[];
  /** By the names of the options, without dashes. */
  readonly values: Readonly<Record<string, string | boolean | undefined>>;
  readonly settings: Partial<Record<SettingName, string>>;
  readonly json: boolean;
  readonly progress: boolean;
  readonly io: Io;
}

/** Reads a value. `fault` says what is wrong with it. */
const checked = (fault: (value: string) => string | undefined) => (value: string) => {
  // Whoever looks whether the option was given would take a blank one for an answer, such as the reason of a replacement.
  const why = value.trim() === '' ? 'It is blank: give it a value, or leave it out.' : fault(value);
  if (why !== undefined) throw new InvalidArgumentError(why);
  return value;
};

export const flag = (name: string, doc: string): Option => new Option(`--${name}`, doc);

export const text = (name: string, doc: string): Option =>
  new Option(`--${name} <text>`, doc).argParser(
    // The option before it lacks its value.
    checked((value) => (value.startsWith('--') ? 'It begins with two dashes, as an option does.' : undefined)),
  );

export const choice = (name: string, doc: string, choices: readonly string[]): Option =>
  new Option(`--${name} <choice>`, doc).choices(choices);

export const day = (name: string, doc: string): Option =>
  new Option(`--${name} <YYYY-MM-DD>`, doc).argParser(
    checked((value) =>
      parseDay(value) === undefined ? `It must be a day, YYYY-MM-DD${unlessInCalendar(value)}.` : undefined,
    ),
  );

export function integer(name: string, doc: string, { min = 0, max }: { min?: number; max?: number } = {}): Option {
  const bounds = max !== undefined ? ` from ${min} to ${max}` : min > 0 ? ` from ${min} on` : '';
  const isWithin = (value: string) =>
    /^\d{1,15}$/.test(value) && Number(value) >= min && Number(value) <= (max ?? Number.MAX_SAFE_INTEGER);
  return new Option(`--${name} <n>`, doc).argParser(
    checked((value) => (isWithin(value) ? undefined : `It must be a whole number${bounds}.`)),
  );
}

export const required = (option: Option): Option => option.makeOptionMandatory();

const heights = [integer('from-height', 'First block.'), integer('to-height', 'Last block, included.')];

/** Of commands that look at what is stored. */
export const INSTRUMENT = text(
  'instrument',
  'Of an exchange: these instruments, by symbol, separated by commas, or `all`; default the one of its setting.',
);

/** Options that select documents of a feed. Each feed declares which of them it takes (pipelines/sources/index.ts). */
export const SELECTION: readonly Option[] = [
  day('from', 'First file day, capture or vintage. Default for an exchange: the earliest.'),
  day('to', 'Last one, included. Default for an exchange: the latest that is over.'),
  choice(
    'granularity',
    "Which of the vendor's documents to read; default daily. A month makes the same day partitions.",
    ['daily', 'monthly'],
  ),
  INSTRUMENT,
  text('fund', 'For `etf`: only these funds, by ticker or source id, separated by commas.'),
  text('series', "For `macro`: only these series, by the provider's id or source id, separated by commas."),
  ...heights,
];
export const SELECTING: readonly string[] = SELECTION.map((option) => option.name());

/** Options that select partitions of a dataset. */
export const PARTITIONS: readonly Option[] = [
  day('from', 'First day; default the earliest.'),
  day('to', 'Last day, included; default the latest.'),
  text('partition', 'Only this partition.'),
  INSTRUMENT,
  ...heights,
];
