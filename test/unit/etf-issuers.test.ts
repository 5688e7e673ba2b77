/** The documents of ten issuers, good and bad. One row of the table is one issuer. */
import { readFileSync } from 'node:fs';
import Big from 'big.js';
import { describe, expect, test } from 'vitest';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { FACTS, type Metric, metricsOf } from '../../pipelines/sources/etf/parse/facts.ts';
import { readPage } from '../../pipelines/sources/etf/parse/page.ts';
import {
  bitwisePage,
  DOCUMENTS,
  type FundDocument,
  fundDocument,
  fundOf,
  type Holding,
} from '../../pipelines/sources/etf/sample.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { givenData } from '../support/given.ts';

interface Row {
  /** Of the table in docs/sources.md: metrics of a day. */
  readonly metrics: number;
  readonly more: readonly string[];
  /** A label or a key that the document cannot be read without. */
  readonly label: string;
  /** A column, or the key of a holding's value; one that may be null says so by its null, not by its absence. */
  readonly column: string;
  /** The metric that a cash holding of (1,200.00) lowers; none where the document has no cash. */
  readonly lowered?: 'total_net_assets_usd' | 'total_holdings_market_value_usd';
  /** The metric that `-` leaves without a value, and where to write it; none where every number is required. */
  readonly dash?: { readonly metric: string; readonly at: keyof FundDocument | 'weightPct' };
  /** No table: the document says its Bitcoin once, and how many rows it has is no question. */
  readonly isTable: boolean;
  /** Nothing follows the last row. */
  readonly isOpenEnded?: true;
}

const COMMON = ['as_of_date', 'btc_market_value_usd', 'btc_units', 'holdings_row_count'].concat([
  'issuer',
  'observed_at_utc',
  'ticker',
  'total_net_assets_usd',
]);
const weight = { metric: 'btc_weight_pct', at: 'weightPct' } as const;
const nav = { metric: 'nav_per_share_usd', at: 'navUsd' } as const;

const TABLE: Readonly<Record<string, Row>> = {
  etf_ishares_ibit_daily: {
    metrics: 11,
    more: ['btc_weight_pct', 'cash_market_value_usd', 'shares_outstanding'],
    label: 'Fund Holdings as of',
    column: 'Quantity',
    lowered: 'total_net_assets_usd',
    dash: weight,
    isTable: true,
  },
  etf_invesco_btco_daily: {
    metrics: 10,
    more: ['btc_weight_pct', 'source_cusip'],
    label: 'holdings',
    column: 'percentageOfTotalNetAssets',
    lowered: 'total_net_assets_usd',
    dash: weight,
    isTable: true,
  },
  etf_bitwise_bitb_daily: {
    metrics: 15,
    more: ['fund_data_updated_at_utc', 'proof_of_reserves_timestamp_utc', 'proof_of_reserves_total_btc'].concat([
      'shares_outstanding',
      'total_holdings_market_value_usd',
      'wallet_balance_total_btc',
      'wallet_count',
    ]),
    label: 'fundDetails',
    column: 'totalReserve',
    lowered: 'total_holdings_market_value_usd',
    dash: { metric: 'shares_outstanding', at: 'sharesOutstanding' },
    isTable: true,
  },
  etf_ark_arkb_daily: {
    metrics: 9,
    more: ['btc_weight_pct'],
    isOpenEnded: true,
    label: 'date',
    column: 'weight (%)',
    lowered: 'total_net_assets_usd',
    dash: weight,
    isTable: true,
  },
  etf_vaneck_hodl_daily: {
    metrics: 10,
    more: ['btc_weight_pct', 'source_cusip'],
    label: 'AsOfDate',
    column: 'Weight',
    lowered: 'total_net_assets_usd',
    dash: weight,
    isTable: true,
  },
  etf_franklin_ezbc_daily: {
    metrics: 15,
    more: ['btc_weight_pct', 'market_price_per_share_usd', 'nav_per_share_usd', 'source_cusip'].concat([
      'source_fund_id',
      'source_isin',
      'total_net_assets_reported_usd',
    ]),
    label: 'PricingDetails',
    column: 'pctofnetassets',
    lowered: 'total_net_assets_usd',
    dash: nav,
    isTable: true,
  },
  etf_grayscale_gbtc_daily: {
    metrics: 14,
    more: ['btc_weight_pct', 'market_price_per_share_usd', 'nav_per_share_usd', 'premium_discount_pct'].concat([
      'shares_outstanding',
      'source_cusip',
    ]),
    label: 'pricingDataDate',
    column: 'premiumDiscountPercent',
    dash: { metric: 'premium_discount_pct', at: 'premiumPct' },
    isTable: false,
  },
  etf_fidelity_fbtc_daily: {
    metrics: 11,
    more: ['nav_per_share_usd', 'net_assets_as_of_date', 'shares_outstanding'],
    label: 'Total bitcoin in fund',
    column: 'Shares outstanding',
    isTable: false,
  },
  etf_coinshares_brrr_daily: {
    metrics: 9,
    more: ['nav_per_share_usd'],
    label: 'BRRR Holdings',
    column: '# of holdings',
    isTable: true,
  },
  etf_hashdex_defi_daily: {
    metrics: 12,
    more: ['btc_price_usd', 'btc_weight_pct', 'holdings_download_url', 'shares_outstanding'],
    label: '"downloadLink"',
    column: '"weight_percentage"',
    dash: { metric: 'shares_outstanding', at: 'sharesOutstanding' },
    isTable: true,
  },
};

