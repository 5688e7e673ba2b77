/** When a state of a frame is older than twice its cadence, and how many buckets show it then. */
import { describe, expect, test } from 'vitest';
import { cadenceOf, type ShownState, StaleStates, staleAfter } from '../../serving/read/frame/stale-states.ts';
import { SETTINGS } from '../../shared/config/settings.ts';
import { DATASETS } from '../../shared/registry/index.ts';

const at = (text: string) => Date.parse(text);
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const BLOCKS = { everyMs: 10 * MINUTE };
const MONTHS = { everyMs: 31 * DAY };
const DAILY = { every: 'market_day' } as const;
const state = (ms: number, more: Partial<ShownState> = {}): ShownState => ({
  ms,
  knownMs: ms,
  shownFrom: ms,
  shownTo: Number.POSITIVE_INFINITY,
  ...more,
});

test('every dataset of states says how often the next comes, every series of macro its own; trades have none', () => {
  for (const dataset of DATASETS.values()) {
    const { cadence } = dataset;
    expect(cadence === undefined, dataset.key).toBe(dataset.trades !== undefined);
    if (!cadence) continue;
    if ('everySecondsOf' in cadence) expect(Object.keys(SETTINGS)).toContain(cadence.everySecondsOf);
    if (dataset.quality?.kind === 'published' && 'bySource' in cadence) {
      expect(Object.keys(cadence.bySource)).toEqual(Object.keys(dataset.quality.sources));
    }
  }
  const of = (key: string, source: string, seconds?: number) => cadenceOf(DATASETS.get(key)!, source, () => seconds);
  expect(of('macro_series_metrics', 'macro_dgs10')).toEqual(DAILY);
  expect(of('macro_series_metrics', 'macro_cpiaucsl')).toEqual(MONTHS);
  expect(of('etf_daily_metrics', 'etf_ishares_ibit_daily')).toEqual(DAILY);
  expect(of('bitcoin_block_fee_totals', 'bitcoin_core')).toEqual(BLOCKS);
  expect(of('bitcoin_mempool_state', 'bitcoin_core', 60)).toEqual({ everyMs: MINUTE });
  // No snapshot is taken by itself.
  expect(of('bitcoin_mempool_state', 'bitcoin_core', 0)).toBeUndefined();
});

describe('is stale after', () => {
  test('twice its interval, and the bucket where that is longer', () => {
    const block = state(at('2026-11-20T10:00:00Z'));
    expect(staleAfter(block, BLOCKS, MINUTE)).toBe(at('2026-11-20T10:20:00Z'));
    expect(staleAfter(block, BLOCKS, 10 * MINUTE)).toBe(at('2026-11-20T10:20:00Z'));
    expect(staleAfter(block, BLOCKS, HOUR)).toBe(at('2026-11-20T11:20:00Z'));
  });

  test('later where it was published late, by one interval at most', () => {
    // October's prices are published in the middle of November, November's in the middle of December.
    const october = state(at('2026-10-01'), { knownMs: at('2026-11-13T06:00:00Z') });
    expect(staleAfter(october, MONTHS, HOUR)).toBe(at('2026-10-01') + 93 * DAY);
    expect(staleAfter(state(at('2026-10-01'), { knownMs: at('2026-10-04') }), MONTHS, HOUR)).toBe(
      at('2026-10-01') + 65 * DAY,
    );
    // Filled in ten years later.
    const filled = state(at('2016-10-01'), { knownMs: at('2026-10-01') });
    expect(staleAfter(filled, MONTHS, HOUR)).toBe(at('2016-10-01') + 93 * DAY);
  });

  test('two market days: a weekend and a holiday are none', () => {
    // Wednesday before Thanksgiving; Friday and Monday are market days, so Tuesday's start is the third.
    expect(staleAfter(state(at('2026-11-25')), DAILY, HOUR)).toBe(at('2026-12-01'));
    expect(staleAfter(state(at('2026-11-25'), { knownMs: at('2026-11-27T06:00:00Z') }), DAILY, HOUR)).toBe(
      at('2026-12-02'),
    );
  });
});

describe('counts the buckets', () => {
  const from = at('2026-11-20T10:00:00Z');
  const over = (hours: number, gridMs: number, lastEnd = from + hours * HOUR) =>
    new StaleStates(BLOCKS, { gridMs, firstEnd: from + gridMs, lastEnd });

  test('that end later than the limit, up to the next state', () => {
    const stale = over(4, 5 * MINUTE);
    stale.add(state(from, { shownTo: from + 41 * MINUTE }));
    // 10:25, 10:30, 10:35 and 10:40.
    expect(stale.warning()).toMatchObject({
      code: 'STATE_STALE',
      details: {
        buckets: 4,
        cadence: '600 s',
        oldest_state_utc: '2026-11-20T10:00:00.000Z',
        oldest_bucket_end_utc: '2026-11-20T10:40:00.000Z',
        oldest_age_seconds: 2400,
      },
    });
    stale.add(state(from + 41 * MINUTE, { shownTo: from + 61 * MINUTE }));
    expect(stale.count).toBe(4);
    stale.add(state(from + 61 * MINUTE, { shownTo: from + 90 * MINUTE }));
    expect(stale.count).toBe(6);
    expect(stale.warning()?.details?.oldest_age_seconds).toBe(2400);
  });

  test('none where states are as old as their cadence lets them be', () => {
    const stale = over(4, MINUTE);
    for (let block = 0; block < 12; block++) {
      const ms = from + block * 20 * MINUTE;
      stale.add(state(ms, { shownTo: ms + 20 * MINUTE }));
    }
    expect(stale.warning()).toBeUndefined();
  });

  test('of the frame alone, with the last one that its end cuts', () => {
    const genesis = state(at('2011-02-02T23:16:42Z'), { shownTo: from + 2 * HOUR });
    const stale = over(3, HOUR);
    stale.add(genesis);
    expect(stale.count).toBe(2);
    const cut = over(3, HOUR, from + 90 * MINUTE);
    cut.add(genesis);
    expect(cut.count).toBe(2);
    expect(cut.warning()?.details?.oldest_bucket_end_utc).toBe('2026-11-20T11:30:00.000Z');
    expect(cut.warning()?.message).toMatch(
      /^2 buckets hold states .* 10 minutes .* of 2011-02-02T23:16:42.000Z, 57\d\d\.\d days/,
    );
  });
});
