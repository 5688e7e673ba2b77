/** Metrics from the log to rows: the projector reads what the sources wrote, and the database makes their seconds. */
import type { ClientBase } from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CopyIn } from '../../pipelines/rows/copy-in.ts';
import { eventsOf as fundEvents } from '../../pipelines/sources/etf/captures.ts';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { metricsOf } from '../../pipelines/sources/etf/parse/facts.ts';
import { DOCUMENTS, fundDocument } from '../../pipelines/sources/etf/sample.ts';
import { projectionOf } from '../../pipelines/sources/index.ts';
import { SERIES } from '../../pipelines/sources/macro/series.ts';
import { eventsOf as seriesEvents } from '../../pipelines/sources/macro/vintages.ts';
import type { RecordedEvent } from '../../pipelines/sources/record-frames.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { encodeRecord } from '../../shared/frame/records.ts';
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';
import { macroSeriesMetrics } from '../../shared/registry/datasets/macro_series_metrics.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { captureKey, vintageKey } from '../../shared/registry/keys.ts';
import { createTestEnv, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let client: Client;
beforeAll(async () => {
  env = await createTestEnv();
  client = await connect({ url: env.databaseUrl, name: 'test' });
  await migrate(client);
});
afterAll(async () => {
  await client?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

const DAY = '2026-03-05';
const UNRATE = { ...SERIES[2], title: 'Unemployment Rate' };
const ofFund = (index: number, seed = index + 1) => {
  const issuer = ISSUERS[index];
  const facts = issuer.parse(DOCUMENTS[issuer.sourceId](fundDocument(DAY, seed)));
  const metrics = metricsOf({ issuer: issuer.issuer, ticker: issuer.ticker, ...facts });
  return { sourceId: issuer.sourceId, events: fundEvents(issuer, metrics, Date.parse(DAY)) };
};

interface Partition {
  readonly key: string;
  readonly events: readonly RecordedEvent[];
}

const copyOf = (dataset: DatasetDefinition, { key, events }: Partition) =>
  projectionOf(dataset)
    .createRows({ key, fromMs: 0, toMs: 0 })
    .rows(Buffer.concat(events.map(({ offset, payload }) => encodeRecord(offset, payload))), events.length).copy;

/** Loads partitions, the second ingested a second after the first and so on, in the order given. */
async function load(dataset: DatasetDefinition, partitions: readonly Partition[]): Promise<void> {
  const columns = dataset.native.columns.map(({ name }) => name);
  await client.query(`truncate ${dataset.native.table}, partitions`);
  for (const [index, partition] of partitions.entries()) {
    const copy = new CopyIn(client as ClientBase, dataset.native.table, columns);
    await copy.write(copyOf(dataset, partition));
    await copy.end();
    await client.query(
      `insert into partitions (dataset_id, partition_key, source_id, span, state, attempt, revision, synthetic,
         ingested_at, last_updated_at)
       values ($1, $2, '', '[0,1)', 'published', 1, 1, false, to_timestamp($3), '2026-03-07T12:30:00Z')`,
      [dataset.number, partition.key, 1_700_000_000 + index],
    );
  }
}

async function secondsOf(dataset: DatasetDefinition): Promise<Record<string, unknown>[]> {
  const { seconds } = projectionOf(dataset);
  const rows = `(select t.*, floor(t.observed_at_ms / 1000)::int8 as second, t.metric_id as source_offset, p.ingested_at,
    p.last_updated_at, p.document_sha256 from ${dataset.native.table} t join partitions p using (partition_key))`;
  const found = await client.query(
    `select * from (${seconds!.select(rows)}) m order by second, source_id, metric_name`,
  );
  expect(found.fields.map(({ name }) => name)).toEqual(['second', ...seconds!.columns]);
  return found.rows;
}

describe('rows', () => {
  test('the projector makes of an event the row that its source proves, for every fund and series', async () => {
    const funds = ISSUERS.map((_, index) => ofFund(index));
    const expected = funds.flatMap(({ sourceId, events }) =>
      events.map(({ row }) => row.with(9, captureKey(sourceId, DAY))),
    );
    await load(
      etfDailyMetrics,
      funds.map(({ sourceId, events }) => ({ key: captureKey(sourceId, DAY), events })),
    );
    expect(expected).toHaveLength(116);
    expect(await stored(etfDailyMetrics)).toEqual(byId(expected));

    const values = [
      { date: '2026-01-01', value: '4.4' },
      { date: '2025-10-01', value: '.' },
    ];
    const events = seriesEvents(UNRATE, '2026-02-06', values);
    const key = vintageKey(UNRATE.sourceId, '2026-02-06');
    await load(macroSeriesMetrics, [{ key, events }]);
    expect(await stored(macroSeriesMetrics)).toEqual(byId(events.map(({ row }) => row.with(9, key))));
  });

  test.each<[string, (payload: Record<string, unknown>) => unknown]>([
    ['it is not a JSON object', () => []],
    ['it belongs to', (payload) => ({ ...payload, metric_id: 'f'.repeat(64) })],
    ['it belongs to', (payload) => ({ ...payload, source_id: 'etf_ark_arkb_daily' })],
    [
      'its value is not of the kind float',
      (payload) => ({ ...payload, metric_value_kind: 'float', metric_value_text: '1,5' }),
    ],
    [
      'its value is not of the kind float',
      (payload) => ({ ...payload, metric_value_kind: 'float', metric_value_text: '1e999' }),
    ],
    [
      'its value is not of the kind int',
      (payload) => ({ ...payload, metric_value_kind: 'int', metric_value_text: '1.5' }),
    ],
    [
      'its value is not of the kind bool',
      (payload) => ({ ...payload, metric_value_kind: 'bool', metric_value_text: 'yes' }),
    ],
    [
      'its value is not of the kind null',
      (payload) => ({ ...payload, metric_value_kind: 'null', metric_value_text: '' }),
    ],
    ['its value is not of the kind constructor', (payload) => ({ ...payload, metric_value_kind: 'constructor' })],
    ['observed_at_utc is not a midnight', (payload) => ({ ...payload, observed_at_utc: `${DAY}T00:00:01.000Z` })],
    ['it does not belong to', (payload) => ({ ...payload, observed_at_utc: '2026-03-06T00:00:00.000Z' })],
    ['metric_unit is not text', ({ metric_unit, ...payload }) => payload],
    ['dimensions is not an object', (payload) => ({ ...payload, dimensions: '{}' })],
    ['provenance is not an object', (payload) => ({ ...payload, provenance: null })],
  ])('a payload that is none is refused: %s', (message, damaged) => {
    const { sourceId, events } = ofFund(0);
    const payload = Buffer.from(JSON.stringify(damaged(JSON.parse(Buffer.from(events[0].payload).toString()))));
    const partition = { key: captureKey(sourceId, DAY), events: [{ ...events[0], payload }] };
    expect(() => copyOf(etfDailyMetrics, partition)).toThrow(
      expect.objectContaining({ code: 'LOG_DAMAGED', message: expect.stringContaining(message) }),
    );
  });

  test('a value of another vintage than its partition is refused', () => {
    const events = seriesEvents(UNRATE, '2026-02-06', [{ date: '2026-01-01', value: '4.4' }]);
    const partition = { key: vintageKey(UNRATE.sourceId, '2026-02-07'), events };
    expect(() => copyOf(macroSeriesMetrics, partition)).toThrow('does not belong to 2026-02-07');
  });
});

describe('seconds', () => {
  test('ETF: the capture that was ingested last wins; every value has its channels', async () => {
    const [first, second] = [ofFund(0, 1), ofFund(0, 2)];
    const day = (number: number) => captureKey(first.sourceId, DAY, number);
    await load(etfDailyMetrics, [
      { key: day(2), events: second.events },
      { key: day(1), events: first.events },
    ]);
    const rows = await secondsOf(etfDailyMetrics);
    expect(rows).toHaveLength(11);
    const wanted = new Map(first.events.map(({ row }) => [row[4 - 1], row]));
    for (const row of rows) {
      const [, metricId, , , unit, kind, text] = wanted.get(row.metric_name as string)!;
      expect(row).toMatchObject({
        metric_id: metricId,
        metric_unit: unit,
        metric_value_string: text,
        metric_value_int: kind === 'int' ? text : null,
        metric_value_float: kind === 'int' || kind === 'float' ? Number(text) : null,
        metric_value_bool: null,
        dimensions_json: '{"row_index":"1"}',
        records_in_bucket: '2',
        latest_ingested_at_utc: new Date(1_700_000_001_000),
      });
    }
  });

  test('macro: the newest vintage wins however late an older one is ingested; a missing value makes none', async () => {
    const vintage = (day: string, values: Record<string, string>) => ({
      key: vintageKey(UNRATE.sourceId, day),
      events: seriesEvents(
        UNRATE,
        day,
        Object.entries(values).map(([date, value]) => ({ date, value })),
      ),
    });
    await load(macroSeriesMetrics, [
      vintage('2026-02-06', { '2026-01-01': '4.3', '2025-12-01': '4.4', '2025-11-01': '.' }),
      // 2025-10 was withdrawn, 2025-11 became known.
      vintage('2026-03-06', { '2025-10-01': '.', '2025-11-01': '4.5' }),
      vintage('2026-01-09', { '2025-12-01': '4.1', '2025-10-01': '4.6' }),
    ]);
    const rows = await secondsOf(macroSeriesMetrics);
    const short = rows.map(({ second, metric_value_float, records_in_bucket, provenance_json }) => [
      new Date(Number(second) * 1000).toISOString().slice(0, 7),
      metric_value_float,
      records_in_bucket,
      JSON.parse(provenance_json as string).realtime_start,
    ]);
    expect(short).toEqual([
      ['2025-11', 4.5, '2', '2026-03-06'],
      ['2025-12', 4.4, '2', '2026-02-06'],
      ['2026-01', 4.3, '1', '2026-02-06'],
    ]);
    expect(JSON.parse(rows[0].provenance_json as string).last_updated_utc).toBe('2026-03-07T12:30:00.000Z');
  });
});

async function stored(dataset: DatasetDefinition): Promise<unknown[]> {
  const columns = dataset.native.columns.map(({ name }) => name).join(', ');
  const { rows } = await client.query({
    text: `select ${columns} from ${dataset.native.table} order by metric_id`,
    rowMode: 'array',
  });
  return rows.map(([ms, ...rest]) => [Number(ms), ...rest]);
}

const byId = (rows: readonly (readonly unknown[])[]) =>
  [...rows].sort((a, b) => (String(a[1]) < String(b[1]) ? -1 : 1));
