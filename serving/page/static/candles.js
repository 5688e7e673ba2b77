/** Candles of a dataset of trades over any span: five years to one minute, at the size that fits. */

import { Fault } from './api.js';
import {
  centreOf,
  drawnIn,
  extentOf,
  holdsProved,
  moved,
  provedOf,
  requestFor,
  SPANS,
  spanOf,
  unprovedMs,
  viewAt,
  viewOf,
  zoomed,
} from './candle-view.js';
import { candleSeries, chartIn, shadeSeries } from './charts.js';
import { byId, fill, h } from './dom.js';
import { counted, duration, moment, whole } from './format.js';
import { problem } from './problem.js';
import { readRows } from './rows.js';

/** The chart asks for candles when it was not scaled for so long. */
const SETTLED_MS = 150;
const HEIGHT = 340;
const SIZE_NAMES = {
  '1s': '1 second',
  '1m': '1 minute',
  '5m': '5 minutes',
  '15m': '15 minutes',
  '1h': '1 hour',
  '4h': '4 hours',
  '1d': '1 day',
  '1w': '1 week',
};

/** None where the service finds nothing proved, which the page may learn later than the service. */
async function rowsOf(request, signal) {
  try {
    return (await readRows(request, signal)).rows;
  } catch (error) {
    if (error instanceof Fault && error.status === 404) return [];
    throw error;
  }
}

