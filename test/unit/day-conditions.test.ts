/** The four words for a day and their reasons, one by one. */
import { expect, test } from 'vitest';
import { DAY_MS } from '../../shared/dates.ts';
import { conditionOfProved, conditionWithoutRows, LONG_SILENCE_MS, silencesOf } from '../../shared/proof/conditions.ts';
import type { Facts, SilenceState } from '../../shared/proof/facts.ts';
import { datasetOf } from '../../shared/registry/index.ts';

const START = Date.UTC(2024, 2, 5);
const silence = (ms: number, state: SilenceState) => ({ fromMs: START, toMs: START + ms, state });
const proved = { idsMissing: 0, isLate: false, silences: [] };
const unproved = {
  ...{ isComing: false, refused: undefined, isListed: true, startMs: START },
  ...{ provedThroughMs: START + 3 * DAY_MS, nowMs: START + 9 * DAY_MS },
};

test.each([
  ['available', [], {}],
  ['available', [], { silences: [silence(LONG_SILENCE_MS, 'unknown'), silence(9 * LONG_SILENCE_MS, 'proved')] }],
  ['degraded', ['ids_missing'], { idsMissing: 1 }],
  ['degraded', ['late_arrival'], { isLate: true }],
  ['degraded', ['silence_unknown'], { silences: [silence(LONG_SILENCE_MS + 1, 'unknown')] }],
  ['degraded', ['ids_missing', 'late_arrival'], { idsMissing: 2, isLate: true }],
] as const)('a proved day is %s %j', (condition, reasons, known) => {
  expect(conditionOfProved({ ...proved, ...known })).toEqual({ condition, reasons });
});

test.each([
  ['missing', ['not_proved'], {}],
  ['missing', ['not_proved'], { provedThroughMs: undefined }],
  ['missing', ['not_listed'], { isListed: false }],
  ['missing', ['quarantined'], { refused: 'quarantined' }],
  ['missing', ['retracted'], { refused: 'retracted' }],
  ['pending', [], { isComing: true }],
  ['pending', [], { provedThroughMs: START }],
  ['pending', [], { provedThroughMs: undefined, nowMs: START + DAY_MS - 1 }],
] as const)('a day without proved rows is %s %j: %j', (condition, reasons, known) => {
  expect(conditionWithoutRows({ ...unproved, ...known })).toEqual({ condition, reasons });
});

test('a silence over the end of a day belongs to it, and its ids prove it', () => {
  const facts = (first_ms: number, last_ms: number): Facts => ({ first_ms, last_ms, repeats: 0, silences: [] });
  const day = { facts: facts(START, START + 1000), firstOffset: '7', lastOffset: '9' };
  const next = (from: number, firstOffset: string) => ({
    facts: facts(START + from, START + from),
    ...{ firstOffset, lastOffset: firstOffset },
  });
  const [a, c] = [datasetOf('exchange_a_spot_trades'), datasetOf('exchange_c_spot_trades')];
  expect(silencesOf(a, day, undefined)).toEqual([]);
  expect(silencesOf(a, day, next(61_000, '10'))).toEqual([]);
  const of = (state: SilenceState) => [{ fromMs: START + 1000, toMs: START + 61_001, state }];
  expect(silencesOf(a, day, next(61_001, '10'))).toEqual(of('proved'));
  expect(silencesOf(a, day, next(61_001, '11'))).toEqual(of('unknown'));
  expect(silencesOf(c, day, next(61_001, '10'))).toEqual(of('unknown'));
});
