/** Warnings that the dataset's own rules give a window: one evaluation a kind of rule, whatever the dataset. */
import type { SettingName } from '../../../shared/config/settings.ts';
import type { Warning } from '../../contract/problems.ts';
import { clockOf } from '../as-of.ts';
import type { LiveContext } from '../context.ts';
import { dailyWarnings } from './daily.ts';
import { publishedWarnings } from './published.ts';

export interface QualityLimits {
  readonly now: () => number;
  /** A setting of days, where it is set. */
  readonly maxAgeDays: (name: SettingName) => number | undefined;
}

export async function qualityWarnings(context: LiveContext, limits: QualityLimits): Promise<Warning[]> {
  const { quality: rule } = context.request.dataset;
  if (!rule) return [];
  const clockMs = Math.min(clockOf(context.request, limits.now()), context.endMs);
  const evaluation = { clockMs, maxAgeDays: limits.maxAgeDays(rule.maxAgeDays) };
  return rule.kind === 'daily'
    ? await dailyWarnings(context, { ...evaluation, rule })
    : await publishedWarnings(context, { ...evaluation, rule });
}
