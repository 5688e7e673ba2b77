/**
 * A preload for a process whose wall clock jumps (`NODE_OPTIONS=--import .../shifted-clock.mjs`). `Date` is off by the
 * milliseconds in the file that TIDEMARK_TEST_CLOCK_FILE names, which is read again while the process runs. The clock of
 * `performance.now()` and of timers stays: an operating system that sets the time does not move it either.
 */
import { readFileSync } from 'node:fs';

const path = process.env.TIDEMARK_TEST_CLOCK_FILE;
const REREAD_MS = 20;

if (path !== undefined) {
  const RealDate = Date;
  let offsetMs = 0;
  let readAt = Number.NEGATIVE_INFINITY;
  const offset = () => {
    const now = performance.now();
    if (now - readAt > REREAD_MS) {
      readAt = now;
      try {
        offsetMs = Number(readFileSync(path, 'utf8')) || 0;
      } catch {
        // Without the file the clock stays as it was.
      }
    }
    return offsetMs;
  };
  globalThis.Date = class ShiftedDate extends RealDate {
    constructor(...of) {
      if (of.length === 0) super(RealDate.now() + offset());
      else super(...of);
    }
    static now() {
      return RealDate.now() + offset();
    }
  };
}
