/**
 * Recounts that reads asked for: the service found another number of rows than was proved and refused to answer. Here the
 * partition is verified. One that no longer matches its manifest goes into quarantine; one that does stays in service.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { Catalog } from '../../shared/db/catalog.ts';
import { type Client, connect, RECOUNT_LOCK } from '../../shared/db/connect.ts';
import { codeOf, explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Projection } from '../rows/binary-copy.ts';
import { type VerifyResult, verifyPartition } from './verify.ts';

/** How often it is looked whether a recount was asked for. */
const POLL_MS = 5000;
/** A command that is over by then needs no connection for this. */
const FIRST_MS = 1000;
/** After a recount that failed, and while another process holds the lock. */
const RETRY_MS = 15_000;

export interface RecountNeeds {
  readonly datasets: readonly DatasetDefinition[];
  readonly projectionOf: (dataset: DatasetDefinition) => Projection;
  readonly databaseUrl: string;
  readonly log: Logger;
  readonly signal: AbortSignal;
  /** It is looked for the first time after this long. */
  readonly firstMs?: number;
}

/** Until the signal. Of several processes one recounts, the others stand by. */
export async function keepRecounted(needs: RecountNeeds): Promise<void> {
  const { databaseUrl, log, signal, firstMs = FIRST_MS } = needs;
  await delay(firstMs, undefined, { signal }).catch(() => {});
  while (!signal.aborted) {
    try {
      await using client = await connect({ url: databaseUrl, name: 'tidemark recount' });
      const asked = await client.query('select pg_try_advisory_lock($1, 0) as held', [RECOUNT_LOCK]);
      while (asked.rows[0].held && !signal.aborted) {
        if (!(await answerRequest(client, needs))) await delay(POLL_MS, undefined, { signal });
      }
    } catch (error) {
      if (signal.aborted) return;
      log.warn({ code: codeOf(error), fault: explain(error) }, 'a recount failed; it is tried again');
    }
    await delay(RETRY_MS, undefined, { signal }).catch(() => {});
  }
}

/**
 * Recounts the partition that was asked for first. @returns what came of it; undefined: nothing is asked for.
 * @throws what verification throws: the request stays, behind the others.
 */
export async function answerRequest(
  client: Client,
  { datasets, projectionOf, log }: Pick<RecountNeeds, 'datasets' | 'projectionOf' | 'log'>,
): Promise<VerifyResult | 'gone' | undefined> {
  const { rows } = await client.query<{ dataset_id: number; partition_key: string; reason: string }>(
    `select dataset_id, partition_key, reason from recount_requests where dataset_id = any($1) order by asked_at limit 1`,
    [datasets.map(({ number }) => number)],
  );
  const [request] = rows;
  const dataset = datasets.find(({ number }) => number === request?.dataset_id);
  if (!request || !dataset) return undefined;
  const { partition_key: partition, reason: asked } = request;
  const catalog = new Catalog(client);
  const row = await catalog.partition(dataset, partition);
  const facts = { dataset: dataset.key, partition, asked };
  if (row?.state !== 'proved') {
    await client.query('delete from recount_requests where dataset_id = $1 and partition_key = $2', [
      dataset.number,
      partition,
    ]);
    log.warn(facts, 'a recount was asked for of a partition that is no longer proved');
    return 'gone';
  }
  try {
    const result = await verifyPartition(row, { dataset, client, catalog, projection: projectionOf(dataset) });
    if (result.state === 'quarantined') {
      log.error({ ...facts, reason: result.reason }, 'a recount confirmed what a read found: quarantined');
    } else {
      log.warn(facts, 'a recount found the partition as it was proved; it stays in service');
    }
    return result;
  } catch (error) {
    await client.query(
      'update recount_requests set asked_at = clock_timestamp() where dataset_id = $1 and partition_key = $2',
      [dataset.number, partition],
    );
    throw error;
  }
}
