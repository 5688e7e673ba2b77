/** Connections to nats-server. */
import { connect, type NatsConnection } from '@nats-io/transport-node';
import { explain, TidemarkError } from '../errors.ts';

export type { NatsConnection };

/**
 * One connection that keeps reconnecting: the server may be restarted under us at any time, and every user of it
 * either retries idempotently or rewinds.
 * @throws TidemarkError LOG_UNAVAILABLE when the first connection fails.
 */
export async function connectNats(url: string, name: string): Promise<NatsConnection & AsyncDisposable> {
  const parsed = new URL(url);
  try {
    const connection = await connect({
      servers: `${parsed.protocol}//${parsed.host}`,
      user: decodeURIComponent(parsed.username) || undefined,
      pass: decodeURIComponent(parsed.password) || undefined,
      name,
      reconnect: true,
      maxReconnectAttempts: -1,
      reconnectTimeWait: 250,
      timeout: 5000,
      pingInterval: 10_000,
      maxPingOut: 3,
    });
    return Object.assign(connection, { [Symbol.asyncDispose]: () => connection.close().catch(() => {}) });
  } catch (cause) {
    throw new TidemarkError('LOG_UNAVAILABLE', `nats-server at ${parsed.host} does not answer: ${explain(cause)}`, {
      cause,
    });
  }
}
