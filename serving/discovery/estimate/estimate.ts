/** Estimates the answer of a query without running it: a few queries of the catalog, whatever the length of the history. */

import { isoOf } from '../../../shared/dates.ts';
import type { Warning } from '../../contract/problems.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { Params } from '../../db/pg-messages.ts';
import type { TimeBudget } from '../../read/execute/read-deadline.ts';
import { dryRun, type FreshnessRule, type WarningEvaluation } from '../../read/execute/warnings.ts';
import { withBoundaryRows } from '../../read/plan/boundary-rows.ts';
import { contextOf, type LiveContext } from '../../read/plan/context.ts';
import { ruleOut } from '../../read/plan/ruled-out.ts';
import { slicesOf } from '../../read/plan/slices.ts';
import type { Searched } from '../../read/read-model.ts';
import { provedThrough } from '../../read/snapshot/proved-runs.ts';
import type { CoverageProbe, Session } from '../../read/snapshot/session.ts';
import type { Envelope } from '../../render/json-rows.ts';
import type { EstimateAnswer } from './bytes.ts';
import { type BudgetVerdict, estimateBytes, evaluateBudget } from './bytes.ts';
import { type Count, countRows, estimateByPlanner, isStored } from './counts.ts';

export interface EstimateRules {
  readonly freshness: FreshnessRule;
  readonly budget: TimeBudget;
}

export type Estimate = Omit<
  EstimateAnswer,
  'mode' | 'source' | 'sources' | 'view_id' | 'view_version' | 'rights_state' | 'rights_provisional'
>;

/** @throws ReadFault, StrictRefusal as the query would, before it reads. */
export async function estimate(
  session: Session,
  probe: CoverageProbe,
  request: ReadRequest,
  { freshness: rule, budget }: EstimateRules,
  envelopeOf: (evaluation: WarningEvaluation) => Envelope,
): Promise<Estimate> {
  const { live, evaluation } = await dryRun(session, probe, request, rule);
  const { window } = request;
  const ruled = request.filters.length > 0 ? await ruleOut(live) : undefined;
  const found = afterRuling(await findRows(live), ruled?.searched);
  const rows = 'rows' in window ? Math.min(window.rows, found.rows) : found.rows;
  const atMost = found.atMost === null || !('rows' in window) ? found.atMost : Math.min(window.rows, found.atMost);
  const verdict = evaluateBudget(
    window,
    { searched: found.searched, passing: found.rows, isFiltered: request.filters.length > 0 },
    budget,
  );
  // The size is that of rows as they would be shown; filters only select among them.
  const shown = { ...contextOf({ ...request, filters: [] }, live.snapshot), searched: live.searched };
  const asOfMs = provedThrough(live.coverage);
  return {
    rows,
    rows_is_exact: found.basis === 'counted' && found.isExact,
    rows_at_most: atMost,
    rows_basis: found.basis,
    rows_searched: found.searched,
    bytes: await estimateBytes(session, shown, rows, envelopeOf(evaluation)),
    partitions: found.partitions,
    ruled_out: ruled ? ruledOut(ruled.searched) : null,
    will_exceed_time_budget: verdict.exceeds,
    time: { budget_ms: verdict.budgetMs, first_row_ms: verdict.firstRowMs, scan_ms: verdict.scanMs },
    would_answer: expectedAnswer(rows, found.basis === 'counted' && found.isExact, verdict),
    as_of_utc: asOfMs === undefined ? null : isoOf(asOfMs),
    warnings: [...evaluation.warnings, ...timeWarnings(verdict, found.basis)],
  };
}

const ruledOut = ({ partitionsRead, partitionsSkipped, framesRead, framesSkipped }: Searched) => ({
  partitions_read: partitionsRead,
  partitions_skipped: partitionsSkipped,
  frames_read: framesRead,
  frames_skipped: framesSkipped,
});

/** Only rows of what is left can pass; where nothing is left, that is exact. */
function afterRuling(found: RowEstimate, searched: Searched | undefined): RowEstimate {
  if (!searched || searched.rows >= found.searched) return found;
  if (searched.rows === 0) return { ...ofCount({ rows: 0, isExact: true, partitions: found.partitions }), searched: 0 };
  const atMost = found.atMost === null ? null : Math.min(found.atMost, searched.rows);
  return { ...found, rows: Math.min(found.rows, searched.rows), atMost, searched: searched.rows };
}

