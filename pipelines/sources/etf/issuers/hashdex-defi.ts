/** A flattened payload: objects hold the indexes of their values, and a repeated value is stored only once. */
import Big from 'big.js';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { parseAsOf, parseNumber, unreadable } from '../parse/fields.ts';
import { parseJson } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const PRODUCT = '"Hashdex Bitcoin ETF","DEFI",';
/** The product's values follow its name within this distance; another product comes after. */
const REACH = 250_000;
const LINK = /https:\/\/[^"\s]+\/DEFI_Holdings\.xlsx/;
const REFERENCES = /\{"values":\d+,"downloadLink":\d+\},\[([\d,]+)\]/;
const KEYS = ['name', 'price', 'shares', 'ticker', 'weight', 'referenceDate', 'totalNetAssets', 'sharesOutstanding'];
const OBJECT = `\\{${[...KEYS, 'weight_percentage'].map((key) => `"${key}":\\d+`).join(',')}\\}`;
const FULL = new RegExp(`${OBJECT},${Array.from({ length: 9 }, () => '"([^"]*)"').join(',')}`, 'g');
/** An earlier holding already stated date, net assets and shares outstanding. */
const SHORT = new RegExp(`${OBJECT},"Bitcoin","([^"]*)","([^"]*)","BTC","([^"]*)"(?:,"([^"]*)")?`, 'g');

export const hashdexDefi: Issuer = {
  sourceId: 'etf_hashdex_defi_daily',
  issuer: 'hashdex',
  ticker: 'DEFI',
  document: { path: '/en-US/_payload.json', by: 'http', extension: 'json' },
  parse(document) {
    // The payload must be complete JSON. The text is parsed below, because repeated values are left out of it.
    parseJson(document);
    const at = document.indexOf(PRODUCT);
    if (at < 0) throw unreadable('the payload does not name the product DEFI');
    const part = document.slice(at, at + PRODUCT.length + REACH);
    const references = REFERENCES.exec(part)?.[1].split(',');
    if (!references) throw unreadable('the payload has no list of holdings');
    if (references.length > MAX_HOLDINGS) throw unreadable(`the list of holdings has ${references.length} entries`);
    const full = [...part.matchAll(FULL)].slice(0, references.length);
    if (full.length === 0) throw unreadable('the payload has no holding with all its values');
    const [, , , , , , date, assets, outstanding] = full[0];
    const { price, units, weight } = bitcoinOf(full, part, references.length);
    return {
      as_of_date: parseAsOf(date, 'referenceDate'),
      btc_units: units,
      btc_price_usd: price,
      btc_market_value_usd: units && price ? units.times(price) : null,
      btc_weight_pct: weight,
      total_net_assets_usd: parseNumber(assets, 'totalNetAssets'),
      shares_outstanding: parseNumber(outstanding, 'sharesOutstanding'),
      holdings_row_count: new Big(references.length),
      holdings_download_url: LINK.exec(part)?.[0] ?? null,
    };
  },
};

function bitcoinOf(full: readonly RegExpMatchArray[], part: string, holdings: number) {
  const rows = full.filter((match) => match[1] === 'Bitcoin' && match[4] === 'BTC');
  const short = [...part.matchAll(SHORT)].filter((match) => !full.some((other) => other.index === match.index));
  const said = [
    ...rows.map((row) => ({ price: row[2], shares: row[3], weight: row[5] || row[9] })),
    ...short.map((row) => ({ price: row[1], shares: row[2], weight: row[3] || row[4] || '' })),
  ];
  if (said.length !== 1) throw unreadable(`${said.length} of ${holdings} holdings are Bitcoin, not 1`);
  const [found] = said;
  return {
    price: parseNumber(found.price, 'price of Bitcoin'),
    units: parseNumber(found.shares, 'shares of Bitcoin'),
    weight: parseNumber(found.weight, 'weight of Bitcoin'),
  };
}
