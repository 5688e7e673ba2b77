/** Keeps one dataset projected: takes the lock, projects, and after any failure starts again at the checkpoint. */

import { setTimeout as delay } from 'node:timers/promises';
import type { Settings } from '../../shared/config/settings.ts';
import {
  type Client,
  connect,
  PROJECTOR_CHANNEL,
  PROJECTOR_LOCK,
  type ProjectorFailure,
  requireTimescale,
} from '../../shared/db/connect.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { ensureStream, streamOptions } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Projection } from '../rows/binary-copy.ts';
import { Projector } from './projector.ts';

export interface ProjectionNeeds {
  readonly projection: Projection;
  readonly databaseUrl: string;
  readonly natsUrl: string;
  readonly settings: Settings;
  readonly log: Logger;
  readonly signal: AbortSignal;
  /** Before it starts again after a failure; default PAUSES. */
  readonly pauses?: RestartPauses;
}

export interface RestartPauses {
  /** After the first failure; doubled for each further one. */
  readonly firstMs: number;
  readonly longestMs: number;
}

const PAUSES: RestartPauses = { firstMs: 200, longestMs: 5000 };

/** How often a candidate asks for the lock: another takes over within this after the holder is gone. */
const LOCK_POLL_MS = 500;

export async function keepProjected(dataset: DatasetDefinition, needs: ProjectionNeeds): Promise<void> {
  const { signal, log, pauses = PAUSES } = needs;
  for (let failures = 0; !signal.aborted; ) {
    const startedAt = performance.now();
    try {
      await projectOnce(dataset, needs);
    } catch (error) {
      if (signal.aborted) return;
      failures = performance.now() - startedAt > 60_000 ? 1 : failures + 1;
      const waitMs = Math.min(pauses.firstMs * 2 ** (failures - 1), pauses.longestMs);
      log.warn({ dataset: dataset.key, code: codeOf(error), waitMs, err: explain(error) }, 'projector starts again');
      await announceFailure(dataset, needs, error);
      await delay(waitMs, undefined, { signal }).catch(() => {});
    }
  }
}

/** Messages of NOTIFY are limited to 8000 bytes, and a character may take four. */
const MAX_MESSAGE = 1500;

/**
 * Tells whoever waits for a proof why it does not come. A store that is away is no failure of the projector, and is
 * waited for; and where the database cannot be reached nobody could be told.
 */
async function announceFailure(dataset: DatasetDefinition, { databaseUrl }: ProjectionNeeds, error: unknown) {
  if (outageCode(error) !== undefined || (error instanceof TidemarkError && error.transient)) return;
  const failure: ProjectorFailure = { dataset: dataset.key, message: explain(error).slice(0, MAX_MESSAGE) };
  try {
    await using client = await connect({ url: databaseUrl, name: `tidemark projector ${dataset.key}` });
    await client.query('select pg_notify($1, $2)', [PROJECTOR_CHANNEL, JSON.stringify(failure)]);
  } catch {
    // The next failure is announced again.
  }
}

async function projectOnce(dataset: DatasetDefinition, needs: ProjectionNeeds): Promise<void> {
  const { databaseUrl, natsUrl, settings, log, signal } = needs;
  await using client = await connect({ url: databaseUrl, name: `tidemark projector ${dataset.key}` });
  await using side = await connect({ url: databaseUrl, name: `tidemark projector ${dataset.key} side` });
  await requireTimescale(side);
  if (!(await waitForLock(client, dataset, signal))) return;
  await using connection = await connectNats(natsUrl, `tidemark projector ${dataset.key}`);
  await ensureStream(connection, dataset.key, streamOptions(settings));
  // Rows arrive in the order of the index, where one sort beats several: 0.8 s for a day against 1.1 with two workers.
  await client.query('set max_parallel_maintenance_workers = 0');
  log.debug({ dataset: dataset.key }, 'projector started');
  const projector = new Projector({
    dataset,
    connection,
    client,
    side,
    projection: needs.projection,
    pullMaxBytes: settings.SVC_PULL_MAX_BYTES,
    silenceMs: settings.SVC_ATTEMPT_SILENCE_MS,
    log,
    signal,
  });
  await Promise.race([projector.run(), lossOf(client)]);
}

/** Rejects when the connection ends: at once, not at the next statement, which may be waiting for something else. */
function lossOf(client: Client): Promise<never> {
  const lost = new Promise<never>((_, reject) => {
    client.once('end', () =>
      reject(new TidemarkError('DATABASE_UNAVAILABLE', 'PostgreSQL ended the connection of the projector')),
    );
  });
  // It ends when the work is done, too.
  lost.catch(() => {});
  return lost;
}

/** One projector per dataset: a session lock that ends with the connection. */
async function waitForLock(client: Client, dataset: DatasetDefinition, signal: AbortSignal): Promise<boolean> {
  while (!signal.aborted) {
    const asked = await client.query('select pg_try_advisory_lock($1, $2) as held', [PROJECTOR_LOCK, dataset.number]);
    if (asked.rows[0].held) return true;
    await delay(LOCK_POLL_MS, undefined, { signal }).catch(() => {});
  }
  return false;
}
