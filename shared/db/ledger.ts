/** The one place that writes the ledger: what operators and the service did to partitions on purpose, what was refused. */
import type { ClientBase, Pool } from 'pg';
import type { DatasetDefinition } from '../registry/index.ts';

export const LEDGER_KINDS = [
  'late_arrival_refused',
  'reingest_started',
  'revision_proved',
  'quarantined',
  'sample_retired',
  'replaced',
  'replay_replaced',
  'released',
  'log_recovered',
  'log_lost',
] as const;
export type LedgerKind = (typeof LEDGER_KINDS)[number];

export async function record(
  client: ClientBase | Pool,
  dataset: DatasetDefinition,
  partition: string,
  kind: LedgerKind,
  reason: string,
  details: Readonly<Record<string, unknown>> = {},
): Promise<void> {
  await (client as Pool).query(
    'insert into ledger (dataset_id, partition_key, kind, reason, details) values ($1, $2, $3, $4, $5)',
    [dataset.number, partition, kind, reason, details],
  );
}
