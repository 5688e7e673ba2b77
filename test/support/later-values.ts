/** Worlds in which a value becomes known later than the time that it is about. */
import { DAY } from './frame-oracle.ts';
import type { World, WorldPartition, WorldRow } from './worlds.ts';

/** A value that no world holds. */
export const PLANTED = 987_654.25;

/** The world with a value that becomes known at `knownAtMs`, about an earlier time. */
export function planted(world: World, of: WorldRow, knownAtMs: number): World {
  const { kind } = world.dataset.partition;
  const isVintage = kind === 'vintage';
  const vintageMs = knownAtMs - DAY - 6 * 3_600_000;
  const own = isVintage
    ? { key: `${of.partition.sourceId}:planted`, span: [vintageMs, vintageMs + DAY] as const, lastUpdatedMs: 0 }
    : { key: `${of.partition.key}:2`, span: of.partition.span, capturedMs: knownAtMs };
  const partition: WorldPartition = { ...of.partition, ...own, state: 'proved', ingestedMs: knownAtMs + 5000 };
  const values = { value_kind: 'float', value_text: String(PLANTED), partition_key: own.key };
  // A vintage of the same day would be the same text.
  const vintage = isVintage && { vintage: `${new Date(vintageMs).toISOString().slice(0, 10)}~` };
  const row = { ...of, partition, cells: { ...of.cells, ...values, ...vintage, metric_id: 'f'.repeat(64) } };
  return { ...world, partitions: [...world.partitions, partition], rows: [...world.rows, row] };
}

/** The world whose block is another one, which arrived at `knownAtMs`. */
export function replaced(world: World, of: WorldRow, knownAtMs: number): World {
  const partition = { ...of.partition, capturedMs: knownAtMs, ingestedMs: knownAtMs };
  const swap = (row: WorldRow) =>
    row.partition !== of.partition
      ? row
      : { ...row, partition, cells: row === of ? { ...row.cells, hashrate_hs: PLANTED } : row.cells };
  return {
    ...world,
    partitions: world.partitions.map((one) => (one === of.partition ? partition : one)),
    rows: world.rows.map(swap),
  };
}
