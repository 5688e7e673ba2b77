/**
 * The warnings of an answer: by the dataset's own quality rules, by coverage, by freshness, and by the kind of window. A read,
 * its estimate and an export's submission evaluate the same rules.
 */
import { type Settings, settingValue } from '../../../shared/config/settings.ts';
import { DAY_MS, dayKey, isoOf, marketDaysSince } from '../../../shared/dates.ts';
import { expectedOf, type Range } from '../../../shared/ranges.ts';
import type { DatasetDefinition, QualityRule } from '../../../shared/registry/definition.ts';
import { listedRanges } from '../../../shared/status/instruments.ts';
import type { Warning } from '../../contract/problems.ts';
import type { ReadRequest, Window } from '../../contract/read-request.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import { withCarriedIn } from '../plan/boundary-rows.ts';
import { contextOf, type LiveContext } from '../plan/context.ts';
import { ContractViolation, StrictRefusal } from '../read-model.ts';
import {
  admits,
  boundsOf,
  type Coverage,
  clockOf,
  coverageWarning,
  type Gap,
  gapsWithin,
  knownTest,
  provedThrough,
} from '../snapshot/proved-runs.ts';
import type { CoverageProbe, Session } from '../snapshot/session.ts';
import { secondsOf } from '../sql/relation.ts';
import { narrowed, planRead } from './plan-read.ts';
import { reachOf, silenceWarnings } from './silences.ts';
import { unitWarnings } from './unit-changes.ts';

/** A rule, and the time it is evaluated for. */
interface Evaluation<Kind extends QualityRule['kind']> {
  readonly rule: Extract<QualityRule, { readonly kind: Kind }>;
  /** The day that counts as today: now, or the end of a window that ended earlier. */
  readonly clockMs: number;
  readonly maxAgeDays: number | undefined;
}

/** A message lists at most this many names; the details list all of them. */
const MAX_NAMES = 12;

const listed = (names: readonly string[]): string =>
  names.length <= MAX_NAMES
    ? names.join(', ')
    : `${names.slice(0, MAX_NAMES).join(', ')} and ${names.length - MAX_NAMES} more`;

/** The latest day with rows in the window, and the sources that have rows of that day. */
interface Latest {
  readonly ms: number;
  readonly sources: readonly string[];
}

/** For sources that publish every market day: evaluates the latest day with rows in the window. */
async function dailyWarnings(
  context: LiveContext,
  { rule, clockMs, maxAgeDays = Number.POSITIVE_INFINITY }: Evaluation<'daily'>,
): Promise<Warning[]> {
  const { request } = context;
  const expected = request.dataset.sources.filter((id) => admits(request.filters, id));
  if (expected.length === 0) return [];
  const latest = (await observedIn(context)) ?? (await carriedInto(context));
  if (!latest) {
    const message = `The window holds no rows of any day: ${listed(expected)}.`;
    return [{ code: rule.codes.missing, message, details: { latest_day: null, sources: expected } }];
  }
  const day = dayKey(latest.ms);
  const today = dayKey(clockMs);
  const warnings: Warning[] = [];
  const missing = expected.filter((id) => !latest.sources.includes(id));
  if (missing.length > 0) {
    warnings.push({
      code: rule.codes.missing,
      message: `No rows of ${day}, the latest day in the window: ${listed(missing)}.`,
      details: { latest_day: day, sources: missing },
    });
  }
  const age = marketDaysSince(day, today);
  if (age > maxAgeDays) {
    warnings.push({
      code: rule.codes.stale,
      message: `The latest day in the window is ${day}, ${age} market days before ${today}; at most ${maxAgeDays} are fresh: ${listed(expected)}.`,
      details: { latest_day: day, today, age_market_days: age, max_age_market_days: maxAgeDays, sources: expected },
    });
  }
  const there = { ...latest, sources: expected.filter((id) => latest.sources.includes(id)) };
  const incomplete = await lacking(context, there, rule.required);
  if (incomplete.length > 0) {
    const named = incomplete.map(({ source_id, metrics }) => `${source_id} (${metrics.join(', ')})`);
    warnings.push({
      code: rule.codes.incomplete,
      message: `Without a value on ${day}, the latest day in the window: ${listed(named)}.`,
      details: { latest_day: day, sources: incomplete },
    });
  }
  return warnings;
}

