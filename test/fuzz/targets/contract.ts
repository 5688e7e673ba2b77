/** Texts of requests, of the operator's settings and of the rights matrix. */

import { readFileSync } from 'node:fs';
import { parseExport } from '../../../serving/contract/export.ts';
import { parseFrame } from '../../../serving/contract/frame.ts';
import { historicalParser } from '../../../serving/contract/historical.ts';
import type { ContractFault } from '../../../serving/contract/problems.ts';
import { parseQuery } from '../../../serving/contract/query.ts';
import type { Parsed } from '../../../serving/contract/shapes.ts';
import { loadSettings } from '../../../shared/config/load.ts';
import { SETTINGS, type Setting } from '../../../shared/config/settings.ts';
import { datasetOf } from '../../../shared/registry/index.ts';
import { MatrixInvalid, parseMatrix } from '../../../shared/rights/matrix.ts';
import { SAMPLE_MATRIX_PATH } from '../../../shared/rights/store.ts';
import { type Json, JsonFault, JsonLimit, parseJson } from '../../../shared/strict-json.ts';
import { judge, type Style } from '../../support/oracle/body.ts';
import { refusal, same, type Target, Wrong } from '../target.ts';

const TRADES = 'exchange_a_spot_trades';
const MACRO = 'macro_series_metrics';

/** The strict parser takes what JSON.parse takes, but for limits and members that are there twice. */
function jsonRun(bytes: Buffer): string {
  const text = bytes.toString();
  let elsewhere: { readonly is: unknown } | undefined;
  try {
    elsewhere = { is: JSON.parse(text) };
  } catch {
    // no JSON
  }
  try {
    const found = parseJson(text);
    if (!elsewhere) throw new Wrong('JSON.parse refuses it');
    same('value', plain(found), plain(elsewhere.is));
    const colons = text.replaceAll(/"(?:[^"\\]|\\.)*"/g, '').split(':').length - 1;
    same('members', membersOf(elsewhere.is), colons);
    return 'accepted';
  } catch (error) {
    if (!(error instanceof JsonFault)) throw error;
    if (!(error.offset >= 0 && error.offset <= text.length))
      throw new Wrong(`names the offset ${error.offset} of ${text.length}`);
    const isStricter = error instanceof JsonLimit || error.message.includes('a second time');
    if (elsewhere && !isStricter) throw new Wrong(`JSON.parse takes what is refused: ${error.message}`);
    return refusal(error, JsonFault);
  }
}

/** Of a text that has a member twice JSON.parse keeps one. */
const membersOf = (value: unknown): number =>
  typeof value !== 'object' || value === null
    ? 0
    : Object.values(value).reduce<number>(
        (sum, member) => sum + membersOf(member),
        Array.isArray(value) ? 0 : Object.keys(value).length,
      );

