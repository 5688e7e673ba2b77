/** How long a kline is: whole seconds as a number, or a count and a unit as text. */
import { z } from 'zod';

/** 31 days. */
const MAX_KLINE_SECONDS = 2_678_400;
const DEFAULT_KLINE_SECONDS = 60;

const UNIT_SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

const KLINE_SIZE_RULE = `must be an integer of seconds from 1 to ${MAX_KLINE_SECONDS}, or a text such as "90s", "1m", "4h", "1d" or "1w" that says as much`;

const error = KLINE_SIZE_RULE;
const TEXT = /^[1-9][0-9]*[smhdw]$/;

/** Seconds. */
export const klineSize = z
  .union(
    [z.int({ error }).min(1, { error }).max(MAX_KLINE_SECONDS, { error }), z.string({ error }).regex(TEXT, { error })],
    { error },
  )
  .transform((size, context): number => {
    const seconds = typeof size === 'number' ? size : Number(size.slice(0, -1)) * UNIT_SECONDS[size.slice(-1)];
    if (seconds <= MAX_KLINE_SECONDS) return seconds;
    context.addIssue({ code: 'custom', message: error });
    return z.NEVER;
  })
  .default(DEFAULT_KLINE_SECONDS)
  .meta({ description: 'Seconds, or a count and a unit of s, m, h, d, w; at most 31 days; default 60.' });
