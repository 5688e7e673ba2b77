/** The time that the sample of every source covers, so that a frame has all of them side by side. */
import { DAY_MS, dayKey } from '../../shared/dates.ts';

/** Whole days before today. */
export const SAMPLE_DAYS = 7;

export interface SampleWeek {
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
  /** First and last day, both included. */
  readonly from: string;
  readonly to: string;
}

export const sampleWeek = (todayMs: number): SampleWeek => ({
  fromMs: todayMs - SAMPLE_DAYS * DAY_MS,
  toMs: todayMs,
  from: dayKey(todayMs - SAMPLE_DAYS * DAY_MS),
  to: dayKey(todayMs - DAY_MS),
});
