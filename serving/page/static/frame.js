/** Builds a frame by choosing columns, draws them on one time axis, and gives the request as commands. */
import { chartIn, LineSeries } from './charts.js';
import { byId, code, fill, h, table } from './dom.js';
import { counted, whole } from './format.js';
import { problem } from './problem.js';
import { curlOf, frameClientOf, framePythonOf, frameRequestOf } from './request.js';
import { LINES } from './result.js';
import { readRows } from './rows.js';
import { linesOf, MOST_LINES } from './series.js';

const GRIDS = ['1m', '5m', '15m', '1h', '4h', '1d'];
const WINDOWS = [
  ['latest', 'the latest buckets'],
  ['days', 'whole days'],
];
/** The most rows that the table shows. */
const SHOWN = 50;

const select = (name, options, chosen) =>
  h('select', { name }, ...options.map(([value, text]) => h('option', { value, selected: value === chosen }, text)));
const labelled = (text, control, properties = {}) => h('label', properties, h('span', {}, text), control);
const check = (name, text, checked) =>
  h('label', { class: 'check whole' }, h('input', { type: 'checkbox', name, checked }), text);

/** The fields that a frame takes of a dataset, each once. */
function fieldsOf({ modes }) {
  const fields = [...modes.native.fields, ...modes.aligned_1s.fields].filter(({ aggregates }) => aggregates.length > 0);
  return [...new Map(fields.map((field) => [field.name, field])).values()];
}

const seriesText = (one) =>
  Object.values(one)
    .filter((text) => !text.startsWith('{'))
    .join(' · ');

/** What the builder begins with, as far as it is proved: a price, holdings, a rate and a block's fees. */
const FIRST = [
  ['exchange_a_spot_trades', 'price', ''],
  ['etf_daily_metrics', 'metric_value_float', 'btc_units'],
  ['macro_series_metrics', 'metric_value_float', 'fedfunds'],
  ['bitcoin_block_fee_totals', 'fee_total_btc', ''],
];

export class FrameBuilder {
  #datasets;
  /** @type {HTMLElement} */
  #form = byId('frame-form');
  #tab = 'curl';
  /** @type {AbortController | undefined} */
  #running;
  /** @type {{ remove: () => void } | undefined} */
  #drawn;

