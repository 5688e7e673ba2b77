/** Connections to nats-server. */
import { connect, type NatsConnection } from '@nats-io/transport-node';
import { explain, TidemarkError } from '../errors.ts';
import { type Patience, patientRequests } from './patience.ts';

export type { NatsConnection };

/** Host and port, and those of `?servers=host:port,host:port`: of a cluster any one may be away at the start. */
export function serversOf(url: URL): string[] {
  const more = url.searchParams.get('servers')?.split(',') ?? [];
  return [url.host, ...more.filter(Boolean)].map((host) => `${url.protocol}//${host}`);
}

/**
 * One connection that keeps reconnecting: the server may be restarted under us at any time, and every user of it
 * either retries idempotently or rewinds.
 * @param patience what is asked of a log that does not answer is asked again.
 * @throws TidemarkError LOG_UNAVAILABLE when the first connection fails.
 */
export async function connectNats(
  url: string,
  name: string,
  patience?: Patience,
): Promise<NatsConnection & AsyncDisposable> {
  const parsed = new URL(url);
  try {
    const connection = await connect({
      servers: serversOf(parsed),
      user: decodeURIComponent(parsed.username) || undefined,
      pass: decodeURIComponent(parsed.password) || undefined,
      name,
      // Where the account may listen; without it the client's usual `_INBOX`.
      inboxPrefix: parsed.searchParams.get('inbox') ?? undefined,
      reconnect: true,
      maxReconnectAttempts: -1,
      reconnectTimeWait: 250,
      timeout: 5000,
      pingInterval: 10_000,
      maxPingOut: 3,
    });
    return Object.assign(connection, {
      ...(patience ? { request: patientRequests(connection, patience) } : {}),
      [Symbol.asyncDispose]: () => connection.close().catch(() => {}),
    });
  } catch (cause) {
    throw new TidemarkError('LOG_UNAVAILABLE', `nats-server at ${parsed.host} does not answer: ${explain(cause)}`, {
      cause,
    });
  }
}
