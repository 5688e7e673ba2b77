/** Which proved file days a followed exchange is asked about again. */
import { DAY_MS, dayKey } from '../../../shared/dates.ts';
import { codeOf } from '../../../shared/errors.ts';
import { fileDays } from '../../../shared/registry/keys.ts';

/** When the last file days are asked for again although they are proved: vendors replace a document after it is published. */
export class Rechecks {
  readonly #days: number;
  readonly #now: () => number;
  /** The day, UTC, on which the source last answered about a file day. */
  readonly #answered = new Map<string, string>();

  /** @param days how many of the last file days; 0: none. */
  constructor(days: number, now: () => number = Date.now) {
    this.#days = days;
    this.#now = now;
  }

  /**
   * The file days that are asked for at this look: yesterday's at each, those before once a day. @param lastDay the last that is
   * over, which may be today's.
   */
  due(lastDay: string): string[] {
    if (this.#days === 0) return [];
    const lastMs = Date.parse(`${lastDay}T00:00:00Z`);
    const days = fileDays(dayKey(lastMs - (this.#days - 1) * DAY_MS), lastDay);
    for (const day of this.#answered.keys()) if (!days.includes(day)) this.#answered.delete(day);
    const today = dayKey(this.#now());
    const yesterday = dayKey(this.#now() - DAY_MS);
    return days.filter((day) => day >= yesterday || this.#answered.get(day) !== today);
  }

  /** Awaits an answer about a file day. A day whose source fails stays due; that its document is gone is an answer. */
  async note<T>(day: string, answer: Promise<T>): Promise<T> {
    try {
      const found = await answer;
      this.#answered.set(day, dayKey(this.#now()));
      return found;
    } catch (error) {
      if (codeOf(error) === 'SOURCE_NOT_FOUND') this.#answered.set(day, dayKey(this.#now()));
      else this.#answered.delete(day);
      throw error;
    }
  }
}
