/** Composes a request, shows it as programs and runs it; the address of the page holds it all. */
import { download } from './api.js';
import { Form } from './form.js';
import { dayOf } from './format.js';
import { InstrumentSelect, otherRows, withInstrument } from './instruments.js';
import { fileOf, requestOf } from './request.js';
import { Result } from './result.js';
import { html, Select } from './view.js';

const WINDOWS = [
  ['latest', 'the latest rows'],
  ['random', 'random rows'],
  ['days', 'whole days'],
  ['all', 'all that is proved'],
];
const MODES = [
  ['native', 'native: as the source has them'],
  ['aligned_1s', 'aligned: one row a second'],
];
const KINDS = [
  ['klines', 'candles'],
  ['rows', 'rows'],
];
const SIZES = ['1s', '10s', '1m', '5m', '15m', '1h', '4h', '1d', '1w'];
/** The columns of an answer of candles, which the schema of the dataset does not list. */
const KLINES = { order: ['datetime'], series_key: [], fields: [{ name: 'datetime', dtype: 'timestamp_utc' }] };

export class Explore extends Form {
  /** Rows of the first dataset that has some, or of that which is linked. */
  usual() {
    const { choices, facts } = this.props;
    const usable = ({ availability, rights }) => availability.rows > 0 && !rights.refused_with;
    const dataset = choices.dataset ?? (facts.datasets.find(usable) ?? facts.datasets[0]).key;
    const usual = { dataset, what: 'klines', mode: 'native', size: '1h', window: 'latest', count: '200' };
    return {
      ...usual,
      instrument: '',
      ...this.lastDay(dataset, choices.instrument),
      fields: '',
      filters: '[]',
      strict: 'no',
    };
  }

  datasetOf(key, instrument) {
    const { facts } = this.props;
    const found = facts.datasets.find((one) => one.key === key) ?? facts.datasets[0];
    return withInstrument(facts, found, instrument);
  }

  /** Most readers ask for the newest proved day. */
  lastDay(key, instrument) {
    const { proved_through_utc: through } = this.datasetOf(key, instrument).availability;
    const day = through === null ? '' : dayOf(Date.parse(through) - 1);
    return { from: day, to: day };
  }

  set(more) {
    const isOther = ['dataset', 'mode', 'what'].some((name) => name in more);
    super.set({
      ...(isOther && { fields: '', filters: '[]' }),
      ...(more.dataset && { instrument: '', ...this.lastDay(more.dataset) }),
      ...(more.instrument !== undefined && this.lastDay(this.state.choices.dataset, more.instrument)),
      ...more,
    });
  }

  get means() {
    const { choices } = this.state;
    const dataset = this.datasetOf(choices.dataset, choices.instrument);
    const what = dataset.klines_path === null ? 'rows' : choices.what;
    const filters = JSON.parse(choices.filters);
    const fields = choices.fields === '' ? [] : choices.fields.split(',');
    const { mode, window, from, to, size: klineSize } = choices;
    const rest = { count: Number(choices.count), strict: choices.strict === 'yes', from, to, klineSize };
    const request = requestOf({ dataset, what, mode, window, fields, filters, ...rest });
    return { dataset, what, fields, filters, request, schema: what === 'klines' ? KLINES : dataset.modes[mode] };
  }

  render() {
    const { mode } = this.state.choices;
    const { end } = this.state;
    const { facts } = this.props;
    const { dataset, what, fields, filters, request } = this.means;
    const all = dataset.modes[mode].fields;
    const named = (one) => {
      const { key, title, availability, rights } = one;
      const rows = availability.rows + otherRows(facts, one);
      const more = rights.refused_with ? ' (not served)' : rows > 0 ? '' : ' (nothing yet)';
      return [key, `${title}${more}`];
    };
    const controls = html`${this.select('Dataset', 'dataset', facts.datasets.map(named))}
      <${InstrumentSelect} facts=${facts} dataset=${dataset} onChange=${(instrument) => this.set({ instrument })} />
      ${dataset.klines_path !== null && this.select('Ask for', 'what', KINDS)}
      ${this.select('Mode', 'mode', MODES)}
      ${what === 'klines' && this.select('Candle', 'size', SIZES)}
      ${this.select('Window', 'window', WINDOWS)}
      ${this.extent()}
      ${
        what === 'rows' &&
        html`<${Fields} all=${all} chosen=${fields} onChange=${(list) => this.set({ fields: list.join(',') })} />
        <${Filters} fields=${all} operators=${facts.operators} series=${dataset.series} filters=${filters} onChange=${(list) => this.set({ filters: JSON.stringify(list) })} />`
      }
      ${this.check('Refuse an answer that would carry warnings', 'strict')}`;
    const save = () => download(request, fileOf(dataset)).catch((fault) => this.setState({ end: { fault } }));
    const more = html`<button type="button" class="quiet" onClick=${save}>Download as CSV</button>`;
    return html`<section aria-labelledby="explore-title"><h1 id="explore-title">Explore</h1>
      ${this.form({ controls, button: 'Run it', more })}
      <div id="explore-result" aria-live="polite">${end && html`<${Result} ...${end} />`}</div>
    </section>`;
  }
}

const Fields = ({ all, chosen, onChange }) => html`<details class="whole">
  <summary>Fields<span class="faint">${chosen.length === 0 ? 'all' : `${chosen.length} chosen`}</span></summary>
  <div class="fields">${all.map(({ name, unit, doc }) => html`<label class="check" title=${doc}><input type="checkbox" data-field=${name} checked=${chosen.includes(name)} onInput=${(event) => onChange(event.target.checked ? [...chosen, name] : chosen.filter((one) => one !== name))} /><span>${name} <span class="faint">${unit}</span></span></label>`)}</div>
</details>`;

/** Values are offered where the dataset names them: sources and metrics of its series. */
function Filters({ fields, operators, series, filters, onChange }) {
  const usable = fields.filter(({ dtype }) => operators[dtype].length > 0);
  const operatorsOf = (name) => operators[usable.find((one) => one.name === name).dtype];
  const change = (at, more) => onChange(filters.map((one, index) => (index === at ? { ...one, ...more } : one)));
  const add = () => onChange([...filters, { field: usable[0].name, op: operatorsOf(usable[0].name)[0], value: '' }]);
  const offered = (name) => [...new Set(series.map((one) => one[name]).filter((value) => value !== undefined))];
  return html`<fieldset class="whole filters"><legend>Filters</legend>
    ${filters.map(
      ({ field, op, value }, at) => html`<div class="filter">
      <${Select} part label="Field" name="field" value=${field} options=${usable.map(({ name }) => name)} onChange=${(name) => change(at, { field: name, op: operatorsOf(name)[0] })} />
      <${Select} part label="Operator" name="op" value=${op} options=${operatorsOf(field)} onChange=${(name) => change(at, { op: name })} />
      <input aria-label="Value" list=${`values-${at}`} value=${value} placeholder="value, or a, b for in" onInput=${(event) => change(at, { value: event.target.value })} />
      <datalist id=${`values-${at}`}>${offered(field).map((one) => html`<option value=${one} />`)}</datalist>
      <button type="button" class="quiet" aria-label="Take this filter away" onClick=${() => onChange(filters.filter((_, index) => index !== at))}>×</button>
    </div>`,
    )}
    <button type="button" class="quiet" onClick=${add}>Add a filter</button>
  </fieldset>`;
}
