/** Charts in the page's colours, light and dark, as wide as their boxes. */
import { AreaSeries, CandlestickSeries, createChart, HistogramSeries, LineSeries } from './lightweight-charts.js';

export { AreaSeries, LineSeries };

const dark = matchMedia('(prefers-color-scheme: dark)');
/** @type {Set<() => void>} */
const repaint = new Set();
dark.addEventListener('change', () => {
  for (const paint of repaint) paint();
});

/** @param {string} name of a custom property */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const colours = () => ({
  line: colour('--accent'),
  fill: colour('--accent-wash'),
  up: colour('--proved'),
  down: colour('--bad'),
  faint: colour('--faint'),
  shade: colour('--shade'),
});

/**
 * @param {HTMLElement} box
 * @param {{ height: number, label: string, seconds?: boolean, format?: (value: number) => string, scroll?: boolean }} options
 */
export function chartIn(box, { height, label, seconds = false, format, scroll = false }) {
  box.setAttribute('role', 'img');
  box.setAttribute('aria-label', label);
  const chart = createChart(box, {
    autoSize: true,
    height,
    // The licence demands an attribution, which the foot of the page holds.
    layout: { attributionLogo: false, fontFamily: getComputedStyle(document.body).fontFamily, fontSize: 11 },
    // Thousands of candles have less than half a pixel each, which is the library's least.
    timeScale: { timeVisible: true, secondsVisible: seconds, borderVisible: false, minBarSpacing: 0.02 },
    rightPriceScale: { borderVisible: false, scaleMargins: { top: 0.12, bottom: 0.06 } },
    // The wheel scrolls the page and not the chart, unless `scroll` is set.
    handleScroll: { mouseWheel: scroll, vertTouchDrag: false },
    handleScale: { mouseWheel: scroll, pinch: true },
    ...(format && { localization: { priceFormatter: format } }),
  });
  const paint = () =>
    chart.applyOptions({
      layout: { background: { color: 'transparent' }, textColor: colour('--faint') },
      grid: { vertLines: { visible: false }, horzLines: { color: colour('--line') } },
      crosshair: {
        vertLine: { labelBackgroundColor: colour('--ink') },
        horzLine: { labelBackgroundColor: colour('--ink') },
      },
    });
  paint();
  repaint.add(paint);
  const own = [paint];
  return {
    chart,
    /** @param {() => void} painted called at once, and whenever the colours change */
    onPaint(painted) {
      painted();
      repaint.add(painted);
      own.push(painted);
    },
    remove() {
      for (const one of own) repaint.delete(one);
      chart.remove();
    },
  };
}

/**
 * Shades times over the whole height, behind the series that are added after it. `show` replaces them. The chart fits what it
 * draws to the last point that has a value, so points for all times make it fit all of them.
 * @param {ReturnType<typeof chartIn>} plot
 */
export function shadeSeries(plot) {
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
    const { shade } = colours();
    series.setData(shown.map((point) => ({ ...point, color: point.value === 1 ? shade : 'transparent' })));
  };
  plot.onPaint(paint);
  return {
    /** @param {readonly { time: number, value: 0 | 1 }[]} points 1: shaded */
    show(points) {
      shown = points;
      paint();
    },
  };
}

/**
 * Candles with their volume below them. `show` replaces what is drawn.
 * @param {ReturnType<typeof chartIn>} plot
 */
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
    const { up, down } = colours();
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
