/** Reads and validates all settings at start and reports every fault at once, so that none appears later at run time. */
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { parseEnv } from 'node:util';
import { TidemarkError } from '../errors.ts';
import { closestName } from '../nearest.ts';
import { LIMITS, type Limits } from './limits.ts';
import { path } from './settings/setting.ts';
import { SETTINGS, type Setting, type SettingName, type Settings } from './settings.ts';

export interface LoadOptions {
  /** Command-line flags, already mapped to setting names. They win over every other source. */
  readonly flags?: Partial<Record<SettingName, string>>;
  readonly env?: NodeJS.ProcessEnv;
  /** Other limits than the product's, for tests. */
  readonly limits?: Partial<Limits>;
  /** Folder of `.env`, and the base of relative paths; default: the current folder. */
  readonly cwd?: string;
  /** Names the settings without a default that the process needs, given the others. */
  readonly required?: (settings: Partial<Settings>) => readonly SettingName[];
}

export interface GivenSettings {
  readonly settings: Settings;
  /** The names of the settings that were given; the others have their defaults, if any. */
  readonly given: ReadonlySet<SettingName>;
}

interface ReadSettings extends Pick<GivenSettings, 'given'> {
  /** The valid settings; complete where `faults` is empty. */
  readonly settings: Partial<Settings>;
  /** Each as `NAME: what is wrong`. */
  readonly faults: readonly string[];
}

/**
 * Reads all settings.
 * @throws TidemarkError CONFIGURATION_INVALID naming every faulty setting, one a line.
 */
export const loadSettings = (options: LoadOptions = {}): Settings => loadGivenSettings(options).settings;

/** The same, for whoever tells a setting that was given from one that has its default. */
export function loadGivenSettings(options: LoadOptions = {}): GivenSettings {
  const { settings, given, faults } = readSettings(options);
  if (faults.length > 0) throw settingsInvalid(faults);
  return { settings: settings as Settings, given };
}

export const settingsInvalid = (faults: readonly string[]): TidemarkError =>
  new TidemarkError('CONFIGURATION_INVALID', `Some settings are invalid:\n  ${faults.join('\n  ')}`);

/** Reads all settings for a process that adds checks of its own before it reports the faults. */
export function readSettings(options: LoadOptions = {}): ReadSettings {
  const cwd = options.cwd ?? process.cwd();
  const env = options.env ?? process.env;
  const file = readDotEnv(resolve(cwd, '.env'));
  const faults: string[] = [];
  const faulty = new Set<SettingName>();
  const values: Record<string, unknown> = {};
  const names = new Set<SettingName>();
  for (const [name, setting] of Object.entries(SETTINGS) as [SettingName, Setting][]) {
    const given = options.flags?.[name] ?? nonBlank(env[name]) ?? nonBlank(file[name]);
    if (given !== undefined) names.add(name);
    const text = given ?? setting.default;
    if (text === undefined) continue;
    const { data, error } = setting.schema.safeParse(text);
    if (error === undefined) values[name] = setting.schema === path ? resolve(cwd, text) : data;
    else {
      faulty.add(name);
      const shown = mayShow(setting, text) ? `, got ${JSON.stringify(text)}` : '';
      faults.push(`${name}: ${error.issues[0].message}${shown}`);
    }
  }
  const settings = { ...values, limits: { ...LIMITS, ...options.limits } } as Partial<Settings>;
  faults.push(...BETWEEN.flatMap((rule) => rule(settings) ?? []));
  for (const name of options.required?.(settings) ?? []) {
    if (settings[name] === undefined && !faulty.has(name)) faults.push(`${name}: is required`);
  }
  for (const name of Object.keys({ ...file, ...env })) {
    if (name.startsWith('SVC_') && !(name in SETTINGS)) faults.push(`${name}: no such setting${suggestion(name)}`);
  }
  return { settings, given: names, faults };
}

