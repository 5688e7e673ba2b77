/**
 * Values of a node's small answers, checked and converted to their types. The client returns numbers as their own text
 * (`parseExactly`), so no amount, difficulty or count is rounded, and a number that arrives as a JSON string reads the same.
 */
import { TidemarkError } from '../../../../shared/errors.ts';
import { MAX_SATS } from '../wire/bytes.ts';

export type JsonRecord = Readonly<Record<string, unknown>>;

const SATS_PER_BTC = 100_000_000;
/** Decimals of a bitcoin. */
const BTC_SCALE = 8;

export function unfit(where: string, wanted: string, value: unknown): TidemarkError {
  const shown = value === undefined ? 'nothing' : JSON.stringify(value)?.slice(0, 80);
  return new TidemarkError('NODE_ANSWER_INVALID', `The node's ${where} is ${shown}, not ${wanted}`, {
    details: { field: where },
  });
}

export function record(value: unknown, where: string): JsonRecord {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw unfit(where, 'an object', value);
  return value as JsonRecord;
}

export function text(value: unknown, where: string): string {
  if (typeof value !== 'string') throw unfit(where, 'a text', value);
  return value;
}

export function flag(value: unknown, where: string): boolean {
  if (typeof value !== 'boolean') throw unfit(where, 'true or false', value);
  return value;
}

/** Lower-case hex, of `bytes` bytes if given. */
export function hex(value: unknown, where: string, bytes?: number): string {
  const fits = typeof value === 'string' && value.length % 2 === 0 && isHex(value);
  if (!fits || (bytes !== undefined && value.length !== 2 * bytes)) {
    throw unfit(where, bytes === undefined ? 'hex' : `${bytes} bytes of hex`, value);
  }
  return value;
}

/** A loop: a regular expression takes several times as long over megabytes of hex. */
function isHex(value: string): boolean {
  for (let at = 0; at < value.length; at++) {
    const code = value.charCodeAt(at);
    if (!((code >= 48 && code <= 57) || (code >= 97 && code <= 102))) return false;
  }
  return true;
}

/** A whole number within [least, most]. */
export function integer(value: unknown, where: string, least = 0, most: number = Number.MAX_SAFE_INTEGER): number {
  const written = numeral(value);
  if (written === undefined || !/^-?\d{1,16}$/.test(written)) throw unfit(where, 'a whole number', value);
  const read = Number(written);
  if (read < least || read > most) throw unfit(where, `a whole number from ${least} to ${most}`, value);
  return read;
}

/** An amount in bitcoins, as satoshis, computed from its digits. */
export function sats(value: unknown, where: string): number {
  const exact = decimal(value, BTC_SCALE);
  if (exact === undefined || exact < 0n || exact > BigInt(MAX_SATS)) {
    throw unfit(where, 'an amount of at most 21 million with at most eight decimals', value);
  }
  return Number(exact);
}

/** Satoshis as bitcoins with exactly eight decimals. */
export function btcText(amount: number): string {
  const whole = Math.floor(amount / SATS_PER_BTC);
  return `${whole}.${String(amount - whole * SATS_PER_BTC).padStart(BTC_SCALE, '0')}`;
}

function numeral(value: unknown): string | undefined {
  if (typeof value !== 'string' || !/^-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?$/.test(value)) return undefined;
  return value;
}

/** value x 10^scale if that is a whole number. */
function decimal(value: unknown, scale: number): bigint | undefined {
  const written = numeral(value);
  if (written === undefined) return undefined;
  const [mantissa, exponent = '0'] = written.toLowerCase().split('e');
  const [whole, fraction = ''] = mantissa.split('.');
  const shift = scale + Number(exponent) - fraction.length;
  // 10^30 is far above every amount; a longer shift must be an error.
  if (Math.abs(shift) > 30 || whole.length + fraction.length > 60) return undefined;
  const digits = BigInt(whole + fraction);
  if (shift >= 0) return digits * 10n ** BigInt(shift);
  const divisor = 10n ** BigInt(-shift);
  return digits % divisor === 0n ? digits / divisor : undefined;
}
