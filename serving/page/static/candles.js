/** Candles of a dataset of trades over any span: five years to one minute, at the size that fits. */
import { Fault, Latest, readRows } from './api.js';
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
import { Covered } from './covered.js';
import { counted, duration, stretch, whole } from './format.js';
import { InstrumentSelect, otherRows, withInstrument } from './instruments.js';
import { hashOf, placeOf, remember } from './place.js';
import { instrumentOf, nameOf } from './request.js';
import { Component, html, Problem, Select } from './view.js';

/** The chart asks for candles when it was not scaled for so long. */
const SETTLED_MS = 150;
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

export function Candles({ facts, choices }) {
  const hasRows = (one) => one.availability.rows + otherRows(facts, one) > 0;
  const usable = facts.datasets.filter((one) => one.klines_path !== null && hasRows(one));
  const found = [({ key }) => key === choices.dataset, ({ rights }) => !rights.refused_with, () => true]
    .map((test) => usable.find(test))
    .find(Boolean);
  if (!found)
    return html`<section aria-labelledby="candles-title"><h1 id="candles-title">Candles</h1><div class="empty"><b>No trades are proved yet.</b></div></section>`;
  const dataset = withInstrument(facts, found, choices.instrument);
  const choose = (more) => {
    location.hash = hashOf('candles', more);
  };
  // The span stays, so that two can be compared.
  const chooseInstrument = (instrument) =>
    choose({ ...placeOf(location.hash).choices, dataset: dataset.key, instrument });
  return html`<section aria-labelledby="candles-title"><div class="head"><h1 id="candles-title">Candles</h1>
      <${Select} label="of" name="candles-dataset" value=${dataset.key} options=${usable.map(({ key, title }) => [key, title])} onChange=${(key) => choose({ dataset: key })} /><${InstrumentSelect} label="instrument" facts=${facts} dataset=${dataset} onChange=${chooseInstrument} /></div>
    <${Covered} key=${nameOf(dataset)} facts=${facts} dataset=${dataset} view=${(coverage) => html`<${CandlePanel} dataset=${dataset} proved=${provedOf(coverage)} at=${choices} />`} />
  </section>`;
}

class CandlePanel extends Component {
  #latest = new Latest();
  /** Asked for. @type {import('./candle-view.js').View} */
  #view;
  /** Drawn. @type {import('./candle-view.js').View} */
  #drawn;
  #settling;
  #plot;
  #series;
  #shade;
  state = { said: '', label: '', fault: undefined };

