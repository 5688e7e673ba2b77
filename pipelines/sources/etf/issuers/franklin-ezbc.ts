/**
 * The five answers that a page requests from its service, stored together: `{final_url, operations: {<op>: answer}}`.
 */
import Big from 'big.js';
import { compareStated } from '../parse/checks.ts';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { isBitcoin, onlyBitcoin, parseScaled, shown, sum, unreadable } from '../parse/fields.ts';
import { JsonPath, oneDay, parseJson } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

export const OPERATIONS = ['ProductCommon', 'Identifiers', 'PricingDetails', 'Aum', 'Holdings'] as const;

/** The product's number, also in the page's address. */
const PRODUCT = '39639';
const ADDRESS = /\/products\/(\d+)\//;

export const franklinEzbc: Issuer = {
  sourceId: 'etf_franklin_ezbc_daily',
  issuer: 'franklin',
  ticker: 'EZBC',
  document: {
    path: `/investments/options/exchange-traded-funds/products/${PRODUCT}/SINGLCLASS`,
    by: 'browser',
    extension: 'json',
    answers: { path: 'api/pds/price-and-performance', parameter: 'op', names: OPERATIONS },
  },
  parse(document) {
    const root = new JsonPath(parseJson(document), '');
    const operations = root.at('operations');
    const missing = OPERATIONS.filter((name) => operations.at(name).value === undefined);
    if (missing.length > 0) throw unreadable(`operations without an answer: ${missing.join(', ')}`);
    const of = (name: (typeof OPERATIONS)[number]) => operations.at(name, 'data');
    const ids = onlyClass(of('Identifiers').at('Overview', 'shareclass')).at('identifiers');
    const nav = onlyClass(of('PricingDetails').at('Overview', 'shareclass')).at('nav');
    const aum = of('Aum').at('Overview', 'aum');
    const rows = of('Holdings').at('Portfolio', 'portfolio', 'dailyholdings').list(MAX_HOLDINGS);
    const bitcoin = onlyBitcoin(rows, (row) => isBitcoin(row.at('secname').text()));
    const holdings = rows.map(holdingOf);
    const [cusip, isin] = [ids.at('cusip').text(), ids.at('isin').text()];
    const fundId = textOrNumber(of('ProductCommon').at('ProductDetails', 'fundid'));
    if (ids.at('ticker').text() !== 'EZBC') throw unreadable(`the fund is ${shown(ids.at('ticker').value)}, not EZBC`);
    if (fundId !== null && fundId !== PRODUCT) throw unreadable(`the fund's id is ${shown(fundId)}, not ${PRODUCT}`);
    const page = ADDRESS.exec(String(root.at('final_url').value))?.[1] ?? PRODUCT;
    if (page !== PRODUCT) throw unreadable(`the page is that of the product ${shown(page)}, not of ${PRODUCT}`);
    // An ISIN is the country, the CUSIP and a check digit.
    if (cusip !== null && isin !== null && isin.slice(2, -1) !== cusip)
      throw unreadable(
        `the document contradicts itself: the ISIN ${shown(isin)} is not that of the CUSIP ${shown(cusip)}`,
      );
    const text = aum.at('totnetassets').text();
    const reported = text === null ? null : parseScaled(text, `${aum.path}.totnetassets`);
    const date = oneDay(bitcoin.at('asofdate'), aum.at('asofdate'), ...rows.map((row) => row.at('asofdate')));
    compareStated({ holdings, netAssets: reported });
    return {
      as_of_date: date,
      btc_units: bitcoin.at('quantityshrpar').number(),
      btc_market_value_usd: bitcoin.at('mktvalue').number(),
      btc_weight_pct: bitcoin.at('pctofnetassets').number(),
      total_net_assets_usd: sum(
        holdings.map(({ value }) => value),
        'mktvalue',
      ),
      total_net_assets_reported_usd: reported,
      holdings_row_count: new Big(rows.length),
      nav_per_share_usd: nav.at('navvalue').number(),
      market_price_per_share_usd: nav.at('mktpricevalue').number(),
      source_cusip: cusip,
      source_isin: isin,
      source_fund_id: fundId,
    };
  },
};

/** The fund has one class of shares; which of several is meant would be a guess. */
function onlyClass(classes: JsonPath): JsonPath {
  const [first, ...more] = classes.list(MAX_HOLDINGS);
  if (first === undefined || more.length > 0)
    throw unreadable(`${classes.path} has ${more.length + (first ? 1 : 0)} classes of shares, not 1`);
  return first;
}

/** Only Bitcoin must have a weight. */
const holdingOf = (row: JsonPath) => ({
  at: row.path,
  value: row.at('mktvalue').number(),
  weight: row.at('pctofnetassets').optional(),
});

/** An id is its digits, whether or not the answer quotes them. */
function textOrNumber(id: JsonPath): string | null {
  if (typeof id.value === 'string') return id.text();
  return id.number()?.toFixed() ?? null;
}
