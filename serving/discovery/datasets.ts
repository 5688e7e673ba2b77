/** What GET /v1/datasets says of one dataset. */

import { z } from 'zod';
import { parseMultirange } from '../../shared/ranges.ts';
import { DATASETS, type DatasetDefinition, DTYPES, type Field, shapeOf } from '../../shared/registry/index.ts';
import type { Mode } from '../../shared/registry/types.ts';
import { OPERATORS } from '../contract/filters.ts';
import { MODES } from '../contract/shapes.ts';
import { isoOf } from '../contract/time.ts';
import type { Session } from '../read/snapshot/session.ts';
import type { RightsReport } from '../rights/gate.ts';
import { count, datasetKey, flag, membersOf, problemCode, rightsState, textField, utc } from './schemas.ts';

/* How much of each dataset is proved, at one moment. */

export interface Availability {
  /** Of the oldest row and exclusive of the newest; null while nothing is proved. */
  readonly proved_from_utc: string | null;
  readonly proved_through_utc: string | null;
  /** Until when every source is complete: the oldest of their ends. */
  readonly as_of_utc: string | null;
  readonly partitions: number;
  readonly rows: number;
  /** The sample: rows that no vendor published. */
  readonly synthetic: boolean;
}

const NOTHING: Availability = {
  proved_from_utc: null,
  proved_through_utc: null,
  as_of_utc: null,
  partitions: 0,
  rows: 0,
  synthetic: false,
};

const DAYS = [...DATASETS.values()].filter(({ native }) => native.scope.kind === 'window');

/**
 * By number of the dataset. Where a dataset has spans they are counted already, and a source's end is that of its last
 * run; file days are few enough to be counted.
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
    using (dataset_id)`;

export async function readAvailability(session: Session): Promise<(dataset: DatasetDefinition) => Availability> {
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

const field = z.strictObject({
  name: textField('As `fields` and `filters` name it.'),
  dtype: z.enum(DTYPES).describe('Type of its values in answers.'),
  nullable: flag('Whether null occurs.'),
  unit: z.string().nullable().describe('Unit of the value, where it has one.'),
  doc: textField('What it is.'),
});

const mode = z.strictObject({
  view_id: textField('The view that `view_id` may pin.'),
  view_version: count('Its version.'),
  order: z.array(z.string()).describe('What rows are ordered by, ascending.'),
  series_key: z
    .array(z.string())
    .describe('Fields that tell one series from another; none: the dataset is one series.'),
  fields: z.array(field).describe('In documented order, which is the order of an answer that asks for no fields.'),
});

const rights = z.strictObject({
  rights_state: rightsState.nullable().describe('Null: the rights of the dataset cannot be established.'),
  rights_provisional: z.boolean().nullable().describe('A temporary hosted path.'),
  serving_state: z.enum(['promoted', 'shadow']).describe('In shadow a dataset is proved and not served.'),
  refused_with: problemCode
    .nullable()
    .describe('The code that every read of it is refused with now; null: it is served.'),
});

const availability = z.strictObject({
  proved_from_utc: utc('Start of what is proved.').nullable(),
  proved_through_utc: utc('Its exclusive end.').nullable(),
  as_of_utc: utc('Until when every source is complete.').nullable(),
  partitions: count('Proved partitions.'),
  rows: count('Their native rows.'),
  synthetic: flag('It is the sample: rows that no vendor published.'),
});

const dataset = z.strictObject({
  key: datasetKey,
  kind: textField('Its family.'),
  title: textField('For people.'),
  doc: textField('What its rows are.'),
  sources: z.array(z.string()).describe('Keys of the rights matrix that feed it.'),
  partition_kind: textField('What is fetched, proved and replayed together.'),
  historical_path: textField('Its route with date windows.'),
  klines_path: z.string().nullable().describe('Its klines, where it has trades.'),
  coverage_path: textField('Its coverage.'),
  modes: z.strictObject(membersOf(MODES, mode)),
  rights,
  availability,
});

export const datasetsAnswer = z.strictObject({
  datasets: z.array(dataset),
  operators: z
    .strictObject(membersOf(DTYPES, z.array(z.enum(OPERATORS))))
    .describe('The operators a filter takes, by dtype of its field.'),
});

export type DatasetsAnswer = z.input<typeof datasetsAnswer>;

/** What does not change while the process lives. */
const declarations = new Map<string, ReturnType<typeof declare>>();

export function describeDataset(
  definition: DatasetDefinition,
  rightsReport: RightsReport,
  available: Availability,
): DatasetsAnswer['datasets'][number] {
  let declared = declarations.get(definition.key);
  if (!declared) {
    declared = declare(definition);
    declarations.set(definition.key, declared);
  }
  return { ...declared, rights: rightsReport, availability: available };
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
    fields: fields.map(declareField),
  };
}

const declareField = ({ name, dtype, nullable, unit, doc }: Field) => ({
  name,
  dtype,
  nullable,
  unit: unit ?? null,
  doc,
});
