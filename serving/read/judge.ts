/** What an answer has to say beside its rows: the same for a read, for the estimate of it, and for an export's submit. */
import type { Settings } from '../../shared/config/settings.ts';
import type { Warning } from '../contract/problems.ts';
import { clockOf } from './as-of.ts';
import { contextOf, type LiveContext } from './context.ts';
import { boundsOf, type Coverage, provedThrough } from './coverage.ts';
import { ReadFault, StrictRefusal } from './faults.ts';
import { type Freshness, freshnessOf, mutableWindowWarning, staleWarning } from './freshness.ts';
import { coverageWarning, type Gap, gapsWithin } from './gaps.ts';
import { narrowed } from './plan.ts';
import { type QualityLimits, qualityWarnings } from './quality/warnings.ts';
import type { Look, Session } from './session.ts';
import type { ReadRequest } from './types.ts';

export interface FreshnessRule extends QualityLimits {
  readonly alignedMaxAgeSeconds: number;
}

export const freshnessRule = (settings: Settings, now: () => number = Date.now): FreshnessRule => ({
  alignedMaxAgeSeconds: settings.SVC_ALIGNED_FRESHNESS_MAX_AGE_SECONDS,
  now,
  maxAgeDays: (name) => settings[name] as number | undefined,
});

export interface Judgement {
  readonly warnings: readonly Warning[];
  readonly freshness: Freshness | null;
}

/** What there is to say of a window, looked up where that takes a look. */
export interface Findings {
  readonly coverage: Coverage;
  readonly gaps: readonly Gap[];
  /** What the dataset's own rules find. */
  readonly quality: readonly Warning[];
}

export function judge(
  request: ReadRequest,
  { coverage, gaps, quality }: Findings,
  { now, alignedMaxAgeSeconds }: FreshnessRule,
): Judgement {
  const asOfMs = provedThrough(coverage);
  const warnings = [...mutableWindowWarning(request.window), ...coverageWarning(coverage, gaps), ...quality];
  if (request.mode === 'native' || asOfMs === undefined) return { warnings, freshness: null };
  const freshness = freshnessOf(asOfMs, clockOf(request, now()));
  warnings.push(...staleWarning(freshness, asOfMs, request.window, alignedMaxAgeSeconds));
  return { warnings, freshness };
}

/**
 * A request judged without being read: every warning that its answer would carry, but for gaps that only the reading of
 * the latest rows shows.
 * @throws ReadFault, StrictRefusal as the read would, before it reads.
 */
export async function foresee(
  session: Session,
  look: Look,
  request: ReadRequest,
  rule: FreshnessRule,
): Promise<{ readonly live: LiveContext; readonly judgement: Judgement }> {
  const context = { ...contextOf(request, look.snapshot()), session };
  const { violation } = context.snapshot;
  if (violation !== undefined) throw new ReadFault('aligned_contract', violation);
  const live = await narrowed(context);
  const { coverage } = live;
  // How far back the latest rows reach is not looked at.
  const gaps = request.window.kind === 'latest' ? [] : gapsWithin(coverage, boundsOf(coverage, request.window));
  const quality = await qualityWarnings(live, rule);
  const judgement = judge(request, { coverage, gaps, quality }, rule);
  if (request.strict && judgement.warnings.length > 0) throw new StrictRefusal(judgement.warnings);
  return { live, judgement };
}
