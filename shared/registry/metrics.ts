/** What the ETF and macro metrics have in common: their rows, their value channels and their aligned series. */
import { DAY_MS } from '../dates.ts';
import { alignedField, STATE_VALIDITY_FIELDS } from './aligned-storage.ts';
import {
  ALIGNED_VIEW,
  type AlignedColumn,
  type AlignedShape,
  computedBy,
  type DatasetDefinition,
  type Field,
  type NativeShape,
  nativeView,
  type SecondsRule,
  storedField,
  storedIn,
  timeField,
} from './definition.ts';
import { isOfPartition } from './keys.ts';

interface MetricSeconds extends Pick<Required<SecondsRule>, 'latestBy'>, Pick<SecondsRule, 'isPresent'> {
  readonly seriesKey: readonly string[];
  /** The value channels: columns of the aligned storage, and their SQL over `t`. */
  readonly channels: readonly { readonly name: string; readonly sql: string }[];
  /** SQL over `t` of provenance_json. */
  readonly provenanceSql: string;
}

/**
 * How aligned rows of metrics follow from native ones. The projector stores them, and a read as of a time makes them of
 * the rows that were known then.
 */
function metricSeconds({ seriesKey, channels, provenanceSql, latestBy, isPresent }: MetricSeconds): SecondsRule {
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
    latestBy,
    isPresent,
    select: (rows) => `select t.second, ${chosen.join(', ')} from (
      select distinct on (${series}) t.*, count(*) over (partition by ${series}) as in_bucket
      from ${rows} t order by ${series}, ${latestBy.join(', ')}) t${isPresent === undefined ? '' : ` where ${isPresent}`}`,
  };
}

const DECADE_MS = 3650 * DAY_MS;

interface MetricsOptions {
  readonly number: number;
  readonly table: string;
  /** The stored text columns that only this dataset has. */
  readonly ownColumns: NativeShape['columns'];
  readonly order: readonly string[];
  readonly seriesKey: readonly string[];
  /** The aligned columns whose values depend on when a partition was fetched. */
  readonly outsideDigests: readonly string[];
  /** SQL of provenance_json over `t`; `fact` gives the SQL of a fact of the row's partition. */
  readonly provenanceSql: (fact: (column: string) => string) => string;
  readonly latestBy: readonly string[];
  readonly isPresent?: MetricSeconds['isPresent'];
  readonly unit: { readonly nullable: boolean; readonly doc: string };
  readonly provenance: { readonly nullable: boolean; readonly doc: string };
  readonly docs: { readonly metricId: string; readonly observed: string; readonly dimensions: string };
}

/** SQL of a fact of the row's partition: one value for all its rows, written with the proof. */
const partitionFact = (dataset: number, column: string): string =>
  `(select p.${column} from partitions p where p.dataset_id = ${dataset} and ${isOfPartition()})`;

/**
 * The value channels. A row stores the value as the text of the source, and its kind; the channels are computed from the
 * two, so that the row hash covers what was read.
 */
const VALUE_CHANNELS: readonly Field[] = [
  {
    name: 'metric_value_string',
    dtype: 'string',
    nullable: true,
    doc: 'The value as text; null if the source leaves it empty.',
    pg: 'text',
    ...storedIn('value_text'),
  },
  channel('metric_value_int', 'int64', 'int8', `= 'int'`, 'The value of an integer metric.'),
  channel('metric_value_float', 'float64', 'float8', `in ('int', 'float')`, 'The value of a numeric metric.'),
  channel('metric_value_bool', 'bool01', 'bool', `= 'bool'`, 'The value of a yes-or-no metric.'),
];

function channel(
  name: string,
  dtype: 'int64' | 'float64' | 'bool01',
  pg: 'int8' | 'float8' | 'bool',
  kinds: string,
  doc: string,
): Field {
  const sql = `case when t.value_kind ${kinds} then t.value_text::${pg} end`;
  return { name, dtype, nullable: true, doc, pg, ...computedBy(sql, ['value_kind', 'value_text']) };
}

