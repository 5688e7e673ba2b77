/** A page read as text lines. */
import { parseAsOf, parseCompact, parseNumber, unreadable } from '../parse/fields.ts';
import { Lines, linesOf } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const AS_OF = /^As of (.+)$/i;
const TICKERS = new Set(['XBTUSD', 'BTC', 'XBT']);
const isValue = (line: string) => /\d/.test(line) && !AS_OF.test(line);

export const coinsharesBrrr: Issuer = {
  sourceId: 'etf_coinshares_brrr_daily',
  issuer: 'coinshares',
  ticker: 'BRRR',
  document: { path: '/us/etf/brrr/', by: 'browser', extension: 'html' },
  parse(document) {
    const lines = new Lines(linesOf(document));
    const number = (label: string, parse: typeof parseNumber) =>
      parse(lines.after(lines.find(label), 3, label, isValue), label);
    const holdingsAt = lines.find('BRRR Holdings');
    const date = AS_OF.exec(lines.after(holdingsAt, 8, 'BRRR Holdings', (line) => AS_OF.test(line)))!;
    // The name may also appear in a menu; the holding is the occurrence before one of its tickers.
    const bitcoinAt = lines.only('BITCOIN', holdingsAt, (ticker) => TICKERS.has(ticker));
    const [units, value] = [2, 3].map((step) => lines.line(bitcoinAt + step));
    if (units === undefined || value === undefined) {
      throw unreadable('BITCOIN is not followed by ticker, units and market value');
    }
    return {
      as_of_date: parseAsOf(date[1], 'BRRR Holdings'),
      btc_units: parseNumber(units, 'units of BITCOIN'),
      btc_market_value_usd: parseNumber(value, 'market value of BITCOIN'),
      total_net_assets_usd: number('ASSETS UNDER MANAGEMENT (US$)', parseCompact),
      nav_per_share_usd: number('NAV (US$)', parseCompact),
      holdings_row_count: number('# of holdings', parseNumber),
    };
  },
};
