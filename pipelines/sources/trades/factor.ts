/** The product of two decimals of a row, for decoders: exact, and rounded once to the nearest float64. */
import { MAX_SCALE, POWERS_OF_TEN, type RowReader } from './row-reader.ts';

const MAX_EXACT = 2 ** 53;

/** A decimal that a RowReader read before the one that it is multiplied with. */
export class Factor {
  /** Its digits as a whole number, or -1 where float64 does not hold them. */
  #digits = 0;
  #scale = 0;
  #start = 0;
  #end = 0;

  /** Keeps the decimal that the reader read last. */
  take(reader: RowReader): void {
    this.#digits = reader.digits;
    this.#scale = reader.scale;
    this.#start = reader.start;
    this.#end = reader.at;
  }

  /** The kept decimal x the one that the reader read last x 10^tens. `buffer` holds the text of both. */
  times(reader: RowReader, buffer: Buffer, tens = 0): number {
    const scale = this.#scale + reader.scale - tens;
    const digits = this.#digits * reader.digits;
    if (this.#digits >= 0 && reader.digits >= 0 && digits < MAX_EXACT && Math.abs(scale) <= MAX_SCALE) {
      // Both operands are exact, so that one operation rounds once.
      return scale >= 0 ? digits / POWERS_OF_TEN[scale] : digits * POWERS_OF_TEN[-scale];
    }
    return productOfTexts(
      buffer.toString('latin1', this.#start, this.#end),
      buffer.toString('latin1', reader.start, reader.at),
      tens,
    );
  }
}

/** Multiplies two decimals as integers; the digits are rounded when they are parsed. */
export function productOfTexts(a: string, b: string, tens: number): number {
  const [x, y] = [scientific(a), scientific(b)];
  return Number(`${x.digits * y.digits}e${x.exponent + y.exponent + tens}`);
}

function scientific(text: string): { digits: bigint; exponent: number } {
  const [number, exponent = '0'] = text.toLowerCase().split('e');
  const point = number.indexOf('.');
  const decimals = point < 0 ? 0 : number.length - point - 1;
  return { digits: BigInt(number.replace('.', '').replace('+', '') || '0'), exponent: Number(exponent) - decimals };
}