const DAY = '2026-03-05';
const REAL = new URL('../../../shared/data/etf/IBIT_holdings.csv', import.meta.url);

/** Net assets and shares that the issuers who shorten them print as `$14.5B` and `230.1M`. */
const ROUND = { units: '200000.125', priceUsd: '72000', sharesOutstanding: '230100000', visit: 'v7' };
const round = fundOf(DAY, { ...ROUND, cashUsd: '99991000' });
const overdrawn = fundOf(DAY, { ...ROUND, cashUsd: '-1200' });

const issuerOf = (sourceId: string) => ISSUERS.find((issuer) => issuer.sourceId === sourceId)!;

function read(sourceId: string, document: string): Metric[] {
  const { issuer, ticker, parse } = issuerOf(sourceId);
  return metricsOf({ issuer, ticker, ...parse(document) });
}

/** The metrics as text by name; `null` for one without a value. */
const valuesOf = (metrics: readonly Metric[]) => Object.fromEntries(metrics.map(({ name, text }) => [name, text]));

/** Refused as a layout that is not known; never a crash, never facts. */
function refusal(sourceId: string, document: string): string {
  try {
    const metrics = read(sourceId, document);
    throw new Error(`read as ${JSON.stringify(valuesOf(metrics))}`);
  } catch (error) {
    if (!(error instanceof TidemarkError)) throw error;
    expect(error.code).toBe('SOURCE_LAYOUT_UNKNOWN');
    return error.message;
  }
}

function withHolding(fund: FundDocument, index: number, change: Partial<Holding>): FundDocument {
  return {
    ...fund,
    holdings: fund.holdings.map((holding, at) => (at === index ? { ...holding, ...change } : holding)),
  };
}

