/** Decimals of more digits than a float64 holds, on both sides of the log, against the language's parser and BigInts. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { DecimalReader, ExactBuckets } from '../../pipelines/rows/exact-decimal.ts';
import {
  HIGH_DIGITS,
  LOW_DIGITS,
  MAX_SCALE,
  nearestDouble,
  RowReader,
} from '../../pipelines/sources/trades/row-reader.ts';
import { runs } from '../support/seed.ts';

const digitsOf = (length: number) =>
  fc.bigInt({ min: 10n ** BigInt(length - 1), max: 10n ** BigInt(length) - 1n }).map(String);
const anyDigits = fc.integer({ min: 1, max: HIGH_DIGITS + LOW_DIGITS }).chain(digitsOf);
/** What a float is printed as: its digits lie next to no tie but its own. */
const printedDigits = fc
  .double({ min: 1e-3, max: 1e15, noNaN: true })
  .map((value) => value.toExponential().replace(/e.*/, '').replace('.', ''));
/** Half-way between two floats, as far as the digits go: the hardest there is. */
const tieDigits = fc
  .tuple(fc.bigInt({ min: 2n ** 52n, max: 2n ** 53n - 1n }), fc.integer({ min: 0, max: 6 }))
  .map(([mantissa, power]) => ((mantissa * 2n + 1n) * 5n ** BigInt(power)).toString())
  .filter((digits) => digits.length <= HIGH_DIGITS + LOW_DIGITS);
const split = (digits: string) => {
  const low = digits.slice(HIGH_DIGITS);
  return [Number(digits.slice(0, HIGH_DIGITS)), Number(low || '0'), low.length] as const;
};

test('a quotient of many digits is the nearest float, or said to be too close to call', () => {
  const count = runs(10_000);
  let uncertain = 0;
  let certain = 0;
  const digits = fc.oneof(anyDigits, printedDigits, tieDigits);
  fc.assert(
    fc.property(digits, fc.integer({ min: 0, max: MAX_SCALE }), (text, scale) => {
      const found = nearestDouble(...split(text), scale);
      if (Number.isNaN(found)) uncertain++;
      else {
        certain++;
        expect(found).toBe(Number(`${text}e-${scale}`));
      }
    }),
    { numRuns: count },
  );
  // Ties are found out, and little else is.
  expect(uncertain).toBeGreaterThan(count / 100);
  expect(certain).toBeGreaterThan(uncertain);
});

test('so is a product with a factor', () => {
  fc.assert(
    fc.property(
      fc.oneof(anyDigits, printedDigits),
      fc.integer({ min: 1, max: 10 ** 9 }),
      fc.integer({ min: 0, max: MAX_SCALE }),
      (text, factor, scale) => {
        const found = nearestDouble(...split(text), scale, factor);
        const exact = Number(`${BigInt(text) * BigInt(factor)}e-${scale}`);
        if (!Number.isNaN(found)) expect(found).toBe(exact);
      },
    ),
    { numRuns: runs(10_000) },
  );
});

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
