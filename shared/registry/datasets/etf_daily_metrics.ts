import type { DatasetDefinition } from '../definition.ts';
import { metricsOf } from '../metrics.ts';

const KEY = 'etf_daily_metrics';
const NUMBER = 4;

/**
 * Adds the document from which the value was read. It is a fact of the partition, so that a change elsewhere in the
 * document (an advert) does not change the row. It is inserted in the order of the sorted keys.
 */
const provenanceSql = (fact: (column: string) => string): string => {
  const document = fact('document_sha256');
  const artifact = `t.source_id || '|' || (t.provenance_json::json ->> 'source_uri') || '|' || ${document}`;
  return `coalesce(replace(t.provenance_json, '"fetch_method":',
  '"artifact_id":"' || encode(sha256(convert_to(${artifact}, 'UTF8')), 'hex') || '","artifact_sha256":"' || ${document}
  || '","fetch_method":'), t.provenance_json)`;
};

export const etfDailyMetrics = {
  number: NUMBER,
  key: KEY,
  kind: 'etf_daily_metrics',
  title: 'ETF daily metrics',
  doc: "What ten issuers publish each day about their bitcoin funds, one row per metric of a fund's day.",
  sources: [
    'etf_ishares_ibit_daily',
    'etf_invesco_btco_daily',
    'etf_bitwise_bitb_daily',
    'etf_ark_arkb_daily',
    'etf_vaneck_hodl_daily',
    'etf_franklin_ezbc_daily',
    'etf_grayscale_gbtc_daily',
    'etf_fidelity_fbtc_daily',
    'etf_coinshares_brrr_daily',
    'etf_hashdex_defi_daily',
  ],
  locations: {
    etf_ishares_ibit_daily: ['SVC_ETF_ISHARES_IBIT_BASE_URL'],
    etf_invesco_btco_daily: ['SVC_ETF_INVESCO_BTCO_BASE_URL'],
    etf_bitwise_bitb_daily: ['SVC_ETF_BITWISE_BITB_BASE_URL'],
    etf_ark_arkb_daily: ['SVC_ETF_ARK_ARKB_BASE_URL'],
    etf_vaneck_hodl_daily: ['SVC_ETF_VANECK_HODL_BASE_URL'],
    etf_franklin_ezbc_daily: ['SVC_ETF_FRANKLIN_EZBC_BASE_URL'],
    etf_grayscale_gbtc_daily: ['SVC_ETF_GRAYSCALE_GBTC_BASE_URL'],
    etf_fidelity_fbtc_daily: ['SVC_ETF_FIDELITY_FBTC_BASE_URL'],
    etf_coinshares_brrr_daily: ['SVC_ETF_COINSHARES_BRRR_BASE_URL'],
    etf_hashdex_defi_daily: ['SVC_ETF_HASHDEX_DEFI_BASE_URL'],
  },
  partition: { kind: 'capture' },
  servingState: 'SVC_ETF_QUERY_SERVING_STATE',
  historicalPath: 'etf/daily_metrics',
  cadence: { every: 'market_day' },
  quality: {
    kind: 'daily',
    codes: {
      missing: 'ETF_DAILY_MISSING_RECORDS',
      stale: 'ETF_DAILY_STALE_RECORDS',
      incomplete: 'ETF_DAILY_INCOMPLETE_RECORDS',
    },
    required: [
      'issuer',
      'ticker',
      'as_of_date',
      'btc_units',
      'btc_market_value_usd',
      'total_net_assets_usd',
      'holdings_row_count',
    ],
    maxAgeDays: 'SVC_ETF_DAILY_STALE_MAX_AGE_DAYS',
  },
  ...metricsOf({
    number: NUMBER,
    table: KEY,
    ownColumns: [],
    order: ['observed_at_utc', 'source_id', 'metric_name', 'metric_id'],
    seriesKey: ['source_id', 'metric_name', 'dimensions_json'],
    outsideDigests: ['latest_ingested_at_utc', 'provenance_json'],
    provenanceSql,
    latestBy: ['t.ingested_at desc', 't.source_offset desc'],
    unit: { nullable: true, doc: '`BTC`, `USD`, `PCT` or `COUNT`; null for a text.' },
    provenance: {
      nullable: true,
      doc: "The value's document (`artifact_sha256`), location and adapter.",
    },
    docs: {
      metricId: 'Id made only from stable facts.',
      observed: 'Midnight UTC of the as-of day, not of publication.',
      dimensions: 'Distinguishes values of one name: `{"row_index":"1"}`.',
    },
  }),
} as const satisfies DatasetDefinition;
