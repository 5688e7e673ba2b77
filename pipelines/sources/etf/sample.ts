/**
 * Synthetic documents of ten funds in their issuers' layouts, for the sample (the last market days) and for tests. The
 * same day gives the same documents on every machine.
 */

import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import Big from 'big.js';
import { DAY_MS, dayKey, daysBetween, isMarketDay } from '../../../shared/dates.ts';
import { MarketPrice } from '../../sample/market.ts';
import type { SampleNeeds, SampleOrder } from '../feed-types.ts';
import { ISSUERS } from './issuers/index.ts';

/** Numbers are plain decimals, which are formatted the issuer's way; any other text is written unchanged. */
export interface Holding {
  readonly name: string;
  readonly ticker: string;
  readonly units: string;
  readonly priceUsd: string;
  readonly valueUsd: string;
  readonly weightPct: string;
}

export interface FundDocument {
  readonly asOf: string;
  readonly holdings: readonly Holding[];
  readonly netAssetsUsd: string;
  readonly sharesOutstanding: string;
  readonly navUsd: string;
  readonly premiumPct: string;
  /** Differs between visits and states nothing about the fund. */
  readonly visit: string;
}

/** A fund's day: Bitcoin and some cash, generated from a seed per fund and day. */
export function fundDocument(day: string, seed: number): FundDocument {
  return fundOf(day, {
    units: new Big(20_000).plus(new Big((seed * 7919) % 100_000).div(8)).toFixed(),
    priceUsd: new Big(60_000).plus(new Big((seed * 104_729) % 2_000_000).div(100)).toFixed(),
    cashUsd: new Big((seed * 31) % 5_000_000).plus('1000.25').toFixed(),
    sharesOutstanding: new Big(30_000_000).plus((seed * 10_000) % 9_000_000).toFixed(),
    visit: `v${seed}`,
  });
}

/** All numbers are plain decimals. */
export interface FundDay extends Pick<FundDocument, 'sharesOutstanding' | 'visit'> {
  readonly units: string;
  readonly priceUsd: string;
  readonly cashUsd: string;
}

export function fundOf(day: string, { units, priceUsd, cashUsd, sharesOutstanding, visit }: FundDay): FundDocument {
  const valueUsd = new Big(units).times(priceUsd).toFixed();
  const netAssetsUsd = new Big(valueUsd).plus(cashUsd).toFixed();
  const weightOf = (usd: string) => new Big(usd).times(100).div(netAssetsUsd).toFixed(2);
  return {
    asOf: day,
    holdings: [
      { name: 'Bitcoin', ticker: 'BTC', units, priceUsd, valueUsd, weightPct: weightOf(valueUsd) },
      {
        name: 'US Dollar Cash',
        ticker: 'USD',
        units: cashUsd,
        priceUsd: '1',
        valueUsd: cashUsd,
        weightPct: weightOf(cashUsd),
      },
    ],
    netAssetsUsd,
    sharesOutstanding,
    navUsd: new Big(netAssetsUsd).div(sharesOutstanding).toFixed(2),
    premiumPct: '-0.12',
    visit,
  };
}

const isPlain = (text: string) => /^-?\d+(?:\.\d+)?$/.test(text);

/** Formats `1234567.5` as `1,234,567.5`. */
function grouped(text: string): string {
  if (!isPlain(text)) return text;
  const [whole, fraction] = text.split('.');
  const groups = whole.replaceAll(/\B(?=(?:\d{3})+$)/g, ',');
  return fraction === undefined ? groups : `${groups}.${fraction}`;
}

const dollars = (text: string) => (isPlain(text) ? `$${grouped(text)}` : text);
const inPercent = (text: string) => (isPlain(text) ? `${text}%` : text);
const inBillions = (text: string) => (isPlain(text) ? `${new Big(text).div(1e9).toFixed()}B` : text);
const inMillions = (text: string, unit: string) =>
  isPlain(text) ? `${new Big(text).div(1e6).toFixed()}${unit}` : text;

