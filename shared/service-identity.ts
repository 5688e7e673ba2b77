/**
 * How a running service shows that it is the one that was started in a state folder, before a command sends it a key. Whoever
 * starts it gives it a secret that only the folder has besides, and it answers a challenge with an HMAC. Nobody learns the secret
 * from the answers, so that the service may answer anybody.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { explain, TidemarkError } from './errors.ts';

export const CHALLENGE_HEADER = 'X-Svc-Challenge';
export const IDENTITY_HEADER = 'X-Svc-Identity';
const CHALLENGE = /^[0-9a-f]{64}$/;
const TIMEOUT_MS = 5000;

export const newIdentity = (): string => randomBytes(32).toString('hex');

/** What the service answers; undefined to a text that is no challenge. */
export const answerTo = (identity: string, challenge: string | undefined): string | undefined =>
  challenge !== undefined && CHALLENGE.test(challenge)
    ? createHmac('sha256', identity).update(`tidemark service\0${challenge}`).digest('hex')
    : undefined;

/** @throws TidemarkError SERVICE_UNREACHABLE, also when something else answers there. */
export async function proveService(url: string, identity: string): Promise<void> {
  const challenge = randomBytes(32).toString('hex');
  const response = await fetch(new URL('/healthz', url), {
    headers: { [CHALLENGE_HEADER]: challenge },
    redirect: 'manual',
    signal: AbortSignal.timeout(TIMEOUT_MS),
  }).catch((cause) => {
    throw new TidemarkError('SERVICE_UNREACHABLE', `No HTTP service answers at ${url} (${explain(cause)})`, { cause });
  });
  await response.body?.cancel();
  const [expected, given] = [answerTo(identity, challenge)!, response.headers.get(IDENTITY_HEADER) ?? ''].map((text) =>
    Buffer.from(text),
  );
  if (given.length === expected.length && timingSafeEqual(given, expected)) return;
  throw new TidemarkError(
    'SERVICE_UNREACHABLE',
    `What answers at ${url} is not the service that was started here, so no key was sent`,
    {
      remedy:
        'Another program has the port that the service had: stop it, or start the service again with ./tidemark up.',
    },
  );
}
