/**
 * Commitments: what public leaves say instead of digests of rows and documents, which a stranger could guess. Whoever has the salt of
 * a leaf and a value can tell whether the leaf commits to it; without the salt nobody can. docs/proof-log.md has the formula.
 */
import { createHmac } from 'node:crypto';

/** Bytes of the log's secret and of a salt. HMAC takes keys that differ in zeros at their end for the same, so that none is shorter. */
export const SECRET_BYTES = 32;

/** By fact, as answers name it: the member of a leaf that commits to it. */
export const COMMITMENTS = {
  document_sha256: 'document_commitment',
  /** The first and the last, with a space between them. */
  offsets: 'offsets_commitment',
  rows_hash: 'rows_hash_commitment',
  events_sha256: 'events_commitment',
  rows_sha256: 'rows_commitment',
  /** In their canonical bytes. */
  facts: 'facts_commitment',
} as const;

export type CommittedFact = keyof typeof COMMITMENTS;

/** A salt that is missing or not of its form. */
export class SaltFault extends Error {
  override readonly name = 'SaltFault';
}

/** The salt of an answer, in hexadecimal digits. @throws SaltFault */
export function parseSalt(salt: unknown): Buffer {
  if (salt === undefined || salt === null) {
    throw new SaltFault(
      'the answer has no salt, without which nobody can tell what the leaf commits to: services give it to those who may read the rows',
    );
  }
  return parseSecret(salt, 'the salt');
}

/** @throws SaltFault */
export function parseSecret(text: unknown, what: string): Buffer {
  if (typeof text === 'string' && /^[0-9a-f]{64}$/.test(text)) return Buffer.from(text, 'hex');
  throw new SaltFault(`${what} is not ${2 * SECRET_BYTES} hexadecimal digits`);
}

const hmac = (key: Uint8Array, text: string): ReturnType<typeof createHmac> => createHmac('sha256', key).update(text);

export const commitmentOf = (salt: Uint8Array, fact: CommittedFact, value: string): string =>
  hmac(salt, `${COMMITMENTS[fact]}\n${value}`).digest('hex');

/** What leaves of one salt are about. */
export interface Salted {
  readonly dataset: string;
  readonly partition: string;
  readonly revision: number;
}

/** The same for every leaf of a revision, so that a replay commits as the first proof did. */
export const saltOf = (secret: Uint8Array, { dataset, partition, revision }: Salted): Buffer =>
  hmac(secret, ['salt of a leaf', dataset, partition, revision].join('\n')).digest();
