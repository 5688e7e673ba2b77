/**
 * Creates the streams of the log and the queue of exports and applies the settings to them, through the operator's
 * account.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { ErrorCode } from '../../shared/errors.ts';
import { codeOf, explain, outageCode } from '../../shared/errors.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { ensureExportQueue } from '../../shared/nats/export-queue.ts';
import { ensureStream, streamOptions } from '../../shared/nats/stream.ts';
import { fedDatasets } from '../sources/index.ts';
import { type Context, natsUrls } from './context.ts';

/** @throws TidemarkError what `ensureStream` throws for the first dataset whose stream cannot be used. */
export async function makeStreams(context: Context, datasets: readonly string[]): Promise<void> {
  const operator = await context.nats('operator');
  for (const dataset of datasets) await ensureStream(operator, dataset, streamOptions(context.settings));
}

/**
 * Creates the queue of exports through the operator's account. If that account lacks the right, because only the other
 * accounts are set, the account of exports checks that the queue exists.
 * @throws TidemarkError LOG_ACCOUNT_REFUSED if it does not and neither account may create it.
 */
export async function makeExportQueue(
  context: Pick<Context, 'settings' | 'stack'>,
  operator: NatsConnection,
): Promise<void> {
  const { settings, stack } = context;
  const { SVC_EXPORT_LEASE_SECONDS, SVC_STREAM_REPLICAS } = settings;
  const options = { leaseMs: SVC_EXPORT_LEASE_SECONDS * 1000, replicas: SVC_STREAM_REPLICAS };
  try {
    await ensureExportQueue(operator, options);
  } catch (error) {
    if (codeOf(error) !== 'LOG_ACCOUNT_REFUSED') throw error;
    await using connection = await connectNats(natsUrls(settings, stack).export, 'tidemark streams');
    await ensureExportQueue(connection, options);
  }
}

export interface StreamFault {
  readonly stream: string;
  readonly code: ErrorCode | undefined;
  readonly fault: string;
}

/** Creates all of them independently: one that fails does not stop the others. */
export async function makeEverything(
  context: Pick<Context, 'settings' | 'stack'>,
  operator: NatsConnection,
): Promise<StreamFault[]> {
  const { settings } = context;
  const faults: StreamFault[] = [];
  const attempt = (stream: string, making: Promise<unknown>) =>
    making.catch((error) => {
      faults.push({ stream, code: codeOf(error) ?? outageCode(error), fault: explain(error) });
    });
  for (const { key } of fedDatasets()) await attempt(key, ensureStream(operator, key, streamOptions(settings)));
  await attempt('exports', makeExportQueue(context, operator));
  return faults;
}

/** A stream that somebody removed is created again within about this time. */
const KEEP_MS = 5000;

/**
 * Creates everything, and until disposal creates again what is missing, because the processes that use the streams lack
 * the right. Each fault is logged once and retried; nothing waits for it.
 */
export async function keepStreams(context: Context): Promise<AsyncDisposable> {
  const { settings, stack, log, output } = context;
  const ending = new AbortController();
  const said = new Map<string, string>();
  let connection: (NatsConnection & AsyncDisposable) | undefined;
  const look = async () => {
    try {
      // A connection without retries: this loop retries anyway.
      connection ??= await connectNats(natsUrls(settings, stack).operator, 'tidemark streams');
      const faults = await makeEverything(context, connection);
      for (const { stream, code, fault } of faults) {
        // Processes that need the log report its outage themselves.
        if (code === 'LOG_UNAVAILABLE' || said.get(stream) === fault) continue;
        said.set(stream, fault);
        log.error({ stream, code, fault }, 'a stream of the log cannot be created or used');
        output.note(`${stream}: ${fault}`);
      }
    } catch (error) {
      log.debug({ fault: explain(error) }, 'the streams of the log could not be checked');
    }
  };
  await look();
  const keeping = (async () => {
    for (;;) {
      await delay(KEEP_MS, undefined, { signal: ending.signal }).catch(() => {});
      if (ending.signal.aborted) return;
      await look();
    }
  })();
  return {
    async [Symbol.asyncDispose]() {
      ending.abort();
      await connection?.[Symbol.asyncDispose]();
      await keeping;
    },
  };
}
