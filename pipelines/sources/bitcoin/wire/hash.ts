/**
 * The hashes of the Bitcoin protocol, and the order in which people write them: last byte first. Digests are asked for
 * as text and written where they belong: that takes a third of the time that a buffer of its own takes.
 */
import { hash } from 'node:crypto';

export const HASH_BYTES = 32;

export const sha256 = (bytes: Uint8Array): Buffer => Buffer.from(hash('sha256', bytes, 'binary'), 'latin1');

export const sha256Hex = (bytes: Uint8Array): string => hash('sha256', bytes, 'hex');

export const sha256d = (bytes: Uint8Array): Buffer => sha256(sha256(bytes));

const inner = Buffer.alloc(HASH_BYTES);

/** The digest of the bytes' digest into `target`, which may hold the bytes. */
export function sha256dInto(target: Buffer, at: number, bytes: Uint8Array): void {
  inner.write(hash('sha256', bytes, 'binary'), 0, HASH_BYTES, 'latin1');
  target.write(hash('sha256', inner, 'binary'), at, HASH_BYTES, 'latin1');
}

/** The same from the first digest in hex. */
export function sha256OfHexInto(target: Buffer, at: number, digest: string): void {
  inner.write(digest, 0, HASH_BYTES, 'hex');
  target.write(hash('sha256', inner, 'binary'), at, HASH_BYTES, 'latin1');
}

/** As explorers and the node's RPC write a hash. */
export const displayHash = (bytes: Uint8Array): string => Buffer.from(bytes).reverse().toString('hex');

export const hashFromDisplay = (text: string): Buffer => Buffer.from(text, 'hex').reverse();

const reversed = Buffer.alloc(HASH_BYTES);

/** `displayHash` of the 32 bytes at `at`. */
export function displayHashAt(bytes: Uint8Array, at: number): string {
  for (let place = 0; place < HASH_BYTES; place++) reversed[place] = bytes[at + HASH_BYTES - 1 - place];
  return reversed.toString('hex');
}
