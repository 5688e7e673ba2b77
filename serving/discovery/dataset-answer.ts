/** What GET /v1/datasets says of one dataset. */
import { z } from 'zod';
import { type DatasetDefinition, DTYPES, type Field, type Mode, shapeOf } from '../../shared/registry/index.ts';
import { OPERATORS } from '../contract/filters.ts';
import { MODES } from '../contract/shapes.ts';
import type { RightsReport } from '../rights/gate.ts';
import type { Availability } from './availability.ts';
import { count, datasetKey, flag, membersOf, problemCode, rightsState, text, utc } from './schemas.ts';

const field = z.strictObject({
  name: text('As `fields` and `filters` name it.'),
  dtype: z.enum(DTYPES).describe('Type of its values in answers.'),
  nullable: flag('Whether null occurs.'),
  unit: z.string().nullable().describe('Unit of the value, where it has one.'),
  doc: text('What it is.'),
});

const mode = z.strictObject({
  view_id: text('The view that `view_id` may pin.'),
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
  kind: text('Its family.'),
  title: text('For people.'),
  doc: text('What its rows are.'),
  sources: z.array(z.string()).describe('Keys of the rights matrix that feed it.'),
  partition_kind: text('What is fetched, proved and replayed together.'),
  historical_path: text('Its route with date windows.'),
  klines_path: z.string().nullable().describe('Its klines, where it has trades.'),
  coverage_path: text('Its coverage.'),
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
