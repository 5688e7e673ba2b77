/** The caller's key, compared without telling by the time taken how much of it was right. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { Problem } from '../contract/problems.ts';

const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest();

export class KeyCheck {
  readonly #accepted: readonly Buffer[];

  /** The key, and during a rotation the one before it. */
  constructor(keys: readonly (string | undefined)[]) {
    // A blank key would let in whoever sends none.
    this.#accepted = keys.filter((key) => key !== undefined && key !== '').map((key) => digest(Buffer.from(key!)));
  }

  /** @throws Problem AUTH_INVALID_API_KEY */
  check(request: IncomingMessage): void {
    this.#check(request.headers['x-api-key']);
  }

  /** The same for callers that can send no header of their own but `Authorization: Bearer`. @throws as check */
  checkWithBearer({ headers }: IncomingMessage): void {
    this.#check(headers['x-api-key'] ?? /^Bearer (.+)$/i.exec(headers.authorization ?? '')?.[1]);
  }

  #check(given: string | string[] | undefined): void {
    const offered = digest(headerBytes(typeof given === 'string' ? given : ''));
    let accepted = false;
    for (const key of this.#accepted) accepted = timingSafeEqual(key, offered) || accepted;
    if (typeof given !== 'string') {
      throw new Problem('AUTH_INVALID_API_KEY', 'Send the service’s key in the X-API-Key header.');
    }
    if (!accepted) throw new Problem('AUTH_INVALID_API_KEY', 'The key that was sent is not the service’s.');
  }
}

/** Node reads header bytes as latin1; keys and passwords are UTF-8. */
const headerBytes = (value: string): Buffer => Buffer.from(value, 'latin1');

/** The caller's own storage credential, if it sent one. */
export function backendToken(request: IncomingMessage): string | undefined {
  const token = request.headers['x-backend-token'];
  return typeof token === 'string' ? headerBytes(token).toString() : undefined;
}
