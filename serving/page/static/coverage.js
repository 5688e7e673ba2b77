/**
 * The calendar of a dataset: a year, or on a narrow screen three months, coloured by condition. A chosen day shows what it is
 * worth, and its proof. Arrow keys move between days.
 */
import { ask, Latest, readRows } from './api.js';
import { Covered } from './covered.js';
import { DAY_MS, dayStart, daysOf, monthDays, REASON_TEXT, rowDaysRequest, STATE_TEXT, shownState } from './days.js';
import { dayOf } from './format.js';
import { InstrumentSelect, withInstrument } from './instruments.js';
import { hashOf, placeOf, remember } from './place.js';
import { Proof } from './proof.js';
import { instrumentOf, nameOf } from './request.js';
import { Component, html, Select } from './view.js';
import { Worth } from './worth.js';

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 };
const LEGEND = /** @type {const} */ (['available', 'degraded', 'pending', 'missing', 'quarantined', 'empty', 'part']);

const narrow = matchMedia('(max-width: 46rem)');
const pageLength = () => (narrow.matches ? 3 : 12);

/** @param {number} ms months since the year 0 */
const monthOf = (ms) => new Date(ms).getUTCFullYear() * 12 + new Date(ms).getUTCMonth();
/** @param {number} ms */
const monthName = (ms) => new Date(ms).toLocaleString('en', { month: 'long', timeZone: 'UTC' });
/** @param {number} month counted from the year 0 */
const monthStart = (month) => Date.UTC(Math.floor(month / 12), month % 12, 1);
/** @param {number} ms the first month of the page that holds it */
const pageOf = (ms) => monthOf(ms) - (monthOf(ms) % pageLength());

/** The end of the days that are expected in the month of the last known one: no later than today. @param {number} end */
const expectedTo = (end) => Math.min(monthStart(monthOf(end - DAY_MS) + 1), dayStart(Date.now()) + DAY_MS);

/** What an address chooses. */
const placeIn = ({ source = '', month, day, revision = '' }) => ({
  ...{ source, revision },
  first: month ? monthOf(Date.parse(`${month}-01`)) : 0,
  chosen: day ? Date.parse(day) : undefined,
});

export class Coverage extends Component {
  render() {
    const { facts, choices } = this.props;
    const { datasets, status } = facts;
    // Without a choice it opens on a dataset that needs the operator, else on one with rows.
    const troubled = ({ partitions: { quarantined, missing } }) => quarantined + missing > 0;
    const first = status.datasets.find(troubled) ?? status.datasets.find(({ rows }) => rows > 0) ?? status.datasets[0];
    const found = datasets.find(({ key }) => key === (choices.dataset ?? first.dataset)) ?? datasets[0];
    const dataset = withInstrument(facts, found, choices.instrument);
    const choose = (more) => {
      location.hash = hashOf('coverage', more);
    };
    const chooseInstrument = (instrument) =>
      choose({ ...placeOf(location.hash).choices, dataset: dataset.key, instrument, revision: '' });
    return html`<section aria-labelledby="coverage-title"><div class="head"><h1 id="coverage-title">Coverage</h1>
        <${Select} label="of" name="coverage-dataset" value=${dataset.key} options=${datasets.map(({ key, title }) => [key, title])} onChange=${(key) => choose({ dataset: key })} /><${InstrumentSelect} label="instrument" facts=${facts} dataset=${dataset} onChange=${chooseInstrument} /></div>
      <${Covered} key=${nameOf(dataset)} facts=${facts} dataset=${dataset} view=${(coverage) => html`<${Calendar} coverage=${coverage} dataset=${dataset} changes=${facts.status.changes.last} at=${choices} />`} />
    </section>`;
  }
}

class Calendar extends Component {
  #latest = new Latest();
  #latestConditions = new Latest();
  #known = '';
  #knownConditions = '';
  state = { ...placeIn(this.props.at), withRows: undefined, conditions: new Map(), focused: undefined };
  #redraw = () => this.setState({ first: 0 });

  componentDidMount() {
    narrow.addEventListener('change', this.#redraw);
    this.#look();
  }

  componentDidUpdate() {
    this.#look();
  }

  #look() {
    void this.#lookForRows();
    void this.#lookForConditions();
  }

