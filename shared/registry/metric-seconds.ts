/**
 * One-second rows of metrics out of native ones, said once: the projector stores them, and a read as of a time makes
 * them of the rows that were known then.
 */
import type { AlignedColumn } from './aligned-storage.ts';
import type { SecondsRule } from './types.ts';

interface MetricSeconds {
  readonly seriesKey: readonly string[];
  /** The value channels: columns of the aligned storage, and SQL over `t`. */
  readonly channels: readonly { readonly name: string; readonly sql: string }[];
  /** SQL over `t` of provenance_json. */
  readonly provenanceSql: string;
  /** SQL over `t`: of the native rows of a second and series the one that is first by these. */
  readonly winner: readonly string[];
  /** A test over the winner `t`: false where it says that there is no value, and the second has no row. */
  readonly holds?: string;
}

export function metricSeconds({ seriesKey, channels, provenanceSql, winner, holds }: MetricSeconds): SecondsRule {
  const series = ['second', ...seriesKey].map((name) => `t.${name}`).join(', ');
  const values: Readonly<Record<string, string>> = {
    metric_id: 't.metric_id',
    source_id: 't.source_id',
    metric_name: 't.metric_name',
    metric_unit: 't.metric_unit',
    ...Object.fromEntries(channels.map(({ name, sql }) => [name, sql])),
    dimensions_json: 't.dimensions_json',
    provenance_json: provenanceSql,
    records_in_bucket: 't.in_bucket',
    latest_ingested_at_utc: 't.ingested_at',
  };
  const columns = Object.keys(values) as AlignedColumn[];
  const chosen = Object.entries(values).map(([name, sql]) => `${sql} as ${name}`);
  return {
    columns,
    select: (rows) => `select t.second, ${chosen.join(', ')} from (
      select distinct on (${series}) t.*, count(*) over (partition by ${series}) as in_bucket
      from ${rows} t order by ${series}, ${winner.join(', ')}) t${holds === undefined ? '' : ` where ${holds}`}`,
  };
}
