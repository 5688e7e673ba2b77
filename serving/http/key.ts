/** The caller's key, compared without telling by the time taken how much of it was right. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { Problem } from '../contract/problems.ts';

const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest();

export class KeyCheck {
  readonly #accepted: readonly Buffer[];

  /** The key, and during a rotation the one before it. */
  constructor(keys: readonly (string | undefined)[]) {
    this.#accepted = keys.filter((key) => key !== undefined).map((key) => digest(Buffer.from(key)));
  }

  /** @throws Problem AUTH_INVALID_API_KEY */
  check(request: IncomingMessage): void {
    const given = request.headers['x-api-key'];
    const offered = digest(headerBytes(typeof given === 'string' ? given : ''));
    let accepted = false;
    for (const key of this.#accepted) accepted = timingSafeEqual(key, offered) || accepted;
    if (!accepted || typeof given !== 'string') {
      throw new Problem('AUTH_INVALID_API_KEY', 'Send the service’s key in the X-API-Key header.');
    }
  }
}

/** Node reads header bytes as latin1; keys and passwords are UTF-8. */
export const headerBytes = (value: string): Buffer => Buffer.from(value, 'latin1');