/** What is wrong between settings that are each valid. */
const BETWEEN: readonly ((settings: Partial<Settings>) => string | undefined)[] = [
  ({ SVC_BITCOIN_HEADERS_START_HEIGHT: start, SVC_BITCOIN_HEADERS_END_HEIGHT: end }) =>
    start !== undefined && end !== undefined && start > end
      ? `SVC_BITCOIN_HEADERS_START_HEIGHT: must not be above SVC_BITCOIN_HEADERS_END_HEIGHT, got ${start} and ${end}`
      : undefined,
  ({ SVC_EXCHANGE_B_BASE_URL: base, SVC_EXCHANGE_B_LINK_URL: link }) =>
    base && link ? 'SVC_EXCHANGE_B_BASE_URL: cannot be set beside SVC_EXCHANGE_B_LINK_URL' : undefined,
  ...[
    ['SVC_EXCHANGE_A_SYMBOL', 'SVC_EXCHANGE_A_ALSO'] as const,
    ['SVC_EXCHANGE_B_INSTRUMENT', 'SVC_EXCHANGE_B_ALSO'] as const,
    ['SVC_EXCHANGE_C_SYMBOL', 'SVC_EXCHANGE_C_ALSO'] as const,
  ].map(
    ([byDefault, also]) =>
      (settings: Partial<Settings>) =>
        settings[also]?.some(({ symbol }) => symbol === settings[byDefault])
          ? `${also}: names ${settings[byDefault]}, which ${byDefault} names as the default: leave it out`
          : undefined,
  ),
  ({ SVC_EXCHANGE_B_LINK_URL: link, SVC_EXCHANGE_B_DOCUMENT: document }) =>
    link && document === 'allspot'
      ? 'SVC_EXCHANGE_B_DOCUMENT: must be instrument beside SVC_EXCHANGE_B_LINK_URL'
      : undefined,
];

/** Whether a message may show a faulty value: not a secret, and not a URL that may hold credentials. */
const mayShow = ({ secret }: Setting, text: string) => !secret && !text.includes('@');

function readDotEnv(path: string): Record<string, string | undefined> {
  let text: string;
  try {
    // Editors on Windows begin a file with a byte order mark, which would be part of the first name.
    text = readFileSync(path, 'utf8').replace(/^\uFEFF/, '');
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return {};
    throw new TidemarkError('CONFIGURATION_INVALID', `Cannot read the settings file ${path}`, { cause });
  }
  // `parseEnv` passes over what it does not understand, and the setting would have its default.
  const stray = strayLine(text);
  if (stray !== undefined) {
    throw new TidemarkError(
      'CONFIGURATION_INVALID',
      `${path}, line ${stray}: a line must be NAME=value or a # comment`,
    );
  }
  // After an = and blanks alone it takes the next line for the value.
  return parseEnv(text.replaceAll(OR_BLANK_VALUE, (found) => (/^=[ \t]+$/.test(found) ? '=' : found)));
}

/** A comment on a line of its own, or an assignment of a quoted value, which may have several lines, and what comes after it. */
const COMMENT_OR_QUOTED = /^[ \t]*(?:#.*|(?:export[ \t]+)?[\w.-]+[ \t]*=[ \t]*(["'`])((?:(?!\1)[\s\S])*)\1(.*))$/gm;
const OR_BLANK_VALUE = new RegExp(`${COMMENT_OR_QUOTED.source}|=[ \\t]+$`, 'gm');

/**
 * The number of the first line that is neither an assignment, part of a quoted value, a comment nor blank, or that goes on
 * after the quoted value.
 */
function strayLine(text: string): number | undefined {
  const assignments = text.replaceAll(COMMENT_OR_QUOTED, (_, _quote, value = '', rest = '') => {
    const lines = value.replaceAll(/[^\n]/g, '');
    return /^\s*(?:#.*)?$/.test(rest) ? lines : `${lines}"`;
  });
  const index = assignments.split(/\r?\n/).findIndex((line) => !/^\s*(?:(?:export\s+)?[\w.-]+\s*=.*)?$/.test(line));
  return index < 0 ? undefined : index + 1;
}

const nonBlank = (text: string | undefined) => (text === undefined || text.trim() === '' ? undefined : text.trim());

function suggestion(name: string): string {
  const bare = (full: string) => full.slice('SVC_'.length);
  const near = closestName(bare(name), Object.keys(SETTINGS).map(bare));
  return near === undefined ? '' : ` (did you mean SVC_${near}?)`;
}
