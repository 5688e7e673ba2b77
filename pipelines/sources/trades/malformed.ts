import { TidemarkError } from '../../../shared/errors.ts';

/** Rows were validated before they were framed; whoever framed these did not. */
export function malformed(raw: Buffer, start: number): TidemarkError {
  const row = raw.toString('latin1', start, Math.min(raw.length, start + 80)).split('\n')[0];
  return new TidemarkError('LOG_FRAME_CORRUPT', `A frame holds what is no trade: ${JSON.stringify(row)}`);
}

/** What is allocated goes by the bytes that are there, whatever a header claims. */
export function checkRowCount(raw: Buffer, rows: number, minRowBytes: number): void {
  if (Number.isInteger(rows) && rows >= 1 && rows * minRowBytes <= raw.length) return;
  throw new TidemarkError('LOG_FRAME_CORRUPT', `A frame of ${raw.length} bytes does not hold ${rows} trades`);
}
