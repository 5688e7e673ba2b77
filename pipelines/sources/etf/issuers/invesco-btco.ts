/** JSON with dates, a count and the holdings. */

import { MAX_HOLDINGS } from '../parse/facts.ts';
import { isBitcoin, onlyBitcoin, parseAsOf, shown, sum, unreadable } from '../parse/fields.ts';
import { firstText, JsonPath, parseJson } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const CUSIP = '46091J101';

export const invescoBtco: Issuer = {
  sourceId: 'etf_invesco_btco_daily',
  issuer: 'invesco',
  ticker: 'BTCO',
  document: {
    path: `/cache/v1/accounts/en_US/shareclasses/${CUSIP}/holdings/fund?idType=cusip&productType=ETF`,
    by: 'http',
    extension: 'json',
  },
  parse(document) {
    const root = new JsonPath(parseJson(document), '');
    const holdings = root.at('holdings').list(MAX_HOLDINGS);
    const bitcoin = onlyBitcoin(holdings, (row) => isBitcoin(row.at('issuerName').text()));
    const date = firstText(root.at('effectiveBusinessDate'), root.at('effectiveDate'));
    const cusip = root.at('cusip').text();
    if (cusip !== CUSIP) throw unreadable(`the fund is ${shown(cusip)}, not ${CUSIP}`);
    return {
      as_of_date: parseAsOf(date, 'effectiveBusinessDate'),
      btc_units: bitcoin.at('units').number(),
      btc_market_value_usd: bitcoin.at('marketValueBase').number(),
      btc_weight_pct: bitcoin.at('percentageOfTotalNetAssets').number(),
      total_net_assets_usd: sum(
        holdings.map((row) => row.at('marketValueBase').number()),
        'marketValueBase',
      ),
      holdings_row_count: root.at('totalNumberOfHoldings').number(),
      source_cusip: cusip,
    };
  },
};
