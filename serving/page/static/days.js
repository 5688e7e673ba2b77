/** The state of each day of a dataset, from what /v1/coverage and /v1/conditions say. This file does not use the DOM. */
import { frameFieldsOf } from './request.js';

export const DAY_MS = 86_400_000;

/** @typedef {{ from: number, to: number }} Span */
/** @typedef {'available' | 'empty' | 'part' | 'degraded' | 'pending' | 'missing' | 'quarantined' | 'none'} DayState */

/**
 * File days of some vendors begin at another hour than midnight UTC. A day of the calendar is a file day.
 * @param {any} coverage
 */
function offsetOf({ partition_kind: kind, proved, partitions }) {
  const starts =
    kind === 'file_day' ? [...proved, ...partitions].map(({ start_utc }) => start_utc).filter(Boolean) : [];
  if (starts.length === 0) return 0;
  const within = Date.parse(starts[0]) % DAY_MS;
  return within > DAY_MS / 2 ? within - DAY_MS : within;
}

/**
 * @param {readonly { start_utc: string | null, end_utc?: string | null, through_utc?: string }[]} list
 * @returns {Span[]}
 */
const spansOf = (list) =>
  list
    .filter(({ start_utc: start }) => start !== null)
    .map(({ start_utc: start, end_utc: end, through_utc: through }) => ({
      from: Date.parse(/** @type {string} */ (start)),
      to: Date.parse(/** @type {string} */ (end ?? through)),
    }));

/**
 * @param {readonly Span[]} spans
 * @param {Span} day
 * @returns {number} how much of the day they hold; overlaps count once
 */
function held(spans, day) {
  let at = day.from;
  let sum = 0;
  for (const { from, to } of spans) {
    const [start, end] = [Math.max(from, at), Math.min(to, day.to)];
    if (end > start) {
      sum += end - start;
      at = end;
    }
  }
  return sum;
}

/** @param {Span} a @param {Span} b */
const meet = (a, b) => a.from < b.to && b.from < a.to;

/**
 * @param {any} coverage an answer whose partitions are those that are not proved
 * @param {string} [source] one of several; undefined: all together
 * @param {ReadonlySet<string>} [withRows] the days that have rows; undefined: not known
 */
export function daysOf(coverage, source, withRows) {
  const ofSource = ({ source_id: id }) => source === undefined || id === source;
  const sorted = (spans) => spans.toSorted((a, b) => a.from - b.from);
  const proved = sorted(spansOf(coverage.proved.filter(ofSource)));
  const gaps = sorted(spansOf(coverage.gaps.filter(ofSource)));
  const by = (...states) => spansOf(coverage.partitions.filter((one) => states.includes(one.state) && ofSource(one)));
  const quarantined = by('quarantined');
  const waiting = by('published', 'publishing');
  const offset = offsetOf(coverage);
  const all = [...proved, ...gaps, ...quarantined, ...waiting];
  const first = Math.min(...all.map(({ from }) => from));
  const last = Math.max(...all.map(({ to }) => to));
  return {
    /** The first and the last known day; undefined where no day is known. */
    range: all.length === 0 ? undefined : { from: dayStart(first - offset), to: dayStart(last - 1 - offset) + DAY_MS },
    /** @param {number} ms midnight of a day @returns {Span} */
    windowOf: (ms) => ({ from: ms + offset, to: ms + offset + DAY_MS }),
    /**
     * @param {number} ms midnight of a day
     * @returns {DayState}
     */
    stateOf(ms) {
      const day = { from: ms + offset, to: ms + offset + DAY_MS };
      if (quarantined.some((span) => meet(span, day))) return 'quarantined';
      if (waiting.some((span) => meet(span, day))) return 'pending';
      const part = held(proved, day);
      if (part > 0 && withRows && !withRows.has(new Date(ms).toISOString().slice(0, 10))) return 'empty';
      if (part === DAY_MS) return 'available';
      if (gaps.some((span) => meet(span, day)) && (part === 0 || coverage.partition_kind === 'file_day'))
        return 'missing';
      return part > 0 ? 'part' : 'none';
    },
  };
}

/**
 * Asks which days have rows: proved time may hold none, as where a block follows the one before it after years.
 * @param {any} dataset
 * @param {Span} window whole days
 * @param {string} [source] one of several
 * @returns undefined where each partition is a day
 */
