/** An answer: candles or lines in a chart, and its rows as a table. */
import { CandleChart, LineChart } from './charts.js';
import { counted, whole } from './format.js';
import { nameOf } from './request.js';
import { candlesOf, linesOf, MOST_LINES, timeOf, valueColumns } from './series.js';
import { Badge, Component, html, Problem, Select, Table } from './view.js';

/** The most rows that the table shows. */
const SHOWN = 100;
/** It says what the latest rows are, and so is no remark on an answer to who asked for them. */
const OF_LATEST = 'WINDOW_LATEST_ROWS_MUTABLE';

/** How many rows there are, and what the service remarks on them. */
export const ResultHead = ({
  value: { rows, isCut, synthetic, warnings },
  ms,
  children,
}) => html`<p class="result-head">
    <span><b>${counted(rows.length, 'row')}</b>${isCut && ' shown; there are more, which were not read'}, ${whole(ms)} ms ${synthetic && html`<${Badge}>sample<//>`}
    ${warnings.some(({ code }) => code === OF_LATEST) && html`<span class="faint">the latest rows change as more is proved</span>`}</span>${children}</p>
  ${warnings.filter(({ code }) => code !== OF_LATEST).map(({ code, message }) => html`<p class="notice warn"><b>${code}</b> ${message}</p>`)}
  ${rows.length === 0 && html`<div class="empty"><b>No rows.</b></div>`}`;

/** @param {string} choice */
function drawingOf(choice, { rows, schema, dataset }) {
  const time = timeOf(schema);
  if (choice === 'candles') return candlesOf(rows, time);
  const unit = schema.fields.find(({ name }) => name === choice)?.unit;
  const all = linesOf(rows, choice, { time, keys: dataset.modes.aligned_1s.series_key, unit });
  const steps = dataset.klines_path === null;
  return { all: all.length, lines: all.slice(0, MOST_LINES).map((line) => ({ ...line, steps })) };
}

export class Result extends Component {
  state = { drawn: undefined };

  /** Computed once for an answer: charts are drawn anew when their data is another. */
  #drawings = new Map();

  shouldComponentUpdate({ value }) {
    if (value !== this.props.value) this.#drawings.clear();
    return true;
  }

  #of(choice) {
    const { value, schema, dataset } = this.props;
    if (!this.#drawings.has(choice)) {
      this.#drawings.set(choice, drawingOf(choice, { rows: value.rows, schema, dataset }));
    }
    return this.#drawings.get(choice);
  }

  render() {
    const { fault, value, schema, dataset } = this.props;
    if (fault) return html`<${Problem} fault=${fault} />`;
    const { rows } = value;
    const choices = [...(candlesOf(rows, timeOf(schema)) ? ['candles'] : []), ...valueColumns(rows, schema.fields)];
    const choice = choices.includes(this.state.drawn) ? this.state.drawn : choices[0];
    return html`<div class="panel"><${ResultHead} ...${this.props}>
        ${choices.length > 0 && html`<span class="draw"><${Select} label="draw" name="draw" value=${choice} options=${choices} onChange=${(drawn) => this.setState({ drawn })} /></span>`}<//>
      ${choice && this.#chart(choice, dataset)}
      ${rows.length > 0 && html`<${RowTable} rows=${rows} fields=${schema.fields} caption="Rows of the answer" />`}
    </div>`;
  }

  #chart(choice, dataset) {
    const of = nameOf(dataset);
    const drawn = this.#of(choice);
    if (choice === 'candles')
      return html`<${CandleChart} points=${drawn} label=${`${drawn.candles.length} candles of ${of}`} />`;
    if (drawn.all === 0) return html`<p class="faint">Without its time a row cannot be drawn.</p>`;
    const rest = drawn.all - drawn.lines.length;
    return html`<${LineChart} lines=${drawn.lines} label=${`${choice} of ${of} over time`} />
      ${rest > 0 && html`<p class="faint">and ${whole(rest)} more series: a filter chooses.</p>`}`;
  }
}

export function RowTable({ rows, fields, caption }) {
  const names = Object.keys(rows[0]);
  const unitOf = (name) => fields.find((field) => field.name === name)?.unit;
  const isNumber = (name) => rows.some((row) => typeof row[name] === 'number');
  const cell = (value) =>
    value === null
      ? html`<span class="faint">null</span>`
      : html`<span class="cell" title=${String(value).length > 40 ? String(value) : undefined}>${String(value)}</span>`;
  return html`${rows.length > SHOWN && html`<p class="faint">The last ${SHOWN} of them:</p>`}
    <${Table} caption=${caption} kind="rows" columns=${names.map((name) => [unitOf(name) ? `${name} (${unitOf(name)})` : name, isNumber(name) ? 'number' : undefined])}
      rows=${rows.slice(-SHOWN).map((row) => names.map((name) => cell(row[name])))} />`;
}
