/** Where in a window to look, when only some of it is looked at. */
import type { Part } from '../../read/coverage.ts';
import type { Slice } from '../../read/slices.ts';

/** Slices of at most `lengthMs` at even distances in the time of the parts, from the middle of each distance on. */
export function placesIn(parts: readonly Part[], count: number, lengthMs: number): Slice[] {
  const whole = parts.reduce((sum, { from, to }) => sum + to - from, 0);
  const slices: Slice[] = [];
  let before = 0;
  for (const part of parts) {
    const length = part.to - part.from;
    while (slices.length < count) {
      const at = ((slices.length + 0.5) * whole) / count - before;
      if (at >= length) break;
      const from = part.from + Math.floor(at);
      slices.push({ from, to: Math.min(part.to, from + lengthMs), part });
    }
    before += length;
  }
  return slices;
}