describe.each(Object.entries(TABLE))('%s', (sourceId, row) => {
  const write = DOCUMENTS[sourceId];
  const fund = round;
  const [bitcoin, cash] = fund.holdings;
  const read1 = (changed: FundDocument) => valuesOf(read(sourceId, write(changed)));

  test('its day has the metrics of the specification, with the values that were written', () => {
    const metrics = read(sourceId, write(fund));
    expect(metrics).toHaveLength(row.metrics);
    expect(metrics.map(({ name }) => name)).toEqual([...COMMON, ...row.more].sort());
    const values = valuesOf(metrics);
    const { ticker, issuer } = issuerOf(sourceId);
    const fromHoldings = row.lowered === 'total_net_assets_usd';
    const total = fromHoldings ? new Big(bitcoin.valueUsd).plus(cash.valueUsd).toFixed() : fund.netAssetsUsd;
    // The page of this one fund gives no market value of its own.
    const value = ticker === 'FBTC' ? total : bitcoin.valueUsd;
    expect(values).toMatchObject({
      as_of_date: DAY,
      observed_at_utc: `${DAY}T00:00:00.000Z`,
      issuer,
      ticker,
      btc_units: bitcoin.units,
      btc_market_value_usd: value,
      total_net_assets_usd: total,
      holdings_row_count: row.isTable ? '2' : '1',
    });
    if ('shares_outstanding' in values) expect(values.shares_outstanding).toBe(fund.sharesOutstanding);
    if ('nav_per_share_usd' in values) expect(values.nav_per_share_usd).toBe(new Big(fund.navUsd).toFixed());
    if ('btc_weight_pct' in values) expect(values.btc_weight_pct).toBe(row.isTable ? '99.31' : '100');
  });

  test('what differs from visit to visit changes nothing', () => {
    const again = write({ ...fund, visit: 'another-visit' });
    expect(again).not.toBe(write(fund));
    // When a page was made is said by some of them, and is no fact of the fund.
    const lasting = ({ name }: Metric) => name === 'observed_at_utc' || !('passing' in FACTS[name]);
    expect(read(sourceId, again).filter(lasting)).toEqual(read(sourceId, write(fund)).filter(lasting));
  });

  test('the date in each form that is accepted, and none other', () => {
    const forms = ['2026-03-05', '2026/03/05', '03/05/2026', '03-05-2026', 'Mar-05-2026', 'Mar 05, 2026'].concat([
      'March 05, 2026',
      '05-Mar-2026',
      '2026-03-04T23:30:00-05:00',
      '2026-03-05T23:30:00',
    ]);
    for (const asOf of forms) expect({ asOf, read: read1({ ...fund, asOf }).as_of_date }).toEqual({ asOf, read: DAY });
    for (const asOf of ['2026-02-30T00:00:00Z', '2026-04-31T12:00Z', '2026-03-05T25:00:00', '2026-03-05T24:00:00Z'])
      refusal(sourceId, write({ ...fund, asOf }));
    for (const asOf of ['2026-02-30', '31/12/2026', '5 mars 2026', '20260305', 'today', '-', ''])
      refusal(sourceId, write({ ...fund, asOf }));
  });

  test('a missing label or a renamed column is refused, also where its value may be missing', () => {
    const document = write(fund);
    for (const name of [row.label, row.column]) {
      const index = document.indexOf(name);
      expect(index).toBeGreaterThanOrEqual(0);
      const renamed = document.replaceAll(name, name.replace(/[a-z]{3}/i, 'Xyz'));
      expect(renamed).not.toBe(document);
      refusal(sourceId, renamed);
    }
  });

  test('a number in another locale is refused', () => {
    for (const units of [
      '22.736,649',
      '22 736,649',
      '1.234.567',
      "22'736.649",
      '2,2736.649',
      '22736.649 BTC',
      '+-22736.649',
      '--22736.649',
      '- $ -22736.649',
      '0x1F',
    ]) {
      refusal(sourceId, write(withHolding(fund, 0, { units })));
    }
  });

  test('a negative in parentheses is negative: taken where it can be, refused where it cannot', () => {
    refusal(sourceId, write(withHolding(fund, 0, { units: '(1,000.50)' })));
    if (row.lowered !== undefined) {
      const values = read1(withHolding(overdrawn, 1, { valueUsd: '(1,200.00)' }));
      expect(values[row.lowered]).toBe(new Big(bitcoin.valueUsd).minus(1200).toFixed());
    }
    if ('premium_discount_pct' in read1(fund))
      expect(read1({ ...fund, premiumPct: '(0.25)' }).premium_discount_pct).toBe('-0.25');
  });

  test('`-` is no value: null where it may be, refused where a value or a sum needs it', () => {
    for (const none of ['-', '--', '\u2013', '\u2014', '\u2212']) {
      refusal(sourceId, write(withHolding(fund, 0, { units: none })));
      if (row.lowered !== undefined) refusal(sourceId, write(withHolding(fund, 1, { valueUsd: none })));
      if (row.dash === undefined) continue;
      const { metric, at } = row.dash;
      const changed = at === 'weightPct' ? withHolding(fund, 0, { weightPct: none }) : { ...fund, [at]: none };
      expect(read(sourceId, write(changed)).find(({ name }) => name === metric)).toMatchObject({
        kind: 'null',
        text: null,
      });
    }
  });

  test('a truncated document is refused, or says the same as all of it', () => {
    const document = write(fund);
    const whole = read(sourceId, document);
    let refused = 0;
    const step = Math.ceil(document.length / 120);
    for (let length = 0; length < document.length; length += step) {
      // Between two rows of a table without an end, the cut shows in the transport only.
      if (row.isOpenEnded && /[\n%]$/.test(document.slice(0, length))) continue;
      try {
        expect(read(sourceId, document.slice(0, length))).toEqual(whole);
      } catch (error) {
        if (!(error instanceof TidemarkError)) throw error;
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(60);
  });

  test('a page in its place is refused: a bot check by what it says', () => {
    refusal(sourceId, '<!doctype html><html><body><h1>503</h1><p>Please come back later.</p></body></html>');
    refusal(sourceId, '');
    refusal(sourceId, '{}');
    const check = '<!doctype html><html><body>Security Checkpoint: verify you are human</body></html>';
    expect(refusal(sourceId, check)).toMatch(/Security Checkpoint|page where (?:CSV|JSON) was expected/);
  });

  test('two Bitcoin rows and none are refused; thousands of rows are another document', () => {
    refusal(sourceId, write({ ...fund, holdings: [cash] }));
    if (sourceId !== 'etf_grayscale_gbtc_daily')
      refusal(sourceId, write({ ...fund, holdings: [bitcoin, cash, bitcoin] }));
    const many = { ...fund, holdings: [bitcoin, ...Array.from({ length: 3000 }, () => cash)] };
    if (row.isTable) refusal(sourceId, write(many));
    else expect(read1(many)).toEqual(read1(fund));
  });
});

test('a day of all ten funds is 116 metrics', () => {
  expect(ISSUERS.map(({ sourceId }) => sourceId)).toEqual(Object.keys(TABLE));
  const rows = ISSUERS.flatMap(({ sourceId }, index) =>
    read(sourceId, DOCUMENTS[sourceId](fundDocument(DAY, index + 1))),
  );
  expect(rows).toHaveLength(116);
});

describe.each(['etf_fidelity_fbtc_daily', 'etf_coinshares_brrr_daily'])('the text lines of %s', (sourceId) => {
  const document = DOCUMENTS[sourceId](round);
  const values = valuesOf(read(sourceId, document));

  // The value of the label was the number of its footnote.
  test('may have footnotes at their labels', () => {
    for (const label of readPage(document).lines.filter((line) => !/\d/.test(line))) {
      const noted = document.replaceAll(`>${label}<`, `>${label}<sup>1</sup><`);
      expect(noted).not.toBe(document);
      expect([label, valuesOf(read(sourceId, noted))]).toEqual([label, values]);
    }
  });

  test('may not have the scale of a value on a line of its own', () => {
    const compact = /(\d)([KMBT]|%)?<\/(\w+)>/g;
    for (const scale of ['B', 'million']) {
      refusal(sourceId, document.replaceAll(compact, `$1</$3><$3>${scale}</$3>`));
    }
  });
});

test('text around an element is read in the order of the page', () => {
  expect(readPage('<html><body><div>A<b>B</b>C<i>D</i></div>E</body></html>').lines).toEqual(['A', 'B', 'C', 'D', 'E']);
});

test('a value of DEFI that the payload has already stored is found by its index', () => {
  const fund = round;
  const [write, values] = [
    DOCUMENTS.etf_hashdex_defi_daily,
    valuesOf(read('etf_hashdex_defi_daily', DOCUMENTS.etf_hashdex_defi_daily(fund))),
  ];
  const stored = JSON.parse(write(fund)).filter(
    (value: unknown) => /^[$\d]/.test(String(value)) && typeof value === 'string',
  );
  expect(stored.length).toBeGreaterThan(5);
  for (const visit of stored) {
    const document = write({ ...fund, visit });
    expect(document.split(JSON.stringify(visit))).toHaveLength(2);
    expect([visit, valuesOf(read('etf_hashdex_defi_daily', document))]).toEqual([visit, values]);
  }
});

test('a holding of DEFI other than Bitcoin may lack a text that no fact needs', () => {
  const fund = fundDocument(DAY, 7);
  const write = DOCUMENTS.etf_hashdex_defi_daily;
  const whole = valuesOf(read('etf_hashdex_defi_daily', write(fund)));
  const payload: unknown[] = JSON.parse(write(fund));
  const holdings = payload.filter((entry): entry is Record<string, number> =>
    Object.hasOwn(Object(entry), 'weight_percentage'),
  );
  const nothing = payload.push(null) - 1;
  const other = holdings.find(({ ticker }) => payload[ticker] !== 'BTC')!;
  for (const key of ['price', 'ticker', 'shares', 'referenceDate']) other[key] = nothing;
  expect(valuesOf(read('etf_hashdex_defi_daily', JSON.stringify(payload)))).toEqual(whole);
  holdings.find(({ ticker }) => payload[ticker] === 'BTC')!.price = nothing;
  expect(refusal('etf_hashdex_defi_daily', JSON.stringify(payload))).toBe('price of Bitcoin is not a text');
});

test('another fund in the place of the one asked for is refused', () => {
  const other = (sourceId: string, own: string, foreign: string) =>
    refusal(sourceId, DOCUMENTS[sourceId](fundDocument(DAY, 1)).replaceAll(own, foreign));
  expect(other('etf_ark_arkb_daily', 'ARKB', 'ARKX')).toMatch(/not ARKB/);
  expect(other('etf_franklin_ezbc_daily', 'EZBC', 'EZET')).toMatch(/not EZBC/);
  expect(other('etf_grayscale_gbtc_daily', 'GBTC', 'ETHE')).toMatch(/not GBTC/);
  expect(other('etf_invesco_btco_daily', '46091J101', '46091J102')).toMatch(/not 46091J101/);
  expect(other('etf_hashdex_defi_daily', '"DEFI"', '"OTHR"')).toMatch(/does not name the product/);
});

test('a table of ARKB that is cut between two rows is refused: what is left does not weigh 100 %', () => {
  const table = (weight: string) =>
    [
      'date,fund,company,ticker,cusip,shares,"market value ($)","weight (%)"',
      `03/05/2026,ARKB,BITCOIN,BTC,,"38,000.12","$2,600,000,000.00",${weight}`,
      '03/05/2026,ARKB,US DOLLAR,USD,,"13,000,000","$13,000,000.00",0.50%',
      '',
    ].join('\n');
  const cut = (document: string) => document.split('\n').slice(0, 2).join('\n').concat('\n');
  expect(refusal('etf_ark_arkb_daily', cut(table('99.50%')))).toMatch(/list is partial.* 1 holdings add up to 99.5 /);
  expect(valuesOf(read('etf_ark_arkb_daily', table('99.50%')))).toMatchObject({ holdings_row_count: '2' });
  // A hundredth of a per cent is not lost in rounding if the weight is printed to the hundredth.
  refusal('etf_ark_arkb_daily', cut(table('99.99%')));
  expect(valuesOf(read('etf_ark_arkb_daily', cut(table('100.00%'))))).toMatchObject({ holdings_row_count: '1' });
});

test('a fund whose Bitcoin is not its first holding, so that what was said before is left out', () => {
  const fund = fundDocument(DAY, 3);
  const turned = { ...fund, holdings: fund.holdings.toReversed() };
  for (const { sourceId } of ISSUERS) {
    const [first, second] = [fund, turned].map((document) => valuesOf(read(sourceId, DOCUMENTS[sourceId](document))));
    expect(second).toEqual(first);
  }
});

test('the page before a document names it by its build; a bot check is no such page', () => {
  const { next } = issuerOf('etf_bitwise_bitb_daily').document;
  expect(next!(bitwisePage('a_B-9'))).toBe('/_next/data/a_B-9/index.json');
  expect(() => next!('<html>Security Checkpoint</html>')).toThrow(/Security Checkpoint/);
  expect(() => next!(bitwisePage('../../x'))).toThrow(/buildId/);
});

test('a past day without data is said to be one; the document is still no facts', () => {
  const { saysNoData, document } = issuerOf('etf_ishares_ibit_daily');
  const holiday = DOCUMENTS.etf_ishares_ibit_daily({ ...fundDocument(DAY, 1), asOf: '-' });
  expect(saysNoData!(holiday)).toBe(true);
  expect(saysNoData!(DOCUMENTS.etf_ishares_ibit_daily(fundDocument(DAY, 1)))).toBe(false);
  expect(document.pathOf!('2026-03-05')).toMatch(/&asOfDate=20260305$/);
});

givenData('etf/IBIT_holdings.csv').test('the real holdings file of one fund', () => {
  const metrics = read('etf_ishares_ibit_daily', readFileSync(REAL, 'utf8'));
  expect(valuesOf(metrics)).toEqual({
    as_of_date: '2026-05-06',
    btc_market_value_usd: '67212458573.65',
    btc_units: '822736.649',
    btc_weight_pct: '100',
    cash_market_value_usd: '3343.33',
    holdings_row_count: '2',
    issuer: 'ishares',
    observed_at_utc: '2026-05-06T00:00:00.000Z',
    shares_outstanding: '1448920000',
    ticker: 'IBIT',
    total_net_assets_usd: '67212461916.98',
  });
});
