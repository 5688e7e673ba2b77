/** CSV with a preamble of labels, a table, and disclaimers after an empty line. The issuer also serves past days. */
import Big from 'big.js';
import { compareStated } from '../parse/checks.ts';
import { isBitcoin, onlyBitcoin, parseAsOf, parseNumber, shown, sum, unreadable } from '../parse/fields.ts';
import { parseTable, refuseForeign, type TableRow } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const PATH = '/us/products/333011/fund/1467271812596.ajax?dataType=fund&fileName=IBIT_holdings&fileType=csv';
/** A value is quoted, but for one that a spreadsheet has saved again. */
const AS_OF = /^"?Fund Holdings as of"?,(?:"([^"]*)"|([^",\n]*)),*$/m;
const SHARES = /^"?Shares Outstanding"?,(?:"([^"]*)"|([^",\n]*)),*$/m;
const INCEPTION = /^"?Inception Date"?,(?:"([^"]*)"|([^",\n]*)),*$/m;
/** Columns without numbers: one that has them is another column under this name. */
const TEXTS = ['Name', 'Sector', 'Asset Class', 'Market Currency'];
/** The first line. Files before 2025 have the shorter name. */
const TITLE = /^"?iShares Bitcoin Trust(?: ETF)?"?[\s,]*$/;

export const isharesIbit: Issuer = {
  sourceId: 'etf_ishares_ibit_daily',
  issuer: 'ishares',
  ticker: 'IBIT',
  document: {
    path: PATH,
    by: 'http',
    extension: 'csv',
    firstDay: '2024-01-11',
    pathOf: (day) => `${PATH}&asOfDate=${day.replaceAll('-', '')}`,
  },
  // It may have no title. One with another fund's is left to `parse`, which refuses it.
  saysNoData(document) {
    const text = normal(document);
    if (/iShares/i.test(titleOf(text)) && !TITLE.test(titleOf(text))) return false;
    return (AS_OF.exec(text) ?? []).slice(1).some((day) => day?.trim() === '-');
  },
  parse(document) {
    const text = normal(document);
    if (/^\s*</.test(text)) {
      refuseForeign(text);
      throw unreadable('the document is a page where CSV was expected');
    }
    const title = titleOf(text);
    if (!TITLE.test(title)) throw unreadable(`the fund is ${shown(title)}, not "iShares Bitcoin Trust ETF"`);
    const { table, line } = tableOf(text);
    const { rows } = parseTable(table, line);
    for (const row of rows) for (const name of TEXTS) requireText(row, name);
    const bitcoinRow = onlyBitcoin(rows, (row) => isBitcoin(row.cell('Name'), row.cell('Ticker')));
    const bitcoin = holdingOf(bitcoinRow);
    const cash = rows.find((row) => /cash/i.test(row.cell('Name')) || row.cell('Ticker').trim() === 'USD');
    const holdings = rows.map(holdingOf);
    // Of cash the issuer's files state a price per hundred.
    compareStated({ holdings: holdings.map((one, at) => (rows[at] === bitcoinRow ? one : { ...one, price: null })) });
    const asOf = parseAsOf(labelled(text, AS_OF, 'Fund Holdings as of'), 'Fund Holdings as of');
    refuseBefore(INCEPTION.exec(text), asOf);
    return {
      as_of_date: asOf,
      btc_units: bitcoin.units,
      btc_market_value_usd: bitcoin.value,
      btc_weight_pct: bitcoin.weight,
      cash_market_value_usd: cash ? holdingOf(cash).value : null,
      total_net_assets_usd: sum(
        holdings.map(({ value }) => value),
        'Market Value',
      ),
      holdings_row_count: new Big(rows.length),
      shares_outstanding: parseNumber(labelled(text, SHARES, 'Shares Outstanding'), 'Shares Outstanding'),
    };
  },
};

/** Older files have no market value but a notional one; some have a price. */
function holdingOf(row: TableRow) {
  const number = (text: string, name: string) => parseNumber(text, `${name}, line ${row.line}`);
  const [notional, price] = [row.optional('Notional Value'), row.optional('Price')];
  return {
    at: `line ${row.line}`,
    units: number(row.cell('Shares', 'Quantity', 'Units'), 'Quantity'),
    value: number(row.cell('Market Value', 'Notional Value'), 'Market Value'),
    valueAgain: notional === undefined ? null : number(notional, 'Notional Value'),
    weight: number(row.cell('Weight (%)'), 'Weight (%)'),
    price: price === undefined ? null : number(price, 'Price'),
  };
}

function requireText(row: TableRow, name: string): void {
  const text = row.optional(name)?.trim() ?? '';
  if (/^[\d.,]+$/.test(text)) throw unreadable(`${name}, line ${row.line}, is a number: ${shown(text)}`);
}

/** No holdings are of a day before the fund's first: the two dates would be exchanged. */
function refuseBefore(inception: RegExpExecArray | null, day: string): void {
  const first = (inception?.[1] ?? inception?.[2])?.trim();
  if (first === undefined || first === '' || first === '-') return;
  if (day < parseAsOf(first, 'Inception Date'))
    throw unreadable(`Fund Holdings as of is ${day}, before the Inception Date ${first}`);
}

const titleOf = (text: string) => text.split('\n', 1)[0];

/** Removes the byte order mark and turns non-breaking spaces into spaces. */
const normal = (text: string) =>
  text
    .replace(/^\uFEFF/, '')
    .replaceAll('\u00a0', ' ')
    .replaceAll('\r\n', '\n');

function labelled(text: string, label: RegExp, name: string): string {
  const found = label.exec(text);
  if (!found) throw unreadable(`the document has no label "${name}"`);
  return found[1] ?? found[2];
}

/** A spreadsheet that saves the file again pads each line with commas. */
const BLANK = /^[\s,]*$/;

/** From the header line to the first blank one. A table without that end is incomplete and refused. */
function tableOf(text: string): { table: string; line: number } {
  const lines = text.split('\n');
  const start = lines.findIndex((line) => /^"?Ticker"?,/.test(line));
  if (start < 0) throw unreadable('the document has no table: no line starts with "Ticker,"');
  const length = lines.slice(start).findIndex((line) => BLANK.test(line));
  if (length < 0) throw unreadable('the table has no end, which is a blank line: the document is truncated');
  return { table: lines.slice(start, start + length).join('\n'), line: start + 1 };
}