/** Writes a JSON number with exactly these digits; TypeScript does not know the function yet. */
const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown };
const number = (text: string): unknown => (isPlain(text) ? rawJSON(text) : text);

const quoted = (cells: readonly string[]) => cells.map((cell) => `"${cell}"`).join(',');
const named = (fund: FundDocument, pattern: RegExp) => fund.holdings.filter(({ name }) => pattern.test(name));

function page(title: string, fund: FundDocument, body: string): string {
  return `<!doctype html>\n<html><head><title>${title}</title><script>window.build = "${fund.visit}";</script></head>\n<body>${body}</body></html>\n`;
}

const lines = (texts: readonly string[]) => texts.map((text) => `<div><span>${text}</span></div>`).join('\n');

/** The generators by source id. */
export const DOCUMENTS: Readonly<Record<string, (fund: FundDocument) => string>> = {
  etf_ishares_ibit_daily: (fund) =>
    [
      '\uFEFFiShares Bitcoin Trust ETF',
      `Fund Holdings as of,"${fund.asOf}"`,
      'Inception Date,"Jan 01, 2024"',
      `Shares Outstanding,"${grouped(fund.sharesOutstanding)}"`,
      '\u00a0',
      'Ticker,Name,Sector,Asset Class,Market Value,Weight (%),Notional Value,Quantity,Market Currency,Accrual Date',
      ...fund.holdings.map(({ ticker, name, valueUsd, weightPct, units }) => {
        const [value, quantity] = [grouped(valueUsd), grouped(units)];
        return quoted([ticker, name.toUpperCase(), '-', 'Alternative', value, weightPct, value, quantity, ticker, '-']);
      }),
      '\u00a0',
      `"The content herein is made up, ${fund.visit}."`,
    ].join('\n'),
  etf_invesco_btco_daily: (fund) =>
    JSON.stringify({
      effectiveBusinessDate: fund.asOf,
      effectiveDate: fund.asOf,
      cusip: '46091J101',
      totalNumberOfHoldings: fund.holdings.length,
      requestId: fund.visit,
      holdings: fund.holdings.map(({ name, valueUsd, units, weightPct }) => ({
        issuerName: name,
        marketValueBase: number(valueUsd),
        units: number(units),
        percentageOfTotalNetAssets: number(weightPct),
      })),
    }),
  etf_bitwise_bitb_daily: (fund) =>
    JSON.stringify({
      pageProps: {
        visit: fund.visit,
        fundData: {
          data: {
            updatedAt: `${fund.asOf} 22:00, ${fund.visit}`,
            fundDetails: {
              asOfDate: fund.asOf,
              netAssets: number(fund.netAssetsUsd),
              sharesOutstanding: number(fund.sharesOutstanding),
              numHoldings: fund.holdings.length,
            },
            holdings: {
              asOfDate: fund.asOf,
              basket: fund.holdings.map(({ name, valueUsd, units }) => ({
                companyName: name,
                marketValue: number(valueUsd),
                shares: number(units),
              })),
            },
            wallets: {
              walletBalances: named(fund, /bitcoin/i).map(({ units }) => ({ active: true, balance: number(units) })),
            },
          },
        },
        proofOfReservesSnapshotData: {
          totalReserve: number('20001.5'),
          timestamp: `${fund.asOf} 21:00, ${fund.visit}`,
        },
      },
    }),
  etf_ark_arkb_daily: (fund) =>
    [
      'date,fund,company,ticker,cusip,shares,"market value ($)","weight (%)"',
      ...fund.holdings.map(
        ({ name, ticker, units, valueUsd, weightPct }) =>
          `"${fund.asOf}",ARKB,${name.toUpperCase()},${ticker},,"${grouped(units)}","${dollars(valueUsd)}",${inPercent(weightPct)}`,
      ),
      `"This document is made up and says nothing about any fund that you could invest in, ${fund.visit}."`,
      '',
    ].join('\n'),
  etf_vaneck_hodl_daily: (fund) =>
    JSON.stringify({
      AsOfDate: fund.asOf,
      RequestId: fund.visit,
      Holdings: fund.holdings.map(({ name, units, valueUsd, weightPct }) => ({
        HoldingName: name,
        Shares: grouped(units),
        MV: dollars(valueUsd),
        Weight: inPercent(weightPct),
        CUSIP: null,
      })),
    }),
  etf_franklin_ezbc_daily: (fund) =>
    JSON.stringify({
      final_url: `https://funds.example/39639?visit=${fund.visit}`,
      operations: {
        ProductCommon: { data: { ProductDetails: { fundid: '39639' } } },
        Identifiers: {
          data: {
            Overview: { shareclass: [{ identifiers: { ticker: 'EZBC', cusip: '35354Q105', isin: 'US35354Q1058' } }] },
          },
        },
        PricingDetails: {
          data: {
            Overview: {
              shareclass: [{ nav: { navvalue: dollars(fund.navUsd), mktpricevalue: dollars(fund.navUsd) } }],
            },
          },
        },
        Aum: {
          data: {
            Overview: { aum: { totnetassets: `$${inMillions(fund.netAssetsUsd, ' Million')}`, asofdate: fund.asOf } },
          },
        },
        Holdings: {
          data: {
            Portfolio: {
              portfolio: {
                dailyholdings: fund.holdings.map(({ name, units, valueUsd, weightPct }) => ({
                  asofdate: fund.asOf,
                  secname: name.toUpperCase(),
                  quantityshrpar: grouped(units),
                  mktvalue: grouped(valueUsd),
                  pctofnetassets: weightPct,
                })),
              },
            },
          },
        },
      },
    }),
  etf_grayscale_gbtc_daily: (fund) => {
    const [bitcoin] = named(fund, /bitcoin/i);
    const facts = {
      ticker: 'GBTC',
      pricingDataDate: fund.asOf,
      ...(bitcoin && { totalAssetInTrust: grouped(bitcoin.units), aum: dollars(bitcoin.valueUsd) }),
      gaapAum: dollars(fund.netAssetsUsd),
      sharesOutstanding: grouped(fund.sharesOutstanding),
      holdingsPerShare: fund.navUsd,
      marketPricePerShare: dollars(fund.navUsd),
      premiumDiscountPercent: inPercent(fund.premiumPct),
      cusip: '389637109',
    };
    // The facts are JSON inside a string of a script.
    return page('GBTC', fund, `<script>self.push([1,${JSON.stringify(JSON.stringify(facts))}])</script>`);
  },
  etf_fidelity_fbtc_daily: (fund) =>
    page(
      'FBTC',
      fund,
      lines([
        'Net assets',
        `As of ${fund.asOf}`,
        `$${inBillions(fund.netAssetsUsd)}`,
        ...named(fund, /bitcoin/i).flatMap(({ units }) => [
          'Total bitcoin in fund',
          `As of ${fund.asOf}`,
          grouped(units),
        ]),
        'Shares outstanding',
        inMillions(fund.sharesOutstanding, 'M'),
        'Nav',
        dollars(fund.navUsd),
      ]),
    ),
  etf_coinshares_brrr_daily: (fund) =>
    page(
      'BRRR',
      fund,
      lines([
        'ASSETS UNDER MANAGEMENT (US$)',
        dollars(fund.netAssetsUsd),
        'NAV (US$)',
        dollars(fund.navUsd),
        '# of holdings',
        String(fund.holdings.length),
        'BRRR Holdings',
        `As of ${fund.asOf}`,
        ...fund.holdings.flatMap(({ name, ticker, units, valueUsd }) => [
          name.toUpperCase(),
          ticker.replace('BTC', 'XBTUSD'),
          grouped(units),
          dollars(valueUsd),
        ]),
      ]),
    ),
  etf_hashdex_defi_daily: ({ asOf, holdings, netAssetsUsd, sharesOutstanding, visit }) =>
    flattened({
      visit,
      product: {
        name: 'Hashdex Bitcoin ETF',
        ticker: 'DEFI',
        holdings: {
          values: holdings.map(({ name, ticker, units, priceUsd, weightPct }) => ({
            name,
            price: dollars(priceUsd),
            shares: grouped(units),
            ticker,
            weight: weightPct,
            referenceDate: asOf,
            totalNetAssets: dollars(netAssetsUsd),
            sharesOutstanding: grouped(sharesOutstanding),
            weight_percentage: inPercent(weightPct),
          })),
          downloadLink: 'https://documents.example/DEFI_Holdings.xlsx',
        },
      },
    }),
};

