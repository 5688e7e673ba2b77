/** CSV with a preamble of labels, a table, and disclaimers after an empty line. The issuer also serves past days. */
import Big from 'big.js';
import { isBitcoin, onlyBitcoin, parseAsOf, parseNumber, sum, unreadable } from '../parse/fields.ts';
import { parseTable, refuseForeign } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const PATH = '/us/products/333011/fund/1467271812596.ajax?dataType=fund&fileName=IBIT_holdings&fileType=csv';
const AS_OF = /^Fund Holdings as of,"([^"]*)"/m;
const SHARES = /^Shares Outstanding,"([^"]*)"/m;
const VALUE = ['Market Value', 'Notional Value'];

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
  saysNoData: (document) => AS_OF.exec(normal(document))?.[1].trim() === '-',
  parse(document) {
    const text = normal(document);
    if (/^\s*</.test(text)) {
      refuseForeign(text);
      throw unreadable('the document is a page where CSV was expected');
    }
    const { table, line } = tableOf(text);
    const { rows } = parseTable(table, line);
    const bitcoin = onlyBitcoin(rows, (row) => isBitcoin(row.cell('Name'), row.cell('Ticker')));
    const cash = rows.find((row) => /cash/i.test(row.cell('Name')) || row.cell('Ticker').trim() === 'USD');
    const worth = (row: (typeof rows)[number]) => parseNumber(row.cell(...VALUE), `Market Value, line ${row.line}`);
    return {
      as_of_date: parseAsOf(labelled(text, AS_OF, 'Fund Holdings as of'), 'Fund Holdings as of'),
      btc_units: parseNumber(bitcoin.cell('Shares', 'Quantity', 'Units'), `Quantity, line ${bitcoin.line}`),
      btc_market_value_usd: worth(bitcoin),
      btc_weight_pct: parseNumber(bitcoin.cell('Weight (%)'), `Weight (%), line ${bitcoin.line}`),
      cash_market_value_usd: cash ? worth(cash) : null,
      total_net_assets_usd: sum(rows.map(worth), 'Market Value'),
      holdings_row_count: new Big(rows.length),
      shares_outstanding: parseNumber(labelled(text, SHARES, 'Shares Outstanding'), 'Shares Outstanding'),
    };
  },
};

/** Removes the byte order mark and turns non-breaking spaces into spaces. */
const normal = (text: string) =>
  text
    .replace(/^\uFEFF/, '')
    .replaceAll('\u00a0', ' ')
    .replaceAll('\r\n', '\n');

function labelled(text: string, label: RegExp, name: string): string {
  const found = label.exec(text);
  if (!found) throw unreadable(`the document has no label "${name}"`);
  return found[1];
}

/** From the header line to the first blank one. A table without that end is incomplete and refused. */
function tableOf(text: string): { table: string; line: number } {
  const lines = text.split('\n');
  const start = lines.findIndex((line) => line.startsWith('Ticker,'));
  if (start < 0) throw unreadable('the document has no table: no line starts with "Ticker,"');
  const length = lines.slice(start).findIndex((line) => line.trim() === '');
  if (length < 0) throw unreadable('the table has no end: the document is truncated');
  return { table: lines.slice(start, start + length).join('\n'), line: start + 1 };
}
