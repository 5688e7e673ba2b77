/** A page read as text lines: labels, each followed by a date and a value. */
import Big from 'big.js';
import { parseAsOf, parseCompact, parseNumber, unreadable } from '../parse/fields.ts';
import { Lines, linesOf } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const VALUE = /^[+-]?\$?[A-Za-z0-9,.\-%]+$/;
const AS_OF = /^As of (.+)$/i;
const isValue = (line: string) => VALUE.test(line) && /\d/.test(line) && !AS_OF.test(line);

export const fidelityFbtc: Issuer = {
  sourceId: 'etf_fidelity_fbtc_daily',
  issuer: 'fidelity',
  ticker: 'FBTC',
  document: {
    path: '/prgw/digital/research/quote/dashboard/summary?symbol=FBTC',
    by: 'browser',
    extension: 'html',
  },
  parse(document) {
    const lines = new Lines(linesOf(document));
    const assetsAt = lines.find('Net assets');
    const bitcoinAt = lines.only('Total bitcoin in fund', 0);
    const sharesAt = lines.find('Shares outstanding');
    const navAt = lines.find('Nav', bitcoinAt);
    const assets = parseCompact(lines.after(assetsAt, 4, 'Net assets', isValue), 'Net assets');
    return {
      as_of_date: dateAfter(lines, bitcoinAt, 6, 'Total bitcoin in fund'),
      btc_units: parseNumber(lines.after(bitcoinAt, 6, 'Total bitcoin in fund', isValue), 'Total bitcoin in fund'),
      // The page states no separate market value; the fund's assets are all Bitcoin.
      btc_market_value_usd: assets,
      total_net_assets_usd: assets,
      net_assets_as_of_date: dateAfter(lines, assetsAt, 4, 'Net assets'),
      shares_outstanding: parseCompact(lines.after(sharesAt, 3, 'Shares outstanding', isValue), 'Shares outstanding'),
      nav_per_share_usd: parseCompact(lines.after(navAt, 3, 'Nav', isValue), 'Nav'),
      holdings_row_count: new Big(1),
    };
  },
};

function dateAfter(lines: Lines, at: number, within: number, label: string): string {
  const found = AS_OF.exec(lines.after(at, within, label, (line) => AS_OF.test(line)));
  if (!found) throw unreadable(`"${label}" has no date`);
  return parseAsOf(found[1], label);
}
