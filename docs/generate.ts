/**
 * What is derived from the code: `.env.example`, the client's types, the accounts of the log (`nats-accounts.conf` and
 * `docker-compose.yml`), and the marked sections of the pages.
 * `npm run docs` writes them; test/system/docs.test.ts fails while a page differs from what is derived here.
 *
 * A section lies between `<!--generated:NAME-->` and `<!--/generated-->`.
 */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fedDatasets } from '../pipelines/sources/index.ts';
import { OPERATORS_OF } from '../serving/contract/filters.ts';
import { PROBLEMS, type ProblemKind } from '../serving/contract/problems.ts';
import { METRICS, type MetricSpec } from '../serving/monitoring/names.ts';
import { LIMITS as HANDED } from '../shared/config/limits.ts';
import { SETTINGS, type Setting, type SettingName } from '../shared/config/settings.ts';
import { accountsConfiguration, type NatsRole } from '../shared/nats/accounts.ts';
import type { LayoutColumn } from '../shared/proof-log/cells.ts';
import { DATASETS } from '../shared/registry/index.ts';
import { rowLayoutOf } from '../shared/registry/proof-rows.ts';
import { command, errorCodes } from './cli-tables.ts';
import { clientDatasets, clientLayouts } from './client-types.ts';
import { etfFunds, etfMetrics } from './etf-tables.ts';
import { fieldReference, klines } from './field-tables.ts';
import { constantIn, LIMITS, type Limit } from './limits.ts';
import { macroSeries } from './macro-tables.ts';

export const ROOT = join(import.meta.dirname, '..');

/** Pages that may hold sections, and that test/system/docs.test.ts checks. */
export async function pages(root: string = ROOT): Promise<string[]> {
  const docs = (await readdir(join(root, 'docs'))).filter((name) => name.endsWith('.md')).sort();
  return [
    'README.md',
    'CHANGELOG.md',
    'CONTRIBUTING.md',
    'SECURITY.md',
    'examples/README.md',
    ...docs.map((name) => `docs/${name}`),
  ];
}

/** Path below the project's root -> what the file must hold. */
export async function generate(root: string = ROOT): Promise<Map<string, string>> {
  const files = new Map([
    ['.env.example', envExample()],
    ['client/check/layouts.ts', clientLayouts()],
    ['client/datasets.ts', clientDatasets()],
    ['docs/nats-accounts.conf', natsAccounts()],
    ['docker-compose.yml', composeFile(await readFile(join(root, 'docker-compose.yml'), 'utf8'))],
  ]);
  for (const path of await pages(root)) {
    files.set(path, await filled(root, path, await readFile(join(root, path), 'utf8')));
  }
  return files;
}

