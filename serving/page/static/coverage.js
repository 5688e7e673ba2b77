/** The calendar of a dataset: a year, or on a narrow screen three months. A chosen day shows its proof. Arrow keys move between days. */
import { Latest, readRows } from './api.js';
import { Covered } from './covered.js';
import { DAY_MS, dayStart, daysOf, monthDays, rowDaysRequest, STATE_TEXT } from './days.js';
import { dayOf } from './format.js';
import { InstrumentSelect, withInstrument } from './instruments.js';
import { hashOf, placeOf, remember } from './place.js';
import { Proof } from './proof.js';
import { instrumentOf, nameOf } from './request.js';
import { Component, html, Select } from './view.js';

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 };
const LEGEND = /** @type {const} */ (['proved', 'empty', 'part', 'missing', 'quarantined', 'waiting']);

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
      choose({ ...placeOf(location.hash).choices, dataset: dataset.key, instrument });
    return html`<section aria-labelledby="coverage-title"><div class="head"><h1 id="coverage-title">Coverage</h1>
        <${Select} label="of" name="coverage-dataset" value=${dataset.key} options=${datasets.map(({ key, title }) => [key, title])} onChange=${(key) => choose({ dataset: key })} /><${InstrumentSelect} label="instrument" facts=${facts} dataset=${dataset} onChange=${chooseInstrument} /></div>
      <${Covered} key=${nameOf(dataset)} facts=${facts} dataset=${dataset} view=${(coverage) => html`<${Calendar} coverage=${coverage} dataset=${dataset} day=${choices.day} />`} />
    </section>`;
  }
}

class Calendar extends Component {
  #latest = new Latest();
  #known = '';
  state = {
    source: '',
    first: 0,
    chosen: this.props.day ? Date.parse(this.props.day) : undefined,
    withRows: undefined,
  };
  #redraw = () => this.setState({ first: 0 });

  componentDidMount() {
    narrow.addEventListener('change', this.#redraw);
    void this.#lookForRows();
  }

  componentDidUpdate() {
    void this.#lookForRows();
  }

  componentWillUnmount() {
    narrow.removeEventListener('change', this.#redraw);
    this.#latest.stop();
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

  get #days() {
    const { withRows, source } = this.state;
    // Those of another year say nothing of this one.
    const days = withRows?.key === this.#page.key ? withRows.days : undefined;
    return daysOf(this.props.coverage, source || undefined, days);
  }

  /** The days that the calendar shows: [from, to). */
  get #page() {
    const { range } = daysOf(this.props.coverage, this.state.source || undefined);
    const first = this.state.first || pageOf(this.state.chosen ?? (range?.to ?? Date.now()) - DAY_MS);
    const [from, to] = [monthStart(first), monthStart(first + pageLength())];
    return { first, from, to, key: `${from} ${to} ${this.state.source}` };
  }

  #choose(ms) {
    const { dataset } = this.props;
    remember('coverage', { dataset: dataset.key, ...instrumentOf(dataset), day: dayOf(ms) });
    this.setState({ chosen: ms });
  }

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
    const { coverage, dataset } = this.props;
    const { source, chosen } = this.state;
    const days = this.#days;
    const sources = [...new Set([...coverage.proved, ...coverage.partitions].map(({ source_id: id }) => id))].sort();
    const day = chosen !== undefined && {
      day: dayOf(chosen),
      state: days.stateOf(chosen),
      window: days.windowOf(chosen),
    };
    return html`${sources.length > 1 && html`<div class="head"><${Select} label="source" name="coverage-source" value=${source} options=${[['', 'all together'], ...sources]} onChange=${(value) => this.setState({ source: value })} /></div>`}
      <div class="beside">
        <div id="calendar" onKeyDown=${this.#walk} ref=${(box) => {
          this.box = box;
        }}>${days.range ? this.#months(days) : html`<div class="empty"><b>Nothing of it is proved yet.</b><p><code>./tidemark backfill</code> brings it in; <code>./tidemark help backfill</code> names its feed.</p></div>`}</div>
        <aside id="proof" class="panel" aria-live="polite" aria-label="Proof"><${Proof} dataset=${dataset} chosen=${day || undefined} source=${source || undefined} /></aside>
      </div>`;
  }

  #months(days) {
    const { range } = days;
    const { first, from, to } = this.#page;
    const turn = (by) => this.setState({ first: first + by * pageLength() });
    const year = new Date(from).getUTCFullYear();
    const title = pageLength() === 12 ? `${year}` : `${monthName(from)} to ${monthName(to - DAY_MS)} ${year}`;
    const shown = Array.from({ length: pageLength() }, (_, at) =>
      monthDays(Math.floor((first + at) / 12), (first + at) % 12),
    )
      // Months without any known day are left out.
      .filter((month) => month.days[0] < range.to && month.days.at(-1) + DAY_MS > range.from);
    const wanted = this.state.focused ?? this.state.chosen ?? range.to - DAY_MS;
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
        <div class="grid">${Array.from({ length: month.blanks }, () => html`<span />`)}${month.days.map((ms) => this.#day(ms, days.stateOf(ms), ms === tab))}</div></div>`,
      )}</div>
      <p class="legend grid-legend">${LEGEND.map((state) => html`<span><i class=${state}></i>${STATE_TEXT[state]}</span>`)}</p>`;
  }

  #day(ms, state, isTab) {
    const day = dayOf(ms);
    // The text is the end of the label, so that speech input finds the button by what is seen.
    return html`<button type="button" class=${state} data-day=${ms} tabindex=${isTab ? 0 : -1} aria-pressed=${String(ms === this.state.chosen)}
      aria-label=${`${day}, ${STATE_TEXT[state]}`} title=${`${day}: ${STATE_TEXT[state]}`} onClick=${() => this.#choose(ms)}>${day.slice(-2)}</button>`;
  }
}
