/** How long a kline is: whole seconds as a number, or a count and a unit as text. */
import { z } from 'zod';

/** 31 days. */
const MAX_KLINE_SECONDS = 2_678_400;
const DEFAULT_KLINE_SECONDS = 60;

const UNIT_SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

const KLINE_SIZE_RULE = `must be an integer of seconds from 1 to ${MAX_KLINE_SECONDS}, or a text such as "90s", "1m", "4h", "1d" or "1w" that says as much`;

const error = KLINE_SIZE_RULE;

/** An expression for the whole numbers from 1 to `max`, written without leading zeros. */
function upTo(max: number): string {
  const digits = String(max);
  const shorter = digits.length === 1 ? [] : [`[1-9]\\d{0,${digits.length - 2}}`];
  const sameLength = [...digits].flatMap((digit, at) => {
    const below = Number(digit) - 1;
    const least = at === 0 ? 1 : 0;
    const rest = digits.length - at - 1;
    return below < least ? [] : [`${digits.slice(0, at)}[${least}-${below}]${rest === 0 ? '' : `\\d{${rest}}`}`];
  });
  return `(?:${[...shorter, ...sameLength, digits].join('|')})`;
}

const TEXT = new RegExp(
  `^(?:${Object.entries(UNIT_SECONDS)
    .map(([unit, seconds]) => `${upTo(Math.floor(MAX_KLINE_SECONDS / seconds))}${unit}`)
    .join('|')})$`,
);

/** Seconds. */
export const klineSize = z
  .union(
    [z.int({ error }).min(1, { error }).max(MAX_KLINE_SECONDS, { error }), z.string({ error }).regex(TEXT, { error })],
    { error },
  )
  .transform((size): number =>
    typeof size === 'number' ? size : Number(size.slice(0, -1)) * UNIT_SECONDS[size.slice(-1)],
  )
  .default(DEFAULT_KLINE_SECONDS)
  .meta({ description: 'Seconds, or a count and a unit of s, m, h, d, w; at most 31 days; default 60.' });
