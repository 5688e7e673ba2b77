/** Worlds of macro series whose vintages a test names one by one. */
import { datasetOf } from '../../shared/registry/index.ts';
import { DAY, knownAt, type World } from './worlds.ts';

export interface Vintage {
  readonly sourceId: string;
  readonly name: string;
  readonly day: string;
  readonly unit: string;
  /** Values by the day that they were observed. */
  readonly values: Readonly<Record<string, string>>;
  /** The time of day that the provider states as its last update, from T on; null: it states none. */
  readonly updated?: string | null;
}

/** @param quarantined the day of a vintage that is stored and not proved */
export function worldOfVintages(vintages: readonly Vintage[], quarantined?: string): World {
  let ids = 0;
  const partitions = vintages.map(({ sourceId, day, updated = 'T14:00:00Z' }, index) => ({
    key: `${sourceId}:${day}`,
    state: day === quarantined ? ('quarantined' as const) : ('proved' as const),
    sourceId,
    span: [Date.parse(day), Date.parse(day) + DAY] as const,
    ingestedMs: Date.parse(day) + 90 * DAY + index,
    lastUpdatedMs: updated === null ? undefined : Date.parse(`${day}${updated}`),
  }));
  const rows = vintages.flatMap(({ sourceId, name, day, unit, values }, index) =>
    Object.entries(values).map(([observed, value]) => ({
      ms: Date.parse(observed),
      partition: partitions[index],
      cells: {
        observed_at_ms: Date.parse(observed),
        metric_id: String(++ids).padStart(64, '0'),
        source_id: sourceId,
        metric_name: name,
        metric_unit: unit,
        value_kind: 'float',
        value_text: value,
        dimensions_json: '{}',
        provenance_json: `{"realtime_start":"${day}"}`,
        partition_key: partitions[index].key,
        vintage: day,
      },
    })),
  );
  const runs = [...Map.groupBy(rows, ({ partition }) => partition.sourceId)].map(([sourceId, own]) => {
    const proved = own.filter(({ partition }) => partition.state === 'proved');
    const days = proved.map(({ partition }) => partition.span);
    const [from, to] = [Math.min(...days.map(([start]) => start)), Math.max(...days.map(([, end]) => end))];
    const times = proved.map(({ ms }) => ms);
    return {
      sourceId,
      span: [from, to] as const,
      fromMs: Math.min(...times),
      toMs: Math.max(...times) + 1,
      throughMs: to,
    };
  });
  const world = { dataset: datasetOf('macro_series_metrics'), partitions, rows, aligned: [], runs };
  return { ...world, aligned: knownAt(world, Number.MAX_SAFE_INTEGER).aligned };
}
