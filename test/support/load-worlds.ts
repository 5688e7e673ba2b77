/** Puts a world into storage as the pipeline leaves it: rows, aligned rows, partitions, runs and coverage. */
import type pg from 'pg';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { seriesKeyOf } from '../../shared/registry/definition.ts';
import { loadRows } from './stack.ts';
import type { World } from './worlds.ts';

export async function loadWorld(url: string, world: World): Promise<void> {
  await loadRows(url, async (client) => {
    await client.query('begin');
    await replace(client, world);
    await client.query('commit');
  });
}

/** As many rows of a partition are one frame of the log. */
const FRAME_ROWS = 5;

async function replace(client: pg.Client, world: World): Promise<void> {
  const { dataset, partitions, rows, aligned, runs } = world;
  const { number, native } = dataset;
  const ofPartition = Map.groupBy(rows, ({ partition }) => partition);
  await client.query(`delete from ${native.table}`);
  for (const table of [ALIGNED_TABLE, 'partitions', 'coverage_spans', 'frames']) {
    await client.query(`delete from ${table} where dataset_id = $1`, [number]);
  }
  await insert(
    client,
    native.table,
    rows.map((row) => row.cells),
  );
  const series = await seriesOf(client, world);
  await insert(
    client,
    ALIGNED_TABLE,
    aligned.map((row) => ({
      ...row.cells,
      dataset_id: number,
      series_id: series.get(seriesKeyOf(row.series)),
      aligned_at_utc: new Date(row.ms).toISOString(),
    })),
  );
  await insert(
    client,
    'partitions',
    partitions.map((partition) => {
      const own = ofPartition.get(partition) ?? [];
      const times = own.map((row) => row.ms);
      return {
        dataset_id: number,
        partition_key: partition.key,
        state: partition.state,
        attempt: 1,
        revision: 1,
        // Of a snapshot without rows too.
        from_ms: times.length > 0 ? Math.min(...times) : partition.span[0],
        to_ms: (times.length > 0 ? Math.max(...times) : partition.span[0]) + 1,
        synthetic: false,
        rows: own.length,
        source_id: partition.sourceId,
        span: `[${partition.span.join(',')})`,
        ingested_at: new Date(partition.ingestedMs).toISOString(),
        manifest: partition.capturedMs === undefined ? null : { captured_ms: partition.capturedMs },
        through_ms: dataset.partition.kind === 'capture' ? partition.span[1] : null,
        last_updated_at: partition.lastUpdatedMs === undefined ? null : new Date(partition.lastUpdatedMs).toISOString(),
        updated_at: new Date(0).toISOString(),
      };
    }),
  );
  if (dataset.native.scope.kind === 'column' && dataset.native.scope.pg === 'int8') {
    await insert(client, 'frames', framesOf(world));
  }
  await insert(
    client,
    'coverage_spans',
    runs.map((run) => ({
      dataset_id: number,
      source_id: run.sourceId,
      span: `[${run.span.join(',')})`,
      from_ms: run.fromMs,
      to_ms: run.toMs,
      through_ms: run.throughMs,
      partitions: 1,
      rows: rows.filter(
        ({ partition: { state, sourceId, span } }) =>
          state === 'proved' && sourceId === run.sourceId && span[0] >= run.span[0] && span[1] <= run.span[1],
      ).length,
    })),
  );
  const withheld = partitions.filter(({ state }) => state === 'quarantined').map(({ key }) => key);
  const isSnapshot = dataset.partition.kind === 'snapshot';
  await client.query(
    `update coverage set version = version + 1, withheld = $2, proved = coalesce(
       (select range_agg(span) from coverage_spans where dataset_id = $1), '{}')
       ${isSnapshot ? `- coalesce((select range_agg(int8range(key::int8, key::int8 + 1)) from unnest($2::text[]) key), '{}')` : ''}
     where dataset_id = $1`,
    [number, withheld],
  );
}

/** The frames index of proved partitions: rows in the order of offsets. */
function framesOf({ dataset, partitions, rows }: World): object[] {
  const names = dataset.key === 'bitcoin_block_transactions' ? ['block_height', 'transaction_index', 'txid'] : [];
  if (dataset.key === 'bitcoin_mempool_state') names.push('snapshot_at_unix_ms', 'txid');
  if (names.length === 0) names.push(...dataset.native.identity);
  const ofPartition = Map.groupBy(rows, ({ partition }) => partition);
  let sequence = 0;
  return partitions
    .filter(({ state }) => state === 'proved')
    .flatMap((partition) => {
      const own = (ofPartition.get(partition) ?? [])
        .map(({ ms, cells }) => ({ ms, key: names.map((name) => cells[name]) }))
        .sort((a, b) => compare(a.key, b.key));
      return Array.from({ length: Math.ceil(own.length / FRAME_ROWS) }, (_, index) => {
        const frame = own.slice(index * FRAME_ROWS, (index + 1) * FRAME_ROWS);
        const times = frame.map(({ ms }) => ms);
        return {
          dataset_id: dataset.number,
          stream_sequence: ++sequence,
          partition_key: partition.key,
          first_offset: frame[0].key.join(':'),
          last_offset: frame[frame.length - 1].key.join(':'),
          first_ms: Math.min(...times),
          last_ms: Math.max(...times),
          rows: frame.length,
          row_base: index * FRAME_ROWS,
        };
      });
    });
}

function compare(a: readonly unknown[], b: readonly unknown[]): number {
  const at = a.findIndex((value, index) => value !== b[index]);
  return at < 0 ? 0 : (a[at] as number) < (b[at] as number) ? -1 : 1;
}

/** Ids by key, made where they are not there. */
async function seriesOf(client: pg.Client, { dataset, aligned }: World): Promise<Map<string, number>> {
  const keys = [...new Set(aligned.map((row) => seriesKeyOf(row.series)))];
  await client.query('insert into series (dataset_id, key) select $1, unnest($2::text[]) on conflict do nothing', [
    dataset.number,
    keys,
  ]);
  const found = await client.query('select series_id, key from series where dataset_id = $1', [dataset.number]);
  return new Map(found.rows.map((row) => [row.key, row.series_id]));
}

async function insert(client: pg.Client, table: string, rows: readonly object[]): Promise<void> {
  if (rows.length === 0) return;
  const names = Object.keys(rows[0]).map((name) => `"${name}"`);
  await client.query(
    `insert into ${table} (${names.join(', ')}) select ${names.join(', ')} from jsonb_populate_recordset(null::${table}, $1)`,
    [JSON.stringify(rows)],
  );
}