/** Members in order, large integers as the doubles that JSON.parse makes of them. */
const plain = (value: unknown): unknown => {
  if (typeof value === 'bigint') return Number(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.keys(value)
    .sort()
    .map((name) => [name, plain((value as Record<string, unknown>)[name])]);
};

/** Every pointer of a fault leads to a member, or to where one is missing or may not be. */
function checkFaults(body: Json, faults: readonly ContractFault[]): void {
  if (faults.length === 0) throw new Wrong('refused without a fault');
  if (faults.length > 200) throw new Wrong(`${faults.length} faults`);
  for (const { pointer, message } of faults) {
    if (message.trim() === '') throw new Wrong(`nothing is said of ${pointer}`);
    if (pointer !== '' && !pointer.startsWith('/')) throw new Wrong(`${pointer} is no pointer`);
    const names = pointer
      .split('/')
      .slice(1)
      .map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'));
    let at: unknown = body;
    for (const name of names.slice(0, -1)) {
      if (typeof at !== 'object' || at === null || !Object.hasOwn(at, name))
        throw new Wrong(`${pointer} leads nowhere: ${message}`);
      at = (at as Record<string, unknown>)[name];
    }
  }
}

const PARSERS: readonly { readonly parse: (body: Json) => Parsed<unknown>; readonly style?: Style }[] = [
  { parse: parseQuery, style: { kind: 'query' } },
  { parse: parseExport },
  { parse: parseFrame },
  { parse: historicalParser(datasetOf(TRADES), 'rows'), style: { kind: 'historical', dataset: TRADES } },
  { parse: historicalParser(datasetOf(TRADES), 'klines'), style: { kind: 'klines', dataset: TRADES } },
  { parse: historicalParser(datasetOf(MACRO), 'rows'), style: { kind: 'historical', dataset: MACRO } },
];

function bodyRun(bytes: Buffer): string {
  let body: Json;
  const text = bytes.toString();
  try {
    body = parseJson(text);
  } catch (error) {
    return refusal(error, JsonFault);
  }
  return PARSERS.map(({ parse, style }) => {
    const parsed = parse(body);
    if ('faults' in parsed) checkFaults(body, parsed.faults);
    const isValid = 'value' in parsed;
    // JSON.parse rounds what the strict parser reads exactly.
    const isExact = !/\d{16}/.test(text);
    if (style && isExact && isValid !== (judge(style, JSON.parse(text)) !== undefined)) {
      const why = 'faults' in parsed ? JSON.stringify(parsed.faults).slice(0, 200) : 'accepted';
      throw new Wrong(`the contract of ${style.kind} is judged otherwise: ${why}`);
    }
    return isValid ? 'valid' : `${parsed.faults.length > 1}`;
  }).join(' ');
}

const RANGE = ['2024-01-01T00:00:00Z', '2024-01-02T00:00:00+01:00'];
const filters = [
  { field: 'price', op: 'gte', value: 1.5 },
  { field: 'trade_id', op: 'in', value: [1, 2, 2 ** 53] },
  { field: 'datetime', op: 'lt', value: RANGE[0] },
  { field: 'is_buyer_maker', op: 'ne', value: null },
];
const BODIES = [
  { sources: [TRADES], mode: 'native', fields: ['price', 'datetime'], time_range: RANGE, filters, strict: true },
  {
    sources: [MACRO],
    mode: 'aligned_1s',
    n_random: 5,
    random_seed: 7,
    as_of: RANGE[0],
    view_id: 'aligned_1s_raw',
    view_version: 1,
  },
  { dataset: TRADES, format: 'csv', month_year: [1, 2024], fields: ['price'], filters: filters.slice(0, 1) },
  {
    columns: [{ name: 'x', dataset: TRADES, field: 'price', aggregate: 'vwap', max_age: '7d' }],
    grid: '1h',
    n_rows: 5,
    fill: 'previous',
  },
  { start_date: '2024-01-01', end_date: '2024-02-29', include_datetime_col: false, fields: ['price'] },
  { kline_size: '1m', n_latest_rows: 5, filters: [{ field: 'open', op: 'gt', value: 0 }] },
];

const SETTING_LIST: readonly [string, Setting][] = Object.entries(SETTINGS);

/** A file of settings, one a line. */
function settingsRun(bytes: Buffer): string {
  const flags = Object.fromEntries(
    bytes
      .toString()
      .split('\n')
      .map((line) => line.split('=') as [string, string])
      .map(([name, ...value]) => [name, value.join('=')]),
  );
  try {
    const settings = loadSettings({ cwd: '/nowhere', env: flags });
    for (const [name, setting] of SETTING_LIST) {
      const value = (settings as Record<string, unknown>)[name];
      if (setting.kind === 'integer' && value !== undefined && !Number.isSafeInteger(value))
        throw new Wrong(`${name} is ${value}`);
    }
    return 'accepted';
  } catch (error) {
    const outcome = refusal(error);
    const said = (error as Error).message;
    for (const [name, setting] of SETTING_LIST) {
      const value = flags[name];
      if (setting.secret && value && value.length > 8 && said.includes(value))
        throw new Wrong(`the message shows the secret ${name}`);
    }
    return outcome;
  }
}

const defaults = SETTING_LIST.flatMap(([name, setting]) =>
  setting.default === undefined ? [] : [`${name}=${setting.default}`],
);
const SECRET = 'SVC_DATABASE_URL=postgres://user:correct-horse@db.example:5432/x';

function matrixRun(bytes: Buffer): string {
  try {
    const { sources } = parseMatrix(bytes, { byokRole: undefined });
    if (sources.some(({ state }) => state === 'BYOK Required')) throw new Wrong('BYOK without a role');
    return `accepted ${sources.length > 0}`;
  } catch (error) {
    return refusal(error, MatrixInvalid);
  }
}

export const contractTargets = (): Target[] => {
  const bodies = BODIES.map((body) => Buffer.from(JSON.stringify(body)));
  const words = [
    '"__proto__":',
    '"n_rows":1',
    '"op":"not_in"',
    'null',
    'true',
    '"2024-02-30"',
    'T24:00:00Z',
    '\\ud800',
    '\\u0000',
    '"32d"',
  ];
  return [
    {
      name: 'strict JSON',
      form: 'json',
      seeds: [...bodies, Buffer.from(' [1e2, -0.5, "\\u00e9\\n", {"a":{"b":[]}} ]\n')],
      words,
      weight: 8,
      run: jsonRun,
    },
    { name: 'bodies of requests', form: 'json', seeds: bodies, words, weight: 8, run: bodyRun },
    {
      name: 'settings',
      form: 'lines',
      seeds: [
        Buffer.from([...defaults.slice(0, 12), SECRET].join('\n')),
        Buffer.from(defaults.slice(12, 24).join('\n')),
        Buffer.from(defaults.slice(24).join('\n')),
      ],
      words: ['SVC_', '=', 'true', 'http://', 'file:///', '*'],
      weight: 1,
      run: settingsRun,
    },
    {
      name: 'rights matrix',
      form: 'json',
      seeds: [readFileSync(SAMPLE_MATRIX_PATH)],
      words: ['"Hosted Allowed"', '"BYOK Required"', 'null'],
      weight: 2,
      run: matrixRun,
    },
  ];
};