/** The latest observed day by partitions alone: all rows of a partition are of its day. */
async function observedIn({ session, request }: LiveContext): Promise<Latest | undefined> {
  const { dataset, filters, window } = request;
  const { fromMs, toMs }: { readonly fromMs?: number; readonly toMs?: number } = window.kind === 'range' ? window : {};
  const knownThen = knownTest(request);
  const params = new Params();
  const ids = params.add(array(dataset.sources.filter((id) => admits(filters, id)).map(text)));
  const rows = await session.rows(
    `with held as (select p.source_id, p.from_ms from partitions p
       where p.dataset_id = ${params.add(int2(dataset.number))} and p.state = 'proved' and p.rows > 0 and p.source_id = any (${ids})
       ${fromMs === undefined ? '' : `and p.from_ms >= ${params.add(int8(fromMs))}`}
       ${toMs === undefined ? '' : `and p.from_ms < ${params.add(int8(toMs))}`}
       ${knownThen === undefined ? '' : `and ${knownThen}`})
     select distinct from_ms::text, source_id from held where from_ms = (select max(from_ms) from held)`,
    params,
  );
  return rows.length === 0 ? undefined : { ms: Number(rows[0][0]), sources: rows.map(([, id]) => id!) };
}

/** The latest day whose rows are still valid in the window although they were observed before it. */
async function carriedInto(context: LiveContext): Promise<Latest | undefined> {
  const { relation, request } = context;
  if (!relation.isState) return undefined;
  const { carried, series } = await withCarriedIn(context);
  if (carried.length === 0) return undefined;
  const ms = Math.max(...carried.map((row) => row.ms));
  const sourceIndex = request.dataset.aligned.seriesKey.indexOf('source_id');
  const sourceOf = new Map(series.map(({ id, key }) => [id, key[sourceIndex]]));
  const sources = carried.filter((row) => row.ms === ms).map(({ seriesId }) => sourceOf.get(seriesId)!);
  return { ms, sources };
}

/** The required metrics that are missing or without a value, by source of the day. */
async function lacking(
  { session, request }: LiveContext,
  { ms, sources }: Latest,
  required: readonly string[],
): Promise<{ readonly source_id: string; readonly metrics: readonly string[] }[]> {
  const params = new Params();
  const test = `t.source_id = any (${params.add(array(sources.map(text)))})
    and t.metric_name = any (${params.add(array(required.map(text)))})`;
  const found = await session.rows(
    // Several captures of a day reduce to the one that is served as the day's state.
    `select distinct m.source_id, m.metric_name from (${secondsOf(request, { from: ms, to: ms + 1 }, test)}) m
     where m.metric_value_string is not null`,
    params,
  );
  const have = new Set(found.map(([id, name]) => `${id} ${name}`));
  return sources
    .map((id) => ({ source_id: id, metrics: required.filter((name) => !have.has(`${id} ${name}`)) }))
    .filter(({ metrics }) => metrics.length > 0);
}