  componentWillUnmount() {
    narrow.removeEventListener('change', this.#redraw);
    this.#latest.stop();
    this.#latestConditions.stop();
  }

  /** Without an answer, or where the rows are more than the page reads, the calendar tells what is proved alone. */
  async #lookForRows() {
    const { dataset, coverage } = this.props;
    const { from, to, key } = this.#page;
    const known = `${coverage.version} ${key}`;
    if (known === this.#known || coverage.proved.length === 0) return;
    this.#known = known;
    const request = rowDaysRequest(dataset, { from, to }, this.state.source);
    if (!request) return;
    const end = await this.#latest.ask((signal) => readRows(request, signal));
    const { rows, isCut } = end?.value ?? {};
    if (!end || this.#known !== known) return;
    const held = rows && !isCut ? rows.filter((row) => row.value !== null) : undefined;
    const days = held && new Set(held.map((row) => row[request.time].slice(0, 10)));
    this.setState({ withRows: days && { key, days } });
  }

  /** Until it is answered, the calendar tells what coverage does. */
  async #lookForConditions() {
    const { dataset, coverage, changes } = this.props;
    const { range } = this.#days;
    const { from, to } = this.#page;
    const known = `${coverage.version} ${changes} ${from} ${to}`;
    if (known === this.#knownConditions || !range) return;
    this.#knownConditions = known;
    const [first, last] = [Math.max(from, range.from), Math.min(to, range.to) - DAY_MS];
    if (first > last) return;
    const query = new URLSearchParams({
      dataset: dataset.key,
      ...{ from: dayOf(first), to: dayOf(last) },
      ...instrumentOf(dataset),
    });
    const end = await this.#latestConditions.ask((signal) => ask(`/v1/conditions?${query}`, { signal }));
    if (!end?.value) return;
    this.setState({ conditions: new Map(end.value.conditions.map((one) => [one.day, one])) });
  }

  get #days() {
    const { withRows, source, conditions } = this.state;
    // Those of another year say nothing of this one.
    const rows = withRows?.key === this.#page.key ? withRows.days : undefined;
    const days = daysOf(this.props.coverage, source || undefined, rows);
    // A condition is that of all sources together.
    const foundOf = (ms) => (source ? undefined : conditions.get(dayOf(ms)));
    const range = days.range && { ...days.range, to: Math.max(days.range.to, expectedTo(days.range.to)) };
    return { ...days, range, known: days.range, foundOf, stateOf: (ms) => shownState(days.stateOf(ms), foundOf(ms)) };
  }

  /** Puts the choices into the address. */
  #remember() {
    const { dataset, at } = this.props;
    const { source, first, chosen, revision } = this.state;
    remember('coverage', {
      dataset: dataset.key,
      ...{ source, month: first ? dayOf(monthStart(first)).slice(0, 7) : '' },
      day: chosen === undefined ? '' : dayOf(chosen),
      instrument: dataset.instrument && at.instrument,
      revision,
    });
  }

  #change(more) {
    this.setState(more, () => this.#remember());
  }

