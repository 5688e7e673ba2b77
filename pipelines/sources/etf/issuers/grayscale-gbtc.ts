/** A page whose scripts contain JSON with escaped quotes: `\"field\":\"value\"`. */
import Big from 'big.js';
import { agree } from '../parse/checks.ts';
import { type ExactObject, membersOf, objectsWith } from '../parse/embedded.ts';
import { parseAsOf, shown, unreadable } from '../parse/fields.ts';
import type { JsonPath } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const [TICKER, CUSIP] = ['GBTC', '389637109'];

export const grayscaleGbtc: Issuer = {
  sourceId: 'etf_grayscale_gbtc_daily',
  issuer: 'grayscale',
  ticker: TICKER,
  document: { path: '/gbtc', by: 'browser', extension: 'html' },
  parse(document) {
    const fund = fundOf(document);
    const [date, ticker, cusip] = [fund('pricingDataDate'), fund('ticker'), fund('cusip').text()];
    if (ticker.text() !== TICKER) throw unreadable(`the fund's ticker is ${shown(ticker.value)}, not ${TICKER}`);
    if (cusip !== null && cusip !== CUSIP)
      throw unreadable(`the fund's CUSIP is ${shown(cusip)}, not ${CUSIP} of ${TICKER}`);
    const [worth, netAssets] = [fund('aum').number(), fund('gaapAum').number()];
    const [shares, nav] = [fund('sharesOutstanding').number(), fund('holdingsPerShare').number()];
    if (shares && nav && worth && netAssets) {
      // The holdings are stated at two prices: the trust's own, and that of its accounts. The share's is one of them.
      const ofShares = nav.times(shares);
      if (!ofShares.overlaps(worth))
        agree('holdingsPerShare x sharesOutstanding', ofShares, 'aum and gaapAum', netAssets);
    }
    return {
      as_of_date: parseAsOf(date.text() ?? '', 'pricingDataDate'),
      btc_units: fund('totalAssetInTrust').number(),
      btc_market_value_usd: worth,
      total_net_assets_usd: netAssets,
      shares_outstanding: shares,
      nav_per_share_usd: nav,
      market_price_per_share_usd: fund('marketPricePerShare').number(),
      premium_discount_pct: fund('premiumDiscountPercent').number(),
      source_cusip: cusip,
      // The trust holds only Bitcoin; the page has no table that states the weight.
      btc_weight_pct: new Big(100),
      holdings_row_count: new Big(1),
    };
  },
};

/** The fund's facts by name: those of the one object that has its pricing date and its ticker. */
function fundOf(document: string): (name: string) => JsonPath {
  const objects = objectsWith(document, 'pricingDataDate').map((around) => {
    const own = around.find((object) => Object.hasOwn(object, 'ticker'));
    if (own === undefined) throw unreadable('the object with pricingDataDate has no ticker');
    return own;
  });
  const of = ({ ticker }: ExactObject) => String(ticker).trim();
  const ours = objects.filter((object) => of(object) === TICKER);
  const [first = objects[0], ...more] = ours;
  const other = more.find((object) => JSON.stringify(object) !== JSON.stringify(first));
  if (other) throw unreadable(`the page has two objects of ${TICKER} with pricingDataDate, and they differ`);
  const members = membersOf(first, 'ticker');
  return (name) => {
    const [found, ...others] = members.get(name) ?? [];
    if (found === undefined) throw unreadable(`the page has no ${name}`);
    const different = others.find(({ value }) => JSON.stringify(value) !== JSON.stringify(found.value));
    if (different) throw unreadable(`${name} has two values: ${shown(found.value)} and ${shown(different.value)}`);
    return found;
  };
}
