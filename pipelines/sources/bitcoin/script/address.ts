/** Writes addresses: base58 with a checksum for hashes, bech32 and bech32m for witness programs (BIP 173, 350). */
import { TidemarkError } from '../../../../shared/errors.ts';
import { sha256d } from '../wire/bytes.ts';

interface AddressFormat {
  readonly keyHash: number;
  readonly scriptHash: number;
  readonly prefix: string;
}

const TEST: AddressFormat = { keyHash: 111, scriptHash: 196, prefix: 'tb' };

/** By the node's own name of the chain. */
const FORMATS: Readonly<Record<string, AddressFormat>> = {
  main: { keyHash: 0, scriptHash: 5, prefix: 'bc' },
  test: TEST,
  testnet4: TEST,
  signet: TEST,
  regtest: { ...TEST, prefix: 'bcrt' },
};

export function addressFormat(chain: string): AddressFormat {
  const format = FORMATS[chain];
  if (!format)
    throw new TidemarkError('SOURCE_DOCUMENT_INVALID', `The node's chain ${JSON.stringify(chain)} is unknown`);
  return format;
}

const BASE58 = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';

/** 58^5: the largest power whose product with a byte's carry stays exact; it handles five digits at a time. */
const LIMB = 58 ** 5;
const LIMB_DIGITS = 5;

export function base58Address(version: number, hash: Buffer): string {
  const payload = Buffer.allocUnsafe(1 + hash.length);
  payload[0] = version;
  hash.copy(payload, 1);
  const bytes = Buffer.concat([payload, sha256d(payload).subarray(0, 4)]);
  // The lowest limb first.
  const limbs: number[] = [];
  for (const byte of bytes) {
    let carry = byte;
    for (let at = 0; at < limbs.length; at++) {
      const value = limbs[at] * 256 + carry;
      carry = Math.floor(value / LIMB);
      limbs[at] = value - carry * LIMB;
    }
    if (carry > 0) limbs.push(carry);
  }
  let text = '';
  for (let limb of limbs) {
    for (let digit = 0; digit < LIMB_DIGITS; digit++) {
      text = BASE58[limb % 58] + text;
      limb = Math.floor(limb / 58);
    }
  }
  // The highest limb may have leading zero digits, which are the first letter of the alphabet.
  let from = 0;
  while (from < text.length && text[from] === BASE58[0]) from++;
  let zeros = 0;
  while (zeros < bytes.length && bytes[zeros] === 0) zeros++;
  return BASE58[0].repeat(zeros) + text.slice(from);
}

const BASE32 = 'qpzry9x8gf2tvdw0s3jn54khce6mua7l';
const GENERATOR = [0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3];
const BECH32 = 1;
const BECH32M = 0x2bc830a3;

const LETTERS = Buffer.from(BASE32);
/** The value that the checksum is XORed with, by the five bits shifted out of it. */
const FOLDED = Int32Array.from({ length: 32 }, (_, top) =>
  GENERATOR.reduce((folded, generator, bit) => ((top >>> bit) & 1 ? folded ^ generator : folded), 0),
);

const step = (check: number, value: number): number => ((check & 0x1ffffff) << 5) ^ value ^ FOLDED[check >>> 25];

/** The checksum state after the prefix. */
function checkOf(prefix: string): number {
  let check = 1;
  for (let at = 0; at < prefix.length; at++) check = step(check, prefix.charCodeAt(at) >>> 5);
  check = step(check, 0);
  for (let at = 0; at < prefix.length; at++) check = step(check, prefix.charCodeAt(at) & 31);
  return check;
}

const CHECKS = new Map(Object.values(FORMATS).map(({ prefix }) => [prefix, checkOf(prefix)]));
const CHECK_LETTERS = 6;
/** Scratch for bech32: prefix, separator, version, 40 bytes as five-bit letters, checksum. */
const letters = Buffer.alloc(90);

export function witnessAddress(prefix: string, version: number, program: Buffer): string {
  let check = CHECKS.get(prefix) ?? checkOf(prefix);
  let at = 0;
  const add = (value: number) => {
    check = step(check, value);
    letters[at++] = LETTERS[value];
  };
  add(version);
  let buffered = 0;
  let bits = 0;
  for (let index = 0; index < program.length; index++) {
    buffered = ((buffered << 8) | program[index]) & 0xfff;
    for (bits += 8; bits >= 5; bits -= 5) add((buffered >>> (bits - 5)) & 31);
  }
  if (bits > 0) add((buffered << (5 - bits)) & 31);
  for (let left = CHECK_LETTERS; left > 0; left--) check = step(check, 0);
  check ^= version === 0 ? BECH32 : BECH32M;
  for (let left = CHECK_LETTERS - 1; left >= 0; left--) letters[at++] = LETTERS[(check >>> (5 * left)) & 31];
  return `${prefix}1${letters.toString('latin1', 0, at)}`;
}