/** The native and the aligned shape of a dataset of metrics. */
export function metricsOf(metrics: MetricsOptions) {
  const { number, table, unit, provenance, docs } = metrics;
  const text = (name: string, doc: string) => storedField(name, 'string', 'text', doc);
  const SOURCE_ID = 'Source of the value, one per fund or series.';
  return {
    offset: {
      doc: 'the metric_id of the row, 64 hexadecimal digits',
      order: 'text',
      contiguous: false,
      unique: false,
      sql: 't.metric_id',
    },
    events: { encoding: 'records' },
    contractViolationStatus: 503,
    native: {
      table,
      time: { column: 'observed_at_ms', pg: 'int8' },
      identity: ['metric_id'],
      scope: { kind: 'column', column: 'partition_key', pg: 'text' },
      columns: [
        { name: 'observed_at_ms', pg: 'int8' },
        { name: 'metric_id', pg: 'text' },
        { name: 'source_id', pg: 'text' },
        { name: 'metric_name', pg: 'text' },
        { name: 'metric_unit', pg: 'text', nullable: unit.nullable },
        { name: 'value_kind', pg: 'text', shown: 'kind' },
        { name: 'value_text', pg: 'text', nullable: true },
        { name: 'dimensions_json', pg: 'text' },
        { name: 'provenance_json', pg: 'text', nullable: provenance.nullable, shown: 'provenance' },
        { name: 'partition_key', pg: 'text', shown: 'partition' },
        ...metrics.ownColumns,
      ],
      // Values are texts, and the row hash covers every digit.
      totals: [],
      chunkMs: DECADE_MS,
      fields: [
        text('metric_id', docs.metricId),
        text('source_id', SOURCE_ID),
        text('metric_name', 'What is measured.'),
        storedField('metric_unit', 'string', 'text', unit.doc, { nullable: unit.nullable }),
        ...VALUE_CHANNELS,
        timeField('observed_at_utc', 'observed_at_ms', docs.observed),
        storedField('dimensions_json', 'json', 'text', docs.dimensions),
        {
          ...storedField('provenance_json', 'json', 'text', provenance.doc, { nullable: provenance.nullable }),
          ...computedBy(
            metrics.provenanceSql((column) => partitionFact(number, column)),
            ['source_id', 'provenance_json', 'partition_key'],
          ),
        },
        {
          name: 'ingested_at_utc',
          dtype: 'timestamp_utc',
          nullable: false,
          doc: "When the row's partition was ingested; a replay keeps it.",
          pg: 'timestamptz',
          ...computedBy(partitionFact(number, 'ingested_at'), ['partition_key']),
        },
      ],
      order: metrics.order,
      view: nativeView(table),
    },
    aligned: alignedMetrics(metrics, SOURCE_ID),
  } as const satisfies Partial<DatasetDefinition>;
}

function alignedMetrics(metrics: MetricsOptions, sourceId: string): AlignedShape {
  const { unit, provenance, docs } = metrics;
  const nullable = { nullable: true };
  return {
    fields: [
      alignedField('aligned_at_utc', 'timestamp_utc', docs.observed),
      alignedField('metric_id', 'string', docs.metricId),
      alignedField('source_id', 'string', sourceId),
      alignedField('metric_name', 'string', 'What is measured.'),
      alignedField('metric_unit', 'string', unit.doc, nullable),
      ...VALUE_CHANNELS.map(({ name, dtype, doc }) =>
        alignedField(name as 'metric_value_string', dtype, doc, nullable),
      ),
      alignedField('dimensions_json', 'json', docs.dimensions),
      alignedField('provenance_json', 'json', provenance.doc, nullable),
      alignedField(
        'records_in_bucket',
        'int64',
        'Native rows of the series in the second; the latest gives the values.',
      ),
      alignedField('latest_ingested_at_utc', 'timestamp_utc', "When that row's partition was ingested."),
      ...STATE_VALIDITY_FIELDS,
    ],
    order: ['aligned_at_utc', ...metrics.seriesKey],
    windowing: 'state',
    seriesKey: metrics.seriesKey,
    outsideDigests: metrics.outsideDigests,
    seconds: metricSeconds({
      seriesKey: metrics.seriesKey,
      channels: VALUE_CHANNELS,
      provenanceSql: metrics.provenanceSql((column) => `t.${column}`),
      latestBy: metrics.latestBy,
      isPresent: metrics.isPresent,
    }),
    view: ALIGNED_VIEW,
  };
}
