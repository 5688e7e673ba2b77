/** CSV that starts at the first line. */
import Big from 'big.js';
import { compareStated } from '../parse/checks.ts';
import { isBitcoin, onlyBitcoin, parseAsOf, parseNumber, shown, sum, unreadable } from '../parse/fields.ts';
import { parseTable, refuseForeign, type TableRow } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

export const arkArkb: Issuer = {
  sourceId: 'etf_ark_arkb_daily',
  issuer: 'ark',
  ticker: 'ARKB',
  document: {
    path: '/fund-documents/funds-etf-csv/ARK_21SHARES_BITCOIN_ETF_ARKB_HOLDINGS.csv',
    by: 'http',
    extension: 'csv',
  },
  parse(document) {
    if (/^\s*</.test(document)) {
      refuseForeign(document);
      throw unreadable('the document is a page where CSV was expected');
    }
    // A truncated last cell would parse as another number.
    if (!/[\n%"]\s*$/.test(document)) throw unreadable('the last line has no line end: the document is truncated');
    const { rows } = parseTable(document.replace(/^\uFEFF/, ''), 1);
    const bitcoin = holdingOf(onlyBitcoin(rows, (row) => isBitcoin(row.cell('company', 'name'), row.cell('ticker'))));
    const holdings = rows.map(holdingOf);
    for (const { at, fund, date } of holdings) {
      if (fund !== 'ARKB') throw unreadable(`the fund is ${shown(fund)}, not ARKB: ${at}`);
      if (date !== bitcoin.date) throw unreadable(`the rows are of ${bitcoin.date} and of ${date}: ${at}`);
    }
    // The table has no end mark: a cut between two rows shows in the sum of its weights.
    compareStated({ holdings });
    return {
      as_of_date: bitcoin.date,
      btc_units: bitcoin.units,
      btc_market_value_usd: bitcoin.value,
      btc_weight_pct: bitcoin.weight,
      total_net_assets_usd: sum(
        holdings.map(({ value }) => value),
        'market value ($)',
      ),
      holdings_row_count: new Big(rows.length),
    };
  },
};

function holdingOf(row: TableRow) {
  const at = `line ${row.line}`;
  return {
    at,
    fund: row.cell('fund').trim(),
    date: parseAsOf(row.cell('date'), `date, ${at}`),
    units: parseNumber(row.cell('shares'), `shares, ${at}`),
    value: parseNumber(row.cell('market value ($)', 'market value'), `market value ($), ${at}`),
    weight: parseNumber(row.cell('weight (%)', 'weight'), `weight (%), ${at}`),
  };
}
