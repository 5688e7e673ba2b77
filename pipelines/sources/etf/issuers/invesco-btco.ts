/** JSON with dates, a count and the holdings. */

import { compareStated } from '../parse/checks.ts';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { isBitcoin, onlyBitcoin, parseAsOf, shown, sum, unreadable } from '../parse/fields.ts';
import { firstText, JsonPath, parseJson, refuseOther } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const CUSIP = '46091J101';

export const invescoBtco: Issuer = {
  sourceId: 'etf_invesco_btco_daily',
  issuer: 'invesco',
  ticker: 'BTCO',
  document: {
    // Without the interval the service may answer with the holdings of a month's end.
    path: `/cache/v1/accounts/en_US/shareclasses/${CUSIP}/holdings/fund?idType=cusip&interval=daily&productType=ETF`,
    by: 'http',
    extension: 'json',
  },
  parse(document) {
    const root = new JsonPath(parseJson(document), '');
    const rows = root.at('holdings').list(MAX_HOLDINGS);
    const bitcoin = onlyBitcoin(rows, (row) => isBitcoin(row.at('issuerName').text()));
    const date = firstText(root.at('effectiveBusinessDate'), root.at('effectiveDate'));
    const cusip = root.at('cusip').text();
    refuseOther('BTCO', root);
    if (cusip !== CUSIP) throw unreadable(`the fund is ${shown(cusip)}, not ${CUSIP}`);
    const [holdings, count] = [rows.map(holdingOf), root.at('totalNumberOfHoldings').number()];
    compareStated({ holdings, count });
    return {
      as_of_date: parseAsOf(date, 'effectiveBusinessDate'),
      btc_units: bitcoin.at('units').number(),
      btc_market_value_usd: bitcoin.at('marketValueBase').number(),
      btc_weight_pct: bitcoin.at('percentageOfTotalNetAssets').number(),
      total_net_assets_usd: sum(
        holdings.map(({ value }) => value),
        'marketValueBase',
      ),
      holdings_row_count: count,
      source_cusip: cusip,
    };
  },
};

/** Only Bitcoin must have a weight. */
const holdingOf = (row: JsonPath) => ({
  at: row.path,
  value: row.at('marketValueBase').number(),
  weight: row.at('percentageOfTotalNetAssets').optional(),
});
