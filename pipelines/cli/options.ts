/** The command line's grammar, as data: commands, their options, and every setting as a flag. */

import { parseArgs } from 'node:util';
import { SETTINGS, type SettingName } from '../../shared/config/settings.ts';
import { parseDay, unlessInCalendar } from '../../shared/dates.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { closestName } from '../../shared/nearest.ts';
import { type Io, PROCESS_IO } from './io.ts';

export interface OptionSpec {
  readonly type: 'string' | 'boolean';
  readonly doc: string;
  readonly required?: boolean;
  readonly choices?: readonly string[];
  readonly day?: boolean;
  readonly integer?: boolean;
  /** Bounds of an integer. */
  readonly min?: number;
  readonly max?: number;
  readonly default?: string;
}

export interface CommandSpec {
  readonly name: string;
  /** Positional arguments in order. A trailing `?` makes one optional, `...` takes one or more, `...?` any number. */
  readonly positionals: readonly string[];
  readonly options: Readonly<Record<string, OptionSpec>>;
  readonly doc: string;
}

export interface ParsedCommand {
  /** The command line as typed, without settings, because some are secret. */
  readonly line: string;
  readonly positionals: readonly string[];
  readonly values: Readonly<Record<string, string | boolean | undefined>>;
  readonly settings: Partial<Record<SettingName, string>>;
  readonly json: boolean;
  readonly progress: boolean;
  readonly help: boolean;
  readonly io: Io;
}

const COMMON: Readonly<Record<string, OptionSpec>> = {
  json: { type: 'boolean', doc: 'Answer as one JSON object on standard output (docs/cli.md lists its fields).' },
  'no-progress': { type: 'boolean', doc: 'Show no progress line, even on a terminal.' },
  help: { type: 'boolean', doc: 'Show this help.' },
};

/** The flag of `SVC_HTTP_PORT` is `--http-port`. */
export const flagOf = (name: SettingName): string => name.slice('SVC_'.length).toLowerCase().replaceAll('_', '-');

/** @throws TidemarkError USAGE; its message names the fault. */
export function parseCommand(spec: CommandSpec, argv: readonly string[], io: Io = PROCESS_IO): ParsedCommand {
  const settingFlags = (Object.keys(SETTINGS) as SettingName[]).map((name) => [flagOf(name), name] as const);
  const specs = { ...COMMON, ...spec.options };
  const options = Object.fromEntries([
    ...settingFlags.map(([flag]) => [flag, { type: 'string' as const }]),
    ...Object.entries(specs).map(([name, { type }]) => [name, { type }]),
  ]);
  let parsed: { values: Record<string, unknown>; positionals: string[] };
  try {
    parsed = parseArgs({ args: [...argv], options, allowPositionals: true, strict: true });
  } catch (cause) {
    const { message } = cause as Error;
    const [, unknown] = /^Unknown option '--([\w-]+)'/.exec(message) ?? [];
    if (unknown) {
      const meant = closestName(unknown, Object.keys(specs)) ?? closestName(unknown, Object.keys(options));
      throw usage(spec, `There is no option --${unknown}${meant === undefined ? '' : `; did you mean --${meant}?`}`);
    }
    const [, option] = /^Option '(?:-\w, )?(--[\w-]+).*' argument is ambiguous/.exec(message) ?? [];
    throw usage(
      spec,
      option ? `${option} takes no value that begins with a dash` : message.replace(/\. To specify.*$/s, ''),
    );
  }
  const values = parsed.values as Record<string, string | boolean | undefined>;
  if (values.help !== true) {
    const needed = spec.positionals.filter((name) => !name.endsWith('?')).length;
    if (parsed.positionals.length < needed)
      throw usage(spec, `<${nameOf(spec.positionals[parsed.positionals.length])}> is missing`);
    const isBounded = !spec.positionals.some((name) => name.includes('...'));
    if (isBounded && parsed.positionals.length > spec.positionals.length) {
      throw usage(spec, `${JSON.stringify(parsed.positionals[spec.positionals.length])} is one argument too many`);
    }
    for (const [name, option] of Object.entries(specs)) values[name] = checkValue(spec, name, option, values[name]);
  }
  const settings: Partial<Record<SettingName, string>> = {};
  for (const [flag, name] of settingFlags) if (typeof values[flag] === 'string') settings[name] = values[flag];
  return {
    line: lineOf(spec, parsed.positionals, values),
    positionals: parsed.positionals,
    values,
    settings,
    json: values.json === true,
    progress: values['no-progress'] !== true,
    help: values.help === true,
    io,
  };
}

