/**
 * What the planner knows of a request: how many rows it has, and how many of them pass the filters. A few chunks spread
 * over the window are asked, and nothing is run. On chunks without statistics (loaded a minute ago) the planner goes by
 * rules of thumb, which is said.
 */
import type { Field } from '../../../shared/registry/index.ts';
import { array, Params, text } from '../../db/params.ts';
import type { PlanContext } from '../../read/context.ts';
import type { Relation } from '../../read/relation.ts';
import type { Session } from '../../read/session.ts';
import type { Slice } from '../../read/slices.ts';
import { placesIn } from './places.ts';

export interface Guess {
  /** Rows of the chunks asked, before and after the filters. */
  readonly rows: number;
  readonly passing: number;
  /** Of the window's time, the part that was asked about. */
  readonly asked: number;
  /** A filter asks for what lies beyond the lowest or highest value known: nothing is likely to pass. */
  readonly isBeyond: boolean;
  readonly hasStatistics: boolean;
}

const CHUNKS = 4;
/** Filters that are looked at one by one; more than a person writes. */
const MAX_FILTERS = 8;
/** The planner gives what lies beyond its histogram a ten-thousandth; twice that is as good as none. */
const BEYOND = 2e-4;

export async function guessRows(
  session: Session,
  /** The request as it is and without its filters, of neither any field; and with nothing but the fields filtered on. */
  {
    filtered,
    bare,
    sided,
  }: { readonly filtered: PlanContext; readonly bare: PlanContext; readonly sided: PlanContext },
): Promise<Guess> {
  const slices = chunksOf(filtered);
  const relations = new Set<string>();
  const explain = async (relation: Relation, slice: Slice, test?: (params: Params) => string) => {
    const params = new Params();
    const where = test?.(params);
    const [[json]] = await session.rows(
      `explain (format json) select 1 ${relation.from(slice, params, { where })}`,
      params,
    );
    const [{ Plan: plan }] = JSON.parse(json!) as [{ Plan: PlanNode }];
    const scanned = relationsOf(plan);
    for (const name of scanned) relations.add(name);
    return { rows: plan['Plan Rows'], scanned: scanned.length };
  };
  const sides = filtered.request.filters
    .filter(({ field }) => !narrows(filtered, field) && isStored(field))
    .slice(0, MAX_FILTERS)
    .map((filter) => filter.sides ?? []);
  const isBeyond = sides.map((tests) => tests.map(() => slices.length > 0));
  let rows = 0;
  let passing = 0;
  for (const slice of slices) {
    const { rows: all } = await explain(bare.relation, slice);
    rows += all;
    passing += (await explain(filtered.relation, slice)).rows;
    for (const [index, tests] of sides.entries()) {
      for (const [side, test] of tests.entries()) {
        const { rows: beyond, scanned } = await explain(sided.relation, slice, test);
        // Beyond in one chunk may be within in another. One row is the least the planner expects of each.
        isBeyond[index][side] &&= beyond <= Math.max(scanned, all * BEYOND);
      }
    }
  }
  const whole = filtered.searched.reduce((sum, { from, to }) => sum + to - from, 0);
  return {
    rows,
    passing: Math.min(passing, rows),
    asked: whole === 0 ? 1 : slices.reduce((sum, { from, to }) => sum + to - from, 0) / whole,
    isBeyond: isBeyond.flat().includes(true),
    hasStatistics: await haveStatistics(session, [...relations]),
  };
}

/** Filters on time and identity chose what is searched: there the values are. */
function narrows({ request: { dataset, mode }, relation }: PlanContext, field: Field): boolean {
  return relation.isTime(field) || (mode === 'native' && field.sql === `t.${dataset.native.identity[0]}`);
}

/** Ends of validity are made by the statement that reads them: the planner knows nothing of their values. */
export const isStored = (field: Field): boolean => field.columns.length > 0 && !field.name.startsWith('valid_');

interface PlanNode {
  readonly 'Plan Rows': number;
  readonly 'Relation Name'?: string;
  readonly Plans?: readonly PlanNode[];
}

const relationsOf = (plan: PlanNode): string[] => [
  ...(plan['Relation Name'] === undefined ? [] : [plan['Relation Name']]),
  ...(plan.Plans ?? []).flatMap(relationsOf),
];

async function haveStatistics(session: Session, names: readonly string[]): Promise<boolean> {
  if (names.length === 0) return false;
  const params = new Params();
  const list = params.add(array(names.map(text)));
  const [[known]] = await session.rows(
    `select count(distinct tablename)::text from pg_stats where tablename = any (${list})`,
    params,
  );
  return Number(known) > 0;
}

/** Chunks at even distances in what is searched; all of it, where that is no more. */
function chunksOf({ searched, relation: { chunkMs } }: PlanContext): Slice[] {
  const whole = searched.reduce((sum, { from, to }) => sum + to - from, 0);
  if (whole > CHUNKS * chunkMs) return placesIn(searched, CHUNKS, chunkMs);
  return searched.slice(0, CHUNKS).map((part) => ({ from: part.from, to: part.to, part }));
}
