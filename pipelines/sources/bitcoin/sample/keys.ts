/** Keys that are the same on every machine, and the scripts that pay to them. Nothing of value is ever paid to them. */
import { createECDH } from 'node:crypto';
import { hash160 } from '../script/kinds.ts';
import { OP } from '../script/opcodes.ts';
import { sha256, sha256d } from '../wire/hash.ts';
import { count, push } from './encode.ts';

export interface Key {
  /** Compressed. */
  readonly publicKey: Buffer;
  /** As the node imports it on a test chain. */
  readonly wif: string;
}

const CURVE = 'secp256k1';
const CURVE_ORDER = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;
const TEST_SECRET = 0xef;

export function keyOf(name: string): Key {
  return keyFromSecret(sha256(Buffer.from(`tidemark sample ${name}`)));
}

function keyFromSecret(secret: Buffer): Key {
  return {
    publicKey: publicKeyOf(secret),
    wif: base58Check(Buffer.concat([Buffer.of(TEST_SECRET), secret, Buffer.of(1)])),
  };
}

function publicKeyOf(secret: Buffer): Buffer {
  const curve = createECDH(CURVE);
  curve.setPrivateKey(secret);
  return curve.getPublicKey(null, 'compressed');
}

const ALPHABET = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';

function base58Check(payload: Buffer): string {
  const bytes = Buffer.concat([payload, sha256d(payload).subarray(0, 4)]);
  let text = '';
  for (let value = BigInt(`0x${bytes.toString('hex')}`); value > 0n; value /= 58n)
    text = ALPHABET[Number(value % 58n)] + text;
  return text;
}

const op = (...codes: number[]): Buffer => Buffer.of(...codes);

export const payToKey = ({ publicKey }: Key): Buffer => Buffer.concat([push(publicKey), op(OP.CHECKSIG)]);

export const payToKeyHash = ({ publicKey }: Key): Buffer =>
  Buffer.concat([op(OP.DUP, OP.HASH160), push(hash160(publicKey)), op(OP.EQUALVERIFY, OP.CHECKSIG)]);

export const payToScriptHash = (script: Buffer): Buffer =>
  Buffer.concat([op(OP.HASH160), push(hash160(script)), op(OP.EQUAL)]);

export const payToWitnessKeyHash = ({ publicKey }: Key): Buffer => Buffer.concat([op(0), push(hash160(publicKey))]);

export const payToWitnessScriptHash = (script: Buffer): Buffer => Buffer.concat([op(0), push(sha256(script))]);

export const multisig = (needed: number, keys: readonly Key[]): Buffer =>
  Buffer.concat([
    op(OP.ONE - 1 + needed),
    ...keys.map(({ publicKey }) => push(publicKey)),
    op(OP.ONE - 1 + keys.length, OP.CHECKMULTISIG),
  ]);

/** Data in an output that nobody can spend. */
export const note = (text: string): Buffer => Buffer.concat([op(OP.RETURN), push(Buffer.from(text))]);

/** The output key is the key itself, without a tweak: the node signs for it without being told more. */
export const payToTaprootKey = ({ publicKey }: Key): Buffer => Buffer.concat([op(OP.ONE), push(publicKey.subarray(1))]);

/** An output of taproot that a script may spend, and the control block that shows it may. */
export function taprootScript(name: string, script: Buffer): { readonly payTo: Buffer; readonly control: Buffer } {
  const secret = sha256(Buffer.from(`tidemark sample ${name}`));
  const inner = publicKeyOf(secret);
  const leaf = tagged('TapLeaf', Buffer.concat([op(LEAF_VERSION), count(script.length), script]));
  const tweak = tagged('TapTweak', Buffer.concat([inner.subarray(1), leaf]));
  // The key with an even y stands for both; its secret is the negated one where y was odd.
  const even = inner[0] === 2 ? toNumber(secret) : CURVE_ORDER - toNumber(secret);
  const tweaked = (even + toNumber(tweak)) % CURVE_ORDER;
  const outer = publicKeyOf(Buffer.from(tweaked.toString(16).padStart(64, '0'), 'hex'));
  const parity = outer[0] === 3 ? 1 : 0;
  return {
    payTo: Buffer.concat([op(OP.ONE), push(outer.subarray(1))]),
    control: Buffer.concat([op(LEAF_VERSION | parity), inner.subarray(1)]),
  };
}

const LEAF_VERSION = 0xc0;

const toNumber = (bytes: Buffer): bigint => BigInt(`0x${bytes.toString('hex')}`);

function tagged(tag: string, bytes: Buffer): Buffer {
  const prefix = sha256(Buffer.from(tag));
  return sha256(Buffer.concat([prefix, prefix, bytes]));
}