const SECTION = /(<!-- ?generated:([\w:./#-]+?) ?-->\n)[\s\S]*?(<!-- ?\/generated ?-->)/g;

async function filled(root: string, path: string, text: string): Promise<string> {
  const parts: string[] = [];
  let end = 0;
  for (const match of text.matchAll(SECTION)) {
    parts.push(text.slice(end, match.index), match[1], await section(root, match[2], path), match[3]);
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)].join('');
}

async function section(root: string, name: string, path: string): Promise<string> {
  const [kind, of = ''] = name.split(':');
  switch (kind) {
    case 'limits':
      return await limits(root);
    case 'datasets':
      return datasets();
    case 'fields':
      return fieldReference();
    case 'metrics':
      return metrics();
    case 'operators':
      return operators();
    case 'historical-routes':
      return historicalRoutes();
    case 'etf-funds':
      return etfFunds();
    case 'etf-metrics':
      return etfMetrics();
    case 'logged-rows':
      return loggedRows();
    case 'macro-series':
      return macroSeries();
    case 'klines':
      return klines();
    case 'problems':
      return problems();
    case 'error-codes':
      return errorCodes();
    case 'command':
      return command(of);
    default:
      return fail(`${path}: unknown generated section ${name}`);
  }
}

// ---- proof log ----------------------------------------------------------------------------------------------------

/**
 * The columns of the canonical rows, and what shows those that are no field of their name. A type follows the last of
 * the columns that have it.
 */
function loggedRows(): string {
  const columnOf = ({ name, rule, fields }: LayoutColumn): string => {
    const shown = rule === 'field' ? (fields[0] === name ? '' : ` = \`${fields[0]}\``) : ` (${rule})`;
    return `\`${name}\`${shown}`;
  };
  const lines = [...DATASETS.values()].map(rowLayoutOf).map(({ dataset, columns, order }) => {
    const by = order.map((index) => `\`${columns[index].name}\``).join(', ');
    const typed = columns.map((column, index) =>
      column.type === columns[index + 1]?.type ? columnOf(column) : `${columnOf(column)} ${column.type}`,
    );
    return `- \`${dataset}\`, by ${by}: ${typed.join(', ')}`;
  });
  return `${lines.join('\n')}\n`;
}

// ---- accounts of the log -------------------------------------------------------------------------------------------

const passwordsNamed = (name: (role: string) => string): Readonly<Record<NatsRole, string>> => ({
  publisher: name('PASSWORD'),
  projector: name('PROJECTOR_PASSWORD'),
  reader: name('READER_PASSWORD'),
  operator: name('OPERATOR_PASSWORD'),
});

/** For a nats-server that the operator runs: its configuration includes this file. */
const natsAccounts = () =>
  `# Accounts of the log. Replace the four passwords. Written by \`npm run docs\` from shared/nats/accounts.ts.
${accountsConfiguration(passwordsNamed((name) => name))}`;

/** Compose interpolates the server's configuration: `$` is written twice, and passwords are the operator's variables. */
function composeFile(text: string): string {
  const accounts = accountsConfiguration(passwordsNamed((name) => `NATS_${name}`))
    .replaceAll('$', '$$$$')
    .replace(/"(NATS_\w+)"/g, (_, name) => `"\${${name}:-}"`)
    .trimEnd()
    .split('\n')
    .map((line) => `        ${line}\n`)
    .join('');
  const [start, end] = ['        # generated:nats-accounts\n', '        # /generated\n'];
  const [before, rest, ...more] = text.split(start);
  const after = rest?.split(end);
  if (after?.length !== 2 || more.length > 0) return fail('docker-compose.yml: no section for the accounts of the log');
  return `${before}${start}${accounts}${end}${after[1]}`;
}

function fail(message: string): never {
  throw new Error(message);
}

// ---- settings ------------------------------------------------------------------------------------------------------

const SETTING_ENTRIES = Object.entries(SETTINGS) as [SettingName, Setting][];
/** The settings that the first proof pins. */
const PINNED = new Set([...DATASETS.values()].flatMap(({ pinned = [] }) => pinned));
const groups = () => Map.groupBy(SETTING_ENTRIES, ([, setting]) => setting.group);

function envExample(): string {
  const lines = [
    '# Every setting of Tidemark, with its default. Copy to `.env` and uncomment what is to differ.',
    '# A command-line flag wins over the environment, the environment over `.env`: SVC_HTTP_PORT is --http-port.',
    '# Written by `npm run docs` from shared/config/settings.ts.',
  ];
  for (const [group, entries] of groups()) {
    lines.push('', `# ---- ${group} ${'-'.repeat(Math.max(4, 92 - group.length))}`);
    for (const [name, setting] of entries) {
      const pin = PINNED.has(name) ? '; pinned by the first proof of what a source published' : '';
      lines.push('', ...wrapped(setting.doc, 98).map((line) => `# ${line}`), `# ${rule(setting)}${pin}`);
      lines.push(`#${name}=${setting.default ?? ''}`);
    }
  }
  return `${lines.join('\n')}\n`;
}

/** What a setting takes, in words. */
const rule = ({ schema, secret, default: text }: Setting): string =>
  `${schema.description}${secret ? '; secret' : ''}${text === undefined ? '; unset' : ''}`;

// ---- limits --------------------------------------------------------------------------------------------------------

/** A subject has a line of its settings and one of its constants. */
async function limits(root: string): Promise<string> {
  const sections: string[] = [];
  for (const [subject, list] of Object.entries(LIMITS)) {
    const [settings, constants] = [[] as string[], [] as string[]];
    for (const limit of list) {
      const value = await shown(root, limit);
      if ('setting' in limit) settings.push(`\`${limit.setting}\` (${value})`);
      else constants.push(`${limit.what}: ${value}`);
    }
    const line = settings.length > 0 ? `Settings: ${settings.join(', ')}.\n\n` : '';
    sections.push(`## ${subject}\n\n${line}${constants.join(';\n')}.\n`);
  }
  return sections.join('\n');
}

async function shown(root: string, limit: Limit): Promise<string> {
  const value =
    'setting' in limit
      ? Number((SETTINGS[limit.setting] as Setting).default)
      : 'limit' in limit
        ? HANDED[limit.limit]
        : constantIn(await declaring(join(root, limit.file), limit.name), limit.name);
  switch (limit.unit) {
    case 'bytes':
      return bytes(value);
    case 'ms':
      return value % 1000 === 0 ? `${grouped(value / 1000)} s` : `${grouped(value)} ms`;
    default:
      return `${grouped(value)} ${limit.unit}`.trimEnd();
  }
}

/** The source that declares a constant: a file, or the one file of a folder that exports it. */
async function declaring(path: string, name: string): Promise<string> {
  if (path.endsWith('.ts')) return await readFile(path, 'utf8');
  const names = (await readdir(path, { recursive: true })).filter((file) => file.endsWith('.ts'));
  const sources = await Promise.all(names.map((file) => readFile(join(path, file), 'utf8')));
  const found = sources.filter((source) => source.includes(`\nexport const ${name} = `));
  return found.length === 1 ? found[0] : fail(`${found.length} files of ${path} export ${name}`);
}

function bytes(value: number): string {
  for (const [unit, size] of [
    ['GiB', 2 ** 30],
    ['MiB', 2 ** 20],
    ['KiB', 2 ** 10],
  ] as const) {
    if (value % size === 0) return `${grouped(value / size)} ${unit}`;
  }
  return `${grouped(value)} bytes`;
}

// ---- datasets ------------------------------------------------------------------------------------------------------

function datasets(): string {
  const fed = new Set(fedDatasets());
  const named = [...DATASETS.values()].map(
    (dataset) => `\`${dataset.key}\`${fed.has(dataset) ? '' : ' (declared; it has no source yet)'}`,
  );
  return `${named.join(',\n')}.\n`;
}

/** A path that does not spell the dataset's key has it beside it. */
function historicalRoutes(): string {
  const lines = [...DATASETS.values()].map(({ key, historicalPath, trades }) => {
    const dataset = historicalPath.replaceAll('/', '_') === key ? '' : `: \`${key}\``;
    return `- \`${historicalPath}\`${dataset}${trades ? `, \`${trades.klinesPath}\`` : ''}\n`;
  });
  return lines.join('');
}

/** The names by type, with their labels. The scrape itself says what each means. */
const metrics = () =>
  [...Map.groupBy(Object.entries<MetricSpec>(METRICS), ([, { type }]) => type)]
    .map(([type, entries]) => {
      const byLabels = Map.groupBy(entries, ([, { labels = [] }]) => labels.join(', '));
      const lines = [...byLabels].map(([labels, alike]) => {
        const names = alike.map(([name]) => `\`${name}\``).join(', ');
        return `- ${labels === '' ? 'no labels' : labels}: ${names}\n`;
      });
      return `${type[0].toUpperCase()}${type.slice(1)}s:\n\n${lines.join('')}`;
    })
    .join('\n');

