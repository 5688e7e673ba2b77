/** What a manifest claims: every fact in which the stored rows differ is named, and so is a place that contradicts its key. */
import { describe, expect, test } from 'vitest';
import { misplaced } from '../../pipelines/projector/faults.ts';
import { DAY_MS } from '../../shared/dates.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { compare, type Recount } from '../../shared/proof/recount.ts';
import { datasetOf } from '../../shared/registry/index.ts';

const DAY = Date.parse('2026-01-05T00:00:00Z');
const CAPTURE = { dataset: 'etf_daily_metrics', partition: 'etf_ishares_ibit_daily:2026-01-05' };
const SNAPSHOT = { dataset: 'bitcoin_mempool_state', partition: String(DAY) };
const HEIGHTS = { dataset: 'bitcoin_block_headers', partition: '4-5' };

type Claims = Partial<Manifest> & Pick<Manifest, 'dataset' | 'partition' | 'rows' | 'from_ms' | 'to_ms'>;

const faultsOf = (claims: Claims): string[] =>
  misplaced(datasetOf(claims.dataset), claims as Manifest).map(({ fact }) => fact);

/** Of rows at `at`. */
const withRows = (at: number) => ({ rows: 2, first_ms: at, last_ms: at, from_ms: at, to_ms: at + 1 });
const EMPTY_DAY = { rows: 0, from_ms: DAY, to_ms: DAY + DAY_MS };

test.each<[string, Claims]>([
  ['a capture', { ...CAPTURE, ...withRows(DAY), span_end: DAY + 4 * DAY_MS }],
  ['a capture before the longest pause that there is', { ...CAPTURE, ...withRows(DAY), span_end: DAY + 15 * DAY_MS }],
  ['a capture without rows', { ...CAPTURE, ...EMPTY_DAY }],
  ['a snapshot without rows', { ...SNAPSHOT, rows: 0, from_ms: DAY, to_ms: DAY + 1 }],
  ['blocks with the end that the chain gives', { ...HEIGHTS, ...withRows(DAY), through_ms: DAY }],
])('%s is where its key says', (_, claims) => {
  expect(faultsOf(claims)).toEqual([]);
});

describe('a manifest', () => {
  // Coverage reaches to the end of the rows' times, so that a day without rows would count as proved.
  test.each<[string, string, Claims]>([
    ['ends after its day', 'to_ms', { ...CAPTURE, ...EMPTY_DAY, to_ms: DAY + DAY_MS + 1 }],
    ['ends after its snapshot', 'to_ms', { ...SNAPSHOT, rows: 0, from_ms: DAY, to_ms: DAY + 2 }],
    ['begins before its day', 'from_ms', { ...CAPTURE, ...EMPTY_DAY, from_ms: DAY - 1 }],
    ['ends where it begins', 'from_ms', { ...CAPTURE, ...EMPTY_DAY, to_ms: DAY }],
    ['begins before its rows', 'from_ms', { ...CAPTURE, ...withRows(DAY + 5), from_ms: DAY }],
    ['ends after its rows', 'to_ms', { ...CAPTURE, ...withRows(DAY), to_ms: DAY + 2 }],
    ['of blocks does not say how far the chain is complete', 'through_ms', { ...HEIGHTS, ...withRows(DAY) }],
    ['ends its span before its day is over', 'span_end', { ...CAPTURE, ...EMPTY_DAY, span_end: DAY + DAY_MS - 1 }],
    [
      'spans more days than markets are ever closed',
      'span_end',
      { ...CAPTURE, ...EMPTY_DAY, span_end: DAY + 15 * DAY_MS + 1 },
    ],
    [
      'of blocks gives their span another end',
      'span_end',
      { ...HEIGHTS, ...withRows(DAY), through_ms: DAY, span_end: 7 },
    ],
  ])('that %s is refused', (_, fact, claims) => {
    expect(faultsOf(claims)).toEqual([`manifest.${fact}`]);
  });
});

describe('rows that differ from their manifest in one fact alone', () => {
  const trades = datasetOf('exchange_a_spot_trades');
  const totals = Object.fromEntries(trades.native.totals.map(({ column }, index) => [column, `${index}`]));
  const facts = { rows: 3, first_offset: '7', last_offset: '9', first_ms: 1, last_ms: 2, rows_hash: '-5', totals };
  const manifest = { ...facts, gaps: 0 } as Manifest;
  const found: Recount = { ...facts, aligned_rows: 2, aligned_events: 3, aligned_hash: null };
  const named = (other: Partial<Recount>, stated: Partial<Manifest> = {}) =>
    compare(trades, { ...manifest, ...stated }, { ...found, ...other }).map(({ fact }) => fact);

  test('are reported by the name of that fact', () => {
    expect(named({})).toEqual([]);
  });

  test.each<[string, Partial<Recount>]>([
    ['first_offset', { first_offset: '6' }],
    ['last_offset', { last_offset: '10' }],
    ['first_ms', { first_ms: 0 }],
    ['last_ms', { last_ms: 3 }],
    ['rows_hash', { rows_hash: '5' }],
    ['rows_hash', { rows_hash: null }],
    ...trades.native.totals.map(({ column }): [string, Partial<Recount>] => [
      `totals.${column}`,
      { totals: { ...totals, [column]: '77' } },
    ]),
    // Aligned rows of other events than there are rows.
    ['aligned_events', { aligned_events: 2 }],
    ['aligned_events', { aligned_events: null }],
  ])('%s is named', (fact, other) => {
    expect(named(other)).toEqual([fact]);
  });

  test('a number of rows is named, and the gap that it leaves', () => {
    expect(named({ rows: 2 })).toEqual(['rows', 'gaps']);
  });

  // The document itself lacks them, so that rows and manifest agree.
  test('offsets that a document should have and lacks are named, be it a single one', () => {
    expect(named({ last_offset: '10' }, { last_offset: '10', gaps: 1 })).toEqual(['missing offsets']);
  });

  test('an empty partition has nothing else to compare, and any row in it is one too many', () => {
    const empty = { rows: 0, first_offset: '', last_offset: '', first_ms: 0, last_ms: 0 };
    const none = { rows: 0, first_offset: null, last_offset: null, first_ms: null, last_ms: null, rows_hash: null };
    expect(named(none, empty)).toEqual([]);
    expect(named({ ...none, rows: 1 }, empty)).toEqual(['rows']);
  });
});
