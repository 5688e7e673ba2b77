/** Documents of funds and answers of the macro provider; what is accepted is projected, and compared with the decoder's rows. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { RecordRows } from '../../../pipelines/rows/record-rows.ts';
import { readCapture } from '../../../pipelines/sources/etf/captures.ts';
import { etf } from '../../../pipelines/sources/etf/feed.ts';
import { ISSUERS } from '../../../pipelines/sources/etf/issuers/index.ts';
import type { Issuer } from '../../../pipelines/sources/etf/issuers/issuer.ts';
import { bitwisePage, DOCUMENTS, fundDocument } from '../../../pipelines/sources/etf/sample.ts';
import type { Adapter } from '../../../pipelines/sources/feed-types.ts';
import { macro } from '../../../pipelines/sources/macro/feed.ts';
import {
  readObservations,
  readSeries,
  readVintages,
  refusalOf,
} from '../../../pipelines/sources/macro/provider-api.ts';
import {
  observationsAnswer,
  type Publication,
  seriesAnswer,
  vintagesAnswer,
} from '../../../pipelines/sources/macro/sample.ts';
import { SERIES } from '../../../pipelines/sources/macro/series.ts';
import { eventsOf, vintagesOf } from '../../../pipelines/sources/macro/vintages.ts';
import type { RecordedEvent } from '../../../pipelines/sources/record-frames.ts';
import { encodeRecord } from '../../../shared/frame/records.ts';
import { datasetOf } from '../../../shared/registry/index.ts';
import { captureKey, vintageKey } from '../../../shared/registry/keys.ts';
import { refusal, same, type Target, Wrong } from '../target.ts';

const SHARED = join(import.meta.dirname, '../../../../shared/data');
const AT_MS = Date.parse('2026-09-20T00:00:00Z');

/** What the projector makes of the events is what the decoder says they are. */
function project(
  adapter: Adapter,
  dataset: 'etf_daily_metrics' | 'macro_series_metrics',
  key: string,
  events: readonly RecordedEvent[],
) {
  if (events.length === 0) return;
  const { native } = datasetOf(dataset);
  const raw = Buffer.concat(events.map(({ offset, payload }) => encodeRecord(offset, payload)));
  const window = { key, fromMs: -8.64e15, toMs: 8.64e15 };
  const found = adapter.projections[dataset].createRows(window).rows(raw, events.length);
  const rows = events.values();
  const at = native.scope.kind === 'column' ? native.columns.findIndex(({ name }) => name === 'partition_key') : -1;
  const expected = new RecordRows(native, () => {
    const { row } = rows.next().value!;
    return at < 0 ? row : row.with(at, key);
  }).rows(raw, events.length);
  if (!found.copy.equals(expected.copy)) throw new Wrong(`the projector's rows of ${key} are not the decoder's`);
}

const DAYS = ['2024-01-11', '2025-03-31', '2026-04-10'];

/** Real documents by the fund that published them. */
const REAL: Readonly<Record<string, readonly string[]>> = {
  IBIT: ['ishares_ajax_IBIT.json', 'IBIT_holdings.csv', 'IBIT_product_page_text_2026-04-10.html'],
  HODL: ['vaneck_etf_statistics_BTC.json'],
  EZBC: ['franklin_dailyholdings_BTC.json'],
};

function fundTarget(issuer: Issuer): Target {
  const { extension } = issuer.document;
  const documents = DAYS.flatMap((day, index) =>
    [1, 2].map((seed) => DOCUMENTS[issuer.sourceId](fundDocument(day, index * 10 + seed))),
  );
  const real = (REAL[issuer.ticker] ?? []).map((name) => join(SHARED, 'etf', name)).filter((path) => existsSync(path));
  const pages = issuer.document.next ? [bitwisePage('1')] : [];
  return {
    name: issuer.sourceId,
    form: extension === 'json' ? 'json' : extension === 'csv' ? 'lines' : 'text',
    seeds: [...documents, ...pages].map((text) => Buffer.from(text)).concat(real.map((path) => readFileSync(path))),
    words: [
      '$1,200.00',
      '(1,200.00)',
      '-',
      '--',
      'N/A',
      '%',
      'BTC',
      'BITCOIN',
      'USD',
      '</html>',
      '<td>',
      '</tr>',
      'As of 01/02/2025',
      '1.5B',
      '2024-01-11',
    ],
    weight: 2,
    run(bytes) {
      let capture: ReturnType<typeof readCapture>;
      try {
        if (issuer.document.next) next(issuer, bytes);
        capture = readCapture(issuer, bytes, { name: 'a document', atMs: AT_MS, filedDay: '2024-01-11' });
      } catch (error) {
        const outcome = refusal(error);
        const { message } = error as Error;
        if (!message.includes(issuer.ticker) || !message.includes('a document'))
          throw new Wrong(`names neither fund nor document: ${message}`);
        return outcome;
      }
      const { asOf, events } = capture;
      if (!/^20\d\d-\d\d-\d\d$/.test(asOf) || Number.isNaN(Date.parse(asOf))) throw new Wrong(`is as of ${asOf}`);
      for (const { row } of events) {
        const [, , , name, , kind, value] = row;
        if (kind !== 'string' && value !== null && !/^-?\d{1,50}(\.\d+)?$/.test(String(value)))
          throw new Wrong(`${name} is the ${kind} ${value}`);
      }
      project(etf, 'etf_daily_metrics', captureKey(issuer.sourceId, asOf), events);
      return `accepted ${events.length > 0}`;
    },
  };
}

