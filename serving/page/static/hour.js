/** The last hour: lag, rows a second and freshness, of one dataset or of all. */
import { AreaSeries, chartIn, colours } from './charts.js';
import { byId, fill, h } from './dom.js';
import { duration, short } from './format.js';

const sum = (values) => values.reduce((total, value) => total + value, 0);
const most = (values) => Math.max(...values);

/** @type {readonly { title: string, doc: string, of: (series: any, index: number, at: readonly number[]) => number | null, all: (values: number[]) => number, format: (value: number) => string }[]} */
const PLOTS = [
  {
    title: 'Waiting',
    doc: 'events in the log that are not projected',
    of: ({ lag_events: lag }, index) => lag[index],
    all: sum,
    format: short,
  },
  {
    title: 'Rows proved',
    doc: 'a second, between two samples',
    of: ({ rows }, index, at) =>
      index === 0 ? null : Math.max(0, (rows[index] - rows[index - 1]) / (at[index] - at[index - 1])),
    all: sum,
    format: (value) => (value > 0 && value < 10 ? value.toFixed(1) : short(value)),
  },
  {
    title: 'Age of the proved end',
    doc: 'now less proved-through; of all datasets the oldest',
    of: ({ freshness_seconds: age }, index) => age[index],
    all: most,
    format: duration,
  },
];

/**
 * A point for each possible sample, so that the axis shows the whole hour even when it has just begun.
 * @param {readonly { time: number, value?: number }[]} points
 * @param {number} interval seconds
 */
function wholeHour(points, interval) {
  const indexOf = (time) => Math.round(time / interval);
  const byIndex = new Map(points.map((point) => [indexOf(point.time), point.value]));
  const last = indexOf(points.at(-1)?.time ?? Date.now() / 1000);
  return Array.from({ length: 3600 / interval + 1 }, (_, index) => {
    const at = last - 3600 / interval + index;
    const value = byIndex.get(at);
    return value === undefined ? { time: at * interval } : { time: at * interval, value };
  });
}

/** The axis begins at zero and ends at 1 or more, so that small noise does not fill it. */
const fromZero = (original) => {
  const found = original();
  return { ...found, priceRange: { minValue: 0, maxValue: Math.max(found?.priceRange?.maxValue ?? 0, 1) } };
};

export class Hour {
  #plots = PLOTS.map((plot) => this.#create(plot));
  #history = undefined;

  constructor() {
    fill(byId('plots'), ...this.#plots.map(({ figure }) => figure));
    byId('hour-dataset').addEventListener('change', () => this.#draw());
  }

  /** @param {any} history the answer of /v1/ops/history */
  show(history) {
    const select = byId('hour-dataset');
    if (select.options.length === 0) {
      select.append(
        ...['', ...history.datasets.map(({ dataset }) => dataset)].map((one) =>
          h('option', { value: one }, one || 'all datasets'),
        ),
      );
    }
    this.#history = history;
    this.#draw();
  }

  #create(plot) {
    const value = h('span', { class: 'value' }, '–');
    const box = h('div', { class: 'chart' });
    const figure = h(
      'figure',
      { class: 'panel' },
      h('figcaption', {}, h('b', {}, plot.title), value, h('span', { class: 'faint' }, plot.doc)),
      box,
    );
    return { plot, figure, value, box, chart: undefined, series: undefined };
  }

  #draw() {
    if (!this.#history) return;
    const { at_utc: times, interval_seconds: interval, datasets } = this.#history;
    const at = times.map((utc) => Date.parse(utc) / 1000);
    const chosen = byId('hour-dataset').value;
    const series = datasets.filter(({ dataset }) => chosen === '' || dataset === chosen);
    for (const one of this.#plots) {
      const points = at.map((time, index) => {
        const values = series.map((own) => one.plot.of(own, index, at)).filter((value) => value !== null);
        return values.length === 0 ? { time } : { time, value: one.plot.all(values) };
      });
      const latest = points.findLast(({ value }) => value !== undefined)?.value;
      one.value.textContent = latest === undefined ? '–' : one.plot.format(latest);
      this.#seriesOf(one).setData(wholeHour(points, interval));
      const label = `${one.plot.title} over the last hour: ${latest === undefined ? 'not known yet' : `now ${one.plot.format(latest)}`}`;
      one.box.setAttribute('aria-label', label);
      one.chart.chart.timeScale().fitContent();
    }
  }

  /** Charts need the width of their box, so this class makes them after the box. */
  #seriesOf(one) {
    if (one.series) return one.series;
    one.chart = chartIn(one.box, { height: 132, label: one.plot.title, seconds: true, format: one.plot.format });
    one.series = one.chart.chart.addSeries(AreaSeries, {
      lineWidth: 2,
      priceLineVisible: false,
      lastValueVisible: false,
      autoscaleInfoProvider: fromZero,
    });
    one.series.priceScale().applyOptions({ scaleMargins: { top: 0.15, bottom: 0 } });
    one.chart.onPaint(() => {
      const { line, fill: wash } = colours();
      one.series.applyOptions({ lineColor: line, topColor: wash, bottomColor: 'transparent' });
    });
    return one.series;
  }
}
