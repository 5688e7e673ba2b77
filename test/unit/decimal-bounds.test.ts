/** Numbers of a few bytes that are gigabytes when they are written out, and numbers of megabytes: refused where they are read. */
import { describe, expect, test } from 'vitest';
import { DecimalReader, exactDecimal } from '../../pipelines/rows/exact-decimal.ts';
import { sats } from '../../pipelines/sources/bitcoin/rpc/answers.ts';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { metricsOf } from '../../pipelines/sources/etf/parse/facts.ts';
import { parseCompact, parseNumber, parseScaled } from '../../pipelines/sources/etf/parse/fields.ts';
import { JsonPath, parseJson as parseDocument } from '../../pipelines/sources/etf/parse/tables.ts';
import { DOCUMENTS, fundDocument } from '../../pipelines/sources/etf/sample.ts';
import { readObservations } from '../../pipelines/sources/macro/provider-api.ts';
import { SERIES } from '../../pipelines/sources/macro/series.ts';
import { RowReader } from '../../pipelines/sources/trades/row-reader.ts';
import { parseFilter } from '../../serving/contract/filters.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { parseJson } from '../../shared/strict-json.ts';

function refusal(work: () => unknown): TidemarkError {
  try {
    work();
  } catch (error) {
    if (error instanceof TidemarkError) return error;
    throw error;
  }
  throw new Error('it was not refused');
}

const FIELDS = exchangeASpotTrades.native.fields;

const HUGE = [
  '1e400000000',
  '1e99999999999999999999',
  '1e50000000',
  '-1E+50000000',
  '1e-50000000',
  '1e41',
  `1${'0'.repeat(64)}`,
];

describe('a number of an issuer that is gigabytes when it is written out', () => {
  test.each(HUGE)('%s in a document is refused with its path', (text) => {
    const issuer = ISSUERS.find(({ sourceId }) => sourceId === 'etf_bitwise_bitb_daily')!;
    const document = DOCUMENTS.etf_bitwise_bitb_daily(fundDocument('2026-03-05', 1));
    const changed = document.replace(/"netAssets":\s*"?[\d.]+"?/, `"netAssets":${text}`);
    expect(changed).not.toBe(document);
    const { code, message } = refusal(() =>
      metricsOf({ issuer: issuer.issuer, ticker: issuer.ticker, ...issuer.parse(changed) }),
    );
    expect(code).toBe('SOURCE_LAYOUT_UNKNOWN');
    expect(message).toMatch(/netAssets/);
    expect(message.length).toBeLessThan(200);
  });

  test('that no fact is read from holds nobody up', () => {
    const document = new JsonPath(parseDocument(`{"a": 1.50, "b": [${HUGE.join(', ')}], "c": 0e50000000}`), '');
    expect(document.at('a').number()?.toFixed()).toBe('1.5');
    expect(document.at('c').number()?.toFixed()).toBe('0');
    expect(refusal(() => document.at('b', 0, 'e').number()).message).toContain('has no b.0.e');
    expect(refusal(() => document.at('b', 0).text()).message).toMatch(/b\.0 is not a text: .*1e400000000/);
  });

  test.each(HUGE)('%s written out in a cell is refused', (text) => {
    expect(refusal(() => parseNumber(text, 'units')).message).toContain('units is not a number');
  });

  // `TypeError: undefined is not iterable` or, with the pause of a page, seconds of a regular expression.
  test.each(['1\n2', '1\r\n2', '-\n5', '1\u20282', '12\nB', '1\u2029M', `1${' '.repeat(200_000)}x`])(
    'and so is one with a line break, or of any length, by every reader: %j',
    (text) => {
      for (const read of [parseNumber, parseCompact, parseScaled]) {
        expect(refusal(() => read(text, 'units')).message).toMatch(/^units is not a number: /);
      }
    },
  );

  test('a second sign is refused: nobody can tell what was meant', () => {
    for (const text of ['(-5)', '(+5)', '-(5)', '--5', '-$-5', '$-+5', '((5))']) {
      expect(refusal(() => parseNumber(text, 'units')).message).toMatch(/^units is not a number: /);
    }
  });

  test('numbers as they are written are read as before', () => {
    expect(parseNumber(' $(1,234.50) ', 'x')?.toFixed()).toBe('-1234.5');
    expect(parseCompact('USD 73,109.73', 'x')?.toFixed()).toBe('73109.73');
    expect(parseCompact('$14.50B', 'x')?.toFixed()).toBe('14500000000');
    expect(parseScaled('$1,234.5 Million', 'x')?.toFixed()).toBe('1234500000');
    expect(parseNumber('1.5E-10', 'x')?.toFixed()).toBe('0.00000000015');
    expect(parseNumber('\n12\n', 'x')?.toFixed()).toBe('12');
  });
});

test.each([...HUGE, '9'.repeat(100_000)])('an amount of a node, %s, is refused', (text) => {
  expect(refusal(() => sats(text, 'fees.base')).code).toBe('NODE_ANSWER_INVALID');
});

test.each(HUGE)('an observation of %s is refused', (text) => {
  const observation = { realtime_start: '2024-01-01', realtime_end: '2024-01-01', date: '2024-01-01', value: text };
  const body = JSON.stringify({ output_type: 1, count: 1, offset: 0, observations: [observation] });
  expect(refusal(() => readObservations(body, SERIES[0])).code).toBe('SOURCE_LAYOUT_UNKNOWN');
});

test.each(HUGE.filter((text) => !/e41$|^1000/.test(text)))('a price of %s is refused', (text) => {
  const reader = new RowReader({ document: 'x', columns: ['price'] });
  for (const read of ['decimal', 'magnitude'] as const) {
    expect(refusal(() => reader[read](Buffer.from(`${text}\n`), 0, 0)).code).toBe('SOURCE_DOCUMENT_INVALID');
  }
});

// A frame is made by a decoder, which lets none of these through; the log may hold another's.
test('a frame whose number is gigabytes when it is written out is damaged', () => {
  for (const text of ['1e50000000', '1e-50000000', '0e50000000', '9'.repeat(5000)]) {
    expect(refusal(() => exactDecimal(text)).code).toBe('LOG_DAMAGED');
  }
  expect(exactDecimal('1e-300')).toEqual({ mantissa: 1n, scale: 300 });
  const reader = new DecimalReader();
  reader.read(Buffer.from('1e-50000000,'), 0, 44);
  expect([reader.value, reader.inexact]).toEqual([0, true]);
});

// One of a million digits took 0.7 s of the event loop, one that fills the largest body minutes.
test('an integer of a body that has more digits than any number the service knows is not worked out', () => {
  const fieldOf = (wanted: string) => FIELDS.find(({ name }) => name === wanted)!;
  const [quantity, tradeId] = [fieldOf('quantity'), fieldOf('trade_id')];
  for (const text of ['9'.repeat(1_000_000), `-${'9'.repeat(400)}`]) {
    const value = parseJson(text);
    expect(typeof value).toBe('number');
    expect(parseFilter(quantity, 'gt', value, '/filters/0')).toEqual([
      { pointer: '/filters/0/value', message: 'must be a finite number' },
    ]);
    expect(parseFilter(tradeId, 'gt', value, '/filters/0')).toEqual([
      { pointer: '/filters/0/value', message: 'must be a 64-bit integer' },
    ]);
  }
  expect(parseJson('9223372036854775807')).toBe(9223372036854775807n);
  expect(parseJson('9'.repeat(308))).toBe(BigInt('9'.repeat(308)));
});
