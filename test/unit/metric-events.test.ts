/** Events of metrics: names from facts alone, rows in the order of the native tables. */
import { expect, test } from 'vitest';
import { REUSE_FROM_BYTES } from '../../pipelines/rows/binary-copy.ts';
import { RecordRows } from '../../pipelines/rows/record-rows.ts';
import { eventsOf as fundEvents, recordOf } from '../../pipelines/sources/etf/captures.ts';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { metricsOf } from '../../pipelines/sources/etf/parse/facts.ts';
import { DOCUMENTS, type FundDocument, fundDocument } from '../../pipelines/sources/etf/sample.ts';
import { SERIES } from '../../pipelines/sources/macro/series.ts';
import { eventsOf as seriesEvents } from '../../pipelines/sources/macro/vintages.ts';
import { encodeRecord } from '../../shared/frame/records.ts';
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';
import { macroSeriesMetrics } from '../../shared/registry/datasets/macro_series_metrics.ts';

const DAY = '2026-03-05';
const metricsOfFund = (index: number, fund: FundDocument) => {
  const issuer = ISSUERS[index];
  const facts = issuer.parse(DOCUMENTS[issuer.sourceId](fund));
  return metricsOf({ issuer: issuer.issuer, ticker: issuer.ticker, ...facts });
};
const eventsOfFund = (index: number, fund: FundDocument) =>
  fundEvents(ISSUERS[index], metricsOfFund(index, fund), Date.parse(DAY));
const recordOfFund = (index: number, fund: FundDocument) => recordOf(ISSUERS[index], metricsOfFund(index, fund));
const idsOf = (events: ReturnType<typeof eventsOfFund>) => events.map(({ offset }) => offset);

test('a fund fetched twice with another advert is one record; a changed fact shares no id with it', () => {
  for (const [index] of ISSUERS.entries()) {
    const fund = fundDocument(DAY, index + 1);
    const events = eventsOfFund(index, fund);
    expect(recordOfFund(index, { ...fund, visit: 'another' })).toBe(recordOfFund(index, fund));
    const changedFund = fundDocument(DAY, index + 50);
    const changed = eventsOfFund(index, changedFund);
    expect(recordOfFund(index, changedFund)).not.toBe(recordOfFund(index, fund));
    expect(idsOf(changed).filter((id) => idsOf(events).includes(id))).toEqual([]);
    expect(idsOf(events)).toEqual(idsOf(events).toSorted());
    for (const { row } of events) expect(row).toHaveLength(etfDailyMetrics.native.columns.length);
  }
});

test('a value of a series is named by series, date and vintage; a missing one is its text', () => {
  const rows = [
    { date: '2026-01-01', value: '4.4' },
    { date: '2025-10-01', value: '.' },
  ];
  const series = { ...SERIES[2], title: 'Unemployment Rate' };
  const events = seriesEvents(series, '2026-02-06', rows);
  expect(events.map(({ row }) => row.slice(5, 7)).toSorted()).toEqual([
    ['float', '4.4'],
    ['string', '.'],
  ]);
  for (const { row } of events) expect(row).toHaveLength(macroSeriesMetrics.native.columns.length);
  const later = seriesEvents(series, '2026-03-06', rows);
  expect(later.filter(({ offset }) => events.some((event) => event.offset === offset))).toEqual([]);
});

// The rows of a frame may wait for the database while those of the next two are made.
test('the rows of a large frame stay as they are while the next two are made', () => {
  const text = { ...etfDailyMetrics.native, columns: [{ name: 'note', pg: 'text' }] as const };
  const projector = new RecordRows(text, ({ offset }) => [offset.padEnd(200, 'x')]);
  const copies = ['a', 'b', 'c'].map((frame) => {
    const records = Array.from({ length: 2000 }, (_, at) => encodeRecord(`${frame}${at}`, Buffer.from('{}')));
    const { copy } = projector.rows(Buffer.concat(records), records.length);
    return { copy, asMade: Buffer.from(copy) };
  });
  expect(copies[0].copy.length).toBeGreaterThan(REUSE_FROM_BYTES);
  for (const { copy, asMade } of copies) expect(copy.equals(asMade)).toBe(true);
});
