/** Describes one dataset for GET /v1/datasets: its declaration, its rights, and its availability at one moment. */
import { z } from 'zod';
import { isoOf } from '../../shared/dates.ts';
import { instrumentsOf } from '../../shared/db/instruments.ts';
import { CONDITION_MEMBERS, conditionMembers } from '../../shared/proof/conditions.ts';
import { parseMultirange } from '../../shared/ranges.ts';
import { type Mode, type PartitionKind, SERIES_SOURCE, seriesValues } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition, DTYPES, type Field, shapeOf } from '../../shared/registry/index.ts';
import { SLOTS } from '../../shared/registry/instruments.ts';
import { OPERATORS } from '../contract/filters.ts';
import { AGGREGATES, aggregatesOf, frameFields } from '../contract/frame.ts';
import { MODES } from '../contract/shapes.ts';
import type { Session } from '../read/snapshot/session.ts';
import type { RightsReport } from '../rights/gate.ts';
import { count, datasetKey, flag, membersOf, problemCode, rightsState, textField, utc } from './schemas.ts';

/** How much of a dataset is proved, at one moment. */
interface Availability {
  /** Start of the oldest row and exclusive end of the newest; null while nothing is proved. */
  readonly proved_from_utc: string | null;
  readonly proved_through_utc: string | null;
  /** Time up to which every source is complete: the earliest of their ends. */
  readonly as_of_utc: string | null;
  readonly partitions: number;
  readonly rows: number;
  /** Whether the rows belong to the sample, which no vendor published. */
  readonly synthetic: boolean;
}

export const NOTHING: Available = {
  proved_from_utc: null,
  proved_through_utc: null,
  as_of_utc: null,
  partitions: 0,
  rows: 0,
  synthetic: false,
  series: [],
};

const DAYS = [...DATASETS.values()].filter(({ native }) => native.scope.kind === 'window');

/**
 * Availability by dataset number. Datasets with spans have their counts already, and a source ends with its last run; file days
 * are few enough to count.
 */
const STATEMENT = `select c.dataset_id::text, c.proved::text, c.synthetic::text, coalesce(s.partitions, p.partitions, 0)::text,
    coalesce(s.rows, p.rows, 0)::text, s.from_ms::text, s.to_ms::text, s.through_ms::text
  from coverage c
  left join (select dataset_id, count(*) as partitions, sum(rows) as rows from partitions
    where dataset_id in (${DAYS.map(({ number }) => number).join(', ')}) and state = 'proved' group by dataset_id) p
    using (dataset_id)
  left join (select dataset_id, sum(partitions) as partitions, sum(rows) as rows, min(from_ms) as from_ms,
    max(to_ms) as to_ms, min(through_ms) as through_ms from (
      select dataset_id, sum(partitions) as partitions, sum(rows) as rows, min(from_ms) as from_ms, max(to_ms) as to_ms,
        max(through_ms) as through_ms from coverage_spans group by dataset_id, source_id) sources group by dataset_id) s
    using (dataset_id)
  where c.dataset_id <= ${SLOTS}`;

interface Available extends Availability {
  readonly series: readonly Readonly<Record<string, string>>[];
}

/** Those of sources with proved coverage: the series of a sample stay in their table when it is retired. */
const SERIES = `select dataset_id::text, key from series where key <> ''
  and (dataset_id, ${SERIES_SOURCE}) in (select dataset_id, source_id from coverage_spans)
  order by dataset_id, key collate "C"`;

export async function readAvailability(session: Session): Promise<(dataset: DatasetDefinition) => Available> {
  const series = Map.groupBy(await session.rows(SERIES), ([number]) => Number(number));
  const availabilityOf = await readCounts(session);
  return (dataset) => {
    const { seriesKey } = dataset.aligned;
    const keys = (series.get(dataset.number) ?? []).map(([, key]) => seriesValues(key!, seriesKey.length));
    return {
      ...availabilityOf(dataset),
      series: keys.map((values) => Object.fromEntries(seriesKey.map((name, index) => [name, values[index]]))),
    };
  };
}

