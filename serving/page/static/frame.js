/** Builds a frame by choosing columns, and draws them on one time axis. */
import { LineChart } from './charts.js';
import { Form } from './form.js';
import { dayOf } from './format.js';
import { InstrumentSelect, instrumentsOf, withInstrument } from './instruments.js';
import { favouriteOf, frameFieldsOf, frameRequestOf } from './request.js';
import { ResultHead, RowTable } from './result.js';
import { linesOf, MOST_LINES } from './series.js';
import { html, Problem, Select } from './view.js';

const GRIDS = ['1m', '5m', '15m', '1h', '4h', '1d'];
const WINDOWS = [
  ['latest', 'the latest buckets'],
  ['days', 'whole days'],
];
/** What the builder begins with, as far as it may be read: a price, holdings and a block's fees. */
const FIRST = ['exchange_a_spot_trades', 'etf_daily_metrics', 'bitcoin_block_fee_totals'];

const seriesText = (one) =>
  Object.values(one)
    .filter((text) => !text.startsWith('{'))
    .join(' · ');

export class Frame extends Form {
  usual() {
    const { datasets } = this.props.facts;
    const readable = datasets.filter(({ rights, availability }) => availability.rows > 0 && !rights.refused_with);
    const first = readable.filter(({ key }) => FIRST.includes(key));
    const columns = (first.length > 0 ? first : [readable[0] ?? datasets[0]]).map(({ key }) =>
      this.whole({ dataset: key }),
    );
    const through = readable.map(({ availability }) => availability.proved_through_utc).toSorted();
    const day = through.length === 0 ? '' : dayOf(Date.parse(through.at(-1)) - 1);
    const usual = { grid: '1h', window: 'latest', count: '72', from: day, to: day, row: 'yes', previous: 'no' };
    return { columns: JSON.stringify(columns), ...usual };
  }

  /** @param {any} column */
  datasetOf({ dataset: key, instrument }) {
    const { facts } = this.props;
    const found = facts.datasets.find((one) => one.key === key);
    return withInstrument(facts, found, instrument);
  }

  /**
   * A column whose instrument, field, series and aggregate its dataset has: what was chosen for another dataset may not fit.
   * @param {any} column
   */
  whole({ instrument: chosen, ...column }) {
    const { facts } = this.props;
    const dataset = this.datasetOf(column);
    const instrument = instrumentsOf(facts, dataset).some((one) => one.instrument === chosen) ? chosen : undefined;
    const fields = frameFieldsOf(dataset);
    const usual = favouriteOf(dataset);
    const { name: field, aggregates } = fields.find(({ name }) => name === column.field) ??
      fields.find(({ name }) => name === usual?.field) ?? { name: '', aggregates: [] };
    const aggregate = [column.aggregate, 'last', aggregates[0]].find((one) => aggregates.includes(one));
    const series = dataset.series[column.series] ? column.series : (usual?.at ?? -1);
    return { dataset: dataset.key, instrument, field, aggregate, series };
  }

  get means() {
    const { columns, count, row, previous, ...rest } = this.state.choices;
    const chosen = JSON.parse(columns).map(({ series, ...column }) => {
      const dataset = this.datasetOf(column);
      return { ...column, dataset, series: dataset.series[series] };
    });
    const flags = { count: Number(count), row: row === 'yes', previous: previous === 'yes' };
    return { request: frameRequestOf({ ...rest, ...flags, columns: chosen }) };
  }

  /**
   * A metric's rows state its unit and a frame does not, so that a metric has an axis of its own. What base and quote are depends
   * on the instrument.
   */
  #line({ name, field, ...column }, rows) {
    const dataset = this.datasetOf(column);
    const own = frameFieldsOf(dataset).find((one) => one.name === field)?.unit ?? name;
    const unit = dataset.instrument ? `${own} of ${dataset.instrument}` : own;
    const [line] = linesOf(rows, name, { time: 'datetime', unit });
    return { name, unit, points: line?.points ?? [], steps: dataset.klines_path === null };
  }

  #linesOf(end) {
    // Charts are drawn anew when their data is another.
    end.lines ??= end.request.body.columns.slice(0, MOST_LINES).map((column) => this.#line(column, end.value.rows));
    return end.lines;
  }

  render() {
    const { facts } = this.props;
    const { datasets } = facts;
    const columns = JSON.parse(this.state.choices.columns);
    const setColumns = (list) => this.set({ columns: JSON.stringify(list.map((one) => this.whole(one))) });
    const more = () => setColumns([...columns, columns.at(-1) ?? { dataset: datasets[0].key }]);
    const controls = html`<fieldset class="whole"><legend>Columns</legend>
        ${columns.map((column, at) => html`<${Column} column=${column} facts=${facts} dataset=${this.datasetOf(column)} onChange=${(changed) => setColumns(columns.with(at, changed))} onRemove=${() => setColumns(columns.toSpliced(at, 1))} />`)}
        <button type="button" class="quiet" onClick=${more}>Add a column</button></fieldset>
      ${this.select('Bucket', 'grid', GRIDS)}${this.select('Window', 'window', WINDOWS)}${this.extent()}
      ${this.check('Each row as it was known at its end: nothing from the future', 'row')}
      ${this.check('Carry prices over buckets without trades', 'previous')}`;
    return html`<section aria-labelledby="frame-title"><h1 id="frame-title">Frame</h1>
      <p class="lead">Columns of several datasets on one clock. Trades of a bucket become one value; of everything else a bucket has the last value.</p>
      ${this.form({ controls, button: 'Build it' })}
      <div id="frame-result" aria-live="polite">${this.state.end && this.#shown(this.state.end)}</div>
    </section>`;
  }

  #shown(end) {
    if (end.fault) return html`<${Problem} fault=${end.fault} />`;
    const { rows } = end.value;
    if (rows.length === 0) return html`<div class="panel"><${ResultHead} ...${end} /></div>`;
    const lines = this.#linesOf(end);
    return html`<div class="panel"><${ResultHead} ...${end} />
      <${LineChart} lines=${lines} label=${`${lines.map(({ name }) => name).join(', ')} over time`} />
      <${RowTable} rows=${rows} fields=${[]} caption="Rows of the frame" /></div>`;
  }
}

function Column({ column, facts, dataset, onChange, onRemove }) {
  const fields = frameFieldsOf(dataset);
  const { aggregates = [] } = fields.find(({ name }) => name === column.field) ?? {};
  const select = (label, name, options) =>
    html`<${Select} part label=${label} name=${name} value=${column[name]} options=${options} onChange=${(value) => onChange({ ...column, [name]: name === 'series' ? Number(value) : value })} />`;
  return html`<div class="filter column">
    ${select(
      'Dataset',
      'dataset',
      facts.datasets.map(({ key, title }) => [key, title]),
    )}
    <${InstrumentSelect} part facts=${facts} dataset=${dataset} onChange=${(instrument) => onChange({ ...column, instrument })} />
    ${
      dataset.series.length > 0 &&
      select(
        'Series',
        'series',
        dataset.series.map((one, at) => [at, seriesText(one)]),
      )
    }
    ${select(
      'Field',
      'field',
      fields.map(({ name }) => name),
    )}
    ${aggregates.length > 1 && select('Aggregate', 'aggregate', aggregates)}
    <button type="button" class="quiet" aria-label="Take this column away" onClick=${onRemove}>×</button>
  </div>`;
}
