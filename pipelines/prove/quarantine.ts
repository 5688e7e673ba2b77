/** What is kept back, why, and its way out: found good again, or given up so that the next backfill fetches it anew. */
import type { Pool } from 'pg';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import { coverWindow, lockCoverage, recoverSpan } from '../../shared/db/coverage.ts';
import { record } from '../../shared/db/ledger.ts';
import { Reports } from '../../shared/db/reports.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { compare, type Discrepancy } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import { takeOut } from '../project/removal.ts';
import { TouchedSeconds } from '../project/seconds.ts';
import { refOf } from '../project/stored.ts';
import type { Projection } from '../rows/types.ts';
import { recountStored, withheldBy } from './verify.ts';

export interface Quarantined {
  readonly dataset: string;
  readonly partition: string;
  readonly since_utc: string;
  readonly attempt: number;
  readonly revision: number;
  /** Who found it: the proof, a verification, the source. */
  readonly by: string;
  readonly reason: string;
  /** Rows that are stored and not served. */
  readonly stored_rows: number;
  readonly discrepancies: readonly Discrepancy[];
  readonly remedy: string;
}

export async function quarantinedOf(pool: Pool, dataset: DatasetDefinition, limit: number): Promise<Quarantined[]> {
  const rows = (await new Reports(pool).unproved(dataset, limit)).filter(({ state }) => state === 'quarantined');
  const found: Quarantined[] = [];
  for (const row of rows) found.push(await describe(pool, dataset, row));
  return found;
}

async function describe(pool: Pool, dataset: DatasetDefinition, row: PartitionRow): Promise<Quarantined> {
  const by = await withheldBy(pool, dataset, row.partitionKey);
  const { manifest, recount } = row;
  return {
    dataset: dataset.key,
    partition: row.partitionKey,
    since_utc: row.updatedAt.toISOString(),
    attempt: row.attempt,
    revision: row.revision,
    by,
    reason: row.reason ?? '',
    stored_rows: row.rows ?? 0,
    discrepancies: manifest && recount ? compare(dataset, manifest, recount) : [],
    remedy: remedyOf(dataset, row, by),
  };
}

const remedyOf = ({ key }: DatasetDefinition, { partitionKey }: PartitionRow, by: string): string =>
  by === 'verify'
    ? `./tidemark replay ${key} --partition ${partitionKey}`
    : `once its source is right: ./tidemark release ${key} ${partitionKey} --reason "...", then ./tidemark backfill`;

export interface ReleaseNeeds {
  readonly dataset: DatasetDefinition;
  readonly client: Client;
  readonly catalog: Catalog;
  readonly projection: Projection;
}

export interface Released {
  readonly partition: string;
  /** `proved`: its rows are what they were, and served again. `missing`: given up, to be fetched anew. */
  readonly state: 'proved' | 'missing';
  readonly rows: number;
}

/**
 * Out of quarantine, for a reason that stays in the ledger. Nothing is served that does not equal its manifest: rows that
 * verification took out and that are right again come back, all others go.
 * @throws TidemarkError PARTITION_UNKNOWN when it is not in quarantine.
 */
export async function release(key: string, reason: string, needs: ReleaseNeeds): Promise<Released> {
  const { dataset, client, catalog, projection } = needs;
  if (projection.seconds) await TouchedSeconds.prepare(client);
  await client.query('begin');
  try {
    await lockCoverage(client, dataset);
    const [row] = (await catalog.partitionsOf(dataset, [key])).filter(({ state }) => state === 'quarantined');
    if (!row) throw new TidemarkError('PARTITION_UNKNOWN', `${dataset.key} ${key} is not in quarantine`);
    const isGood = row.rows !== null && (await isWhatItWas(row, needs));
    if (isGood) await serveAgain(row, needs);
    else await giveUp(row, needs);
    const state = isGood ? 'proved' : 'missing';
    await record(client, dataset, key, 'released', reason, { state, was: row.reason, attempt: row.attempt });
    await client.query('commit');
    return { partition: key, state, rows: isGood ? (row.rows ?? 0) : 0 };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Only what verification took out: of what its source no longer stands by the rows are right, and wrong all the same. */
async function isWhatItWas(row: PartitionRow, { dataset, client, projection }: ReleaseNeeds): Promise<boolean> {
  if ((await withheldBy(client, dataset, row.partitionKey)) !== 'verify' || !row.manifest) return false;
  // The seconds it shares with others were made without it.
  if (projection.seconds) return false;
  const { discrepancies } = await recountStored(client, dataset, projection, row, row.manifest);
  return discrepancies.length === 0;
}

async function serveAgain(row: PartitionRow, { dataset, client }: ReleaseNeeds): Promise<void> {
  await client.query(
    `update partitions set state = 'proved', reason = null, proved_at = clock_timestamp(), updated_at = clock_timestamp()
     where dataset_id = $1 and partition_key = $2`,
    [dataset.number, row.partitionKey],
  );
  await coverWindow(client, dataset, refOf(row));
}

async function giveUp(row: PartitionRow, { dataset, client, projection }: ReleaseNeeds): Promise<void> {
  const key = row.partitionKey;
  if (row.rows !== null && row.fromMs !== null) {
    const touched = projection.seconds && (await TouchedSeconds.open(client, dataset, projection.seconds));
    await takeOut(client, dataset, refOf(row), touched);
    await touched?.rebuild();
  }
  await client.query('delete from frames where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
  await client.query('delete from partitions where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
  const { sourceId, span } = keyFacts(dataset, key);
  if (span) await recoverSpan(client, dataset, sourceId, span, { served: [key] });
}