/** The other instruments that hold rows of their vendor's, as far as anybody can tell: what a grant for the sample does not cover. */
const REAL_OTHERS = `select dataset_id::text, key from series s where dataset_id > ${SLOTS} and (
    exists (select from coverage c where c.dataset_id = s.dataset_id and not synthetic and proved <> '{}')
    or exists (select from partitions p where p.dataset_id = s.dataset_id and state = 'proved' and not synthetic))`;

export async function readRealOthers(session: Session): Promise<DatasetDefinition[]> {
  const rows = await session.rows(REAL_OTHERS);
  return instrumentsOf(rows.map(([number, key]) => ({ dataset_id: Number(number), key: key! })));
}

async function readCounts(session: Session): Promise<(dataset: DatasetDefinition) => Availability> {
  const rows = await session.rows(STATEMENT);
  const byNumber = new Map(rows.map((row) => [Number(row[0]), row]));
  return (dataset) => {
    const row = byNumber.get(dataset.number);
    if (!row) return NOTHING;
    const [, proved, synthetic, partitions, count, spansFrom, spansTo, spansThrough] = row;
    const ranges = dataset.native.scope.kind === 'window' ? parseMultirange(proved!) : [];
    const last = ranges.at(-1)?.to;
    const iso = (ms: number | undefined, spans: string | null) =>
      ms !== undefined ? isoOf(ms) : spans !== null ? isoOf(Number(spans)) : null;
    return {
      proved_from_utc: iso(ranges[0]?.from, spansFrom),
      proved_through_utc: iso(last, spansTo),
      as_of_utc: iso(last, spansThrough),
      partitions: Number(partitions),
      rows: Number(count),
      synthetic: synthetic === 'true' && Number(partitions) > 0,
    };
  };
}

/** When values are known, and so may be in a row of a frame that is as of each row. */
export const KNOWN = {
  event_time: 'At its own time.',
  capture: 'When the document that states it was captured; other values of a later capture, when that was.',
  vintage: 'From 06:00 UTC of the day after the vintage that states it, when that day has ended in US Central time.',
  confirmation:
    'When the times of its block and of the blocks that confirm it have passed; of a followed block, not before it arrived.',
} as const;

const KNOWN_OF: Readonly<Record<PartitionKind['kind'], keyof typeof KNOWN>> = {
  file_day: 'event_time',
  snapshot: 'event_time',
  capture: 'capture',
  vintage: 'vintage',
  height: 'confirmation',
};

const field = z.strictObject({
  name: textField('Name of the field in `fields` and `filters`.'),
  dtype: z.enum(DTYPES).describe('Type of the values in answers.'),
  nullable: flag('Whether values may be null.'),
  unit: z.string().nullable().describe('Unit of the value, if it has one.'),
  computed: z
    .literal(true)
    .optional()
    .describe(
      'Present where the vendor’s file of trades does not state the value: it is computed from what the file states.',
    ),
  doc: textField('Meaning of the field.'),
  known: z
    .enum(Object.keys(KNOWN) as (keyof typeof KNOWN)[])
    .describe('When a value is known; `known` has the meanings.'),
  carried: flag('Whether a frame carries the value to later buckets until the next one; of trades only with `fill`.'),
  aggregates: z
    .array(z.enum(AGGREGATES))
    .describe('How a frame makes a value of the field for a bucket; empty where frames do not take the field.'),
});

const mode = z.strictObject({
  view_id: textField('The view that `view_id` may pin.'),
  view_version: count('Version of the view.'),
  order: z.array(z.string()).describe('Fields that order the rows, ascending.'),
  series_key: z.array(z.string()).describe('Fields that distinguish series; empty for a dataset with a single series.'),
  fields: z
    .array(field)
    .describe('In documented order, which is also the order in an answer to a request without `fields`.'),
});

const rights = z.strictObject({
  rights_state: rightsState.nullable().describe('The rights state; null if it cannot be established.'),
  rights_provisional: z.boolean().nullable().describe('Whether the right is temporary.'),
  serving_state: z.enum(['promoted', 'shadow']).describe('A dataset in `shadow` is proved but not served.'),
  refused_with: problemCode
    .nullable()
    .describe(
      'The code with which the service refuses reads, of an exchange those of any instrument that the key covers; null if it serves them.',
    ),
});