interface RowEstimate {
  readonly rows: number;
  readonly isExact: boolean;
  readonly atMost: number | null;
  readonly basis: EstimateAnswer['rows_basis'];
  readonly searched: number;
  readonly partitions: number | null;
}

async function findRows(live: LiveContext): Promise<RowEstimate> {
  const { request, session, snapshot } = live;
  // The context of the window stays; only the fields and filters change.
  const requesting = (fewer: Partial<ReadRequest>): LiveContext => {
    const { relation, series } = contextOf({ ...request, ...fewer }, snapshot);
    return { ...live, request: { ...request, ...fewer }, relation, series };
  };
  const bare = requesting({ fields: [], filters: [] });
  const counted = await countRows(bare);
  const isFiltered = request.filters.length > 0;
  if (counted && (!isFiltered || (counted.isExact && counted.rows === 0))) return ofCount(counted);
  const filtered = requesting({ fields: [] });
  const withFields = requesting({ fields: request.filters.map(({ field }) => field).filter(isStored), filters: [] });
  const planned = await estimateByPlanner(session, { filtered, bare, withFields });
  const all = counted?.rows ?? Math.round(planned.rows / planned.sampled);
  const share = planned.rows === 0 ? 0 : planned.passing / planned.rows;
  const rows = planned.isBeyond ? 0 : Math.round(all * share);
  if (!isFiltered) {
    const few = await countFew(bare, all);
    if (few !== undefined) return ofCount({ rows: few, isExact: true, partitions: null });
  }
  return {
    rows,
    isExact: false,
    atMost: counted?.isExact ? counted.rows : null,
    basis: planned.hasStatistics ? 'statistics' : 'rules_of_thumb',
    searched: all,
    partitions: counted?.partitions ?? null,
  };
}

const ofCount = ({
  rows,
  isExact,
  partitions,
}: Omit<Count, 'partitions'> & { readonly partitions: number | null }): RowEstimate => ({
  rows,
  isExact,
  atMost: isExact ? rows : null,
  basis: 'counted',
  searched: rows,
  partitions,
});

/** Up to this many rows and slices, counting is as fast as estimating. */
const FEW_ROWS = 200_000;
const FEW_SLICES = 16;

/** Counts rows that no partition counts, if they are few: aligned rows of blocks, snapshots and metrics. */
async function countFew(context: LiveContext, expected: number): Promise<number | undefined> {
  const { session, relation, searched } = context;
  const slices = [...slicesOf(searched, relation.chunkMs)];
  if (expected > FEW_ROWS || slices.length > FEW_SLICES) return undefined;
  let total = 0;
  for await (const slice of withBoundaryRows(context, slices)) {
    const params = new Params();
    const [[rows]] = await session.rows(`select count(*)::text ${relation.from(slice, params)}`, params);
    total += Number(rows);
  }
  return total;
}

/** A read that expects no row can still run out of time before it finds that out. */
function expectedAnswer(rows: number, isCounted: boolean, { exceeds }: BudgetVerdict): EstimateAnswer['would_answer'] {
  if (exceeds && !(isCounted && rows === 0)) return { status: 503, code: 'QUERY_TIMEOUT' };
  return rows === 0 ? { status: 404, code: 'QUERY_NO_DATA' } : { status: 200, code: null };
}

function timeWarnings(
  { exceeds, budgetMs, firstRowMs, scanMs }: BudgetVerdict,
  basis: EstimateAnswer['rows_basis'],
): Warning[] {
  if (scanMs <= budgetMs) return [];
  const details = { budget_ms: budgetMs, first_row_ms: firstRowMs, scan_ms: scanMs, basis };
  return [
    exceeds
      ? {
          code: 'QUERY_TIMEOUT_LIKELY',
          message: `Few rows pass the filters, if any: the first is expected after ${firstRowMs} ms, and the budget is ${budgetMs} ms. Narrow the window.`,
          details,
        }
      : {
          code: 'QUERY_TIMEOUT_POSSIBLE',
          message: `A scan of all searched rows takes ${scanMs} ms, and a read has ${budgetMs} ms to find its next row. Narrow the window if it times out.`,
          details,
        },
  ];
}
