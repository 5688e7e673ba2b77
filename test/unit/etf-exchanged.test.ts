/**
 * Documents in which two labels, columns or keys are exchanged, so that each figure stands under the other's name. A document
 * that states both once cannot contradict itself; signs, fractions and forms say all the same that they are other figures.
 */
import Big from 'big.js';
import { describe, expect, test } from 'vitest';
import { readCapture } from '../../pipelines/sources/etf/captures.ts';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { DOCUMENTS, fundDocument } from '../../pipelines/sources/etf/sample.ts';
import { TidemarkError } from '../../shared/errors.ts';

const key = (name: string) => `"${name}":`;
const between = (name: string) => `>${name}<`;
const cell = (name: string) => (name.includes('(') ? `"${name}"` : `${name},`);
const escaped = (name: string) => String.raw`\"${name}\":`;

interface Layout {
  readonly written: (label: string) => string;
  /** Labels that can be exchanged with one another. */
  readonly labels: readonly (readonly string[])[];
  /** Pairs of figures that the document states once and in one form: nothing can tell them apart. */
  readonly alike?: readonly string[];
}

const LAYOUTS: Readonly<Record<string, Layout>> = {
  IBIT: {
    written: (label) => `${label},`,
    labels: [
      ['Name', 'Sector', 'Asset Class', 'Market Value', 'Weight (%)', 'Notional Value', 'Quantity', 'Market Currency'],
      ['Fund Holdings as of', 'Inception Date', 'Shares Outstanding'],
    ],
  },
  BTCO: {
    written: key,
    labels: [
      ['issuerName', 'marketValueBase', 'units', 'percentageOfTotalNetAssets'],
      ['effectiveBusinessDate', 'cusip', 'totalNumberOfHoldings'],
    ],
  },
  BITB: {
    written: key,
    labels: [
      ['companyName', 'marketValue', 'shares'],
      ['netAssets', 'sharesOutstanding', 'numHoldings', 'asOfDate'],
    ],
  },
  ARKB: {
    written: cell,
    labels: [['date', 'fund', 'company', 'ticker', 'cusip', 'shares', 'market value ($)', 'weight (%)']],
  },
  HODL: { written: key, labels: [['HoldingName', 'Shares', 'MV', 'Weight', 'CUSIP']] },
  EZBC: {
    written: key,
    labels: [
      ['asofdate', 'secname', 'quantityshrpar', 'mktvalue', 'pctofnetassets'],
      ['ticker', 'cusip', 'isin'],
      ['navvalue', 'mktpricevalue'],
    ],
    alike: ['navvalue mktpricevalue'],
  },
  GBTC: {
    written: escaped,
    labels: [
      ['totalAssetInTrust', 'aum', 'gaapAum', 'sharesOutstanding', 'holdingsPerShare', 'marketPricePerShare'],
      ['ticker', 'cusip'],
    ],
    // A share is worth its part of one of the two net assets, so that the other is not compared with anything.
    alike: ['aum gaapAum', 'aum marketPricePerShare', 'gaapAum marketPricePerShare'],
  },
  FBTC: { written: between, labels: [['Net assets', 'Total bitcoin in fund', 'Shares outstanding', 'Nav']] },
  BRRR: {
    written: between,
    labels: [['ASSETS UNDER MANAGEMENT (US$)', 'NAV (US$)', '# of holdings', 'BRRR Holdings']],
  },
  DEFI: {
    written: key,
    labels: [
      ['name', 'price', 'shares', 'ticker', 'weight', 'totalNetAssets', 'sharesOutstanding', 'weight_percentage'],
    ],
  },
};

const DAY = '2026-03-05';
const documentOf = (sourceId: string) => DOCUMENTS[sourceId](fundDocument(DAY, 7));
const issuerOf = (ticker: string) => ISSUERS.find((one) => one.ticker === ticker)!;

/** The metrics by name; the refusal's message where it is refused. */
function outcome(ticker: string, document: string): Readonly<Record<string, unknown>> | string {
  const seen = { name: 'a document', atMs: Date.parse('2026-03-07') };
  try {
    const { events } = readCapture(issuerOf(ticker), Buffer.from(document), seen);
    return Object.fromEntries(events.map(({ row }) => [row[3], row[6]]));
  } catch (error) {
    if (!(error instanceof TidemarkError)) throw error;
    return error.message;
  }
}

describe.each(Object.entries(LAYOUTS))('%s', (ticker, { written, labels, alike = [] }) => {
  const document = documentOf(issuerOf(ticker).sourceId);
  const said = outcome(ticker, document);
  const pairs = labels.flatMap((names) =>
    names.flatMap((one, at) => names.slice(at + 1).map((other) => [one, other] as const)),
  );

  test('is refused, or says the same, when two labels are exchanged', () => {
    expect(said).toMatchObject({ ticker, as_of_date: DAY });
    for (const [one, other] of pairs) {
      const [a, b] = [written(one), written(other)];
      const exchanged = document.replaceAll(a, '\u0001').replaceAll(b, a).replaceAll('\u0001', b);
      expect(exchanged).not.toBe(document);
      const read = outcome(ticker, exchanged);
      const pair = `${one} ${other}`;
      if (alike.includes(pair)) expect({ pair, is: typeof read }).toEqual({ pair, is: 'object' });
      else if (typeof read !== 'string') expect({ pair, read }).toEqual({ pair, read: said });
    }
  });
});

const refusal = (ticker: string, ...changes: readonly (readonly [from: string | RegExp, to: string])[]) => {
  const document = documentOf(issuerOf(ticker).sourceId);
  const changed = changes.reduce((text, [from, to]) => text.replace(from, to), document);
  expect(changed).not.toBe(document);
  return outcome(ticker, changed);
};

test('a figure of another unit was taken for bitcoins, and a weight for a CUSIP', () => {
  const { units } = fundDocument(DAY, 7).holdings[0];
  const shown = new Big(units).toNumber().toLocaleString('en', { maximumFractionDigits: 8 });
  expect(refusal('HODL', [`"Shares":"${shown}"`, '"Shares":"$26,929.125"'])).toMatch(/btc_units is printed with a \$/);
  expect(refusal('HODL', [`"Shares":"${shown}"`, '"Shares":"12.5%"'])).toMatch(/btc_units is printed with a %/);
  expect(refusal('HODL', ['"CUSIP":null', '"CUSIP":"99.95%"'])).toMatch(/source_cusip is not in its form: "99.95%"/);
});

test("reserves of BITB's page that are another fund's are refused", () => {
  const named = (name: string) => refusal('BITB', [/"totalReserve"/, `"fundName":${name},"totalReserve"`]);
  expect(named('"ETHW"')).toMatch(/the reserves are those of "ETHW", not of BITB/);
  for (const name of ['"BITB"', 'null'])
    expect(named(name)).toEqual(outcome('BITB', documentOf(issuerOf('BITB').sourceId)));
});

test('a price of cash per hundred, as files of the issuer have it, is no contradiction; a wrong price of Bitcoin is', () => {
  const priced = (price: string) => {
    const lines = documentOf(issuerOf('IBIT').sourceId).split('\n');
    const header = lines.findIndex((line) => line.startsWith('Ticker,'));
    for (const [at, text] of ['Price', `"${price}"`, '"100.00"'].entries()) lines[header + at] += `,${text}`;
    return outcome('IBIT', lines.join('\n'));
  };
  const { priceUsd } = fundDocument(DAY, 7).holdings[0];
  expect(priced(priceUsd)).toMatchObject({ as_of_date: DAY, holdings_row_count: '2' });
  expect(priced('1.00')).toMatch(/units x price/);
});