/** For sources that state when they last published: warns when no row has that time, and when it is long ago. */
async function publishedWarnings(
  context: LiveContext,
  { rule, clockMs, maxAgeDays }: Evaluation<'published'>,
): Promise<Warning[]> {
  const sources = Object.entries(rule.sources).filter(([id]) => admits(context.request.filters, id));
  const published = await lastPublished(context);
  const today = dayKey(clockMs);
  const missing = sources.flatMap(([id]) => (published.has(id) ? [] : [id]));
  const stale = sources.flatMap(([id, cadence]) => {
    const at = published.get(id);
    const age = at === undefined ? 0 : Math.floor(clockMs / DAY_MS) - Math.floor(at / DAY_MS);
    const limit = maxAgeDays ?? cadence;
    return at !== undefined && age > limit ? [{ id, at, age, limit }] : [];
  });
  const end = Number.isFinite(context.endMs) ? isoOf(context.endMs) : null;
  return [
    ...(missing.length > 0
      ? [
          {
            code: rule.codes.missing,
            message: `No proved row${end === null ? '' : ` up to ${end}`} tells when its source last published: ${listed(missing)}.`,
            details: { sources: missing, window_end: end },
          },
        ]
      : []),
    ...(stale.length > 0
      ? [
          {
            code: rule.codes.stale,
            message: `Published long before ${today}: ${listed(
              stale.map(({ id, at, age, limit }) => `${id} on ${dayKey(at)}, ${age} days, at most ${limit} are fresh`),
            )}.`,
            details: {
              today,
              sources: stale.map(({ id, at, age, limit }) => ({
                source_id: id,
                last_updated_utc: isoOf(at),
                age_days: age,
                max_age_days: limit,
              })),
            },
          },
        ]
      : []),
  ];
}

/**
 * By source, the latest time of publication in proved rows up to the window's end. All rows of a partition share that time.
 * As of a time, a publication counts no later than its vintage became known: the fetch learned of it later.
 */
async function lastPublished({ session, request, endMs }: LiveContext): Promise<ReadonlyMap<string, number>> {
  const { number, partition } = request.dataset;
  const known = knownTest(request);
  const params = new Params();
  const stated = 'extract(epoch from p.last_updated_at) * 1000';
  const at =
    known === undefined || partition.kind !== 'vintage'
      ? stated
      : `least(${stated}, lower(p.span) + ${partition.knownAfterMs})`;
  const rows = await session.rows(
    `select p.source_id, floor(max(${at}))::int8::text from partitions p
     where p.dataset_id = ${params.add(int2(number))} and p.state = 'proved' and p.rows > 0 and p.last_updated_at is not null
       ${Number.isFinite(endMs) ? `and p.from_ms <= ${params.add(int8(endMs))}` : ''}
       ${known === undefined ? '' : `and ${known}`} group by p.source_id`,
    params,
  );
  return new Map(rows.map(([id, ms]) => [id!, Number(ms)]));
}

interface QualityLimits {
  readonly now: () => number;
  /** The value of a setting in days, if it is set. */
  readonly maxAgeDays: (name: string) => number | undefined;
}

/** @param untilMs the end that the request gave its window */
export async function qualityWarnings(
  context: LiveContext,
  limits: QualityLimits,
  untilMs = context.endMs,
): Promise<Warning[]> {
  const { quality: rule } = context.request.dataset;
  if (!rule) return [];
  const clockMs = Math.min(clockOf(context.request, limits.now()), untilMs);
  const evaluation = { clockMs, maxAgeDays: limits.maxAgeDays(rule.maxAgeDays) };
  return rule.kind === 'daily'
    ? await dailyWarnings(context, { ...evaluation, rule })
    : await publishedWarnings(context, { ...evaluation, rule });
}

export interface Freshness {
  readonly as_of_utc: string;
  readonly lag_seconds: number;
}

function freshnessOf(asOfMs: number, nowMs: number): Freshness {
  return { as_of_utc: isoOf(asOfMs), lag_seconds: Math.max(0, Math.floor((nowMs - asOfMs) / 1000)) };
}

/** Only a window that reaches past what is proved can be stale; a window in the past is complete. */
function staleWarning(freshness: Freshness, asOfMs: number, window: Window, maxAgeSeconds: number): Warning[] {
  const end = window.kind === 'range' ? window.toMs : undefined;
  if (end !== undefined && end <= asOfMs) return [];
  if (freshness.lag_seconds <= maxAgeSeconds) return [];
  return [
    {
      code: 'ALIGNED_FRESHNESS_STALE',
      message: `Aligned rows are proved through ${freshness.as_of_utc}, ${freshness.lag_seconds} s ago; at most ${maxAgeSeconds} s is fresh.`,
      details: { ...freshness, max_age_seconds: maxAgeSeconds },
    },
  ];
}