  get #extent() {
    return extentOf(this.props.proved);
  }

  componentDidMount() {
    if (this.props.proved.length === 0) return;
    this.#create();
    const { from, to } = this.props.at;
    const [fromMs, toMs] = [Date.parse(from), Date.parse(to)];
    if (fromMs < toMs) void this.#show(viewOf(this.#extent, toMs - fromMs, (fromMs + toMs) / 2));
    else void this.#show(this.#around(SPANS[0][1]));
  }

  componentWillUnmount() {
    clearTimeout(this.#settling);
    this.#latest.stop();
    this.#plot?.remove();
  }

  /** A length around what is shown; at first the newest. */
  #around(lengthMs) {
    return viewOf(this.#extent, lengthMs, this.#view ? centreOf(this.#view) : this.#extent.toMs);
  }

  #steps = /** @type {[string, string, string, () => import('./candle-view.js').View][]} */ ([
    ['‹', 'Earlier candles', 'ArrowLeft', () => moved(this.#extent, this.#view, -1)],
    ['›', 'Later candles', 'ArrowRight', () => moved(this.#extent, this.#view, 1)],
    ['−', 'Longer span', '-', () => zoomed(this.#extent, this.#view, -1)],
    ['+', 'Shorter span', '+', () => zoomed(this.#extent, this.#view, 1)],
  ]);

  #press = (event) => {
    const next = this.#steps.find(([, , key]) => key === event.key)?.[3];
    if (!next || !this.#view || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    void this.#show(next());
  };

  /** @param {import('./candle-view.js').View} view */
  async #show(view) {
    clearTimeout(this.#settling);
    this.#view = view;
    const { dataset, proved } = this.props;
    const startedAt = performance.now();
    const ends = [view.fromMs, view.toMs].map((ms) => new Date(ms).toISOString());
    remember('candles', { dataset: dataset.key, ...instrumentOf(dataset), from: ends[0], to: ends[1] });
    this.setState({});
    const end = await this.#latest.ask(async (signal) =>
      holdsProved(view, proved) ? await rowsOf(requestFor(dataset, view), signal) : [],
    );
    if (!end) return;
    // The candles of the span before would be taken for those of this one.
    const points = drawnIn(end.value ?? [], view, proved);
    const name = `${counted(points.count, 'candle')} of ${SIZE_NAMES[view.size]}`;
    const missing = unprovedMs(view, proved);
    const unproved = missing > 0 ? `, ${duration(missing / 1000)} not proved` : '';
    const said = `${name}, ${stretch(ends[0], ends[1]).join(' to ')} UTC${unproved}, ${whole(performance.now() - startedAt)} ms`;
    this.#drawn = view;
    this.#shade.show(points.unproved);
    this.#series.show(points);
    this.#plot.chart.timeScale().fitContent();
    this.#fix(true);
    this.setState({
      said: end.fault ? '' : said,
      label: end.fault ? `No candles of ${nameOf(dataset)}` : `${name} of ${nameOf(dataset)}`,
      fault: end.fault,
    });
  }

  #create() {
    const { box } = this;
    this.#plot = chartIn(box, { height: 340, scroll: true });
    const { chart } = this.#plot;
    // A drag ends where it is let go, and the candles of that time are asked for.
    chart.applyOptions({ kineticScroll: { touch: false } });
    this.#shade = shadeSeries(this.#plot);
    this.#series = candleSeries(this.#plot);
    chart.subscribeClick(({ time }) => {
      if (typeof time !== 'number') return;
      void this.#show(zoomed(this.#extent, this.#drawn, 1, time * 1000 + this.#drawn.sizeMs / 2));
    });
    // The wheel alone scrolls the page: the chart does not get to see it.
    const wheel = (event) => {
      if (!event.ctrlKey) return event.stopPropagation();
      this.#fix(false);
      this.#settle();
    };
    box.addEventListener('wheel', wheel, { capture: true });
    // New candles in the middle of a drag would move it.
    const press = () => {
      this.#fix(false);
      for (const end of ['pointerup', 'pointercancel']) addEventListener(end, () => this.#settle(), { once: true });
    };
    box.addEventListener('pointerdown', press, { capture: true });
  }

  /** While nobody scales it: else what is before and after could not be reached. @param {boolean} on */
  #fix(on) {
    this.#plot.chart.timeScale().applyOptions({ fixLeftEdge: on, fixRightEdge: on });
  }

  /** Asks for the candles of what is seen, once it stays. */
  #settle() {
    clearTimeout(this.#settling);
    this.#settling = setTimeout(() => {
      const scale = this.#plot.chart.timeScale();
      const next = viewAt(this.#extent, this.#drawn, scale.getVisibleLogicalRange());
      if (next.fromMs !== this.#drawn.fromMs || next.toMs !== this.#drawn.toMs) return void this.#show(next);
      scale.fitContent();
      this.#fix(true);
    }, SETTLED_MS);
  }

  render() {
    const { proved } = this.props;
    if (proved.length === 0) return html`<div class="empty"><b>Nothing of it is proved yet.</b></div>`;
    const { said, label, fault } = this.state;
    const pressed = this.#view && spanOf(this.#extent, this.#view);
    const longest = this.#extent.toMs - this.#extent.fromMs;
    // A span that holds what a shorter one holds whole does nothing.
    const isIdle = (at) => SPANS[at + 1]?.[1] >= longest;
    return html`<div class="panel">
      <p id="candles-said" class="faint" role="status">${said}</p>
      <fieldset id="candles-spans" class="tabs" aria-label="Span" onKeyDown=${this.#press}>
        ${SPANS.map(([name, ms], at) => html`<button type="button" class="quiet" disabled=${isIdle(at)} aria-pressed=${String(at === pressed)} onClick=${() => this.#show(this.#around(ms))}>${name}</button>`)}
        ${this.#steps.map(([text, name, key, next]) => html`<button type="button" class="quiet" aria-label=${name} aria-keyshortcuts=${key} onClick=${() => this.#view && this.#show(next())}>${text}</button>`)}
      </fieldset>
      <div id="candles-chart" class="chart tall" role="img" aria-label=${label} ref=${(box) => {
        this.box = box;
      }}></div>
      <div id="candles-fault">${fault && html`<${Problem} fault=${fault} />`}</div>
      <p class="faint">Shaded times are not proved in whole; other empty ones have no trades. Drag to move. To zoom, click, or turn the wheel with Ctrl. The arrow keys, + and − do the same from a button.</p>
    </div>`;
  }
}
