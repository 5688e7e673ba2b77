/**
 * The calendar of a dataset: a year, or on a narrow screen three months. A chosen day shows its proof. Arrow keys move
 * between days.
 */
import { DAY_MS, dayStart, daysOf, monthDays, STATE_TEXT } from './days.js';
import { byId, fill, h } from './dom.js';
import { dayOf } from './format.js';

const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];
const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 };

const narrow = matchMedia('(max-width: 46rem)');
const pageLength = () => (narrow.matches ? 3 : 12);

/** @param {number} ms months since the year 0 */
const monthOf = (ms) => new Date(ms).getUTCFullYear() * 12 + new Date(ms).getUTCMonth();
/** @param {number} ms */
const monthName = (ms) => MONTHS[new Date(ms).getUTCMonth()];
/** @param {number} month counted from the year 0 */
const monthStart = (month) => Date.UTC(Math.floor(month / 12), month % 12, 1);

export class Calendar {
  #coverage = undefined;
  #days = undefined;
  /** First month of the page, counted from the year 0. */
  #first = 0;
  #chosen = undefined;
  #onDay;

  /** @param {{ onDay: (coverage: any, window: { from: number, to: number }, day: { day: string, state: string }, source: string | undefined) => void }} means */
  constructor({ onDay }) {
    this.#onDay = onDay;
    byId('coverage-source').addEventListener('change', () => this.#draw());
    narrow.addEventListener('change', () => {
      this.#first = 0;
      if (this.#coverage) this.#draw();
    });
    byId('calendar').addEventListener('keydown', (event) => this.#walk(event));
  }

  /** @param {any} coverage */
  show(coverage) {
    const isOther = this.#coverage?.dataset !== coverage.dataset;
    this.#coverage = coverage;
    if (isOther) {
      const sources = [...new Set([...coverage.proved, ...coverage.partitions].map(({ source_id: id }) => id))].sort();
      byId('coverage-source-label').hidden = sources.length < 2;
      fill(
        byId('coverage-source'),
        ...['', ...sources].map((one) => h('option', { value: one }, one || 'all together')),
      );
      this.#chosen = undefined;
      this.#first = 0;
    }
    this.#draw();
  }

  get #source() {
    return byId('coverage-source').value || undefined;
  }

  #draw() {
    const box = byId('calendar');
    this.#days = daysOf(this.#coverage, this.#source);
    const { range } = this.#days;
    if (!range) {
      fill(
        box,
        h(
          'div',
          { class: 'empty' },
          h('b', {}, 'Nothing of it is proved yet.'),
          h(
            'p',
            {},
            h('code', {}, './tidemark backfill'),
            ' brings it in; ',
            h('code', {}, './tidemark help backfill'),
            ' names its feed.',
          ),
        ),
      );
      return;
    }
    if (this.#first === 0) this.#turnTo(range.to - DAY_MS);
    const hadFocus = box.contains(document.activeElement);
    fill(box, this.#head(), this.#months(), legend());
    if (hadFocus) this.#cell(this.#focusDay())?.focus();
  }

  /** Shows the months that hold the day. */
  #turnTo(ms) {
    const month = monthOf(ms);
    this.#first = month - (month % pageLength());
  }

  /** The days that the calendar shows: [from, to). */
  get #page() {
    return { from: monthStart(this.#first), to: monthStart(this.#first + pageLength()) };
  }

  #head() {
    const { range } = this.#days;
    const { from, to } = this.#page;
    const step = (by, label, text, isEnd) =>
      h(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'aria-label': label,
          disabled: isEnd,
          onclick: () => {
            this.#first += by * pageLength();
            this.#draw();
          },
        },
        text,
      );
    const year = new Date(from).getUTCFullYear();
    const title = pageLength() === 12 ? `${year}` : `${monthName(from)} to ${monthName(to - DAY_MS)} ${year}`;
    return h(
      'div',
      { class: 'years' },
      step(-1, 'Earlier', '‹', from <= range.from),
      h('b', { 'aria-live': 'polite' }, title),
      step(1, 'Later', '›', to >= range.to),
    );
  }

  #months() {
    const { range } = this.#days;
    const months = Array.from({ length: pageLength() }, (_, index) => this.#first + index);
    const shown = months.map((month) => ({ month, ...monthDays(Math.floor(month / 12), month % 12) }));
    // The calendar leaves out months without any proved or known day.
    const known = shown.filter(({ days }) => days[0] < range.to && days[days.length - 1] + DAY_MS > range.from);
    const focused = this.#focusDay();
    return h(
      'div',
      { class: 'months' },
      ...known.map(({ days, blanks }) =>
        h(
          'div',
          {
            class: 'month',
            role: 'group',
            'aria-label': `${monthName(days[0])} ${new Date(days[0]).getUTCFullYear()}`,
          },
          h('b', {}, monthName(days[0])),
          h(
            'div',
            { class: 'grid' },
            ...Array.from({ length: blanks }, () => h('span')),
            ...days.map((ms) => this.#day(ms, ms === focused)),
          ),
        ),
      ),
    );
  }

  #day(ms, isFocusable) {
    const state = this.#days.stateOf(ms);
    const day = dayOf(ms);
    return h(
      'button',
      {
        type: 'button',
        class: state,
        'data-day': ms,
        tabindex: isFocusable ? 0 : -1,
        'aria-pressed': ms === this.#chosen ? 'true' : 'false',
        'aria-label': `${day}, ${STATE_TEXT[state]}`,
        title: `${day}: ${STATE_TEXT[state]}`,
        onclick: () => this.#choose(ms),
      },
      // The text is the end of the label, so that speech input finds the button by what is seen.
      day.slice(-2),
    );
  }

  /** The one day that the Tab key reaches. */
  #focusDay() {
    const { range } = this.#days;
    const { from, to } = this.#page;
    const wanted = this.#chosen ?? range.to - DAY_MS;
    return Math.min(Math.max(wanted, from, dayStart(range.from)), to - DAY_MS);
  }

  #choose(ms) {
    byId('calendar').querySelector('[aria-pressed="true"]')?.setAttribute('aria-pressed', 'false');
    this.#chosen = ms;
    this.#cell(ms)?.setAttribute('aria-pressed', 'true');
    this.#onDay(
      this.#coverage,
      this.#days.windowOf(ms),
      { day: dayOf(ms), state: this.#days.stateOf(ms) },
      this.#source,
    );
  }

  #cell(ms) {
    return byId('calendar').querySelector(`[data-day="${ms}"]`);
  }

  #walk(event) {
    const at = Number(event.target.dataset?.day);
    const step = STEPS[event.key];
    if (!at || !step) return;
    event.preventDefault();
    const to = at + step * DAY_MS;
    const { from: first, to: end } = this.#page;
    if ((to < first || to >= end) && to >= this.#days.range.from && to < this.#days.range.to) {
      this.#turnTo(to);
      this.#draw();
    }
    const cell = this.#cell(to);
    if (!cell) return;
    event.target.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus();
  }
}

function legend() {
  const shown = /** @type {const} */ (['proved', 'part', 'missing', 'quarantined', 'waiting']);
  return h(
    'p',
    { class: 'legend' },
    ...shown.map((state) => h('span', {}, h('i', { class: state }), STATE_TEXT[state])),
  );
}
