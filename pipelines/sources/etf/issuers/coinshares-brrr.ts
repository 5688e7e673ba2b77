/** A page read as text lines: labels and values, and a list of holdings. */
import { compareStated } from '../parse/checks.ts';
import { isBitcoin, onlyBitcoin, parseAsOf, parseCompact, parseNumber, unreadable } from '../parse/fields.ts';
import { isValue, Labels, readPage, requireHeading } from '../parse/page.ts';
import type { Issuer } from './issuer.ts';

const NAME = /\bBRRR\b|\bCoinShares (?:Valkyrie )?Bitcoin (?:ETF|Fund)\b/i;
const [NET_ASSETS, NAV, COUNT, LIST] = ['ASSETS UNDER MANAGEMENT (US$)', 'NAV (US$)', '# of holdings', 'BRRR Holdings'];
const AS_OF = /^As of (.+)$/i;
/** Most lines between the list's title and its date, and between the date and the first row: the columns' titles. */
const WITHIN = 8;

export const coinsharesBrrr: Issuer = {
  sourceId: 'etf_coinshares_brrr_daily',
  issuer: 'coinshares',
  ticker: 'BRRR',
  document: { path: '/us/etf/brrr/', by: 'browser', extension: 'html' },
  parse(document) {
    const page = readPage(document);
    requireHeading(page, NAME, 'BRRR');
    const labels = new Labels(page, [NET_ASSETS, NAV, COUNT, LIST]);
    const { date, rows } = listOf(page.lines, labels.places(LIST));
    const bitcoin = onlyBitcoin(rows, ({ name, ticker }) => isBitcoin(name, ticker));
    const [net, nav, count] = [labels.value(NET_ASSETS), labels.value(NAV), labels.value(COUNT)];
    const netAssets = parseCompact(net.text, NET_ASSETS);
    const stated = parseNumber(count.text, COUNT);
    for (const [label, one] of [
      [NET_ASSETS, net],
      [NAV, nav],
      [COUNT, count],
    ] as const)
      if ((one.date ?? date) !== date)
        throw unreadable(`the page is of two days: "${LIST}" is of ${date}, "${label}" of ${one.date}`);
    compareStated({ holdings: rows, count: stated, netAssets });
    return {
      as_of_date: date,
      btc_units: bitcoin.units,
      btc_market_value_usd: bitcoin.value,
      total_net_assets_usd: netAssets,
      nav_per_share_usd: parseCompact(nav.text, NAV),
      holdings_row_count: stated,
    };
  },
};

/** The list below the one of these titles that a date follows. */
function listOf(lines: readonly string[], titles: readonly number[]) {
  const dated = titles.flatMap((title) => {
    const at = lines.findIndex((line, place) => place > title && place <= title + WITHIN && AS_OF.test(line));
    return at < 0 ? [] : [at];
  });
  if (dated.length !== 1)
    throw unreadable(`${dated.length} of ${titles.length} "${LIST}" are followed by a date, not 1`);
  const date = parseAsOf(AS_OF.exec(lines[dated[0]])![1], LIST);
  return { date, rows: rowsAfter(lines, dated[0] + 1) };
}

/** A row is a name, a ticker and numbers: units and market value, if the columns' titles do not say otherwise. */
function rowsAfter(lines: readonly string[], from: number) {
  const isRow = (at: number) =>
    lines[at + 1] !== undefined && [0, 1, 2, 3].every((step) => isValue(lines[at + step]) === step >= 2);
  const first = lines.findIndex((_, at) => at >= from && at <= from + WITHIN && isRow(at));
  if (first < 0) throw unreadable(`"${LIST}" has no rows of name, ticker, units and market value`);
  const rows: { name: string; ticker: string; numbers: string[] }[] = [];
  for (let at = first; isRow(at); ) {
    const end = lines.findIndex((line, place) => place > at + 1 && !isValue(line));
    rows.push({ name: lines[at], ticker: lines[at + 1], numbers: lines.slice(at + 2, end < 0 ? undefined : end) });
    at = end < 0 ? lines.length : end;
  }
  const width = rows[0].numbers.length;
  const titles = first - width >= from ? lines.slice(first - width, first) : [];
  const column = (title: RegExp, otherwise: number) => {
    const at = titles.findIndex((text) => title.test(text));
    return at < 0 ? otherwise : at;
  };
  const [units, value] = [column(/^(?:units|shares|quantity)\b/i, 0), column(/\bvalue\b/i, 1)];
  return rows.map(({ name, ticker, numbers }, index) => {
    const at = `row ${index + 1} of ${LIST}`;
    if (numbers.length !== width) throw unreadable(`${at} has ${numbers.length} numbers, the first has ${width}`);
    return {
      at,
      name,
      ticker,
      units: parseNumber(numbers[units], `units of ${name}`),
      value: parseNumber(numbers[value], `market value of ${name}`),
    };
  });
}
