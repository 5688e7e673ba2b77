/** What is said of instruments beside their rows: when they were listed, and their base and quote. */
import { expect, test } from 'vitest';
import { DATASETS, datasetOf } from '../../shared/registry/index.ts';
import { intervalsOf } from '../../shared/status/instruments.ts';

const day = (number: number) => `2022-05-${number}`;

test.each([
  { title: 'nothing is known', stated: undefined, first: undefined, expected: [] },
  {
    title: 'nobody says anything of proved rows',
    stated: undefined,
    first: day(10),
    expected: [{ from: day(10), to: null }],
  },
  {
    title: 'an end is the word of the operator alone, a start the first proved day',
    stated: [{ from: undefined, to: day(13) }],
    first: day(10),
    expected: [{ from: day(10), to: day(13) }],
  },
  {
    title: 'it ended and began again',
    stated: [
      { from: day(10), to: day(13) },
      { from: day(31), to: undefined },
    ],
    first: day(11),
    expected: [
      { from: day(10), to: day(13) },
      { from: day(31), to: null },
    ],
  },
  {
    title: 'the first proved day is of a later interval',
    stated: [
      { from: undefined, to: day(13) },
      { from: day(31), to: undefined },
    ],
    first: day(31),
    expected: [
      { from: null, to: day(13) },
      { from: day(31), to: null },
    ],
  },
])('intervals: $title', ({ stated, first, expected }) => {
  expect(intervalsOf(stated, first)).toEqual(expected);
});

test('base and quote are what symbols state apart, and are never cut from others', () => {
  const { pairOf } = datasetOf('exchange_b_spot_trades').trades!.instruments;
  expect(pairOf!('BTC-USDC')).toEqual({ base: 'BTC', quote: 'USDC' });
  expect(['BTCUSDT', 'BTC-USDT-SWAP', '-', 'A-'].map((symbol) => pairOf!(symbol))).toEqual(Array(4).fill(undefined));
  const others = [...DATASETS.values()].filter(({ trades }) => trades?.instruments.pairOf).map(({ key }) => key);
  expect(others).toEqual(['exchange_b_spot_trades']);
});
