/** Decimals of more digits than a float64 holds, on both sides of the log, against the language's parser and BigInts. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { DecimalReader, ExactBuckets } from '../../pipelines/rows/exact-decimal.ts';
import { Factor } from '../../pipelines/sources/trades/factor.ts';
import { RowReader } from '../../pipelines/sources/trades/row-reader.ts';
import { runs } from '../support/seed.ts';

const digitsOf = (length: number) =>
  fc.bigInt({ min: 10n ** BigInt(length - 1), max: 10n ** BigInt(length) - 1n }).map(String);
const MOST_DIGITS = 22;
const anyDigits = fc.integer({ min: 1, max: MOST_DIGITS }).chain(digitsOf);
/** What a float is printed as: its digits lie next to no tie but its own. */
const printedDigits = fc
  .double({ min: 1e-3, max: 1e15, noNaN: true })
  .map((value) => value.toExponential().replace(/e.*/, '').replace('.', ''));
/** Half-way between two floats, as far as the digits go: the hardest there is. */
const tieDigits = fc
  .tuple(fc.bigInt({ min: 2n ** 52n, max: 2n ** 53n - 1n }), fc.integer({ min: 0, max: 6 }))
  .map(([mantissa, power]) => ((mantissa * 2n + 1n) * 5n ** BigInt(power)).toString())
  .filter((digits) => digits.length <= MOST_DIGITS);

/** Decimals as they are written: points anywhere, exponents, zeros in front. */
const written = fc
  .tuple(fc.oneof(anyDigits, printedDigits, tieDigits, digitsOf(30)), fc.nat(24), fc.integer({ min: -30, max: 30 }))
  .chain(([digits, point, exponent]) => {
    const padded = digits.padStart(point + 1, '0');
    const plain = point === 0 ? digits : `${padded.slice(0, -point)}.${padded.slice(-point)}`;
    return fc.constantFrom(plain, `00${plain}`, `+${plain}`, `${plain}e${exponent}`, `${plain}E-05`);
  })
  .filter((text) => Number(text) * 1e8 < 2 ** 63 && Number(text) > 0);

test('the publishing side reads what the language reads', () => {
  fc.assert(
    fc.property(written, (text) => {
      const reader = new RowReader({ document: 'x', columns: ['v'] });
      expect(reader.decimal(Buffer.from(`,${text},`), 1, 0)).toBe(Number(text));
      expect(reader.at).toBe(1 + text.length);
      expect(reader.magnitude(Buffer.from(`${text}\n`), 0, 0)).toBe(Number(text));
    }),
    { numRuns: runs(6000) },
  );
});

test('the publishing side multiplies two of them exactly and rounds once', () => {
  fc.assert(
    fc.property(written, written, fc.constantFrom(0, 8), (price, size, tens) => {
      const row = Buffer.from(`${price},${size}\n`);
      const reader = new RowReader({ document: 'x', columns: ['price', 'size'] });
      reader.decimal(row, 0, 0);
      const factor = new Factor();
      factor.take(reader);
      reader.decimal(row, reader.next(row, 1), 1);
      expect(factor.times(reader, row, tens)).toBe(Number(`${over60(price) * over60(size)}e${tens - 120}`));
    }),
    { numRuns: runs(6000) },
  );
});

test('the projecting side reads the same and sums it exactly, whatever it is made of', () => {
  const list = fc.array(written, { minLength: 1, maxLength: 60 });
  fc.assert(
    fc.property(list, (texts) => {
      const sums = new ExactBuckets(1);
      const reader = new DecimalReader();
      let exact = 0n;
      for (const text of texts) {
        reader.read(Buffer.from(`${text},`), 0, 44);
        expect([text, reader.value]).toEqual([text, Number(text)]);
        if (!reader.inexact) sums.add(0, reader.mantissa, reader.scale);
        else if (reader.long) sums.addLong(0, reader.units, reader.fine);
        else sums.addExact(0, { mantissa: over60(text), scale: 60 });
        exact += over60(text);
      }
      expect(sums.value(0)).toBe(Number(`${exact}e-60`));
    }),
    { numRuns: runs(1500) },
  );
});

test('whole and fraction, each rounded once, do not add up to the wrong neighbour', () => {
  const reader = new DecimalReader();
  for (const text of [
    // The sum lies in the middle of two floats, the number beside it.
    '3.8598160626841904',
    '9.710475423019866',
    '2.0820180532311714',
    '731.259365762231198',
    '11.561047054640615',
    '4503599627370497.25',
    '4503599627370497.75',
    '4503599627370497.25000000000000000001',
    '4503599627370497.2499999999999999',
    '9007199254740991.5',
    '9007199254740993.0',
    '1.00000000000000011102',
    '1.0000000000000001110',
    '1.00000000000000033307',
    '2188267730000.0002',
    '0.12345678901234567',
    '0.99999999999999999999',
    '21882.677300000003',
  ]) {
    reader.read(Buffer.from(`${text},`), 0, 44);
    expect([text, reader.inexact, reader.value]).toEqual([text, true, Number(text)]);
  }
});

test('sums carry from the finest digits to the coarsest', () => {
  for (const [text, long] of [
    ['1.00000000999999999999', true],
    ['9.0071992299999999', true],
    // Two of them are more units than a float64 counts.
    ['90071992.123456789', true],
    ['0.00000000999999999999', false],
    ['9.007199254740991', false],
    ['0.8999999999999999', false],
  ] as const) {
    const sums = new ExactBuckets(2);
    const reader = new DecimalReader();
    for (let i = 0; i < 1000; i++) {
      reader.read(Buffer.from(`${text},`), 0, 44);
      expect([text, reader.inexact && reader.long]).toEqual([text, long]);
      if (long) sums.addLong(1, reader.units, reader.fine);
      else sums.add(1, reader.mantissa, reader.scale);
    }
    expect(sums.value(1)).toBe(Number(`${over60(text) * 1000n}e-60`));
    expect(sums.value(0)).toBe(0);
  }
});

/** The value as an integer of 10^-60. */
function over60(text: string): bigint {
  const [, whole, fraction = '', exponent = '0'] = /^\+?(\d*)\.?(\d*)(?:e([+-]?\d+))?$/i.exec(text)!;
  return BigInt(whole + fraction) * 10n ** BigInt(60 - fraction.length + Number(exponent));
}
