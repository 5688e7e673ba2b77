/** Printed numbers, and what documents state twice: compared by the ranges of their digits. */
import Big from 'big.js';
import { describe, expect, test } from 'vitest';
import { compareStated, type Statements } from '../../pipelines/sources/etf/parse/checks.ts';
import { parseCompact, parseNumber, parseScaled } from '../../pipelines/sources/etf/parse/fields.ts';
import { Printed } from '../../pipelines/sources/etf/parse/printed.ts';

const number = (text: string) => parseNumber(text, 'x')!;
const rangeOf = ({ low, high }: Printed) => [low.toFixed(), high.toFixed()];

test('a printed number may be off by half a unit of its last digit', () => {
  expect(rangeOf(number('1,234.50'))).toEqual(['1234.495', '1234.505']);
  expect(rangeOf(number('(1,234)'))).toEqual(['-1234.5', '-1233.5']);
  expect(rangeOf(number('99.98%'))).toEqual(['99.975', '99.985']);
  expect(rangeOf(number('.283'))).toEqual(['0.2825', '0.2835']);
  expect(rangeOf(number('6.72E+10'))).toEqual(['67150000000', '67250000000']);
  expect(rangeOf(parseCompact('$14.50B', 'x')!)).toEqual(['14495000000', '14505000000']);
  expect(rangeOf(parseScaled('$1,234.5 Million', 'x')!)).toEqual(['1234450000', '1234550000']);
  expect(rangeOf(Printed.ofJson(new Big('14500000000')))).toEqual(['14499999999.5', '14500000000.5']);
  expect(rangeOf(Printed.ofJson(new Big('0.25')))).toEqual(['0.245', '0.255']);
  expect(rangeOf(Printed.ofJson(new Big(0)))).toEqual(['-0.5', '0.5']);
});

test('digits that come of computing in doubles contradict nothing', () => {
  const weights = ['66.66660000000002', '33.33340000000001'].map((text) => Printed.ofJson(new Big(text)));
  expect(weights[0].plus(weights[1]).overlaps(number('100'))).toBe(true);
  expect(rangeOf(weights[0])).toEqual(['66.66659999999997', '66.66660000000007']);
});

test('sums, products and quotients have the range of what they are made of', () => {
  expect(rangeOf(number('1.0').plus(number('2.00')))).toEqual(['2.945', '3.055']);
  expect(rangeOf(number('2').times(number('-3')))).toEqual(['-8.75', '-3.75']);
  expect(rangeOf(number('50.0').over(100))).toEqual(['0.4995', '0.5005']);
});

describe('statements', () => {
  const list = (...weights: readonly string[]): Statements => ({
    holdings: weights.map((weight, index) => ({ at: `row ${index + 1}`, weight: number(weight) })),
  });
  const rows = (...values: readonly (readonly [weight: string, value: string])[]): Statements => ({
    holdings: values.map(([weight, value], index) => ({
      at: `row ${index + 1}`,
      weight: number(weight),
      value: number(value),
    })),
  });

  test.each<readonly [string, Statements]>([
    ['no statement', {}],
    ['weights that rounding takes from 100', list('33.33', '33.33', '33.33')],
    ['an overdraft', rows(['100.02', '1,000,200.00'], ['-0.02', '(200.00)'])],
    ['a weight that one row lacks', { holdings: [{ at: 'row 1', weight: number('60') }, { at: 'row 2' }] }],
    ['a count', { ...list('100'), count: number('1') }],
    ['net assets in billions', { ...rows(['100.00', '14,503,999,999.99']), netAssets: parseCompact('$14.50B', 'x') }],
    [
      'shares in millions',
      { navPerShare: number('63.35'), shares: parseCompact('197.3M', 'x'), netAssets: parseCompact('12.50B', 'x') },
    ],
    [
      'units x price',
      {
        holdings: [{ at: 'row 1', units: number('0.5'), price: number('71,000.00'), value: number('36,000') }],
        count: number('1'),
      },
    ],
  ])('%s: agree', (_, statements) => {
    expect(() => compareStated(statements)).not.toThrow();
  });

  test.each<readonly [string, RegExp, Statements]>([
    ['one weight of 60 %', /weights of its 1 holdings add up to 60.02 \(\+-0.005\) %/, list('60.02')],
    ['a hundredth', /add up to 99.99/, list('99.99')],
    ['too much', /add up to 100.1 /, list('60.0', '40.10')],
    ['a count', /states 12 holdings and lists 2/, { ...list('60', '40'), count: number('12') }],
    ['a weight', /weight x net assets, row 1: .* its market value: /, rows(['60.00', '500.00'], ['40.00', '500.00'])],
    [
      'net assets',
      /net assets: 14500000000 .* sum of the 1 listed/,
      { ...rows(['100.00', '14,506,000,000.00']), netAssets: parseCompact('$14.50B', 'x') },
    ],
    [
      'another column',
      /its other column/,
      { holdings: [{ at: 'line 2', value: number('10.00'), valueAgain: number('10.01') }] },
    ],
    [
      'units x price',
      /line 2: 36000 .* units x price: 35500/,
      { holdings: [{ at: 'line 2', units: number('0.500'), price: number('71,000.00'), value: number('36,000') }] },
    ],
    [
      'NAV x shares',
      /net asset value x shares outstanding: /,
      { navPerShare: number('63.99'), shares: parseCompact('197.3M', 'x'), netAssets: parseCompact('12.50B', 'x') },
    ],
    [
      'Bitcoin per share',
      /Bitcoin per share x shares/,
      { units: number('24'), unitsPerShare: number('0.00087'), shares: parseCompact('197.3M', 'x') },
    ],
  ])('%s: refused with both values', (_, message, statements) => {
    expect(() => compareStated(statements)).toThrow(
      expect.objectContaining({ code: 'SOURCE_LAYOUT_UNKNOWN', message: expect.stringMatching(message) }),
    );
  });
});
