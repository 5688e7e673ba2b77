/**
 * Preloaded into every process of a campaign: shifts the clock by as many milliseconds as the file FAULTS_CLOCK holds.
 * The monotonic clock and timers are left alone, as by a clock that somebody sets.
 */
import { readFileSync } from 'node:fs';

const RealDate = Date;
const realNow = RealDate.now.bind(RealDate);
const path = process.env.FAULTS_CLOCK;
let offset = 0;
let readAt = Number.NEGATIVE_INFINITY;

function shift() {
  const now = performance.now();
  if (path !== undefined && now - readAt > 50) {
    readAt = now;
    try {
      offset = Number(readFileSync(path, 'utf8')) || 0;
    } catch {
      // The campaign is writing it, or has ended.
    }
  }
  return offset;
}

class ShiftedDate extends RealDate {
  constructor(...parts) {
    if (parts.length === 0) super(realNow() + shift());
    else super(...parts);
  }
  static now() {
    return realNow() + shift();
  }
}
Object.defineProperty(ShiftedDate, 'name', { value: 'Date' });
globalThis.Date = ShiftedDate;
