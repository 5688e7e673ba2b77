/** The streams of the log and the queue of exports, made and brought to the settings through the operator's account. */
import { setTimeout as delay } from 'node:timers/promises';
import type { ErrorCode } from '../../shared/errors.ts';
import { codeOf, explain, outageCode } from '../../shared/errors.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { ensureExportQueue } from '../../shared/nats/export-queue.ts';
import { ensureStream, streamOptions } from '../../shared/nats/stream.ts';
import { fedDatasets } from '../sources/index.ts';
import { type Context, natsUrls } from './context.ts';

/** @throws TidemarkError what `ensureStream` throws, of the first dataset that has no stream it can use. */
export async function makeStreams(context: Context, datasets: readonly string[]): Promise<void> {
  const operator = await context.nats('operator');
  for (const dataset of datasets) await ensureStream(operator, dataset, streamOptions(context.settings));
}

/**
 * Makes the queue of exports through the operator's account. Where that account may not, because only the others are set,
 * the queue is used as it is: the account of exports looks whether it is there.
 * @throws TidemarkError LOG_ACCOUNT_REFUSED when it is not there and neither account may make it.
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

/** All of them, each by itself: one that cannot be made keeps no other from being made. */
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

/** A stream that somebody removed is there again within about this. */
const KEEP_MS = 5000;

/**
 * Makes everything, and until disposal makes again what is missing: the processes that use the streams may not. What cannot
 * be made is said once and tried again; nothing waits for it.
 */
export async function keepStreams(context: Context): Promise<AsyncDisposable> {
  const { settings, stack, log, output } = context;
  const ending = new AbortController();
  const said = new Map<string, string>();
  let connection: (NatsConnection & AsyncDisposable) | undefined;
  const look = async () => {
    try {
      // Its own: it asks again anyway, and is to wait for nothing.
      connection ??= await connectNats(natsUrls(settings, stack).operator, 'tidemark streams');
      const faults = await makeEverything(context, connection);
      for (const { stream, code, fault } of faults) {
        // A log that is away is reported by whoever needs it.
        if (code === 'LOG_UNAVAILABLE' || said.get(stream) === fault) continue;
        said.set(stream, fault);
        log.error({ stream, code, fault }, 'a stream of the log cannot be made or used');
        output.note(`${stream}: ${fault}`);
      }
    } catch (error) {
      log.debug({ fault: explain(error) }, 'the streams of the log could not be looked at');
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
