/**
 * What a file day's trades determine beside their digests: the greatest decimals that explain every price and quantity, and the
 * silences. Decimals are the vendor's digits, not the doubles that are stored. Nothing depends on the order of the rows.
 */
import { MINUTE_MS, type TradeFacts } from '../../shared/proof/facts.ts';
import type { PartitionWindow } from './binary-copy.ts';
import { bigPowerOfTen, type DecimalReader, type ExactDecimal, exactDecimal } from './exact-decimal.ts';

const MOST_EXACT = Number.MAX_SAFE_INTEGER;
/** A reader's exact mantissa has at most 22 decimals. */
const POWERS_OF_TEN = Array.from({ length: 23 }, (_, exponent) => Number(`1e${exponent}`));

function gcd(a: number, b: number): number {
  while (b !== 0) [a, b] = [b, a % b];
  return a;
}

function bigGcd(a: bigint, b: bigint): bigint {
  while (b !== 0n) [a, b] = [b, a % b];
  return a;
}

/** The greatest decimal of which all added values are whole multiples. */
export class Increment {
  /** In units of 10^-scale; 0 before the first value other than zero. */
  #step = 0;
  #scale = 0;
  /** Of the values that are too long for a double. */
  #long: ExactDecimal | undefined;

  /** Adds the value that the reader read from `start`. */
  add(reader: DecimalReader, bytes: Buffer, start: number): void {
    if (reader.inexact) this.#addText(reader, bytes, start);
    else if (reader.scale === this.#scale) this.#addUnits(reader.mantissa);
    else this.#addScaled(reader.mantissa, reader.scale);
  }

  /** A quotient of integers below 2^53 is exact where it is whole: 3 ns, and 15 with `%`. */
  #addUnits(units: number): void {
    const step = this.#step;
    if (Math.floor(units / step) * step !== units) this.#step = gcd(step, units);
  }

  #addScaled(mantissa: number, scale: number): void {
    if (scale > this.#scale) {
      const finer = this.#step * POWERS_OF_TEN[scale - this.#scale];
      if (finer > MOST_EXACT) {
        this.#addLong({ mantissa: BigInt(mantissa), scale });
        return;
      }
      this.#step = finer;
      this.#scale = scale;
    }
    const units = mantissa * POWERS_OF_TEN[this.#scale - scale];
    if (units > MOST_EXACT) this.#addLong({ mantissa: BigInt(mantissa), scale });
    else this.#addUnits(units);
  }

