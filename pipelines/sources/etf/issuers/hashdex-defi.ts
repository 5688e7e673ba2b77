/** A flattened payload: one list, in which objects and lists hold the indexes of their values, and a repeated value is once. */
import Big from 'big.js';
import { compareStated, same } from '../parse/checks.ts';
import { type ExactObject, isObject } from '../parse/embedded.ts';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { onlyBitcoin, parseAsOf, parseNumber, shown, unreadable } from '../parse/fields.ts';
import type { Printed } from '../parse/printed.ts';
import { type Exact, parseJson } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const NAME = 'Hashdex Bitcoin ETF';
const TICKER = 'DEFI';
const LINK = /^https:\/\/[^"\s]+\/([A-Z0-9]+)_Holdings\.xlsx$/;
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
    const list = listOf(payload);
    const references = valueAt(payload, list.values);
    if (!Array.isArray(references)) throw unreadable('the payload has no list of holdings');
    if (references.length > MAX_HOLDINGS) throw unreadable(`the list of holdings has ${references.length} entries`);
    const [link, file] = [valueAt(payload, list.downloadLink), fileOf(payload, list)];
    if (file !== undefined && file !== TICKER)
      throw unreadable(`the list is that of ${file}, not of ${TICKER}: ${shown(link)}`);
    const holdings = references.map((reference, row) => holdingOf(payload, reference, row + 1));
    const bitcoin = onlyBitcoin(holdings, (one) => one.name === 'Bitcoin' && one.ticker === 'BTC');
    const [units, usd] = [number(bitcoin.shares, 'shares of Bitcoin'), number(bitcoin.price, 'price of Bitcoin')];
    const weight = number(bitcoin.weight || bitcoin.weight_percentage, 'weight of Bitcoin');
    // Each holding states them of the fund.
    const date = parseAsOf(ofFund(holdings, 'referenceDate'), 'referenceDate');
    const netAssets = parseNumber(ofFund(holdings, 'totalNetAssets'), 'totalNetAssets');
    const rows = holdings.map((one, index) => statedBy(one, `holding ${index + 1}`));
    for (const { at, weight: one, weightAgain } of rows) same(`weight, ${at}`, one, 'weight_percentage', weightAgain);
    compareStated({ holdings: rows, netAssets });
    return {
      as_of_date: date,
      btc_units: units,
      btc_price_usd: usd,
      btc_market_value_usd: units && usd ? units.times(usd) : null,
      btc_weight_pct: weight,
      total_net_assets_usd: netAssets,
      shares_outstanding: parseNumber(ofFund(holdings, 'sharesOutstanding'), 'sharesOutstanding'),
      holdings_row_count: new Big(references.length),
      holdings_download_url: file === undefined ? null : (link as string),
    };
  },
};

function number(value: string | undefined, field: string): Printed | null {
  if (value === undefined) throw unreadable(`${field} is not a text`);
  return parseNumber(value, field);
}

/** A row that lacks a text is not compared. */
function statedBy({ price, shares, weight, weight_percentage: again }: Holding, at: string) {
  const stated = (text: string | undefined, name: string) => (text ? parseNumber(text, `${name}, ${at}`) : null);
  const [first, second] = [stated(weight, 'weight'), stated(again, 'weight_percentage')];
  return {
    at,
    units: stated(shares, 'shares'),
    price: stated(price, 'price'),
    weight: first ?? second,
    weightAgain: second,
  };
}

/** What the holdings say of the fund. @throws TidemarkError if none says it, or if two differ. */
function ofFund(holdings: readonly Holding[], key: 'referenceDate' | 'totalNetAssets' | 'sharesOutstanding'): string {
  const [first, ...more] = new Set(holdings.map((one) => one[key]).filter((text) => text !== undefined && text !== ''));
  if (first === undefined) throw unreadable(`${key} is not a text`);
  if (more.length > 0) throw unreadable(`the holdings differ in ${key}: ${shown(first)} and ${shown(more[0])}`);
  return first;
}

const valueAt = (payload: readonly Exact[], reference: Exact | undefined): Exact | undefined =>
  reference instanceof Big ? payload[reference.toNumber()] : undefined;

const isList = (entry: ExactObject) => 'values' in entry && 'downloadLink' in entry;

/** The fund that the list's download address names. */
const fileOf = (payload: readonly Exact[], { downloadLink }: ExactObject): string | undefined => {
  const link = valueAt(payload, downloadLink);
  return typeof link === 'string' ? LINK.exec(link)?.[1] : undefined;
};

/**
 * The product's list of holdings: the only one that the object with its name and ticker refers to, itself or through
 * others; else the only one of the object around it whose download address names the product.
 */
function listOf(payload: readonly Exact[]): ExactObject {
  const isProduct = (entry: Exact): entry is ExactObject =>
    isObject(entry) && membersAre(payload, entry, [NAME, TICKER]);
  const products = payload.filter(isProduct);
  if (products.length === 0) throw unreadable(`the payload does not name the product ${TICKER}`);
  const lists = new Set(products.flatMap((product) => listsBelow(payload, product)));
  if (lists.size === 0) {
    const places = new Set(payload.flatMap((entry, at) => (isProduct(entry) ? [at] : [])));
    const refers = (reference: Exact) => reference instanceof Big && places.has(reference.toNumber());
    for (const entry of payload)
      if (isObject(entry) && Object.values(entry).some(refers))
        for (const list of listsBelow(payload, entry)) if (fileOf(payload, list) === TICKER) lists.add(list);
  }
  if (lists.size !== 1) throw unreadable(`the product ${TICKER} has ${lists.size} lists of holdings, not 1`);
  return [...lists][0];
}

const membersAre = (payload: readonly Exact[], entry: ExactObject, texts: readonly string[]): boolean => {
  const members = Object.values(entry).map((reference) => valueAt(payload, reference));
  return texts.every((text) => members.includes(text));
};

/** The lists that an object refers to, through objects and lists that are not another product's. */
function listsBelow(payload: readonly Exact[], start: ExactObject): ExactObject[] {
  const [seen, found] = [new Set<Exact>([start]), [] as ExactObject[]];
  const pending: Exact[] = [start];
  for (let one = pending.pop(); one !== undefined; one = pending.pop()) {
    if (isObject(one) && isList(one)) {
      found.push(one);
      continue;
    }
    const references: readonly Exact[] = Array.isArray(one) ? one : isObject(one) ? Object.values(one) : [];
    for (const reference of references) {
      const next = valueAt(payload, reference);
      if (typeof next !== 'object' || next === null || seen.has(next) || isOther(payload, next)) continue;
      seen.add(next);
      pending.push(next);
    }
  }
  return found;
}

/** Another product: it has a ticker that is not this one's. A holding has one too, but is behind a list. */
function isOther(payload: readonly Exact[], entry: Exact): boolean {
  if (!isObject(entry) || !('ticker' in entry)) return false;
  const ticker = valueAt(payload, entry.ticker);
  return typeof ticker === 'string' && ticker !== TICKER;
}

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
