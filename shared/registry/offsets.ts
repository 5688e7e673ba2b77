/** How offsets of a dataset compare, outside the database. */
import type { OffsetRule } from './types.ts';

/** Negative, zero or positive, as sort functions want it. */
export function compareOffsets(rule: Pick<OffsetRule, 'order'>, a: string, b: string): number {
  switch (rule.order) {
    case 'numeric':
      return compareNumbers(a, b);
    case 'text':
      return a < b ? -1 : a > b ? 1 : 0;
    case 'place':
      return compareParts(a, b);
  }
}

/** Parts are looked at from the first one on that differs: of two neighbours that is nearly always the second. */
function compareParts(a: string, b: string): number {
  let at = 0;
  let part = 0;
  for (; at < a.length && a[at] === b[at]; at++) if (a[at] === ':') part = at + 1;
  if (at === a.length && at === b.length) return 0;
  const [left, right] = [partAt(a, part), partAt(b, part)];
  const order = isNumber(left) && isNumber(right) ? compareNumbers(left, right) : left < right ? -1 : +(left > right);
  // One has parts that the other lacks.
  return order !== 0 ? order : a.length - b.length;
}

function partAt(text: string, from: number): string {
  const end = text.indexOf(':', from);
  return end < 0 ? text.slice(from) : text.slice(from, end);
}

/** Longer is larger: there are no leading zeros. Ids of 64 hexadecimal digits are texts, whatever their digits. */
const isNumber = (text: string) => /^(?:0|[1-9]\d{0,17})$/.test(text);

const compareNumbers = (a: string, b: string) => a.length - b.length || (a < b ? -1 : +(a > b));

/** The first number of an offset: trade id, height or snapshot, of which ranges of partitions are kept apart. */
export const leadingNumber = (offset: string): string => offset.split(':', 1)[0];