function lineOf(spec: CommandSpec, positionals: readonly string[], values: ParsedCommand['values']): string {
  const options = Object.keys(spec.options).flatMap((name) => {
    const value = values[name];
    if (value === undefined || value === spec.options[name].default) return [];
    return value === true ? [`--${name}`] : [`--${name} ${/\s/.test(String(value)) ? JSON.stringify(value) : value}`];
  });
  return ['./tidemark', spec.name, ...positionals, ...options].join(' ');
}

const nameOf = (positional: string) => positional.replace(/\.\.\.\??$|\?$/, '');

function checkValue(spec: CommandSpec, name: string, option: OptionSpec, given: string | boolean | undefined) {
  const value = given ?? option.default;
  if (option.required && (value === undefined || String(value).trim() === ''))
    throw usage(spec, `--${name} is missing`);
  if (value === undefined) return undefined;
  // Everybody who looks whether the option was given would take a blank one for an answer, such as the reason of a replacement.
  if (String(value).trim() === '') throw usage(spec, `--${name} is blank: give it a value, or leave it out`);
  if (option.day && parseDay(String(value)) === undefined) {
    throw usage(spec, `--${name} must be a day, YYYY-MM-DD, got ${JSON.stringify(value)}${unlessInCalendar(value)}`);
  }
  if (option.integer && !isWithin(option, String(value))) {
    throw usage(spec, `--${name} must be a whole number${boundsOf(option)}, got ${JSON.stringify(value)}`);
  }
  if (option.choices && !option.choices.includes(String(value))) {
    throw usage(spec, `--${name} must be ${option.choices.join(' or ')}, got ${JSON.stringify(value)}`);
  }
  return value;
}

const isWithin = ({ min = 0, max = Number.MAX_SAFE_INTEGER }: OptionSpec, text: string) =>
  /^\d{1,15}$/.test(text) && Number(text) >= min && Number(text) <= max;

function boundsOf({ min, max }: OptionSpec): string {
  if (max !== undefined) return ` from ${min ?? 0} to ${max}`;
  return min === undefined ? '' : ` from ${min} on`;
}

const usage = (spec: CommandSpec, why: string) =>
  new TidemarkError('USAGE', `${why}\nUsage: ${usageLine(spec)}`, { details: { command: spec.name } });

export function usageLine(spec: CommandSpec): string {
  const positionals = spec.positionals.map((name) => {
    const shown = `<${nameOf(name)}>${name.includes('...') ? '...' : ''}`;
    return name.endsWith('?') ? `[${shown}]` : shown;
  });
  const options = Object.entries(spec.options).map(([name, option]) => {
    const text = option.type === 'boolean' ? `--${name}` : `--${name} ${placeholder(option)}`;
    return option.required ? text : `[${text}]`;
  });
  return ['./tidemark', spec.name, ...positionals, ...options].join(' ');
}

const placeholder = (option: OptionSpec) =>
  option.choices?.join('|') ?? (option.day ? 'YYYY-MM-DD' : option.integer ? 'N' : 'TEXT');

export function commandHelp(spec: CommandSpec): string {
  const rows = Object.entries({ ...spec.options, ...COMMON }).map(([name, option]) => [
    `--${name}${option.type === 'boolean' ? '' : ` ${placeholder(option)}`}`,
    `${option.doc}${option.default ? ` Default ${option.default}.` : ''}`,
  ]);
  const width = Math.max(...rows.map(([left]) => left.length));
  return [
    usageLine(spec),
    '',
    spec.doc,
    '',
    ...rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`),
    '',
    'Every setting of .env.example is a flag too: SVC_HTTP_PORT is --http-port.',
  ].join('\n');
}

/* Options that select documents of a feed. Each feed declares which of them it takes (pipelines/sources/index.ts). */

export const SELECTION = {
  from: {
    type: 'string',
    day: true,
    doc: 'First file day, capture or vintage. Default for an exchange: the earliest.',
  },
  to: { type: 'string', day: true, doc: 'Last one, included. Default for an exchange: the latest that is over.' },
  granularity: {
    type: 'string',
    choices: ['daily', 'monthly'],
    doc: "Which of the vendor's documents to read; default daily. A month makes the same day partitions.",
  },
  fund: { type: 'string', doc: 'For `etf`: only these funds, by ticker or source id, separated by commas.' },
  series: {
    type: 'string',
    doc: "For `macro`: only these series, by the provider's id or source id, separated by commas.",
  },
  'from-height': { type: 'string', integer: true, doc: 'First block.' },
  'to-height': { type: 'string', integer: true, doc: 'Last block, included.' },
} as const satisfies Record<string, OptionSpec>;