  #addText({ value, end }: DecimalReader, bytes: Buffer, start: number): void {
    const text = bytes.toString('latin1', start, end);
    // 1234567890.00000000, as prices below 1e-4 come with
    if (Number.isSafeInteger(value) && /^\d+\.0*$/.test(text)) this.#addScaled(value, 0);
    else this.#addLong(exactDecimal(text));
  }

  #addLong(value: ExactDecimal): void {
    this.#long = this.#long === undefined ? value : commonStep(this.#long, value);
  }

  /** As a decimal without needless zeros; null without a value other than zero. */
  text(): string | null {
    const step = commonStep({ mantissa: BigInt(this.#step), scale: this.#scale }, this.#long);
    return step.mantissa === 0n ? null : decimalText(step);
  }
}

function commonStep(a: ExactDecimal, b: ExactDecimal = { mantissa: 0n, scale: 0 }): ExactDecimal {
  const scale = Math.max(a.scale, b.scale);
  const units = (one: ExactDecimal) => one.mantissa * bigPowerOfTen(scale - one.scale);
  return { mantissa: bigGcd(units(a), units(b)), scale };
}

function decimalText({ mantissa, scale }: ExactDecimal): string {
  const digits = mantissa.toString().padStart(scale + 1, '0');
  const whole = digits.slice(0, digits.length - scale);
  const fraction = digits.slice(digits.length - scale).replace(/0+$/, '');
  return fraction === '' ? whole : `${whole}.${fraction}`;
}

/** The events of each minute, which is all that silences above a minute depend on: two events of one minute have none between. */
class Minutes {
  readonly #fromMs: number;
  readonly firstMs: Float64Array;
  readonly lastMs: Float64Array;
  readonly lowestId: Float64Array;
  readonly highestId: Float64Array;
  /** The minute of the last event, whose values are in the members below until another comes. */
  #minute = 0;
  #first = Number.POSITIVE_INFINITY;
  #last = Number.NEGATIVE_INFINITY;
  #lowest = Number.POSITIVE_INFINITY;
  #highest = Number.NEGATIVE_INFINITY;
  #start: number;

  constructor({ fromMs, toMs }: PartitionWindow) {
    const minutes = Math.ceil((toMs - fromMs) / MINUTE_MS);
    this.#fromMs = fromMs;
    this.#start = fromMs;
    this.firstMs = new Float64Array(minutes).fill(Number.POSITIVE_INFINITY);
    this.lastMs = new Float64Array(minutes).fill(Number.NEGATIVE_INFINITY);
    this.lowestId = new Float64Array(minutes).fill(Number.POSITIVE_INFINITY);
    this.highestId = new Float64Array(minutes).fill(Number.NEGATIVE_INFINITY);
  }

  add(ms: number, id: number): void {
    const since = ms - this.#start;
    if (since < 0 || since >= MINUTE_MS) this.#turnTo(Math.floor((ms - this.#fromMs) / MINUTE_MS));
    if (ms < this.#first) this.#first = ms;
    if (ms > this.#last) this.#last = ms;
    if (id < this.#lowest) this.#lowest = id;
    if (id > this.#highest) this.#highest = id;
  }

  #turnTo(minute: number): void {
    this.end();
    this.#minute = minute;
    this.#start = this.#fromMs + minute * MINUTE_MS;
    this.#first = this.firstMs[minute];
    this.#last = this.lastMs[minute];
    this.#lowest = this.lowestId[minute];
    this.#highest = this.highestId[minute];
  }

  /** Writes what is known of the last minute. */
  end(): void {
    const minute = this.#minute;
    this.firstMs[minute] = this.#first;
    this.lastMs[minute] = this.#last;
    this.lowestId[minute] = this.#lowest;
    this.highestId[minute] = this.#highest;
  }
}

export class DayFacts {
  readonly price = new Increment();
  readonly quantity = new Increment();
  readonly #minutes: Minutes;
  #rows = 0;

  constructor(window: PartitionWindow) {
    this.#minutes = new Minutes(window);
  }

  /** Adds an event of the partition's window. */
  add(ms: number, id: number): void {
    this.#rows++;
    this.#minutes.add(ms, id);
  }

  /** No event can be added afterwards. */
  build(): TradeFacts {
    this.#minutes.end();
    return { price: this.price.text(), quantity: this.quantity.text(), silences: this.#silences() };
  }

  #silences(): TradeFacts['silences'] {
    const { firstMs, lastMs, lowestId, highestId } = this.#minutes;
    const filled = [...firstMs.keys()].filter((minute) => lastMs[minute] >= firstMs[minute]);
    const lowestFrom = new Float64Array(filled.length + 1).fill(Number.POSITIVE_INFINITY);
    for (let at = filled.length - 1; at >= 0; at--) {
      lowestFrom[at] = Math.min(lowestFrom[at + 1], lowestId[filled[at]]);
    }
    let highest = Number.NEGATIVE_INFINITY;
    const all = filled.reduce((most, minute) => Math.max(most, highestId[minute]), highest);
    const isWhole = this.#rows === all - lowestFrom[0] + 1;
    const silences: [number, number, boolean][] = [];
    for (let at = 0; at + 1 < filled.length; at++) {
      highest = Math.max(highest, highestId[filled[at]]);
      const [from, to] = [lastMs[filled[at]], firstMs[filled[at + 1]]];
      // Ids and times may disagree on the order: then only a day without a missing id tells that none is missing here.
      if (to - from > MINUTE_MS) silences.push([from, to, isWhole || lowestFrom[at + 1] === highest + 1]);
    }
    return silences;
  }
}
