/** The form that builds a request, shows it as commands and runs it. */
import { byId, code, fill, h } from './dom.js';
import { problem } from './problem.js';
import { clientOf, curlOf, pythonOf, requestOf } from './request.js';
import { clearResult, showResult } from './result.js';
import { readRows } from './rows.js';

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

const select = (name, options, chosen) =>
  h('select', { name }, ...options.map(([value, text]) => h('option', { value, selected: value === chosen }, text)));

const labelled = (text, control, properties = {}) => h('label', properties, h('span', {}, text), control);

const actions = () => [
  h(
    'p',
    { class: 'actions whole' },
    h('button', { type: 'submit', class: 'main' }, 'Run it'),
    h('span', { id: 'running', class: 'faint', role: 'status' }),
  ),
];

export class Explorer {
  #datasets;
  #operators;
  #running;
  /** @type {HTMLElement} */
  #form = byId('explorer-form');
  #tab = 'curl';

  /** @param {any} answer of /v1/datasets */
  constructor({ datasets, operators }) {
    this.#datasets = datasets;
    this.#operators = operators;
    const first = datasets.find(({ availability }) => availability.rows > 0) ?? datasets[0];
    this.#build(first);
    this.#form.addEventListener('input', () => this.#changed());
    this.#form.addEventListener('submit', (event) => {
      event.preventDefault();
      void this.#run();
    });
    this.#changed();
  }

  #build(first) {
    fill(this.#form, ...this.#selection(first), ...this.#extent(), ...this.#refinements(), ...actions());
  }

  /** What is read: the dataset, rows or candles, and their form. */
  #selection(first) {
    const datasets = this.#datasets.map(({ key, title, availability }) => [
      key,
      availability.rows > 0 ? title : `${title} (nothing yet)`,
    ]);
    const sizes = SIZES.map((size) => [size, size]);
    return [
      labelled('Dataset', select('dataset', datasets, first.key)),
      labelled('Ask for', select('what', KINDS, 'klines'), { 'data-for': 'trades' }),
      labelled('Mode', select('mode', MODES, 'native')),
      labelled('Candle', select('kline_size', sizes, '1m'), { 'data-for': 'klines' }),
    ];
  }

  /** How much is read. */
  #extent() {
    const count = { name: 'count', type: 'number', min: 1, max: 10_000, value: 200, required: true };
    return [
      labelled('Window', select('window', WINDOWS, 'latest')),
      labelled('How many', h('input', count), { 'data-for': 'count' }),
      labelled('First day', h('input', { name: 'from', type: 'date' }), { 'data-for': 'days' }),
      labelled('Last day', h('input', { name: 'to', type: 'date' }), { 'data-for': 'days' }),
    ];
  }

  #refinements() {
    return [
      h(
        'details',
        { 'data-for': 'rows', class: 'whole' },
        h('summary', {}, 'Fields', h('span', { id: 'fields-said', class: 'faint' })),
        h('div', { class: 'fields', id: 'fields' }),
      ),
      h(
        'fieldset',
        { 'data-for': 'rows', class: 'whole filters' },
        h('legend', {}, 'Filters'),
        h('div', { id: 'filters' }),
        h('button', { type: 'button', class: 'quiet', onclick: () => this.#addFilter() }, 'Add a filter'),
      ),
      h(
        'label',
        { class: 'check whole' },
        h('input', { type: 'checkbox', name: 'strict' }),
        'Refuse an answer that would carry warnings',
      ),
    ];
  }

  get #control() {
    return (name) => /** @type {any} */ (this.#form).elements[name];
  }

  get #dataset() {
    return this.#datasets.find(({ key }) => key === this.#control('dataset').value);
  }

  #shownFor = '';

  #changed() {
    const dataset = this.#dataset;
    const value = (name) => this.#control(name).value;
    const hasKlines = dataset.klines_path !== null;
    const what = hasKlines ? value('what') : 'rows';
    const shape = `${dataset.key} ${value('mode')} ${what}`;
    if (shape !== this.#shownFor) {
      this.#shownFor = shape;
      this.#fields(dataset.modes[value('mode')].fields);
      fill(byId('filters'));
      this.#lastDay(dataset.availability);
    }
    const shown = {
      trades: hasKlines,
      klines: what === 'klines',
      rows: what === 'rows',
      count: ['latest', 'random'].includes(value('window')),
      days: value('window') === 'days',
    };
    for (const part of this.#form.querySelectorAll('[data-for]'))
      part.toggleAttribute('hidden', !shown[part.getAttribute('data-for')]);
    this.#control('count').disabled = !shown.count;
    const picked = this.#picked();
    byId('fields-said').textContent = picked.length === 0 ? ' all' : ` ${picked.length} chosen`;
    this.#say();
  }

  /** Most readers ask for the newest proved days, so the form begins with them. */
  #lastDay({ proved_through_utc: through }) {
    const day = through === null ? '' : new Date(Date.parse(through) - 1).toISOString().slice(0, 10);
    for (const name of ['from', 'to']) this.#control(name).value = day;
  }

  #fields(fields) {
    fill(
      byId('fields'),
      ...fields.map(({ name, unit, doc }) =>
        h(
          'label',
          { class: 'check', title: doc },
          h('input', { type: 'checkbox', 'data-field': name }),
          h('span', {}, name, unit && h('span', { class: 'faint' }, ` ${unit}`)),
        ),
      ),
    );
  }

  #picked() {
    return [...byId('fields').querySelectorAll('input:checked')].map((box) => box.dataset.field);
  }

  #addFilter() {
    const { fields } = this.#dataset.modes[this.#control('mode').value];
    const usable = fields.filter(({ dtype }) => this.#operators[dtype].length > 0);
    const operator = h('select', { 'aria-label': 'Operator', 'data-part': 'op' });
    const field = /** @type {HTMLSelectElement} */ (
      h('select', { 'aria-label': 'Field', 'data-part': 'field' }, ...usable.map(({ name }) => h('option', {}, name)))
    );
    const offer = () => {
      const dtype = usable.find(({ name }) => name === field.value).dtype;
      fill(operator, ...this.#operators[dtype].map((one) => h('option', {}, one)));
    };
    field.addEventListener('input', offer);
    offer();
    const line = h(
      'div',
      { class: 'filter' },
      field,
      operator,
      h('input', { 'aria-label': 'Value', 'data-part': 'value', placeholder: 'value, or a, b for in' }),
      h(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'aria-label': 'Take this filter away',
          onclick: () => {
            line.remove();
            this.#changed();
          },
        },
        '×',
      ),
    );
    byId('filters').append(line);
    field.focus();
    this.#changed();
  }

  #request() {
    const value = (name) => this.#control(name).value;
    const dataset = this.#dataset;
    const part = (line, name) => line.querySelector(`[data-part="${name}"]`).value;
    const filters = [...byId('filters').children].map((line) => ({
      field: part(line, 'field'),
      op: part(line, 'op'),
      value: part(line, 'value'),
    }));
    return requestOf({
      dataset,
      what: dataset.klines_path === null ? 'rows' : value('what'),
      mode: value('mode'),
      fields: this.#picked(),
      window: value('window'),
      count: Number(value('count')),
      from: value('from'),
      to: value('to'),
      klineSize: value('kline_size'),
      filters,
      strict: this.#control('strict').checked,
    });
  }

  #say() {
    const request = this.#request();
    const origin = location.origin;
    const tabs = {
      curl: curlOf(request, origin),
      client: clientOf(request, this.#dataset, origin),
      python: pythonOf(request, origin),
    };
    const names = { curl: 'curl', client: 'TypeScript client', python: 'Python' };
    fill(
      byId('explorer-said'),
      h(
        'div',
        { class: 'tabs', role: 'group', 'aria-label': 'The same request as' },
        ...Object.keys(tabs).map((name) =>
          h(
            'button',
            {
              type: 'button',
              class: 'quiet',
              'data-tab': name,
              'aria-pressed': String(name === this.#tab),
              onclick: () => {
                this.#tab = name;
                this.#say();
                byId('explorer-said').querySelector(`[data-tab="${name}"]`).focus();
              },
            },
            names[name],
          ),
        ),
      ),
      code(tabs[this.#tab], names[this.#tab]),
    );
  }

  async #run() {
    this.#running?.abort();
    const running = new AbortController();
    this.#running = running;
    const said = byId('running');
    said.textContent = 'Running…';
    clearResult();
    const startedAt = performance.now();
    const [dataset, mode] = [this.#dataset, this.#control('mode').value];
    try {
      const answer = await readRows(this.#request(), running.signal);
      if (running.signal.aborted) return;
      showResult({ ...answer, ms: performance.now() - startedAt }, dataset, mode);
    } catch (error) {
      if (running.signal.aborted) return;
      fill(byId('explorer-result'), problem(error));
    } finally {
      if (this.#running === running) said.textContent = '';
    }
  }
}
