/** Waits for what the projector makes of published attempts. */
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import type { Catalog } from '../../shared/db/catalog.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { OUTCOME_CHANNEL } from '../project/commit.ts';

export interface AttemptOutcome {
  readonly state: 'proved' | 'quarantined' | 'refused';
  readonly reason: string | null;
}

/** A notification can be lost with its connection, so the catalog is asked now and then as well. */
const POLL_MS = 1000;

/**
 * Resolves when the attempt has come to an end.
 * @throws TidemarkError PARTITION_TIMEOUT when nothing at all moved for `patienceMs`.
 */
export async function waitForOutcome(
  needs: { catalog: Catalog; bell: Bell; dataset: DatasetDefinition; signal: AbortSignal; patienceMs: number },
  partition: string,
  attempt: number,
): Promise<AttemptOutcome> {
  const { catalog, bell, dataset, signal, patienceMs } = needs;
  let checkpoint = -1;
  let movedAt = performance.now();
  for (;;) {
    signal.throwIfAborted();
    const rung = bell.next();
    try {
      const row = await catalog.attempt(dataset, partition, attempt);
      if (row && (row.state === 'proved' || row.state === 'quarantined' || row.state === 'refused')) {
        return { state: row.state, reason: row.reason };
      }
      const at = (await catalog.checkpoint(dataset))?.streamSequence ?? 0;
      if (at !== checkpoint) [checkpoint, movedAt] = [at, performance.now()];
    } catch (error) {
      // The database may be away for a moment; patience covers it.
      if (performance.now() - movedAt > patienceMs) throw error;
    }
    if (performance.now() - movedAt > patienceMs) {
      throw new TidemarkError(
        'PARTITION_TIMEOUT',
        `${dataset.key} ${partition} attempt ${attempt} was not proved in ${patienceMs / 1000} s`,
      );
    }
    await Promise.race([rung, delay(POLL_MS, undefined, { signal, ref: false })]).catch(() => {});
  }
}

/** Rings whenever the projector announces an outcome. */
export class Bell implements AsyncDisposable {
  readonly #url: string;
  #client: Client | undefined;
  #waiting = new Set<() => void>();

  private constructor(url: string) {
    this.#url = url;
  }

  static async open(databaseUrl: string): Promise<Bell> {
    const bell = new Bell(databaseUrl);
    await bell.#listen();
    return bell;
  }

  next(): Promise<void> {
    return new Promise((resolve) => this.#waiting.add(resolve));
  }

  async #listen(): Promise<void> {
    const client = await connect({ url: this.#url, name: 'tidemark outcomes' });
    this.#client = client;
    client.on('notification', () => {
      const waiting = [...this.#waiting];
      this.#waiting.clear();
      for (const resolve of waiting) resolve();
    });
    await client.query(`listen ${OUTCOME_CHANNEL}`);
    // Lost connection: polling goes on alone; the outcome is the same, a second later.
    once(client, 'end').then(
      () => {
        if (this.#client === client) this.#client = undefined;
      },
      () => {},
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#client?.[Symbol.asyncDispose]();
  }
}
