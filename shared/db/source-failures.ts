/** What sources failed to give after all tries: counted for ever, by source and code, for those who watch. */
import type { Pool } from 'pg';
import type { DatasetDefinition } from '../registry/index.ts';

/** Of codes: faults of a vendor, an issuer, a provider or a node, and of what they sent. */
const OF_SOURCES = /^(?:SOURCE|NODE|CHAIN)_/;

export const isSourceFault = (code: string | undefined): code is string => code !== undefined && OF_SOURCES.test(code);

export async function recordSourceFailure(
  pool: Pool,
  dataset: DatasetDefinition,
  { source, code, reason }: { readonly source: string; readonly code: string; readonly reason: string },
): Promise<void> {
  await pool.query(
    `insert into source_failures (dataset_id, source_id, code, failures, last_reason) values ($1, $2, $3, 1, $4)
     on conflict (dataset_id, source_id, code) do update set failures = source_failures.failures + 1,
       last_at = clock_timestamp(), last_reason = excluded.last_reason`,
    [dataset.number, source, code, reason],
  );
}