  /** @param {any} answer of /v1/datasets */
  constructor({ datasets }) {
    this.#datasets = datasets;
    this.#build();
    const known = FIRST.filter(([key]) => this.#dataset(key).availability.rows > 0);
    for (const [key, field, series] of known.length > 0 ? known : FIRST.slice(0, 1)) this.#add(key, field, series);
    this.#form.addEventListener('input', () => this.#changed());
    this.#form.addEventListener('submit', (event) => {
      event.preventDefault();
      void this.#run();
    });
    this.#changed();
  }

  #dataset(key) {
    return this.#datasets.find((one) => one.key === key);
  }

  #build() {
    const count = { name: 'count', type: 'number', min: 1, max: 10_000, value: 72, required: true };
    fill(
      this.#form,
      h(
        'fieldset',
        { class: 'whole filters' },
        h('legend', {}, 'Columns'),
        h('div', { id: 'frame-columns' }),
        h('button', { type: 'button', class: 'quiet', onclick: () => this.#more() }, 'Add a column'),
      ),
      labelled(
        'Bucket',
        select(
          'grid',
          GRIDS.map((grid) => [grid, grid]),
          '1h',
        ),
      ),
      labelled('Window', select('window', WINDOWS, 'latest')),
      labelled('How many', h('input', count), { 'data-for': 'latest' }),
      labelled('First day', h('input', { name: 'from', type: 'date' }), { 'data-for': 'days' }),
      labelled('Last day', h('input', { name: 'to', type: 'date' }), { 'data-for': 'days' }),
      check('row', 'Each row as it was known at its end: nothing from the future', true),
      check('previous', 'Carry prices over buckets without trades', false),
      h(
        'p',
        { class: 'actions whole' },
        h('button', { type: 'submit', class: 'main' }, 'Build it'),
        h('span', { id: 'frame-running', class: 'faint', role: 'status' }),
      ),
    );
    const through = this.#datasets
      .map(({ availability }) => availability.proved_through_utc)
      .filter(Boolean)
      .sort()
      .at(-1);
    const day = through === undefined ? '' : new Date(Date.parse(through) - 1).toISOString().slice(0, 10);
    for (const name of ['from', 'to']) this.#control(name).value = day;
  }

  #control(name) {
    return /** @type {any} */ (this.#form).elements[name];
  }

  #more() {
    const last = /** @type {any} */ (byId('frame-columns').lastElementChild);
    const key = last ? last.querySelector('[data-part="dataset"]').value : this.#datasets[0].key;
    this.#add(key, '', '').querySelector('select')?.focus();
    this.#changed();
  }

  /** Adds a line for a column. @returns {HTMLElement} */
  #add(key, field, series) {
    const part = (name, label) =>
      /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': label, 'data-part': name }));
    const [datasets, of, fields, aggregates] = [
      part('dataset', 'Dataset'),
      part('series', 'Series'),
      part('field', 'Field'),
      part('aggregate', 'Aggregate'),
    ];
    fill(
      datasets,
      ...this.#datasets.map(({ key: value, title }) => h('option', { value, selected: value === key }, title)),
    );
    const offerAggregates = () => {
      const found = fieldsOf(this.#dataset(datasets.value)).find(({ name }) => name === fields.value);
      const own = found?.aggregates ?? [];
      fill(aggregates, ...own.map((one) => h('option', { selected: one === 'last' }, one)));
      aggregates.hidden = own.length < 2;
    };
    const offer = (wanted = '', wantedSeries = '') => {
      const dataset = this.#dataset(datasets.value);
      const first = dataset.series.findIndex((one) => seriesText(one).includes(wantedSeries));
      fill(
        of,
        ...dataset.series.map((one, index) =>
          h('option', { value: index, selected: index === first }, seriesText(one)),
        ),
      );
      of.hidden = dataset.series.length === 0;
      fill(fields, ...fieldsOf(dataset).map(({ name }) => h('option', { selected: name === wanted }, name)));
      offerAggregates();
    };
    datasets.addEventListener('input', () => offer());
    fields.addEventListener('input', offerAggregates);
    offer(field, series);
    const line = h(
      'div',
      { class: 'filter column' },
      ...[datasets, of, fields, aggregates],
      h(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'aria-label': 'Take this column away',
          onclick: () => {
            line.remove();
            this.#changed();
          },
        },
        '×',
      ),
    );
    byId('frame-columns').append(line);
    return line;
  }

  #request() {
    const columns = [...byId('frame-columns').children].map((line) => {
      const part = (name) => /** @type {HTMLSelectElement} */ (line.querySelector(`[data-part="${name}"]`)).value;
      const dataset = this.#dataset(part('dataset'));
      return {
        dataset,
        series: dataset.series[Number(part('series'))],
        field: part('field'),
        aggregate: part('aggregate'),
      };
    });
    const value = (name) => this.#control(name).value;
    return frameRequestOf({
      columns,
      grid: value('grid'),
      window: value('window'),
      count: Number(value('count')),
      from: value('from'),
      to: value('to'),
      row: this.#control('row').checked,
      previous: this.#control('previous').checked,
    });
  }

  #changed() {
    const window = this.#control('window').value;
    for (const part of this.#form.querySelectorAll('[data-for]'))
      part.toggleAttribute('hidden', part.getAttribute('data-for') !== window);
    this.#control('count').disabled = window !== 'latest';
    this.#say();
  }

  #say() {
    const request = this.#request();
    const tabs = {
      curl: ['curl', curlOf(request, location.origin)],
      client: ['TypeScript client', frameClientOf(request, location.origin)],
      python: ['Python', framePythonOf(request, location.origin)],
    };
    const choose = (name) => {
      this.#tab = name;
      this.#say();
      byId('frame-said').querySelector(`[data-tab="${name}"]`)?.focus();
    };
    /** @param {any} tab */
    const button = ([name, [title]]) =>
      h(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'data-tab': name,
          'aria-pressed': String(name === this.#tab),
          onclick: () => choose(name),
        },
        title,
      );
    const [title, text] = tabs[this.#tab];
    fill(
      byId('frame-said'),
      h(
        'div',
        { class: 'tabs', role: 'group', 'aria-label': 'The same frame as' },
        ...Object.entries(tabs).map(button),
      ),
      code(text, title),
    );
  }

  async #run() {
    this.#running?.abort();
    const running = new AbortController();
    this.#running = running;
    const said = byId('frame-running');
    said.textContent = 'Running…';
    this.#clear();
    const startedAt = performance.now();
    const request = this.#request();
    try {
      const answer = await readRows(request, running.signal);
      if (!running.signal.aborted) this.#show(answer, request.body.columns, performance.now() - startedAt);
    } catch (error) {
      if (!running.signal.aborted) fill(byId('frame-result'), problem(error));
    } finally {
      if (this.#running === running) said.textContent = '';
    }
  }

  #clear() {
    this.#drawn?.remove();
    this.#drawn = undefined;
    fill(byId('frame-result'));
  }

  #show({ rows, warnings, isCut, synthetic }, columns, ms) {
    const box = h('div', {});
    const names = Object.keys(rows[0] ?? {});
    fill(
      byId('frame-result'),
      h(
        'div',
        { class: 'panel' },
        h(
          'p',
          { class: 'result-head' },
          h(
            'span',
            {},
            h('b', {}, counted(rows.length, 'row')),
            isCut ? ' shown; there are more' : '',
            `, ${whole(ms)} ms `,
            synthetic && h('span', { class: 'badge' }, 'sample'),
          ),
        ),
        ...warnings.map(({ code: name, message }) => h('p', { class: 'notice warn' }, h('b', {}, name), ' ', message)),
        box,
        rows.length > SHOWN && h('p', { class: 'faint' }, `The last ${SHOWN} of them:`),
        rows.length > 0 &&
          table({
            caption: 'Rows of the frame',
            columns: names.map((name) => ({ name, number: rows.some((row) => typeof row[name] === 'number') })),
            rows: rows
              .slice(-SHOWN)
              .map((row) =>
                names.map((name) => (row[name] === null ? h('span', { class: 'faint' }, 'null') : String(row[name]))),
              ),
          }),
      ),
    );
    if (rows.length > 0) this.#draw(box, rows, columns);
  }

  /** Each column has a scale of its own: the first is on the right, the second on the left, the others have none. */
  #draw(box, rows, columns) {
    const shown = columns.slice(0, MOST_LINES);
    const plotBox = h('div', { class: 'chart tall' });
    box.append(plotBox);
    const label = `${shown.map(({ name }) => name).join(', ')} over time`;
    const plot = chartIn(plotBox, { height: 360, label, scroll: false });
    this.#drawn = plot;
    plot.chart.applyOptions({ leftPriceScale: { visible: shown.length > 1, borderVisible: false } });
    shown.forEach(({ name }, index) => {
      const [{ points } = { points: [] }] = linesOf(rows, name, []);
      const priceScaleId = ['right', 'left'][index] ?? name;
      const series = plot.chart.addSeries(LineSeries, {
        color: LINES[index],
        lineWidth: 2,
        priceLineVisible: false,
        lastValueVisible: index < 2,
        priceScaleId,
      });
      series.setData(/** @type {any} */ (points));
      // Values that never change are drawn in the middle of their scale: each scale has another middle.
      series.priceScale().applyOptions({ scaleMargins: { top: 0.06 + 0.09 * index, bottom: 0.06 } });
    });
    plot.chart.timeScale().fitContent();
    const keys = shown.map(({ name }, index) => {
      const swatch = h('i', {});
      swatch.style.background = LINES[index];
      const last = rows.findLast((row) => row[name] !== null)?.[name];
      return h(
        'span',
        {},
        swatch,
        `${name}${['  (right)', '  (left)'][index] ?? ''} ${last === undefined ? '' : Number(last).toPrecision(6)}`,
      );
    });
    box.append(h('p', { class: 'legend lines' }, ...keys));
  }
}