/** Warns of windows that another moment, or another seed, would answer differently. It reads nothing. */
export function mutableWindowWarning(window: Window): Warning[] {
  if (window.kind === 'latest') {
    return [
      {
        code: 'WINDOW_LATEST_ROWS_MUTABLE',
        message: 'The latest rows change as partitions are proved.',
        details: { [window.selector]: window.rows },
      },
    ];
  }
  if (window.kind === 'random') {
    return [
      {
        code: 'WINDOW_RANDOM_SAMPLE',
        message: 'The rows are a random sample; the same random_seed over the same proved rows gives it again.',
        details: { [window.selector]: window.rows, random_seed: window.seed },
      },
    ];
  }
  return [];
}

export interface FreshnessRule extends QualityLimits {
  readonly alignedMaxAgeSeconds: number;
  /** The value of a setting in seconds. */
  readonly intervalSeconds: (name: string) => number | undefined;
  /** When an instrument is listed, as far as the operator says. Outside of it nothing is missing. */
  readonly listed?: (dataset: DatasetDefinition) => readonly Range[] | undefined;
}

export const freshnessRule = (settings: Settings, now: () => number = Date.now): FreshnessRule => ({
  alignedMaxAgeSeconds: settings.SVC_ALIGNED_FRESHNESS_MAX_AGE_SECONDS,
  now,
  maxAgeDays: (name) => settingValue(settings, name) as number | undefined,
  intervalSeconds: (name) => settingValue(settings, name) as number | undefined,
  listed: (dataset) => listedRanges(settings, dataset),
});

export interface WarningEvaluation {
  readonly warnings: readonly Warning[];
  readonly freshness: Freshness | null;
}

/** The findings about a window that needed a probe-up. */
interface WindowFindings {
  readonly coverage: Coverage;
  readonly gaps: readonly Gap[];
  /** The warnings of the dataset's own rules. */
  readonly quality: readonly Warning[];
}

export function evaluateWarnings(
  request: Pick<ReadRequest, 'dataset' | 'mode' | 'window' | 'asOfMs'>,
  { coverage, gaps, quality }: WindowFindings,
  { now, alignedMaxAgeSeconds, listed }: FreshnessRule,
): WarningEvaluation {
  const asOfMs = provedThrough(coverage);
  const missing = expectedOf(gaps, listed?.(request.dataset));
  const warnings = [...mutableWindowWarning(request.window), ...coverageWarning(coverage, missing), ...quality];
  if (request.mode === 'native' || asOfMs === undefined) return { warnings, freshness: null };
  const freshness = freshnessOf(asOfMs, clockOf(request, now()));
  warnings.push(...staleWarning(freshness, asOfMs, request.window, alignedMaxAgeSeconds));
  return { warnings, freshness };
}

/**
 * Evaluates a request without reading its rows. It returns every warning that the answer would carry, except for gaps that
 * only reading the latest rows reveals.
 * @throws ReadFault, StrictRefusal as the read would, before it reads.
 */
export async function dryRun(
  session: Session,
  probe: CoverageProbe,
  request: ReadRequest,
  rule: FreshnessRule,
): Promise<{ readonly live: LiveContext; readonly evaluation: WarningEvaluation }> {
  const context = { ...contextOf(request, probe.snapshot()), session };
  const { violation } = context.snapshot;
  if (violation !== undefined) throw new ContractViolation(request.dataset, violation);
  const live = await narrowed(context);
  const { coverage } = live;
  // How far back the latest rows reach is unknown here.
  const gaps = request.window.kind === 'latest' ? [] : gapsWithin(coverage, boundsOf(coverage, request.window));
  const isReachAsked = request.silences !== undefined && request.window.kind === 'latest';
  const latest = isReachAsked ? await planRead(live) : {};
  const quality = [
    ...(await qualityWarnings(live, rule)),
    ...(await unitWarnings(live)),
    ...(await silenceWarnings(live, reachOf(live, latest))),
  ];
  const evaluation = evaluateWarnings(request, { coverage, gaps, quality }, rule);
  if (request.strict && evaluation.warnings.length > 0) throw new StrictRefusal(evaluation.warnings);
  return { live, evaluation };
}
