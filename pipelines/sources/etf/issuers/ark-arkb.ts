/** CSV that starts at the first line. */
import Big from 'big.js';
import { isBitcoin, onlyBitcoin, parseAsOf, parseNumber, shown, sum, unreadable } from '../parse/fields.ts';
import { parseTable, refuseForeign } from '../parse/tables.ts';
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
    const bitcoin = onlyBitcoin(rows, (row) => isBitcoin(row.cell('company', 'name'), row.cell('ticker')));
    const worth = (row: (typeof rows)[number]) =>
      parseNumber(row.cell('market value ($)', 'market value'), `market value ($), line ${row.line}`);
    const at = `line ${bitcoin.line}`;
    const fund = bitcoin.cell('fund').trim();
    if (fund !== 'ARKB') throw unreadable(`the fund is ${shown(fund)}, not ARKB`);
    const [value, total] = [worth(bitcoin), sum(rows.map(worth), 'market value ($)')];
    const weight = parseNumber(bitcoin.cell('weight (%)', 'weight'), `weight (%), ${at}`);
    refuseMissingRows({ value, total, weight });
    return {
      as_of_date: parseAsOf(bitcoin.cell('date'), `date, ${at}`),
      btc_units: parseNumber(bitcoin.cell('shares'), `shares, ${at}`),
      btc_market_value_usd: value,
      btc_weight_pct: weight,
      total_net_assets_usd: total,
      holdings_row_count: new Big(rows.length),
    };
  },
};

/** Weights are rounded to two decimals, and the fund's own total may differ as slightly. In per cent. */
const WEIGHT_TOLERANCE = 0.1;

/**
 * A document that is truncated between two rows looks complete. Bitcoin's weight implies the total of all rows; a
 * smaller total means that rows are missing. Missing rows worth less than the tolerance go undetected.
 */
function refuseMissingRows({ value, total, weight }: Readonly<Record<'value' | 'total' | 'weight', Big | null>>): void {
  if (!value || !total || !weight || total.eq(0)) return;
  const found = value.times(100).div(total);
  if (found.minus(weight).lte(WEIGHT_TOLERANCE)) return;
  const what = `Bitcoin is ${found.toFixed(2)} % of the rows found, but its stated weight is ${weight} %`;
  throw unreadable(`rows are missing: ${what}`);
}
