/**
 * Old days of a followed exchange, which it is asked about at a trickle: vendors replace documents years later. The catalog keeps
 * when each was asked about, so that a restart goes on where it was.
 */
import type { Settings } from '../../../shared/config/settings.ts';
import { DAY_MS } from '../../../shared/dates.ts';
import type { Catalog } from '../../../shared/db/catalog.ts';
import { baseOf } from '../../../shared/registry/instruments.ts';
import { dayOfKey, windowOf } from '../../../shared/registry/keys.ts';
import type { FileDayRequest } from '../feed-types.ts';
import { type InstrumentGroup, requestsOf } from './instruments.ts';

const HOUR_MS = 3_600_000;

export class OldDays {
  readonly #groups: readonly InstrumentGroup[];
  readonly #catalog: Catalog;
  readonly #recheckDays: number;
  readonly #everyMs: number;
  readonly #now: () => number;
  #lastMs: number | undefined;

  constructor(
    groups: readonly InstrumentGroup[],
    catalog: Catalog,
    settings: Pick<Settings, 'SVC_FOLLOW_OLD_DAYS_PER_HOUR' | 'limits'>,
    now: () => number = Date.now,
  ) {
    this.#groups = groups;
    this.#catalog = catalog;
    this.#recheckDays = settings.limits.recheckDays;
    this.#everyMs = HOUR_MS / settings.SVC_FOLLOW_OLD_DAYS_PER_HOUR;
    this.#now = now;
  }

  get #datasets() {
    return this.#groups.flatMap(({ instruments }) => instruments.map(({ dataset }) => dataset));
  }

  /** In how many milliseconds the next is asked about; undefined: none ever is. */
  async dueMs(): Promise<number | undefined> {
    if (!Number.isFinite(this.#everyMs)) return undefined;
    // A clock that was set back delays none longer than usual.
    const known = this.#lastMs ?? Math.min((await this.#catalog.lastAsked(this.#datasets)) ?? this.#now(), this.#now());
    this.#lastMs = Math.min(known, this.#now());
    return this.#lastMs + this.#everyMs - this.#now();
  }

  /**
   * The document of the day that was not asked about for the longest, of the instrument whose turn it is. It counts as asked about
   * when its consumer has done with it: after a kill it is asked about again.
   */
  async *next(): AsyncGenerator<FileDayRequest> {
    this.#lastMs = this.#now();
    const [first] = this.#datasets;
    const { fromMs } = windowOf(baseOf(first), new Date(this.#now()).toISOString().slice(0, 10));
    const found = await this.#catalog.longestUnasked(this.#datasets, fromMs - (this.#recheckDays + 1) * DAY_MS);
    if (!found) return;
    const { dataset, key } = found;
    const group = this.#groups.find(({ instruments }) => instruments.some((one) => one.dataset === dataset))!;
    const day = dayOfKey(key);
    // None comes for a day outside the intervals in which the instrument is listed by now.
    yield* requestsOf(group, { from: day, to: day }, 'daily');
    await this.#catalog.noteAsked(dataset, key);
  }
}
