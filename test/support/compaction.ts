/** The compaction that a projector of `up` makes. */
import { type CompactedUnit, compactOld } from '../../pipelines/projector/compaction.ts';
import { fedDatasets } from '../../pipelines/sources/index.ts';
import { connect } from '../../shared/db/connect.ts';
import { createLogger } from '../../shared/logger.ts';

/** Compacts the chunks that ended this long ago. */
export async function compactNow(databaseUrl: string, afterDays = 30): Promise<{ readonly units: CompactedUnit[] }> {
  await using client = await connect({ url: databaseUrl, name: 'compaction' });
  const log = createLogger('silent', 'compaction');
  const { signal } = new AbortController();
  const needs = { databaseUrl, datasets: fedDatasets(), afterDays, quietMs: 0, log, signal };
  return { units: await compactOld(client, needs) };
}

/** The chunks of a table that hold rows beside their columns. */
export async function mixedChunks(
  rows: (sql: string) => Promise<{ chunk: string }[]>,
  table: string,
): Promise<string[]> {
  const chunks = await rows(`select format('%I.%I', chunk_schema, chunk_name) as chunk
    from timescaledb_information.chunks where is_compressed and hypertable_name = '${table}' order by 1`);
  const mixed: string[] = [];
  for (const { chunk } of chunks) {
    if ((await rows(`select '' as chunk from only ${chunk} limit 1`)).length > 0) mixed.push(chunk);
  }
  return mixed;
}
