/** What the evaluations of rules have in common. */
import type { QualityRule } from '../../../shared/registry/types.ts';

/** Of whom and when a rule is evaluated. */
export interface Evaluation<Kind extends QualityRule['kind']> {
  readonly rule: Extract<QualityRule, { readonly kind: Kind }>;
  /** `today`: now, or the end of a window that ended before. */
  readonly clockMs: number;
  readonly maxAgeDays: number | undefined;
}

/** More names than a person reads; details have all of them. */
const MAX_NAMES = 12;

export const listed = (names: readonly string[]): string =>
  names.length <= MAX_NAMES
    ? names.join(', ')
    : `${names.slice(0, MAX_NAMES).join(', ')} and ${names.length - MAX_NAMES} more`;
