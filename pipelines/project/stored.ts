/** A partition of the catalog as those look at it who need its rows. */
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert } from '../../shared/errors.ts';
import type { PartitionRef } from '../../shared/proof/scope.ts';

/** Where its rows are: its times are known from the first proof on. */
export function refOf(row: PartitionRow): PartitionRef {
  assert(row.fromMs !== null && row.toMs !== null, `the times of ${row.partitionKey} are known`);
  return { key: row.partitionKey, fromMs: row.fromMs, toMs: row.toMs };
}
