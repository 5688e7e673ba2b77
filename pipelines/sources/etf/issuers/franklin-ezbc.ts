/**
 * The five answers that a page requests from its service, stored together: `{final_url, operations: {<op>: answer}}`.
 */
import Big from 'big.js';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { isBitcoin, onlyBitcoin, parseAsOf, parseScaled, shown, sum, unreadable } from '../parse/fields.ts';
import { firstText, JsonPath, parseJson } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

export const OPERATIONS = ['ProductCommon', 'Identifiers', 'PricingDetails', 'Aum', 'Holdings'] as const;

export const franklinEzbc: Issuer = {
  sourceId: 'etf_franklin_ezbc_daily',
  issuer: 'franklin',
  ticker: 'EZBC',
  document: {
    path: '/investments/options/exchange-traded-funds/products/39639/SINGLCLASS',
    by: 'browser',
    extension: 'json',
    answers: { path: 'api/pds/price-and-performance', parameter: 'op', names: OPERATIONS },
  },
  parse(document) {
    const operations = new JsonPath(parseJson(document), '').at('operations');
    const missing = OPERATIONS.filter((name) => operations.at(name).value === undefined);
    if (missing.length > 0) throw unreadable(`operations without an answer: ${missing.join(', ')}`);
    const of = (name: (typeof OPERATIONS)[number]) => operations.at(name, 'data');
    const ids = of('Identifiers').at('Overview', 'shareclass', 0, 'identifiers');
    const nav = of('PricingDetails').at('Overview', 'shareclass', 0, 'nav');
    const aum = of('Aum').at('Overview', 'aum');
    const holdings = of('Holdings').at('Portfolio', 'portfolio', 'dailyholdings').list(MAX_HOLDINGS);
    const bitcoin = onlyBitcoin(holdings, (row) => isBitcoin(row.at('secname').text()));
    const date = firstText(bitcoin.at('asofdate'), aum.at('asofdate'));
    if (ids.at('ticker').text() !== 'EZBC') throw unreadable(`the fund is ${shown(ids.at('ticker').value)}, not EZBC`);
    const reported = aum.at('totnetassets').text();
    return {
      as_of_date: parseAsOf(date, `${bitcoin.path}.asofdate`),
      btc_units: bitcoin.at('quantityshrpar').number(),
      btc_market_value_usd: bitcoin.at('mktvalue').number(),
      btc_weight_pct: bitcoin.at('pctofnetassets').number(),
      total_net_assets_usd: sum(
        holdings.map((row) => row.at('mktvalue').number()),
        'mktvalue',
      ),
      total_net_assets_reported_usd: reported === null ? null : parseScaled(reported, `${aum.path}.totnetassets`),
      holdings_row_count: new Big(holdings.length),
      nav_per_share_usd: nav.at('navvalue').number(),
      market_price_per_share_usd: nav.at('mktpricevalue').number(),
      source_cusip: ids.at('cusip').text(),
      source_isin: ids.at('isin').text(),
      source_fund_id: textOrNumber(of('ProductCommon').at('ProductDetails', 'fundid')),
    };
  },
};

/** An id is its digits, whether or not the answer quotes them. */
function textOrNumber(id: JsonPath): string | null {
  if (typeof id.value === 'string') return id.text();
  return id.number()?.toFixed() ?? null;
}
