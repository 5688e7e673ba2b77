/** A page whose scripts contain JSON with escaped quotes: `\"field\":\"value\"`. */
import Big from 'big.js';
import { parseAsOf, parseNumber, unreadable } from '../parse/fields.ts';
import { requirePage } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const ANCHOR = String.raw`\"pricingDataDate\":`;
/** The fund's own facts are close to its pricing date; the rest of the page is about other products. */
const BEFORE = 20_000;
const AFTER = 300_000;

export const grayscaleGbtc: Issuer = {
  sourceId: 'etf_grayscale_gbtc_daily',
  issuer: 'grayscale',
  ticker: 'GBTC',
  document: { path: '/gbtc', by: 'browser', extension: 'html' },
  parse(document) {
    requirePage(document);
    const at = document.indexOf(ANCHOR);
    if (at < 0) throw unreadable('the page has no pricingDataDate');
    const part = document.slice(Math.max(0, at - BEFORE), at + AFTER);
    const text = (name: string) => {
      const found = new RegExp(String.raw`\\"${name}\\":(?:\\"([^"\\]*)\\"|(-?[0-9.eE+-]+)|null)`).exec(part);
      return found ? (found[1] ?? found[2]) : missing(name);
    };
    const number = (name: string) => {
      const found = text(name);
      return found === undefined ? null : parseNumber(found, name);
    };
    if (text('ticker') !== 'GBTC') throw unreadable(`the fund's ticker is ${text('ticker')}, not GBTC`);
    return {
      as_of_date: parseAsOf(text('pricingDataDate') ?? '', 'pricingDataDate'),
      btc_units: number('totalAssetInTrust'),
      btc_market_value_usd: number('aum'),
      total_net_assets_usd: number('gaapAum'),
      shares_outstanding: number('sharesOutstanding'),
      nav_per_share_usd: number('holdingsPerShare'),
      market_price_per_share_usd: number('marketPricePerShare'),
      premium_discount_pct: number('premiumDiscountPercent'),
      source_cusip: text('cusip') ?? null,
      // The trust holds only Bitcoin; the page has no table that states the weight.
      btc_weight_pct: new Big(100),
      holdings_row_count: new Big(1),
    };
  },
};

function missing(name: string): never {
  throw unreadable(`the page has no ${name}`);
}
