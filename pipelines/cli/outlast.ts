/** Sitting out a store that is away: a command asks again, and says so, for as long as it would publish again. */
import { setTimeout as delay } from 'node:timers/promises';
import { codeOf, explain } from '../../shared/errors.ts';
import { OUTAGE_LIMIT_MS } from '../../shared/nats/patience.ts';
import { outageCode } from '../../shared/outage.ts';

export interface Outlasting {
  readonly signal: AbortSignal;
  /** Told once what is waited for. */
  readonly note: (message: string) => void;
}

const PAUSE_MS = 500;
/** SQLSTATEs of a server that is there and refuses: who we are, what we may, which database. */
const REFUSED = /^(28|3D|42)/;
const REFUSALS: ReadonlySet<string> = new Set([
  'AuthorizationError',
  'UserAuthenticationExpiredError',
  'PermissionViolationError',
]);

function isAway(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) {
    if (REFUSALS.has(at.name) || REFUSED.test(String((at as { code?: unknown }).code ?? ''))) return false;
  }
  const code = codeOf(error) ?? outageCode(error);
  return code === 'LOG_UNAVAILABLE' || code === 'DATABASE_UNAVAILABLE';
}

/**
 * What `ask` says, asked again for up to `OUTAGE_LIMIT_MS` while a store is away. It must not matter how often it is asked.
 * @throws what `ask` throws when that is no outage, or when the time is over; the signal's reason.
 */
export async function outlast<T>(ask: () => Promise<T>, { signal, note }: Outlasting): Promise<T> {
  const startedAt = performance.now();
  for (let told = false; ; ) {
    try {
      return await ask();
    } catch (error) {
      if (!isAway(error) || performance.now() - startedAt > OUTAGE_LIMIT_MS) throw error;
      signal.throwIfAborted();
      if (!told) note(`a store is away (${explain(error)}): asking again for up to ${OUTAGE_LIMIT_MS / 1000} s`);
      told = true;
      await delay(PAUSE_MS, undefined, { signal });
    }
  }
}
