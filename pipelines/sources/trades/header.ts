/** Headers that must be there, and be one of the known ones. */
import { skipByteOrderMark } from './line-feeder.ts';
import type { RowReader } from './row-reader.ts';

const LF = 10;
const CR = 13;
/** More of a header that is not ours is not shown. */
const SHOWN_BYTES = 120;

/**
 * Reads the first line. The columns it names are from then on the reader's; rows must have as many.
 * @returns the start of the second line. @throws TidemarkError SOURCE_ROW_INVALID naming what was expected.
 */
export function readHeader(
  reader: RowReader,
  buffer: Buffer,
  from: number,
  known: readonly (readonly string[])[],
): number {
  reader.line = 1;
  const start = skipByteOrderMark(buffer, from);
  const end = buffer.indexOf(LF, start);
  const text = buffer.toString('latin1', start, buffer[end - 1] === CR ? end - 1 : end);
  const columns = known.find((names) => names.join(',') === text);
  if (columns === undefined) {
    const expected = known.map((names) => names.join(',')).join(' or ');
    const found = JSON.stringify(text.slice(0, SHOWN_BYTES));
    throw reader.fault('SOURCE_ROW_INVALID', `the header must be ${expected}, found ${found}`, { found: text });
  }
  reader.columns = columns;
  return end + 1;
}