const availability = z.strictObject({
  proved_from_utc: utc('Start of the proved rows.').nullable(),
  proved_through_utc: utc('Exclusive end of the proved rows.').nullable(),
  as_of_utc: utc('Time up to which every source is complete.').nullable(),
  partitions: count('Proved partitions.'),
  rows: count('Native rows of the proved partitions.'),
  synthetic: flag('Whether the dataset holds the sample: rows that no vendor published.'),
});

const dataset = z.strictObject({
  key: datasetKey,
  kind: textField('Kind of the dataset.'),
  title: textField('Title for people.'),
  doc: textField('Meaning of a row.'),
  sources: z.array(z.string()).describe('Keys of its sources in the rights matrix.'),
  partition_kind: textField('The unit of fetching, proving and replaying.'),
  historical_path: textField('Path of the route with date windows.'),
  klines_path: z.string().nullable().describe('Path of its klines, if it has trades.'),
  coverage_path: textField('Path of its coverage.'),
  conditions: z
    .array(z.enum(CONDITION_MEMBERS))
    .describe('What `/v1/conditions` says of its days beside the condition; all else has no meaning for it.'),
  modes: z.strictObject(membersOf(MODES, mode)),
  series: z
    .array(z.record(z.string(), z.string()))
    .describe('The proved series of a dataset with a series key, by the fields of the key.'),
  rights,
  availability,
});

export const datasetsAnswer = z.strictObject({
  datasets: z.array(dataset),
  operators: z
    .strictObject(membersOf(DTYPES, z.array(z.enum(OPERATORS))))
    .describe('The operators of a filter, by dtype of its field.'),
  known: z.record(z.string(), z.string()).describe('What the values of `known` of a field mean.'),
});

type DatasetsAnswer = z.input<typeof datasetsAnswer>;

/** The declarations of datasets, which do not change while the process runs. */
const declarations = new Map<string, ReturnType<typeof declare>>();

export function describeDataset(
  definition: DatasetDefinition,
  rightsReport: RightsReport,
  { series, ...available }: Available,
): DatasetsAnswer['datasets'][number] {
  let declared = declarations.get(definition.key);
  if (!declared) {
    declared = declare(definition);
    declarations.set(definition.key, declared);
  }
  return { ...declared, series: [...series], rights: rightsReport, availability: available };
}

function declare(definition: DatasetDefinition) {
  const { key, kind, title, doc, sources, partition, historicalPath, trades } = definition;
  return {
    key: datasetKey.parse(key),
    kind,
    title,
    doc,
    sources: [...sources],
    partition_kind: partition.kind,
    historical_path: `/v1/historical/${historicalPath}`,
    klines_path: trades ? `/v1/historical/${trades.klinesPath}` : null,
    coverage_path: `/v1/coverage/${key}`,
    conditions: [...conditionMembers(definition)],
    modes: { native: declareMode(definition, 'native'), aligned_1s: declareMode(definition, 'aligned_1s') },
  };
}

function declareMode(definition: DatasetDefinition, of: Mode): z.input<typeof mode> {
  const { view, order, fields } = shapeOf(definition, of);
  return {
    view_id: view.id,
    view_version: view.version,
    order: [...order],
    series_key: of === 'native' ? [] : [...definition.aligned.seriesKey],
    fields: fields.map((one) => declareField(definition, of, one)),
  };
}

function declareField(definition: DatasetDefinition, of: Mode, declared: Field): z.input<typeof field> {
  const { name, dtype, nullable, unit, computed, doc } = declared;
  const frame = frameFields(definition).find((one) => one.field.name === name && isRead(definition, one.mode, of));
  return {
    name,
    dtype,
    nullable,
    unit: unit ?? null,
    ...(computed && { computed }),
    doc,
    known: KNOWN_OF[definition.partition.kind],
    carried: !definition.trades,
    aggregates: frame ? aggregatesOf(definition, frame) : [],
  };
}

/** A frame reads the value of a derived metric from the native rows, whatever mode names it. */
const isRead = ({ aligned }: DatasetDefinition, read: Mode, of: Mode) =>
  read === of || aligned.valueField !== undefined;
