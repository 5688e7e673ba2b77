/**
 * The ingested series. Unit, frequency and adjustment are those of today, for the sample and the documents: rows have what
 * the provider says as of their vintage (descriptions.ts).
 */
export interface MacroSeries {
  /** The provider's id. */
  readonly seriesId: string;
  readonly sourceId: string;
  readonly metricName: string;
  readonly unit: string;
  readonly frequency: 'Daily' | 'Monthly';
  readonly seasonalAdjustment: string;
}

export const SERIES: readonly MacroSeries[] = [
  {
    seriesId: 'FEDFUNDS',
    sourceId: 'macro_fedfunds',
    metricName: 'effective_federal_funds_rate',
    unit: 'Percent',
    frequency: 'Monthly',
    seasonalAdjustment: 'Not Seasonally Adjusted',
  },
  {
    seriesId: 'CPIAUCSL',
    sourceId: 'macro_cpiaucsl',
    metricName: 'consumer_price_index_all_items',
    unit: 'Index 1982-1984=100',
    frequency: 'Monthly',
    seasonalAdjustment: 'Seasonally Adjusted',
  },
  {
    seriesId: 'UNRATE',
    sourceId: 'macro_unrate',
    metricName: 'unemployment_rate',
    unit: 'Percent',
    frequency: 'Monthly',
    seasonalAdjustment: 'Seasonally Adjusted',
  },
  {
    seriesId: 'DGS10',
    sourceId: 'macro_dgs10',
    metricName: 'treasury_yield_10y',
    unit: 'Percent',
    frequency: 'Daily',
    seasonalAdjustment: 'Not Seasonally Adjusted',
  },
];