export class Candles {
  /** @type {readonly any[]} */
  #datasets = [];
  #coverageOf;
  /** Asked for. @type {import('./candle-view.js').View} */
  #view;
  /** Drawn. @type {import('./candle-view.js').View} */
  #drawn;
  #loading = new AbortController();
  #settling;
  #plot;
  #series;
  #shade;
  #spans = SPANS.map(([name, ms]) =>
    h('button', { type: 'button', class: 'quiet', onclick: () => this.#show(this.#around(ms)) }, name),
  );

  /** @param {(dataset: string) => any} coverageOf the answer of /v1/coverage as it is now */
  constructor(coverageOf) {
    this.#coverageOf = coverageOf;
    byId('candles-dataset').addEventListener('change', () => this.#first());
    fill(byId('candles-spans'), ...this.#spans, ...this.#steps());
    // What nobody looks at is not asked for; a hidden section is not looked at.
    const observer = new IntersectionObserver(([{ isIntersecting }]) => {
      if (!isIntersecting) return;
      observer.disconnect();
      this.#first();
    });
    observer.observe(byId('candles'));
  }

  /**
   * Those of trades that have proved time. The one that is shown stays.
   * @param {readonly any[]} datasets of /v1/datasets
   */
  offer(datasets) {
    const usable = datasets.filter(
      ({ key, klines_path: path }) => path !== null && this.#coverageOf(key).proved.length > 0,
    );
    byId('candles').toggleAttribute('hidden', usable.length === 0);
    const select = byId('candles-dataset');
    const chosen = select.value;
    if (usable.length !== this.#datasets.length)
      fill(select, ...usable.map(({ key, title }) => h('option', { value: key, selected: key === chosen }, title)));
    this.#datasets = usable;
    if (this.#view && usable.length > 0 && select.value !== chosen) this.#first();
  }

  #first() {
    this.#show(this.#around(SPANS[0][1]));
  }

  get #dataset() {
    return this.#datasets.find(({ key }) => key === byId('candles-dataset').value);
  }

  get #proved() {
    return provedOf(this.#coverageOf(this.#dataset.key));
  }

  get #extent() {
    return extentOf(this.#proved);
  }

  /** A length around what is shown; at first, and for another dataset, the newest of it. */
  #around(lengthMs) {
    const extent = this.#extent;
    const isWithin = this.#view && this.#view.fromMs < extent.toMs && this.#view.toMs > extent.fromMs;
    return viewOf(extent, lengthMs, isWithin ? centreOf(this.#view) : extent.toMs);
  }

  #steps() {
    /** @type {[string, string, string, () => import('./candle-view.js').View][]} */
    const steps = [
      ['‹', 'Earlier candles', 'ArrowLeft', () => moved(this.#extent, this.#view, -1)],
      ['›', 'Later candles', 'ArrowRight', () => moved(this.#extent, this.#view, 1)],
      ['−', 'Longer span', '-', () => zoomed(this.#extent, this.#view, -1)],
      ['+', 'Shorter span', '+', () => zoomed(this.#extent, this.#view, 1)],
    ];
    byId('candles-spans').addEventListener('keydown', (event) => {
      const next = steps.find(([, , key]) => key === event.key)?.[3];
      if (!next || !this.#view || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.#show(next());
    });
    return steps.map(([text, label, key, next]) =>
      h(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'aria-label': label,
          'aria-keyshortcuts': key,
          onclick: () => this.#view && this.#show(next()),
        },
        text,
      ),
    );
  }

  /** @param {import('./candle-view.js').View} view */
  async #show(view) {
    clearTimeout(this.#settling);
    this.#view = view;
    this.#loading.abort();
    const loading = new AbortController();
    this.#loading = loading;
    const pressed = spanOf(this.#extent, view);
    this.#spans.forEach((button, span) => {
      button.setAttribute('aria-pressed', String(span === pressed));
    });
    const said = byId('candles-said');
    const startedAt = performance.now();
    const dataset = this.#dataset;
    const proved = this.#proved;
    try {
      const rows = holdsProved(view, proved) ? await rowsOf(requestFor(dataset, view), loading.signal) : [];
      if (loading.signal.aborted) return;
      const points = drawnIn(rows, view, proved);
      const name = `${counted(points.count, 'candle')} of ${SIZE_NAMES[view.size]}`;
      this.#draw(view, points, `${name} of ${dataset.key}`);
      const times = [view.fromMs, view.toMs].map((ms) => moment(new Date(ms).toISOString())).join(' to ');
      const missing = unprovedMs(view, proved);
      const unproved = missing > 0 ? `, ${duration(missing / 1000)} not proved` : '';
      said.textContent = `${name}, ${times} UTC${unproved}, ${whole(performance.now() - startedAt)} ms`;
      fill(byId('candles-fault'));
    } catch (error) {
      if (loading.signal.aborted) return;
      said.textContent = '';
      fill(byId('candles-fault'), problem(error));
      // The candles of the span before would be taken for those of this one.
      this.#draw(view, drawnIn([], view, proved), `No candles of ${dataset.key}`);
    }
  }

  #draw(view, points, label) {
    this.#drawn = view;
    const box = byId('candles-chart');
    if (!this.#plot) this.#create(box, label);
    box.setAttribute('aria-label', label);
    this.#shade.show(points.unproved);
    this.#series.show(points);
    this.#plot.chart.timeScale().fitContent();
  }

  /** @param {HTMLElement} box */
  #create(box, label) {
    this.#plot = chartIn(box, { height: HEIGHT, label, seconds: true, scroll: true });
    const { chart } = this.#plot;
    // A drag ends where it is let go, and the candles of that time are asked for.
    chart.applyOptions({ kineticScroll: { touch: false } });
    this.#shade = shadeSeries(this.#plot);
    this.#series = candleSeries(this.#plot);
    chart.subscribeClick(({ time }) => {
      if (typeof time !== 'number') return;
      this.#show(zoomed(this.#extent, this.#drawn, 1, time * 1000 + this.#drawn.sizeMs / 2));
    });
    // The wheel alone scrolls the page: the chart does not get to see it.
    box.addEventListener('wheel', (event) => (event.ctrlKey ? this.#settle() : event.stopPropagation()), {
      capture: true,
    });
    // New candles in the middle of a drag would move it.
    box.addEventListener('pointerdown', () => {
      for (const end of ['pointerup', 'pointercancel']) addEventListener(end, () => this.#settle(), { once: true });
    });
  }

  /** Asks for the candles of what is seen, once it stays. */
  #settle() {
    clearTimeout(this.#settling);
    this.#settling = setTimeout(() => {
      const scale = this.#plot.chart.timeScale();
      const next = viewAt(this.#extent, this.#drawn, scale.getVisibleLogicalRange());
      if (next.fromMs === this.#drawn.fromMs && next.toMs === this.#drawn.toMs) scale.fitContent();
      else this.#show(next);
    }, SETTLED_MS);
  }
}
