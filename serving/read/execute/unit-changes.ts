/**
 * Warns where an answer has one series in several units. Each vintage has its own unit: when a source gave an index another
 * base, the values before and after it do not compare.
 */
import { assert } from '../../../shared/errors.ts';
import { type Field, shapeOf } from '../../../shared/registry/index.ts';
import { nativeRows } from '../../../shared/registry/instruments.ts';
import { isOfPartition } from '../../../shared/registry/keys.ts';
import type { Warning } from '../../contract/problems.ts';
import { array, Params, text } from '../../db/pg-messages.ts';
import { withBoundaryRows } from '../plan/boundary-rows.ts';
import { contextOf, type LiveContext } from '../plan/context.ts';
import { planLatest } from '../plan/latest.ts';
import { slicesOf } from '../plan/slices.ts';
import { admits, knownTest, within } from '../snapshot/proved-runs.ts';
import { narrowed } from './plan-read.ts';

/** The units of each source that has several, whether or not an answer has them. */
export type Units = ReadonlyMap<string, readonly string[]>;

/** Steps from unit to unit along their index, so that it takes no longer the more rows there are. */
export async function unitsOf({ request, session }: LiveContext): Promise<Units> {
  const { dataset, filters } = request;
  if (dataset.quality?.kind !== 'published') return new Map();
  const table = nativeRows(dataset);
  const params = new Params();
  const ids = Object.keys(dataset.quality.sources).filter((id) => admits(filters, id));
  if (ids.length === 0) return new Map();
  const next = (test: string) =>
    `select t.metric_unit from ${table} t where t.source_id = s.id${test} order by t.metric_unit limit 1`;
  const rows = await session.rows(
    `select s.id, u.metric_unit from unnest(${params.add(array(ids.map(text)))}) s (id), lateral (
       with recursive u as (
         (${next('')}) union all
         select n.metric_unit from u, lateral (${next(' and t.metric_unit > u.metric_unit')}) n)
       select metric_unit from u) u order by 1, 2`,
    params,
  );
  const units = Map.groupBy(rows, ([id]) => id!);
  return new Map(
    [...units].flatMap(([id, own]) => (own.length > 1 ? [[id, own.map(([, unit]) => unit!)] as const] : [])),
  );
}

/** The warning about the rows that the request selects; a sample is judged by the rows that it is drawn from. */
export async function unitWarnings(context: LiveContext): Promise<Warning[]> {
  const units = await unitsOf(context);
  return units.size === 0 ? [] : await unitWarning(context, await unitsIn(await narrowed(context), units));
}

const SELECTED = ['source_id', 'metric_name', 'metric_unit'];

/** The units in the rows that the request selects, by source. */
async function unitsIn(context: LiveContext, among: Units): Promise<Units> {
  const { request, snapshot, session, carried, parts } = context;
  const { fields } = shapeOf(request.dataset, request.mode);
  const selected = SELECTED.map((name) => fields.find((field) => field.name === name)!);
  const since = request.window.kind === 'latest' ? (await planLatest(context, request.window.rows)).since : undefined;
  const from = since?.ms ?? Number.NEGATIVE_INFINITY;
  const searched = within(context.searched, { from, to: Number.POSITIVE_INFINITY });
  const rows = { ...contextOf({ ...request, fields: selected }, snapshot), session, carried, parts, searched };
  const found = new Map<string, Set<string>>();
  for await (const slice of withBoundaryRows(rows, slicesOf(searched, rows.relation.chunkMs))) {
    const params = new Params();
    const ofSources = `t.source_id = any (${params.add(array([...among.keys()].map(text)))})`;
    const where = since ? `${ofSources} and ${rows.relation.fromKey(since.key, params)}` : ofSources;
    const cells = selected.map((field: Field) => field.sql).join(', ');
    const units = await session.rows(
      `select distinct ${cells} ${rows.relation.from(slice, params, { where })}`,
      params,
    );
    for (const [id, , unit] of units) found.set(id!, (found.get(id!) ?? new Set()).add(unit!));
  }
  return new Map([...found].map(([id, units]) => [id, [...units]]));
}

interface Holding {
  readonly sourceId: string;
  readonly metricName: string;
  readonly unit: string;
  /** The first vintage with the unit, or the first that has it again. */
  readonly fromVintage: string;
}

/** @param found the units that the answer has, by source */
export async function unitWarning(context: LiveContext, found: Units): Promise<Warning[]> {
  const { quality } = context.request.dataset;
  const changing = [...found].filter(([, units]) => units.length > 1);
  if (changing.length === 0) return [];
  assert(quality?.kind === 'published', 'only series that are published have units of their own');
  const holdings = await holdingsOf(
    context,
    changing.map(([id]) => id),
  );
  const shown = holdings.filter(({ sourceId, unit }) => found.get(sourceId)!.includes(unit));
  const sources = [...Map.groupBy(shown, ({ sourceId, metricName }) => `${sourceId} ${metricName}`).values()].map(
    (own) => ({
      source_id: own[0].sourceId,
      metric_name: own[0].metricName,
      units: own.map(({ unit, fromVintage }) => ({ unit, from_vintage: fromVintage })),
    }),
  );
  const described = sources.map(({ source_id, units }) => {
    const each = units.map(({ unit, from_vintage }) => `${unit} from the vintage of ${from_vintage} on`);
    return `${source_id} is in ${each.join(', in ')}`;
  });
  return [
    {
      code: quality.codes.units,
      message: `The unit changes within a series, and values in different units do not compare: ${described.join('; ')}.`,
      details: { sources },
    },
  ];
}

/** From which vintage each unit of a series holds: of all that is proved, and as of a time, that was known then. */
async function holdingsOf({ request, session }: LiveContext, ids: readonly string[]): Promise<Holding[]> {
  const { number } = request.dataset;
  const known = knownTest(request);
  const params = new Params();
  const rows = await session.rows(
    `select source_id, metric_name, metric_unit, vintage from (
       select v.*, lag(v.metric_unit) over (partition by v.source_id, v.metric_name order by v.vintage) as before
       from (select distinct t.source_id, t.metric_name, t.metric_unit, t.vintage
         from ${nativeRows(request.dataset)} t join partitions p on p.dataset_id = ${number} and ${isOfPartition()}
         where p.state = 'proved' and t.source_id = any (${params.add(array(ids.map(text)))})
           ${known === undefined ? '' : `and ${known}`}) v) r
     where before is distinct from metric_unit order by source_id, metric_name, vintage`,
    params,
  );
  return rows.map(([sourceId, metricName, unit, fromVintage]) => {
    return { sourceId: sourceId!, metricName: metricName!, unit: unit!, fromVintage: fromVintage! };
  });
}
