/** What the soak calls flat, on figures that were measured with a leak, with one planted, and without. */
import { describe, expect, test } from 'vitest';
import { isFlat } from '../../bench/soak-memory.ts';

const QUARTER_HOUR_S = 900;
const steady = [430, 445, 448];

describe('memory of a soak is not flat', () => {
  test('where a process uses more after each collection, however steady its resident memory is', () => {
    // A projector that kept something of each look at a dataset without news: 2 MiB a minute.
    expect(isFlat({ thirds_mib: steady, live_mib: [31, 41, 55] }, QUARTER_HOUR_S)).toBe(false);
    expect(isFlat({ thirds_mib: steady, live_mib: [57, 64, 82] }, 180)).toBe(false);
  });

  test('where resident memory grows on after the second third', () => {
    expect(isFlat({ thirds_mib: [318, 420, 507], live_mib: [57, 58, 57] }, QUARTER_HOUR_S)).toBe(false);
    expect(isFlat({ thirds_mib: [318, 420, 507] }, QUARTER_HOUR_S)).toBe(false);
  });
});

describe('memory of a soak is flat', () => {
  test('where the same is used in the end, and resident memory stays', () => {
    expect(isFlat({ thirds_mib: steady, live_mib: [57, 58, 55] }, QUARTER_HOUR_S)).toBe(true);
    expect(isFlat({ thirds_mib: [0, 40, 60] }, QUARTER_HOUR_S)).toBe(true);
  });

  test('as far as a run can show it: V8 still grows its young generation in one of minutes', () => {
    expect(isFlat({ thirds_mib: [150, 190, 290], live_mib: [31, 32, 31] }, 300)).toBe(true);
    expect(isFlat({ thirds_mib: steady, live_mib: [31, 48] }, 60)).toBe(true);
  });
});