export function rowDaysRequest(dataset, { from, to }, source) {
  const { key, partition_kind: kind, modes, series, historical_path: path } = dataset;
  if (kind === 'file_day') return undefined;
  const [start, end] = [new Date(from).toISOString(), new Date(to).toISOString()];
  const [field] = frameFieldsOf(dataset);
  if (series.length === 0 && field) {
    const columns = [{ name: 'value', dataset: key, field: field.name, max_age: '1d' }];
    return { path: '/v1/frame', body: { columns, grid: '1d', time_range: [start, end] }, time: 'datetime' };
  }
  const time = modes.native.order[0];
  const days = { start_date: start.slice(0, 10), end_date: new Date(to - 1).toISOString().slice(0, 10) };
  const isOfRows = series.some(({ source_id: id }) => id === source);
  const filters = isOfRows ? [{ field: 'source_id', op: 'eq', value: source }] : undefined;
  return { path, body: { fields: [time], ...days, ...(filters && { filters }) }, time };
}

/** @param {number} ms */
export const dayStart = (ms) => Math.floor(ms / DAY_MS) * DAY_MS;

/**
 * The days of a month.
 * @param {number} year
 * @param {number} month from 0
 */
export function monthDays(year, month) {
  const first = Date.UTC(year, month, 1);
  const days = [];
  for (let ms = first; new Date(ms).getUTCMonth() === month; ms += DAY_MS) days.push(ms);
  // Weeks begin on Mondays.
  return { days, blanks: (new Date(first).getUTCDay() + 6) % 7 };
}

/**
 * What the calendar shows of a day: its condition, and what coverage knows besides.
 * @param {DayState} state by coverage
 * @param {{ condition: string, reasons: readonly string[] } | undefined} found undefined: not known
 * @returns {DayState}
 */
export function shownState(state, found) {
  if (!found) return state;
  const { condition, reasons } = found;
  if (condition === 'available') return state === 'empty' || state === 'part' ? state : 'available';
  if (condition !== 'missing') return /** @type {DayState} */ (condition);
  if (reasons.includes('quarantined') || reasons.includes('retracted')) return 'quarantined';
  // Before it was listed, and where coverage knows no gap, nothing is missing.
  return reasons.includes('not_listed') || state === 'none' ? 'none' : 'missing';
}

/** @type {Readonly<Record<DayState, string>>} */
export const STATE_TEXT = {
  available: 'available',
  empty: 'available, proved to have no rows',
  part: 'available in part',
  degraded: 'degraded',
  pending: 'pending',
  missing: 'missing',
  quarantined: 'missing: quarantined',
  none: 'nothing expected or known',
};

/** @type {Readonly<Record<string, string>>} */
export const REASON_TEXT = {
  ids_missing: 'Ids between the first and the last have no row.',
  late_arrival: 'The vendor publishes another document of this day by now. Its revisions say which rows differ.',
  silence_unknown: 'More than an hour is without a trade, and nobody can prove that there was none.',
  quarantined: 'Its rows were refused, or do not stand up to their proof any more.',
  retracted: 'It was served once, and was withdrawn.',
  not_listed: 'The instrument was not listed.',
  not_proved: 'Nothing of it is proved.',
};

/**
 * Marks the slots of a chart that are silent: 0 not, 1 where the silence is proved, 2 where nobody can prove it. A silence is
 * longer than a slot, so each has one at least.
 * @param {readonly { from_utc: string, to_utc: string, state: string }[]} silences in order
 * @param {{ fromMs: number, toMs: number, sizeMs: number }} view
 */
export function silentSlots(silences, { fromMs, toMs, sizeMs }) {
  const slots = Array.from({ length: (toMs - fromMs) / sizeMs }, (_, at) => ({
    time: (fromMs + at * sizeMs) / 1000,
    value: 0,
  }));
  const slotOf = (utc) => Math.min(slots.length, Math.max(0, Math.round((Date.parse(utc) - fromMs) / sizeMs)));
  for (const { from_utc: from, to_utc: to, state } of silences) {
    for (let at = slotOf(from); at < slotOf(to); at++) slots[at].value = state === 'proved' ? 1 : 2;
  }
  return slots;
}
