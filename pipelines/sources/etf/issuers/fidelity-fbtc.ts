/** A page read as text lines: labels, each followed by a date and a value. */
import Big from 'big.js';
import { compareStated } from '../parse/checks.ts';
import { parseCompact, parseNumber, unreadable } from '../parse/fields.ts';
import { type Labelled, Labels, readPage, requireHeading } from '../parse/page.ts';
import type { Issuer } from './issuer.ts';

const NAME = /\bFBTC\b|\bFidelity Wise Origin Bitcoin\b/i;
const [NET_ASSETS, UNITS, PER_SHARE, SHARES, NAV] = [
  'Net assets',
  'Total bitcoin in fund',
  'Bitcoin per share',
  'Shares outstanding',
  'Nav',
];

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
    const page = readPage(document);
    requireHeading(page, NAME, 'FBTC');
    const labels = new Labels(page, [NET_ASSETS, UNITS, PER_SHARE, SHARES, NAV]);
    const times = labels.places(UNITS).length;
    if (times !== 1) throw unreadable(`the page has "${UNITS}" ${times} times, not once`);
    const units = labels.dated(UNITS);
    const net = labels.dated(NET_ASSETS);
    const [shares, nav, perShare] = [labels.value(SHARES), labels.value(NAV), labels.optional(PER_SHARE)];
    const netAssets = parseCompact(net.text, NET_ASSETS);
    const facts = {
      btc_units: parseNumber(units.text, UNITS),
      shares_outstanding: parseCompact(shares.text, SHARES),
      nav_per_share_usd: parseCompact(nav.text, NAV),
    };
    /** A label without a date is of the page's day. */
    const ofDay = (one: Labelled | undefined, day: string) => (one?.date ?? day) === day;
    if (ofDay(shares, units.date)) {
      if (ofDay(nav, units.date) && net.date === units.date)
        compareStated({ netAssets, navPerShare: facts.nav_per_share_usd, shares: facts.shares_outstanding });
      if (perShare && ofDay(perShare, units.date))
        compareStated({
          units: facts.btc_units,
          unitsPerShare: parseNumber(perShare.text, PER_SHARE),
          shares: facts.shares_outstanding,
        });
    }
    return {
      ...facts,
      as_of_date: units.date,
      // The page states no separate market value; the fund's assets are all Bitcoin.
      btc_market_value_usd: netAssets,
      total_net_assets_usd: netAssets,
      net_assets_as_of_date: net.date,
      holdings_row_count: new Big(1),
    };
  },
};
