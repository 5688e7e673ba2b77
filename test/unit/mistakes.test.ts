/** What is said to somebody who asked wrongly: which key, and what it should have been. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { run } from '../../pipelines/cli/run.ts';
import { feedOf, feeds } from '../../pipelines/sources/index.ts';
import { parseExport } from '../../serving/contract/export.ts';
import { parseFrame } from '../../serving/contract/frame.ts';
import { historicalParser } from '../../serving/contract/historical.ts';
import { MAX_FAULTS } from '../../serving/contract/problems.ts';
import { parseQuery } from '../../serving/contract/query.ts';
import { contractProblem } from '../../serving/http/request.ts';
import { closestName, editDistance } from '../../shared/nearest.ts';
import { DATASETS, datasetOf } from '../../shared/registry/index.ts';
import { type Json, parseJson } from '../../shared/strict-json.ts';

const KEY = 'exchange_a_spot_trades';
const PARSERS: Readonly<Record<string, (body: Json) => object>> = {
  query: parseQuery,
  export: parseExport,
  frame: parseFrame,
  trades: historicalParser(DATASETS.get(KEY)!, 'rows'),
  klines: historicalParser(DATASETS.get(KEY)!, 'klines'),
};

const saidOf = (style: string, body: Record<string, Json>): string[] => {
  const parsed = PARSERS[style](body) as { faults?: { pointer: string; message: string }[] };
  return (parsed.faults ?? []).map(({ pointer, message }) => `${pointer || 'The body'} ${message}`);
};

const QUERY_KEYS =
  'mode, sources, instrument, view_id, view_version, time_range, n_rows, n_random, random_seed, as_of, fields, filters, csv_formulas, silences, strict';

test('fields that are unknown, none or repeated list those that there are, and name the one that is meant', () => {
  const names = 'trade_id, timestamp, price, quantity, quote_quantity, is_buyer_maker, is_best_match, datetime';
  const saidOfFields = (fields: Json[]) => saidOf('query', { sources: [KEY], fields });
  const rule = `must be a field of ${KEY} in mode native: ${names}`;
  expect(saidOfFields(['prise', 'volume'])).toEqual([`/fields/0 ${rule}; did you mean price?`, `/fields/1 ${rule}`]);
  expect(saidOfFields([])).toEqual([
    `/fields must name at least one field; the fields of ${KEY} in mode native are ${names}; leave it out for all of them`,
  ]);
  expect(saidOfFields(['price', 'datetime', 'price'])).toEqual([
    `/fields/2 repeats /fields/0; the fields of ${KEY} in mode native are ${names}`,
  ]);
});

test('a month of the first century is a month, not one of the twentieth', () => {
  const windowOf = (body: Record<string, Json>) => {
    const { value } = parseExport({ dataset: KEY, format: 'csv', ...body }) as { value: { subject: object } };
    return (value.subject as { window: object }).window;
  };
  expect(windowOf({ month_year: [2, 50] })).toEqual(
    windowOf({ time_range: ['0050-02-01T00:00:00Z', '0050-03-01T00:00:00Z'] }),
  );
});

describe('a key that is none', () => {
  test.each([
    ['query', { sources: [KEY], filter: [] }, '/filter is not a member of the request (did you mean filters?)'],
    ['query', { sources: [KEY], 'n-rows': 5 }, '/n-rows is not a member of the request (did you mean n_rows?)'],
    ['query', { sources: [KEY], limit: 5 }, `/limit is not a member of the request; the members are ${QUERY_KEYS}`],
    [
      'query',
      { sources: [KEY], format: 'csv' },
      '/format is not a member of the request; the Accept header chooses the form of an answer, such as text/csv',
    ],
    ['trades', { startDate: '2024-01-01' }, '/startDate is not a member of the request (did you mean start_date?)'],
    ['query', { sources: [KEY], n_rows: 1e30 }, '/n_rows must be at most 9007199254740991'],
    ['query', { sources: [KEY], n_rows: 0 }, '/n_rows must be an integer from 1'],
    ['trades', { n_latest_row: 1 }, '/n_latest_row is not a member of the request (did you mean n_latest_rows?)'],
    ['klines', { kline_siz: 60 }, '/kline_siz is not a member of the request (did you mean kline_size?)'],
    [
      'query',
      { sources: [KEY], filters: [{ feild: 'price', field: 'price', op: 'gt', value: 1 }] },
      '/filters/0/feild is not a member of the request (did you mean field?)',
    ],
  ] as const)('of a %s: %j', (style, body, said) => {
    expect(saidOf(style, body)).toEqual([said]);
  });

  test('beside others: what there is is said once', () => {
    const [first, second] = saidOf('trades', { limit: 1, offset: 2 });
    expect(first).toMatch(
      /^\/limit is not a member of the request; the members are mode, start_date, .*include_datetime_col$/,
    );
    expect(second).toBe('/offset is not a member of the request');
  });

  test('is hinted at in time for any number of them, of any length, and past the limit not collected', () => {
    const many = Object.fromEntries(Array.from({ length: 50_000 }, (_, at) => [`n_rows${at}`, 1]));
    expect(saidOf('query', { sources: [KEY], ['x'.repeat(1_000_000)]: 1, ...many }).length).toBe(MAX_FAULTS + 1);
  });

  test('has a hint among the first twenty of a body', () => {
    const many = Object.fromEntries(Array.from({ length: 30 }, (_, at) => [`n_rows${at}`, 1]));
    const isHinted = saidOf('query', { sources: [KEY], ...many }).map((said) =>
      said.endsWith('(did you mean n_rows?)'),
    );
    expect(isHinted.lastIndexOf(true)).toBe(19);
  });
});

describe('a length of time', () => {
  const RULE =
    '/kline_size must be an integer of seconds from 1 to 2678400, or a text of the same length such as "90s", "1m", "4h", "1d" or "1w"';

  test.each([
    ['5min', '5m'],
    ['5 minutes', '5m'],
    ['1hour', '1h'],
    ['4hrs', '4h'],
    ['1H', '1h'],
    ['1D', '1d'],
    ['1 week', '1w'],
    ['30-sec', '30s'],
    ['PT5M', '5m'],
    ['P1D', '1d'],
    ['05m', '5m'],
    [' 60m ', '60m'],
    ['60', '60s'],
  ])('written as %j is %j', (written, meant) => {
    expect(saidOf('klines', { kline_size: written })).toEqual([`${RULE}; did you mean "${meant}"?`]);
    expect(saidOf('klines', { kline_size: meant })).toEqual([]);
  });

  test.each([
    '1M',
    'P1M',
    '1mo',
    '1month',
    '5x',
    '0m',
    '-5m',
    '1.5h',
    '32 days',
    '1y',
    '',
    ' ',
    0,
    1.5,
    null,
    ['5min'],
  ])('written as %j means nothing that is certain', (written) => {
    expect(saidOf('klines', { kline_size: written })).toEqual([RULE]);
  });

  test('of a frame, too', () => {
    const column = { name: 'price', dataset: KEY, field: 'price', max_age: '7days' };
    const said = saidOf('frame', { columns: [column], grid: '1H', n_rows: 1 });
    expect(said).toEqual([
      expect.stringMatching(/^\/columns\/0\/max_age .*; did you mean "7d"\?$/),
      expect.stringMatching(/^\/grid .*; did you mean "1h"\?$/),
    ]);
  });

  test('of any length is read in time', () => {
    expect(saidOf('klines', { kline_size: `1${' '.repeat(900_000)}x` })).toEqual([RULE]);
    expect(saidOf('klines', { kline_size: `${'0'.repeat(900_000)}x` })).toEqual([RULE]);
  });
});

test.each([
  [
    'query',
    { sources: [KEY], n_rows: 1, n_random: 2 },
    [
      '/n_rows cannot be given together with n_random: a request has one window',
      '/n_random cannot be given together with n_rows: a request has one window',
    ],
  ],
  [
    'trades',
    { start_date: '2024-01-01', end_date: '2024-01-01', n_latest_rows: 1 },
    [
      '/start_date cannot be given together with n_latest_rows: a request has one window',
      '/end_date cannot be given together with n_latest_rows: a request has one window',
      '/n_latest_rows cannot be given together with start_date, end_date: a request has one window',
    ],
  ],
  [
    'export',
    { dataset: KEY, format: 'csv' },
    ['The body must have exactly one of month_year, time_range, n_rows, n_random'],
  ],
  [
    'query',
    { sources: [KEY], time_range: ['2026-02-30T00:00:00Z', '2026-03-01T00:00:00Z'] },
    [
      '/time_range/0 must be an ISO-8601 time with Z or an offset, such as 2024-01-01T00:00:00Z; the calendar has no 2026-02-30',
    ],
  ],
  [
    'query',
    { sources: [KEY], filters: [{ field: 'datetime', op: 'gt', value: '2023-02-29T00:00:00Z' }] },
    [
      '/filters/0/value must be an ISO-8601 time with Z or an offset, such as 2024-01-01T00:00:00Z; the calendar has no 2023-02-29',
    ],
  ],
  [
    'trades',
    { start_date: '2026-02-30', end_date: '2026-2-3' },
    [
      '/start_date must be a UTC day, YYYY-MM-DD, such as 2024-01-31; the calendar has no 2026-02-30',
      '/end_date must be a UTC day, YYYY-MM-DD, such as 2024-01-31',
    ],
  ],
  [
    'query',
    { sources: ['exchange_a_spot_trade'] },
    [`/sources/0 must be one of ${[...DATASETS.keys()].join(', ')}; did you mean ${KEY}?`],
  ],
  [
    'export',
    { dataset: 'x', format: 'csv', n_rows: 1 },
    [`/dataset must be one of ${[...DATASETS.keys()].join(', ')}`],
  ],
  [
    'frame',
    { columns: [{ name: 'close', dataset: 'exchange_a_spot_trade', field: 'price' }], grid: '1h', n_rows: 1 },
    [`/columns/0/dataset must be one of ${[...DATASETS.keys()].join(', ')}; did you mean ${KEY}?`],
  ],
  ['query', { sources: [KEY], n_random: 1, random_seed: 1.5 }, ['/random_seed must be an integer of at most 53 bits']],
  [
    'query',
    { sources: [KEY], view_id: 'x', view_version: 1 },
    [`/view_id must be that of mode native of ${KEY}: ${KEY}_native, version 1`],
  ],
  [
    'query',
    { sources: [KEY], filters: [{ field: 'is_best_match', op: 'gt', value: 0 }] },
    ['/filters/0/op must be one of eq, ne for is_best_match (bool01)'],
  ],
] as const)('a %s reads as a sentence: %j', (style, body, said) => {
  expect(saidOf(style, body as unknown as Record<string, Json>)).toEqual(said);
});

// "must be an integer from 1" was the answer to an integer from 1.
test('an integer past 2^53 gets the largest that is taken', () => {
  const said = (rows: bigint) => saidOf('query', { sources: [KEY], n_rows: rows });
  expect(said(2n ** 53n + 1n)).toEqual(['/n_rows must be at most 9007199254740991']);
  expect(said(-(2n ** 53n) - 1n)).toEqual(['/n_rows must be an integer from 1']);
});

test('the detail of a problem ends with one mark, be it a question', () => {
  const detailOf = (...messages: string[]) =>
    contractProblem(messages.map((message) => ({ pointer: '/a', message }))).message;
  expect(detailOf('is x; did you mean y?')).toBe('/a is x; did you mean y?');
  expect(detailOf('is x; did you mean y?', 'is z')).toBe('/a is x; did you mean y? (and 1 more).');
  expect(detailOf('is x')).toBe('/a is x.');
});

const saidOfCommand = async (...args: string[]) => {
  const stderr: string[] = [];
  const io = { env: {}, stdout: { write: () => {} }, stderr: { write: (text: string) => void stderr.push(text) } };
  expect(await run(args, { ...io, onStop: () => () => {} })).toBe(2);
  return stderr.join('');
};

test.each([
  [
    ['backfill', KEY, '--form', '2024-01-05'],
    "unknown option '--form'\n(Did you mean --from?)\nUsage: ./tidemark backfill [options] <feed...>",
  ],
  [['verify', KEY, '--depp'], "unknown option '--depp'\n(Did you mean --deep?)"],
  [['up', '--http-prot', '1'], "unknown option '--http-prot'\n(Did you mean --http-port?)"],
  [['up', '--whatever'], "unknown option '--whatever'\nUsage: ./tidemark up [options]\n"],
])('an option that is none: %j', async (args, said) => {
  expect(await saidOfCommand(...args)).toContain(`tidemark: ${said}`);
});

test('a command that is none is corrected if it resembles one', async () => {
  expect(await saidOfCommand('statsu')).toMatch(/^tidemark: unknown command 'statsu'\n\(Did you mean status\?\)\nRun /);
  expect(await saidOfCommand('help', 'backfil')).toContain('Did you mean backfill?');
  expect(await saidOfCommand('serve', '--help')).toMatch(/^tidemark: unknown command 'serve'\nRun /);
});

describe('what is nearest', () => {
  const word = fc.string({ unit: fc.constantFrom('a', 'b', '_'), maxLength: 8 });

  test('is told by the number of slips of the pen', () => {
    expect(['', 'fields', 'feilds', 'field', 'fiellds', 'filters'].map((text) => editDistance(text, 'fields'))).toEqual(
      [6, 0, 1, 1, 1, 4],
    );
    fc.assert(
      fc.property(word, word, fc.nat(8), (a, b, at) => {
        const changed = `${a.slice(0, at)}x${a.slice(at)}`;
        expect(editDistance(a, b)).toBe(editDistance(b, a));
        expect(editDistance(a, b) === 0).toBe(a === b);
        expect(editDistance(a, changed)).toBe(1);
      }),
    );
  });

  test('is the only name that begins with the text, if it has three letters', () => {
    const names = feeds().map(({ name }) => name);
    expect(closestName('exchange_a', names)).toBe('exchange_a_spot_trades');
    expect(closestName('exchange_', names)).toBeUndefined();
    expect(closestName('ex', ['exports'])).toBeUndefined();
  });

  test.each([
    ['feed', 'exchange_a', feedOf],
    ['feed', 'exchange_a_spot_trade', feedOf],
    ['dataset', 'exchange_a_spot_trade', datasetOf],
    ['dataset', 'exchange_a', datasetOf],
  ] as const)('of a %s is told to who writes %s', (_, name, find) => {
    expect(() => find(name)).toThrow(/did you mean exchange_a_spot_trades[?]/);
  });

  test('is nothing where nothing is like it', () => {
    expect(closestName('limit', QUERY_KEYS.split(', '))).toBeUndefined();
    expect(closestName('', ['a'])).toBeUndefined();
  });
});

test('a column of a frame whose name is an object is a fault of the contract, not of the service', () => {
  for (const name of ['{}', '[{}]', '{"toString":1}', 'null', '5']) {
    const body = parseJson(`{"columns":[{"name":${name},"dataset":"${KEY}","field":"price"}],"grid":"1h","n_rows":1}`);
    const parsed = parseFrame(body) as { faults?: { pointer: string }[] };
    expect([name, parsed.faults?.map(({ pointer }) => pointer)]).toEqual([name, ['/columns/0/name']]);
  }
});
