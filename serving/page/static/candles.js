/** Candles of a dataset of trades over any span: five years to one minute, at the size that fits. */

import { Fault } from './api.js';
import { centreOf, drawnIn, moved, requestFor, SPANS, viewOf, zoomed } from './candle-view.js';
import { candleSeries, chartIn } from './charts.js';
import { byId, fill, h } from './dom.js';
import { counted, moment, whole } from './format.js';
import { problem } from './problem.js';
import { readRows } from './rows.js';

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

export class Candles {
  #datasets;
  /** @type {import('./candle-view.js').View} */
  #view;
  #loading = new AbortController();
  #plot;
  #series;
  #spans = SPANS.map(([name], span) =>
    h('button', { type: 'button', class: 'quiet', onclick: () => this.#show(this.#around(span)) }, name),
  );

  /** @param {readonly any[]} datasets of /v1/datasets */
  constructor(datasets) {
    this.#datasets = datasets.filter(
      ({ klines_path: path, availability }) => path !== null && availability.proved_from_utc !== null,
    );
    byId('candles').toggleAttribute('hidden', this.#datasets.length === 0);
    if (this.#datasets.length === 0) return;
    const select = byId('candles-dataset');
    fill(select, ...this.#datasets.map(({ key, title }) => h('option', { value: key }, title)));
    select.addEventListener('change', () => this.#show(this.#around(0)));
    fill(byId('candles-spans'), ...this.#spans, ...this.#steps());
    // What nobody looks at is not asked for.
    const observer = new IntersectionObserver(([{ isIntersecting }]) => {
      if (!isIntersecting) return;
      observer.disconnect();
      this.#show(this.#around(0));
    });
    observer.observe(byId('candles'));
  }

  get #dataset() {
    return this.#datasets.find(({ key }) => key === byId('candles-dataset').value);
  }

  get #extent() {
    const { proved_from_utc: from, proved_through_utc: through } = this.#dataset.availability;
    return { fromMs: Date.parse(from), toMs: Date.parse(through) };
  }

  /** A span around what is shown; at first, and for another dataset, the newest of it. */
  #around(span) {
    const extent = this.#extent;
    const isWithin = this.#view && this.#view.fromMs < extent.toMs && this.#view.toMs > extent.fromMs;
    return viewOf(extent, span, isWithin ? centreOf(this.#view) : extent.toMs);
  }

  #steps() {
    const step = (text, label, next) =>
      h('button', { type: 'button', class: 'quiet', 'aria-label': label, onclick: () => this.#show(next()) }, text);
    return [
      step('‹', 'Earlier candles', () => moved(this.#extent, this.#view, -1)),
      step('›', 'Later candles', () => moved(this.#extent, this.#view, 1)),
      step('−', 'Longer span', () => zoomed(this.#extent, this.#view, -1)),
      step('+', 'Shorter span', () => zoomed(this.#extent, this.#view, 1)),
    ];
  }

  /** @param {import('./candle-view.js').View} view */
  async #show(view) {
    this.#view = view;
    this.#loading.abort();
    const loading = new AbortController();
    this.#loading = loading;
    this.#spans.forEach((button, span) => {
      button.setAttribute('aria-pressed', String(span === view.span));
    });
    const said = byId('candles-said');
    const startedAt = performance.now();
    const dataset = this.#dataset;
    try {
      const rows = await this.#rows(requestFor(dataset, view), loading.signal);
      if (loading.signal.aborted) return;
      const { candles, volumes, count } = drawnIn(rows, view);
      this.#draw({ candles, volumes }, `${counted(count, 'candle')} of ${SIZE_NAMES[view.size]} of ${dataset.key}`);
      const times = [view.fromMs, view.toMs].map((ms) => moment(new Date(ms).toISOString())).join(' to ');
      const ms = whole(performance.now() - startedAt);
      said.textContent = `${counted(count, 'candle')} of ${SIZE_NAMES[view.size]}, ${times} UTC, ${ms} ms`;
      fill(byId('candles-fault'));
    } catch (error) {
      if (loading.signal.aborted) return;
      said.textContent = '';
      fill(byId('candles-fault'), problem(error));
    }
  }

  /** None where nothing in the view is proved: the chart then shows a gap. */
  async #rows(request, signal) {
    try {
      return (await readRows(request, signal)).rows;
    } catch (error) {
      if (error instanceof Fault && error.status === 404) return [];
      throw error;
    }
  }

  #draw(points, label) {
    const box = byId('candles-chart');
    if (!this.#plot) {
      this.#plot = chartIn(box, { height: HEIGHT, label, seconds: true });
      this.#series = candleSeries(this.#plot);
      this.#plot.chart.subscribeClick(({ time }) => {
        if (typeof time === 'number') this.#show(zoomed(this.#extent, this.#view, 1, time * 1000));
      });
    }
    box.setAttribute('aria-label', label);
    this.#series.show(points);
    this.#plot.chart.timeScale().fitContent();
  }
}