const operators = () =>
  [...Map.groupBy(Object.entries(OPERATORS_OF), ([, list]) => list.map((op) => `\`${op}\``).join(' ') || 'none')]
    .map(([list, entries]) => `- ${entries.map(([dtype]) => dtype).join(', ')}: ${list}\n`)
    .join('');

// ---- codes ---------------------------------------------------------------------------------------------------------

/** A list for each status. An answer says what its code means in `title` and `detail`. */
function problems(): string {
  const kinds = Object.entries(PROBLEMS) as [string, ProblemKind][];
  const lists = [...Map.groupBy(kinds, ([, { status }]) => status)].sort(([one], [other]) => one - other);
  return lists
    .map(([status, those]) => {
      const codes = those.map(([code, { retryAfter }]) => `\`${code}\`${retryAfter ? ` (${retryAfter} s)` : ''}`);
      return `- **${status}** ${codes.join(', ')}\n`;
    })
    .join('');
}

// ---- text ----------------------------------------------------------------------------------------------------------

const grouped = (value: number | undefined) => (value === undefined ? '' : value.toLocaleString('en-US'));

function wrapped(text: string, width: number): string[] {
  const lines = [''];
  for (const word of text.split(' ')) {
    const last = lines[lines.length - 1];
    if (last.length + word.length + 1 > width) lines.push(word);
    else lines[lines.length - 1] = last === '' ? word : `${last} ${word}`;
  }
  return lines;
}

if (import.meta.main) {
  for (const [path, text] of await generate()) {
    const before = await readFile(join(ROOT, path), 'utf8').catch(() => undefined);
    if (before === text) continue;
    await writeFile(join(ROOT, path), text);
    process.stdout.write(`${path}\n`);
  }
}
