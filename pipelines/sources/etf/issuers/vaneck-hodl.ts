/** JSON with every number as text. */
import Big from 'big.js';
import { compareStated } from '../parse/checks.ts';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { isBitcoin, onlyBitcoin, parseAsOf, sum } from '../parse/fields.ts';
import { firstText, JsonPath, parseJson, refuseOther } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

export const vaneckHodl: Issuer = {
  sourceId: 'etf_vaneck_hodl_daily',
  issuer: 'vaneck',
  ticker: 'HODL',
  document: {
    path: '/Main/HoldingsBlock/GetDataset/?blockId=348327&pageId=243755&ticker=HODL',
    by: 'http',
    extension: 'json',
  },
  parse(document) {
    const root = new JsonPath(parseJson(document), '');
    const rows = root.at('Holdings').list(MAX_HOLDINGS);
    refuseOther('HODL', root, ...rows);
    const bitcoin = onlyBitcoin(rows, (row) => isBitcoin(row.at('HoldingName').text()));
    const holdings = rows.map(holdingOf);
    compareStated({ holdings });
    return {
      as_of_date: parseAsOf(firstText(root.at('AsOfDate')), 'AsOfDate'),
      btc_units: bitcoin.at('Shares').number(),
      btc_market_value_usd: bitcoin.at('MV').number(),
      btc_weight_pct: bitcoin.at('Weight').number(),
      total_net_assets_usd: sum(
        holdings.map(({ value }) => value),
        'MV',
      ),
      holdings_row_count: new Big(rows.length),
      source_cusip: bitcoin.at('CUSIP').text(),
    };
  },
};

/** Only Bitcoin must have a weight. */
const holdingOf = (row: JsonPath) => ({
  at: row.path,
  value: row.at('MV').number(),
  weight: row.at('Weight').optional(),
});
