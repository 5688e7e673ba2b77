/** Charts in the page's colours, light and dark, as wide as their boxes. */
import { LEAST, numberText } from './format.js';
import { CandlestickSeries, createChart, HistogramSeries, LineSeries, LineType } from './lightweight-charts.js';
import { Component, html } from './view.js';

/** Colours that differ in light and in dark, and for most people who are colour-blind. */
export const LINES = ['#2a8fa8', '#d9822b', '#7157d9', '#3d9a50', '#c2416b', '#8a6d3b', '#5b7c99', '#a05195'];
const PANE = 170;

const dark = matchMedia('(prefers-color-scheme: dark)');
/** @type {Set<() => void>} */
const repaint = new Set();
dark.addEventListener('change', () => {
  for (const paint of repaint) paint();
});

/** @param {string} name of a custom property */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The first and the last time are seen whole, and a drag stops at them. */
export const FIXED = { fixLeftEdge: true, fixRightEdge: true };

/**
 * @param {HTMLElement} box
 * @param {{ height: number, scroll?: boolean }} options
 */
export function chartIn(box, { height, scroll = false }) {
  const chart = createChart(box, {
    autoSize: true,
    height,
    // The licence demands an attribution, which the foot of the page holds.
    layout: { attributionLogo: false, fontFamily: getComputedStyle(document.body).fontFamily, fontSize: 11 },
    // Thousands of candles have less than half a pixel each, which is the library's least.
    timeScale: { timeVisible: true, secondsVisible: true, borderVisible: false, minBarSpacing: 0.02, ...FIXED },
    rightPriceScale: { borderVisible: false, entireTextOnly: true, scaleMargins: { top: 0.12, bottom: 0.06 } },
    localization: { priceFormatter: numberText },
    // The wheel scrolls the page and not the chart, unless `scroll` is set.
    handleScroll: { mouseWheel: scroll, vertTouchDrag: false },
    handleScale: { mouseWheel: scroll, pinch: true },
  });
  const own = [];
  /** @param {() => void} paint called at once, and whenever the colours change */
  const onPaint = (paint) => {
    paint();
    repaint.add(paint);
    own.push(paint);
  };
  onPaint(() =>
    chart.applyOptions({
      layout: {
        background: { color: 'transparent' },
        textColor: colour('--faint'),
        panes: { separatorColor: colour('--line') },
      },
      grid: { vertLines: { visible: false }, horzLines: { color: colour('--line') } },
      crosshair: {
        vertLine: { labelBackgroundColor: colour('--ink') },
        horzLine: { labelBackgroundColor: colour('--ink') },
      },
    }),
  );
  const remove = () => {
    for (const one of own) repaint.delete(one);
    chart.remove();
  };
  return { chart, onPaint, remove };
}

/**
 * Shades times over the whole height, behind the series that are added after it. The chart fits what it draws to the last point
 * that has a value, so points for all times make it fit all of them.
 * @param {ReturnType<typeof chartIn>} plot
 * @param {readonly { name: string, height: number }[]} [shades] the custom property of each value's colour, from 1 on, and how high it reaches
 */
export function shadeSeries(plot, shades = [{ name: '--shade', height: 1 }]) {
  const series = plot.chart.addSeries(HistogramSeries, {
    priceScaleId: 'shade',
    priceLineVisible: false,
    lastValueVisible: false,
    autoscaleInfoProvider: () => ({ priceRange: { minValue: 0, maxValue: 1 } }),
  });
  series.priceScale().applyOptions({ scaleMargins: { top: 0, bottom: 0 } });
  /** @type {readonly any[]} */
  let shown = [];
  const paint = () => {
    const drawn = shades.map(({ name, height }) => ({ value: height, color: colour(name) }));
    series.setData(
      shown.map(({ time, value }) => ({ time, ...(drawn[value - 1] ?? { value: 0, color: 'transparent' }) })),
    );
  };
  plot.onPaint(paint);
  return {
    /** @param {readonly { time: number, value: number }[]} points 0: not shaded */
    show(points) {
      shown = points;
      paint();
    },
  };
}