  /** The days that the calendar shows: [from, to). */
  get #page() {
    const { range } = daysOf(this.props.coverage, this.state.source || undefined);
    const first = this.state.first || pageOf(this.state.chosen ?? (range?.to ?? Date.now()) - DAY_MS);
    const [from, to] = [monthStart(first), monthStart(first + pageLength())];
    return { first, from, to, key: `${from} ${to} ${this.state.source}` };
  }

  #choose(ms) {
    this.#change({ chosen: ms, revision: '' });
  }

  #openRevision = (revision) => this.#change({ revision });

  #walk = (event) => {
    const at = Number(event.target.dataset?.day);
    const step = STEPS[event.key];
    if (!at || !step) return;
    event.preventDefault();
    const to = at + step * DAY_MS;
    const { range } = this.#days;
    if (to < range.from || to >= range.to) return;
    this.setState({ focused: to, first: pageOf(to) }, () => this.box.querySelector(`[data-day="${to}"]`)?.focus());
  };

  render() {
    const { coverage, dataset, changes } = this.props;
    const { source, chosen, revision } = this.state;
    const days = this.#days;
    const sources = [...new Set([...coverage.proved, ...coverage.partitions].map(({ source_id: id }) => id))].sort();
    if (source && !sources.includes(source)) throw new Error(`${dataset.key} has no source ${source}`);
    const seen = `${coverage.version} ${changes}`;
    const day = chosen !== undefined && {
      day: dayOf(chosen),
      state: days.stateOf(chosen),
      window: days.windowOf(chosen),
    };
    return html`${sources.length > 1 && html`<div class="head"><${Select} label="source" name="coverage-source" value=${source} options=${[['', 'all together'], ...sources]} onChange=${(value) => this.#change({ source: value })} /></div>`}
      <div class="beside">
        <div id="calendar" onKeyDown=${this.#walk} ref=${(box) => {
          this.box = box;
        }}>${days.range ? this.#months(days) : html`<div class="empty"><b>Nothing of it is proved yet.</b><p><code>./tidemark backfill</code> brings it in; <code>./tidemark help backfill</code> names its feed.</p></div>`}</div>
        <aside id="proof" class="panel" aria-live="polite" aria-label="Proof"><${Proof} dataset=${dataset} chosen=${day || undefined} source=${source || undefined} seen=${seen} revision=${revision} onRevision=${this.#openRevision}>${day && html`<${Worth} key=${day.day} dataset=${dataset} day=${day.day} window=${day.window} seen=${seen} />`}<//></aside>
      </div>`;
  }

  #months(days) {
    const { range } = days;
    const { first, from, to } = this.#page;
    const turn = (by) => this.#change({ first: first + by * pageLength() });
    const year = new Date(from).getUTCFullYear();
    const title = pageLength() === 12 ? `${year}` : `${monthName(from)} to ${monthName(to - DAY_MS)} ${year}`;
    const shown = Array.from({ length: pageLength() }, (_, at) =>
      monthDays(Math.floor((first + at) / 12), (first + at) % 12),
    )
      // Months without any known day are left out.
      .filter((month) => month.days[0] < range.to && month.days.at(-1) + DAY_MS > range.from);
    const wanted = this.state.focused ?? this.state.chosen ?? days.known.to - DAY_MS;
    // The one day that the Tab key reaches.
    const tab = Math.min(Math.max(wanted, from, dayStart(range.from)), to - DAY_MS);
    return html`<div class="years">
        <button type="button" class="quiet" aria-label="Earlier" disabled=${from <= range.from} onClick=${() => turn(-1)}>‹</button>
        <b aria-live="polite">${title}</b>
        <button type="button" class="quiet" aria-label="Later" disabled=${to >= range.to} onClick=${() => turn(1)}>›</button>
      </div>
      <div class="months">${shown.map(
        (
          month,
        ) => html`<div class="month" role="group" aria-label=${`${monthName(month.days[0])} ${year}`}><b>${monthName(month.days[0])}</b>
        <div class="grid">${Array.from({ length: month.blanks }, () => html`<span />`)}${month.days.map((ms) => this.#day(ms, days, ms === tab))}</div></div>`,
      )}</div>
      <p class="legend grid-legend">${LEGEND.map((state) => html`<span><i class=${state}></i>${STATE_TEXT[state]}</span>`)}</p>`;
  }

  #day(ms, days, isTab) {
    const day = dayOf(ms);
    const state = days.stateOf(ms);
    const found = days.foundOf(ms)?.reasons ?? [];
    const reasons = state === 'degraded' ? found : [];
    const text = found.includes('retracted') ? 'missing: retracted' : STATE_TEXT[state];
    const title = [`${day}: ${text}`, ...reasons.map((reason) => REASON_TEXT[reason])].join('\n');
    // The text is the end of the label, so that speech input finds the button by what is seen.
    return html`<button type="button" class=${state} data-day=${ms} tabindex=${isTab ? 0 : -1} aria-pressed=${String(ms === this.state.chosen)}
      aria-label=${`${day}, ${text}`} title=${title} onClick=${() => this.#choose(ms)}>${day.slice(-2)}</button>`;
  }
}
