/** The first screen: what data is here and how to take it, then how the system stands. */
import { ask, download } from './api.js';
import { findingsOf, verdictOf } from './findings.js';
import { counted, duration, short, size, stretch, whole } from './format.js';
import { InstrumentSelect, withInstrument } from './instruments.js';
import { hashOf, remember } from './place.js';
import { fileOf, instrumentOf, nameOf, sparkOf, takeOf } from './request.js';
import { snippetsOf } from './snippets.js';
import { Asking, Badge, Component, html, Problem, Select, Snippets, Spark } from './view.js';

/** Rows that a download from the first screen has: what a spreadsheet opens at once. */
const TAKEN = 10_000;

export const Home = ({ facts, choices }) => html`<section aria-labelledby="data-title">
    <h1 id="data-title">Data</h1>
    <${Summary} facts=${facts} />
    <${Catalogue} facts=${facts} choices=${choices} />
  </section>
  <section aria-labelledby="verdict"><${Operations} facts=${facts} /></section>`;

function Summary({ facts }) {
  const { status } = facts;
  const sum = (of) => status.datasets.reduce((total, one) => total + of(one), 0);
  const rows = sum((one) => one.rows);
  const shown = [
    [short(rows), 'proved rows'],
    [whole(sum(({ partitions }) => partitions.proved)), 'proved partitions'],
    [size(sum(({ log }) => log?.bytes ?? 0)), 'log'],
    [size(status.database_bytes), 'database'],
  ];
  // The sample of an exchange gives way as a whole.
  const isSample = status.datasets.every((one) => one.rows === 0 || one.synthetic);
  const isEmpty = rows === 0;
  return html`${isEmpty && html`<p class="lead">Nothing is here yet. <code>./tidemark backfill</code> brings it in.</p>`}
    ${isSample && !isEmpty && html`<p class="lead">Nothing real is here yet: the rows are a sample that no source published. It gives way to the first <code>./tidemark backfill</code>.</p>`}
    <dl class="facts">${shown.map(([value, name]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Each dataset, or the instrument that the address names after its key: its range, rows, a picture of its newest values, and how to take it. */
class Catalogue extends Asking {
  state = { sparks: {}, open: '', chosen: this.props.choices };
  #version = '';
  /** What of each dataset and instrument was proved when its picture was drawn. @type {Map<string, string>} */
  #drawn = new Map();

  /** One after the other, so that the pictures never fill the queue of reads. Those whose read fails are left out. */
  async look() {
    const datasets = this.#datasets;
    const version = JSON.stringify(datasets.map(({ availability, instrument }) => [availability, instrument]));
    if (version === this.#version) return;
    this.#version = version;
    await this.latest.ask(async (signal) => {
      for (const dataset of datasets) {
        const request = sparkOf(dataset);
        const stand = JSON.stringify(dataset.availability);
        const name = nameOf(dataset);
        if (!request || this.#drawn.get(name) === stand) continue;
        const answer = await ask('/v1/frame', { body: request.body, signal }).catch(() => undefined);
        if (signal.aborted) return;
        this.#drawn.set(name, stand);
        const values = answer?.rows.map(({ value }) => value);
        this.setState(({ sparks }) => ({ sparks: { ...sparks, [name]: values && { ...request, values } } }));
      }
    });
  }

  get #datasets() {
    const { facts } = this.props;
    return facts.datasets.map((dataset) => withInstrument(facts, dataset, this.state.chosen[dataset.key]));
  }

  #choose(key, instrument) {
    const chosen = { ...this.state.chosen, [key]: instrument };
    remember('data', chosen);
    this.setState({ chosen });
  }

  render() {
    const { facts } = this.props;
    const { status } = facts;
    const { sparks, open } = this.state;
    const toggle = (key) => this.setState({ open: key === open ? '' : key });
    return html`<div class="scroll wide"><table class="datasets">
      <caption class="hidden">The datasets</caption>
      <thead><tr>${['Dataset', 'Newest values', 'Proved', 'Rows', 'Waiting', 'Take it'].map((name) => html`<th scope="col" class=${['Rows', 'Waiting'].includes(name) ? 'number' : ''}>${name}</th>`)}</tr></thead>
      <tbody>${this.#datasets.map((dataset) => html`<${DatasetRow} key=${dataset.key} facts=${facts} dataset=${dataset} stand=${status.datasets.find((one) => one.dataset === dataset.key)} spark=${sparks[nameOf(dataset)]} isOpen=${open === dataset.key} onToggle=${() => toggle(dataset.key)} onInstrument=${(name) => this.#choose(dataset.key, name)} />`)}</tbody>
    </table></div>`;
  }
}

function DatasetRow({ facts, dataset, stand, spark, isOpen, onToggle, onInstrument }) {
  const { key, title, rights, klines_path: klines, instrument } = dataset;
  const { synthetic, partitions, log } = stand;
  const { rows } = dataset.availability;
  const { proved_from_utc: from, proved_through_utc: through } = instrument ? dataset.availability : stand;
  const chosen = { dataset: key, ...instrumentOf(dataset) };
  const now = Date.parse(facts.status.at_utc);
  const lag = log?.lag;
  const places = [['Rows', 'explore'], ...(klines ? [['Candles', 'candles']] : []), ['Coverage', 'coverage']];
  return html`<tr>
      <th scope="row"><a href=${hashOf('explore', chosen)}>${title}</a><code>${nameOf(dataset)}</code>
        ${rights.refused_with && html`<${Badge} tone="bad" title=${rights.refused_with}>not served<//>`}
        ${synthetic && stand.rows > 0 && html`<${Badge}>sample<//>`}
        ${partitions.quarantined > 0 && html`<${Badge} tone="bad">${partitions.quarantined} quarantined<//>`}
        <span class="places">${places.map(([name, view]) => html`<a href=${hashOf(view, chosen)} aria-label=${`${name} of ${key}`}>${name}</a>`)}</span>
        <${InstrumentSelect} part facts=${facts} dataset=${dataset} label=${`Instrument of ${key}`} name="row-instrument" onChange=${onInstrument} /></th>
      <td data-name="Newest values">${spark ? html`<${Spark} ...${spark} /><span class="faint small">${spark.said}</span>` : html`<span class="faint">${rights.refused_with ? html`refused: <code>${rights.refused_with}</code>` : '–'}</span>`}</td>
      <td data-name="Proved">${through === null ? html`<span class="faint">nothing yet</span>` : html`${stretch(from, through).map((time, at) => html`${at > 0 && ' to '}<span class="time">${time}</span>`)}${!instrument && html`<span class="faint small">ended ${duration(Math.max(0, (now - Date.parse(through)) / 1000))} ago</span>`}`}</td>
      <td class="number" data-name="Rows">${short(rows)}</td>
      <td class="number" data-name="Waiting">${lag && lag.frames > 0 ? html`${short(lag.events)} events<span class="faint small">for ${duration(lag.oldest_seconds)}</span>` : log ? '0' : '–'}</td>
      <td data-name="Take it"><button type="button" class="quiet" aria-expanded=${String(isOpen)} aria-label=${`Take it: ${key}`} disabled=${rows === 0} onClick=${onToggle}>Take it</button></td>
    </tr>
    ${isOpen && html`<tr class="taking"><td colspan="6"><${Take} key=${nameOf(dataset)} dataset=${dataset} rows=${rows} /></td></tr>`}`;
}

class Take extends Component {
  state = { said: '', fault: undefined };

  async #download(request) {
    this.setState({ said: 'Fetching…', fault: undefined });
    try {
      await download(request, fileOf(this.props.dataset));
      this.setState({ said: 'Saved.' });
    } catch (fault) {
      this.setState({ said: '', fault });
    }
  }

  render() {
    const { dataset, rows } = this.props;
    const request = takeOf(dataset, TAKEN);
    const { said, fault } = this.state;
    return html`<p>${dataset.doc}</p>
      <p class="actions"><button type="button" class="main" onClick=${() => this.#download(request)}>Download ${rows > TAKEN ? `the last ${whole(TAKEN)} rows` : `all ${counted(rows, 'row')}`} as CSV</button><span class="faint" role="status">${said}</span></p>
      ${fault && html`<${Problem} fault=${fault} />`}
      <${Snippets} of=${snippetsOf(request, dataset)} />
      <p class="faint">For more: <code>POST /v1/raw/export</code> makes files in the background, and <code>./tidemark lake --to FOLDER</code> writes all datasets as Parquet.</p>`;
  }
}

const LABELS = { bad: 'Needs you', warn: 'Remark' };

/** @param {{ facts: any }} page */
function Operations({ facts }) {
  const findings = findingsOf(facts.status, facts.datasets);
  return html`<h2 id="verdict" class="verdict" data-verdict=${findings[0]?.weight ?? 'good'} aria-live="polite">${verdictOf(facts.status, findings)}</h2>
    ${
      findings.length === 0
        ? html`<p class="lead">No partition is quarantined or missing, nothing waits, and every check holds.</p>`
        : html`<ul class="findings">${findings.map(({ weight, text, what, dataset }) => html`<li class=${weight}><b class="tag">${LABELS[weight]}</b><span>${text} <span class="faint">${what}</span></span>${dataset && html`<a href=${hashOf('coverage', { dataset })} aria-label=${`Calendar of ${dataset}`}>Calendar</a>`}</li>`)}</ul>`
    }
    <${Hour} history=${facts.history} />
    <p><a href="#work">Work, exports, changes and the proof log</a></p>`;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

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
    all: (values) => Math.max(...values),
    format: duration,
  },
];

/** The last hour, of one dataset or of all. */
class Hour extends Component {
  state = { dataset: '' };

  render() {
    const { at_utc: times, interval_seconds: interval, datasets } = this.props.history;
    const { dataset } = this.state;
    const at = times.map((utc) => Date.parse(utc) / 1000);
    const series = datasets.filter((one) => dataset === '' || one.dataset === dataset);
    // The picture shows the whole hour even when it has just begun.
    const empty = Array.from({ length: Math.max(0, Math.round(3600 / interval) - at.length) }, () => null);
    const options = [['', 'all datasets'], ...datasets.map((one) => one.dataset)];
    return html`<div class="head"><h3>Last hour</h3><${Select} label="of" name="hour" value=${dataset} options=${options} onChange=${(value) => this.setState({ dataset: value })} /></div>
      <div class="plots">${PLOTS.map(({ title, doc, of, all, format }) => {
        const values = at.map((_, index) => {
          const known = series.map((own) => of(own, index, at)).filter((value) => value !== null);
          return known.length === 0 ? null : all(known);
        });
        const latest = values.findLast((value) => value !== null);
        const said = latest === undefined ? '–' : format(latest);
        const most = Math.max(...values.filter((value) => value !== null));
        return html`<figure class="panel"><figcaption><b>${title}</b><span class="value">${said}</span><span class="faint">${doc}${Number.isFinite(most) && `; most ${format(most)}`}</span></figcaption>
          <${Spark} values=${[...empty, ...values]} fromZero label=${`${title} over the last hour: ${latest === undefined ? 'not known yet' : `now ${said}`}`} /></figure>`;
      })}</div>`;
  }
}
