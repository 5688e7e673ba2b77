/** The one row of a holdings table that is the fund's Bitcoin. */
import { unreadable } from './fault.ts';

const TICKERS = new Set(['BTC', 'XBT', 'XBTUSD']);

export const isBitcoin = (name: string | null, ticker?: string): boolean =>
  /\bbitcoin\b/i.test(name ?? '') || TICKERS.has((ticker ?? '').trim().toUpperCase());

/** @throws TidemarkError when there is none, or more than one: their sum would be a guess. */
export function onlyBitcoin<Row>(rows: readonly Row[], fits: (row: Row) => boolean): Row {
  const found = rows.filter(fits);
  if (found.length !== 1) throw unreadable(`${found.length} of ${rows.length} holdings are Bitcoin, not 1`);
  return found[0];
}