/** As the page's framework writes a payload: a list of all values, each once, in which objects and lists hold indexes. */
export function flattened(root: unknown): string {
  const values: unknown[] = [];
  const places = new Map<unknown, number>();
  const placeOf = (value: unknown): number => {
    const known = places.get(value);
    if (known !== undefined) return known;
    const place = values.push(null) - 1;
    places.set(value, place);
    if (Array.isArray(value)) values[place] = value.map(placeOf);
    else if (typeof value === 'object' && value !== null) {
      values[place] = Object.fromEntries(Object.entries(value).map(([name, member]) => [name, placeOf(member)]));
    } else values[place] = value;
    return place;
  };
  placeOf(root);
  return JSON.stringify(values);
}

/** The page that names the document's build, for issuers whose document has one. */
export const bitwisePage = (visit: string): string =>
  `<!doctype html><html><body><script>{"props":{},"buildId":"${visit}"}</script></body></html>`;

/** Those of the sample's week, and the one before, whose values still hold when it begins. */
const SAMPLE_MARKET_DAYS = 6;
export const SAMPLE_PARTITIONS = SAMPLE_MARKET_DAYS * ISSUERS.length;
/** When the funds value their holdings, after midnight UTC: 16:00 in New York, in winter. */
const VALUED_AFTER_MS = 21 * 3_600_000;

