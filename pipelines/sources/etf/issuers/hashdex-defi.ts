/** A flattened payload: one list, in which objects and lists hold the indexes of their values, and a repeated value is once. */
import Big from 'big.js';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { onlyBitcoin, parseAsOf, parseNumber, unreadable } from '../parse/fields.ts';
import { type Exact, parseJson } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

/** The product's name and ticker follow one another; the first list with a link after them is that of its holdings. */
const NAME = 'Hashdex Bitcoin ETF';
const TICKER = 'DEFI';
const LINK = /^https:\/\/[^"\s]+\/DEFI_Holdings\.xlsx$/;
const KEYS = [
  'name',
  'price',
  'shares',
  'ticker',
  'weight',
  'referenceDate',
  'totalNetAssets',
  'sharesOutstanding',
  'weight_percentage',
] as const;
/** Undefined: not a text, which is refused where a fact needs it. */
type Holding = Readonly<Record<(typeof KEYS)[number], string | undefined>>;

export const hashdexDefi: Issuer = {
  sourceId: 'etf_hashdex_defi_daily',
  issuer: 'hashdex',
  ticker: TICKER,
  document: { path: '/en-US/_payload.json', by: 'http', extension: 'json' },
  parse(document) {
    const payload = parseJson(document);
    if (!Array.isArray(payload)) throw unreadable('the payload is not a list');
    const product = payload.findIndex((entry, at) => entry === NAME && payload[at + 1] === TICKER);
    if (product < 0) throw unreadable(`the payload does not name the product ${TICKER}`);
    const list = payload
      .slice(product)
      .find((entry) => isObject(entry) && 'values' in entry && 'downloadLink' in entry);
    const references = isObject(list) ? valueAt(payload, list.values) : undefined;
    if (!isObject(list) || !Array.isArray(references)) throw unreadable('the payload has no list of holdings');
    if (references.length > MAX_HOLDINGS) throw unreadable(`the list of holdings has ${references.length} entries`);
    const holdings = references.map((reference, row) => holdingOf(payload, reference, row + 1));
    const { price, shares, weight, weight_percentage } = onlyBitcoin(
      holdings,
      (one) => one.name === 'Bitcoin' && one.ticker === 'BTC',
    );
    // Each holding states them of the fund.
    const { referenceDate, totalNetAssets, sharesOutstanding } =
      holdings.find((one) => one.referenceDate && one.totalNetAssets && one.sharesOutstanding) ?? holdings[0];
    const number = (value: string | undefined, field: string) => parseNumber(required(value, field), field);
    const [units, usd] = [number(shares, 'shares of Bitcoin'), number(price, 'price of Bitcoin')];
    const link = valueAt(payload, list.downloadLink);
    return {
      as_of_date: parseAsOf(required(referenceDate, 'referenceDate'), 'referenceDate'),
      btc_units: units,
      btc_price_usd: usd,
      btc_market_value_usd: units && usd ? units.times(usd) : null,
      btc_weight_pct: number(weight || weight_percentage, 'weight of Bitcoin'),
      total_net_assets_usd: number(totalNetAssets, 'totalNetAssets'),
      shares_outstanding: number(sharesOutstanding, 'sharesOutstanding'),
      holdings_row_count: new Big(references.length),
      holdings_download_url: typeof link === 'string' && LINK.test(link) ? link : null,
    };
  },
};

function required(value: string | undefined, field: string): string {
  if (value === undefined) throw unreadable(`${field} is not a text`);
  return value;
}

const isObject = (entry: Exact | undefined): entry is { readonly [name: string]: Exact } =>
  typeof entry === 'object' && entry !== null && !Array.isArray(entry) && !(entry instanceof Big);

const valueAt = (payload: readonly Exact[], reference: Exact): Exact | undefined =>
  reference instanceof Big ? payload[reference.toNumber()] : undefined;

function holdingOf(payload: readonly Exact[], reference: Exact, row: number): Holding {
  const entry = valueAt(payload, reference);
  if (!isObject(entry)) throw unreadable(`holding ${row} is not in the payload`);
  return Object.fromEntries(
    KEYS.map((key) => {
      if (!(key in entry)) throw unreadable(`holding ${row} has no ${key}`);
      const value = valueAt(payload, entry[key]);
      return [key, typeof value === 'string' ? value : undefined];
    }),
  ) as Holding;
}