/** The page that names the document. */
function next(issuer: Issuer, page: Buffer): void {
  try {
    const path = issuer.document.next!(page.toString());
    if (typeof path !== 'string' || !path.startsWith('/')) throw new Wrong(`the page leads to ${path}`);
  } catch (error) {
    refusal(error);
  }
}

const PUBLICATIONS: readonly Publication[] = [
  { vintage: '2024-01-11', said: { '2023-12-01': '5.33', '2023-11-01': '5.3300' } },
  { vintage: '2024-02-13', said: { '2024-01-01': '5.31', '2023-12-01': '5.34' } },
  { vintage: '2024-03-12', said: { '2024-02-01': '.', '2024-01-01': '-0.000001' } },
];

function macroSeeds(): Buffer[] {
  const made = SERIES.flatMap((series) => [
    seriesAnswer(series, PUBLICATIONS, '2024-03-12 07:54:01-05'),
    vintagesAnswer(PUBLICATIONS),
    observationsAnswer(PUBLICATIONS),
    { error_code: 400, error_message: 'Bad Request.' },
  ]);
  const folder = join(SHARED, 'macro/api_json');
  const real = existsSync(folder) ? readdirSync(folder).map((name) => readFileSync(join(folder, name))) : [];
  return [
    ...made.map((answer) => Buffer.from(JSON.stringify(answer))),
    ...real.filter(({ length }) => length < 32_768),
  ];
}

function macroRun(bytes: Buffer): string {
  const text = bytes.toString();
  const [series] = SERIES;
  const outcomes: string[] = [];
  const read = (work: () => void) => {
    try {
      work();
      outcomes.push('accepted');
    } catch (error) {
      outcomes.push(refusal(error));
    }
  };
  read(() => {
    const { lastUpdatedMs, observationStart, descriptions } = readSeries(text, series);
    if (!Number.isSafeInteger(lastUpdatedMs) || Number.isNaN(Date.parse(observationStart)))
      throw new Wrong(`last updated ${lastUpdatedMs}`);
    const [{ vintage }] = PUBLICATIONS;
    const described = { ...series, title: '', ...descriptions.asOf(vintage) };
    const events = eventsOf(described, vintage, [{ date: '2024-01-01', value: '1' }]);
    project(macro, 'macro_series_metrics', vintageKey(series.sourceId, vintage), events);
  });
  read(() => same('vintages', readVintages(text, series).dates, JSON.parse(text).vintage_dates));
  read(() => {
    const { observations } = readObservations(text, series);
    const plain = JSON.parse(text).observations.map((one: Record<string, string>) => [
      one.date,
      one.value,
      one.realtime_start,
    ]);
    same(
      'observations',
      observations.map(({ date, value, realtimeStart }) => [date, value, realtimeStart]),
      plain,
    );
    for (const [vintage, rows] of vintagesOf(observations, new Map())) {
      project(
        macro,
        'macro_series_metrics',
        vintageKey(series.sourceId, vintage),
        eventsOf({ ...series, title: '' }, vintage, rows),
      );
    }
  });
  const said = refusalOf(text);
  if (said !== undefined && said.length > 300) throw new Wrong(`a refusal of ${said.length} characters`);
  return outcomes.join(' | ');
}

export const metricTargets = (): Target[] => [
  ...ISSUERS.map(fundTarget),
  {
    name: 'macro_series_metrics',
    form: 'json',
    seeds: macroSeeds(),
    words: [
      'realtime_start',
      '"value":"."',
      '9999-12-31',
      '1776-07-04',
      'error_message',
      'error_code',
      '"output_type":1',
    ],
    weight: 10,
    run: macroRun,
  },
];
