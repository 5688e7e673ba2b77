/** What a day of a dataset is worth: one of four words, and why, from what the catalog knows. */
import { DAY_MS } from '../dates.ts';
import type { Range } from '../ranges.ts';
import type { DatasetDefinition, PartitionKind } from '../registry/definition.ts';
import { type Facts, isNumbered, MINUTE_MS, type SilenceState } from './facts.ts';

export const CONDITIONS = ['available', 'degraded', 'pending', 'missing'] as const;
export type Condition = (typeof CONDITIONS)[number];

/** Why a day is degraded, and why it is missing. */
export const DEGRADED_REASONS = ['ids_missing', 'late_arrival', 'silence_unknown'] as const;
export const MISSING_REASONS = ['quarantined', 'retracted', 'not_listed', 'not_proved'] as const;
export type Reason = (typeof DEGRADED_REASONS | typeof MISSING_REASONS)[number];

/** A silence that nobody can prove and that is longer makes a day degraded. */
export const LONG_SILENCE_MS = 60 * MINUTE_MS;

/** Facts of a day that have a meaning only for some datasets. */
export const CONDITION_MEMBERS = [
  'observed_increment',
  'silences',
  'ids_missing',
  'repeats',
  'first',
  'last',
  'document',
  'revisions',
] as const;
export type ConditionMember = (typeof CONDITION_MEMBERS)[number];

const MEMBERS: Readonly<Record<PartitionKind['kind'], readonly ConditionMember[]>> = {
  file_day: CONDITION_MEMBERS,
  height: ['ids_missing', 'first', 'last'],
  snapshot: ['first', 'last'],
  capture: ['first', 'last'],
  // The observations of a vintage lie in decades of days.
  vintage: [],
};

export const conditionMembers = ({ partition }: DatasetDefinition): readonly ConditionMember[] =>
  MEMBERS[partition.kind];

export interface Silence {
  readonly fromMs: number;
  readonly toMs: number;
  readonly state: SilenceState;
}

/** A proved file day, as far as silences need it. */
export interface ProvedDay {
  readonly facts: Facts;
  readonly firstOffset: string;
  readonly lastOffset: string;
}

/**
 * The silences that begin in a file day: those within it, and the one over its end, which `next` ends, the first day with trades
 * after it with nothing unproved between.
 */
export function silencesOf(dataset: DatasetDefinition, day: ProvedDay, next: ProvedDay | undefined): Silence[] {
  const silences = (day.facts.silences ?? []).map(([fromMs, toMs, state]) => ({ fromMs, toMs, state }));
  const [fromMs, toMs] = [day.facts.last_ms, next?.facts.first_ms ?? null];
  if (next === undefined || fromMs === null || toMs === null || toMs - fromMs <= MINUTE_MS) return silences;
  const follows = BigInt(next.firstOffset) === BigInt(day.lastOffset) + 1n;
  silences.push({ fromMs, toMs, state: isNumbered(dataset) && follows ? 'proved' : 'unknown' });
  return silences;
}

/** Whether nothing between the two is unproved. */
export const isProvedThrough = (proved: readonly Range[], from: number, to: number): boolean =>
  proved.some((range) => range.from <= from && range.to >= to);

export interface Worth {
  readonly condition: Condition;
  readonly reasons: readonly Reason[];
}

/** A day with proved rows. */
export function conditionOfProved(known: {
  readonly idsMissing: number;
  readonly isLate: boolean;
  readonly silences: readonly Silence[];
}): Worth {
  const isLong = ({ fromMs, toMs, state }: Silence) => state === 'unknown' && toMs - fromMs > LONG_SILENCE_MS;
  const holds: Readonly<Record<(typeof DEGRADED_REASONS)[number], boolean>> = {
    ids_missing: known.idsMissing > 0,
    late_arrival: known.isLate,
    silence_unknown: known.silences.some(isLong),
  };
  const reasons = DEGRADED_REASONS.filter((reason) => holds[reason]);
  return { condition: reasons.length > 0 ? 'degraded' : 'available', reasons };
}

/** A day without proved rows. */
export function conditionWithoutRows(known: {
  /** Its partition is published, or is being published. */
  readonly isComing: boolean;
  readonly refused: 'quarantined' | 'retracted' | undefined;
  readonly isListed: boolean;
  readonly startMs: number;
  /** End of the last proved day; undefined where none is. */
  readonly provedThroughMs: number | undefined;
  readonly nowMs: number;
}): Worth {
  const { isComing, refused, isListed, startMs, provedThroughMs, nowMs } = known;
  if (refused) return { condition: 'missing', reasons: [refused] };
  if (isComing) return { condition: 'pending', reasons: [] };
  if (!isListed) return { condition: 'missing', reasons: ['not_listed'] };
  // What comes after the last proved day is still expected; so is a day that has not ended.
  const isLater = provedThroughMs !== undefined && startMs >= provedThroughMs;
  if (isLater || startMs + DAY_MS > nowMs) return { condition: 'pending', reasons: [] };
  return { condition: 'missing', reasons: ['not_proved'] };
}