/** Generates the market days before today. */
export async function makeSample({ directory, todayMs, signal }: SampleNeeds) {
  await writeDays(directory, lastMarketDays(todayMs), signal);
  return { location: pathToFileURL(`${directory}/`), selection: { options: {}, reingest: false } };
}

/** Generates the market days of from..to. */
export async function writeSample({ directory, from, to, signal }: SampleOrder): Promise<void> {
  await writeDays(directory, daysBetween(from, to).filter(isMarketDay), signal);
}

/** One folder per fund, laid out like an operator's folder of archived documents. */
async function writeDays(directory: string, days: readonly string[], signal: AbortSignal): Promise<void> {
  for (const [index, { sourceId, document }] of ISSUERS.entries()) {
    const folder = join(directory, sourceId);
    await mkdir(folder, { recursive: true });
    for (const day of days) {
      signal.throwIfAborted();
      await writeFile(join(folder, `${day}.${document.extension}`), DOCUMENTS[sourceId](sampleDay(day, index)));
    }
  }
}

function lastMarketDays(todayMs: number): string[] {
  const days: string[] = [];
  for (let ms = todayMs - DAY_MS; days.length < SAMPLE_MARKET_DAYS; ms -= DAY_MS) {
    if (isMarketDay(dayKey(ms))) days.unshift(dayKey(ms));
  }
  return days;
}

/** All funds of a day share the market's price; their holdings change slightly from day to day. */
function sampleDay(day: string, fund: number) {
  const count = Date.parse(day) / DAY_MS;
  const wave = (days: number, size: number) => Math.round(Math.sin((2 * Math.PI * (count + 7 * fund)) / days) * size);
  const price = new MarketPrice().at(Date.parse(day) + VALUED_AFTER_MS);
  return fundOf(day, {
    units: new Big(240_000)
      .div(fund + 1)
      .round(0)
      .plus(wave(23, 800))
      .plus('0.125')
      .toFixed(),
    priceUsd: new Big(price).toFixed(2),
    cashUsd: new Big(400_000).plus(wave(5, 90_000)).plus('0.25').toFixed(),
    sharesOutstanding: new Big(420_000_000)
      .div(fund + 1)
      .round(0)
      .plus(wave(23, 10) * 40_000)
      .toFixed(),
    visit: `${day}-${fund}`,
  });
}