/** Candles with their volume below them. `show` replaces what is drawn. @param {ReturnType<typeof chartIn>} plot */
export function candleSeries(plot) {
  const series = plot.chart.addSeries(CandlestickSeries, { borderVisible: false });
  const bars = plot.chart.addSeries(HistogramSeries, {
    priceScaleId: 'volume',
    priceLineVisible: false,
    lastValueVisible: false,
  });
  bars.priceScale().applyOptions({ scaleMargins: { top: 0.82, bottom: 0 } });
  series.priceScale().applyOptions({ scaleMargins: { top: 0.06, bottom: 0.22 } });
  /** @type {readonly any[]} */
  let volumes = [];
  const paint = () => {
    const [up, down] = [colour('--proved'), colour('--bad')];
    series.applyOptions({ upColor: up, downColor: down, wickUpColor: up, wickDownColor: down });
    bars.setData(volumes.map(({ up: isUp, ...point }) => ({ ...point, color: `${isUp ? up : down}66` })));
  };
  plot.onPaint(paint);
  return {
    /** @param {{ candles: readonly any[], volumes: readonly any[] }} points */
    show(points) {
      series.setData([...points.candles]);
      volumes = points.volumes;
      paint();
    },
  };
}

/** A chart that is drawn anew when its data is another. Its box has a name for who cannot see it. */
class Chart extends Component {
  shouldComponentUpdate({ data, label }) {
    return data !== this.props.data || label !== this.props.label;
  }

  componentDidMount() {
    this.plot = chartIn(this.box, { height: this.props.height });
    this.props.draw(this.plot);
    this.plot.chart.timeScale().fitContent();
  }

  componentDidUpdate() {
    this.plot.remove();
    this.componentDidMount();
  }

  componentWillUnmount() {
    this.plot.remove();
  }

  render() {
    const { label, height } = this.props;
    return html`<div class="chart" role="img" aria-label=${label} style=${{ height: `${height}px` }} ref=${(box) => {
      this.box = box;
    }}></div>`;
  }
}

export const CandleChart = ({ points, label }) =>
  html`<${Chart} data=${points} label=${label} height=${340} draw=${(plot) => candleSeries(plot).show(points)} />`;

/** Colour is not all by which they differ: one that is proved reaches over the whole height. */
const SILENCES = [
  { name: '--silence', height: 1 },
  { name: '--unknown', height: 0.5 },
];

/** @param {{ points: any, slots: readonly { time: number, value: number }[], label: string }} chart */
export const SilenceChart = ({ points, slots, label }) =>
  html`<${Chart} data=${points} label=${label} height=${240} draw=${(plot) => {
    shadeSeries(plot, SILENCES).show(slots);
    candleSeries(plot).show(points);
  }} />`;

/**
 * Lines on one time axis. Each unit has an axis of its own, in a pane of its own. A state holds until the next, so it is drawn as a step.
 * @param {{ lines: readonly { name: string, unit: string | null, points: any[], steps?: boolean }[], label: string }} chart
 */
export function LineChart({ lines, label }) {
  const units = [...new Set(lines.map(({ unit }) => unit))];
  const draw = (plot) =>
    lines.forEach(({ points, unit, steps }, at) => {
      // The library's own format has hundredths at least.
      const priceFormat = { type: 'custom', minMove: LEAST, formatter: numberText };
      const options = { color: LINES[at], lineWidth: 2, priceLineVisible: false, priceFormat };
      const lineType = steps ? LineType.WithSteps : LineType.Simple;
      plot.chart
        .addSeries(LineSeries, { ...options, lineType, pointMarkersVisible: points.length < 40 }, units.indexOf(unit))
        .setData(points);
    });
  const height = Math.max(340, PANE * units.length);
  return html`<div>
    <${Chart} data=${lines} label=${label} height=${height} draw=${draw} />
    <p class="legend lines">${lines.map(({ name, unit, points }, at) => html`<span><i style=${{ background: LINES[at] }}></i>${name}${unit && unit !== name ? ` (${unit})` : ''} ${points.length > 0 ? html`<b>${numberText(points.at(-1).value)}</b>` : 'no values'}</span>`)}</p>
  </div>`;
}
