/** What a day is worth: its condition and why, what its rows show, and its silences on its candles. */
import { ask, Fault, readRows } from './api.js';
import { drawnIn, requestFor, viewOf } from './candle-view.js';
import { SilenceChart } from './charts.js';
import { DAY_MS, REASON_TEXT, silentSlots } from './days.js';
import { counted, dayOf, duration, instant, minute, whole } from './format.js';
import { hashOf } from './place.js';
import { instrumentOf, nameOf } from './request.js';
import { Asking, Badge, Facts, html, Problem, Table } from './view.js';

const TONES = { available: 'good', degraded: 'warn', pending: '', missing: 'bad' };
/** The most silences that are listed. */
const LISTED = 20;
/** Shown before and after a silence. */
const AROUND_MS = 5 * 60_000;

const clock = (utc) => utc.slice(11, 19);

export class Worth extends Asking {
  #asked = '';
  state = { found: undefined, silences: [], drawn: undefined, fault: undefined };

  async look() {
    const { dataset, day, window, seen } = this.props;
    if (seen === this.#asked) return;
    this.#asked = seen;
    // A silence that began on the day before may reach into this one.
    const from = dayOf(Date.parse(day) - DAY_MS);
    const query = new URLSearchParams({
      dataset: dataset.key,
      from,
      to: day,
      silences: 'list',
      ...instrumentOf(dataset),
    });
    const end = await this.latest.ask(async (signal) => {
      const { conditions } = await ask(`/v1/conditions?${query}`, { signal });
      const found = conditions.at(-1);
      const silences = conditions.flatMap((one) => one.silences?.list ?? []);
      return { found, silences, drawn: found.first && (await candlesIn(dataset, window, silences, signal)) };
    });
    if (end) this.setState({ ...end.value, fault: end.fault });
  }

  render() {
    const { dataset, day } = this.props;
    const { found, silences, drawn, fault } = this.state;
    if (fault) return html`<${Problem} fault=${fault} />`;
    if (!found) return html`<p class="faint">Looking…</p>`;
    return html`<div class="worth">
      <p><${Badge} tone=${TONES[found.condition]}>${found.condition}<//>${found.condition === 'pending' && ' It is expected, and not proved yet.'}</p>
      ${found.reasons.length > 0 && html`<ul>${found.reasons.map((reason) => html`<li><code>${reason}</code>: ${REASON_TEXT[reason]}</li>`)}</ul>`}
      <${Facts} facts=${factsOf(found)} />
      ${
        drawn &&
        html`<${SilenceChart} points=${drawn.points} slots=${drawn.slots} label=${`${counted(drawn.points.count, 'candle')} of 1 minute of ${nameOf(dataset)} on ${day}, with ${counted(silences.length, 'silence')}`} />
        <p class="legend"><span><i class="silence"></i>silence, proved</span><span><i class="silence unknown"></i>silence, unknown</span></p>`
      }
      ${found.silences?.list.length > 0 && html`<${SilenceList} dataset=${dataset} list=${found.silences.list} />`}
    </div>`;
  }
}

/** None for who may not read the rows: the rest is shown all the same. */
async function candlesIn(dataset, window, silences, signal) {
  if (dataset.klines_path === null) return undefined;
  const extent = { fromMs: window.from, toMs: window.to };
  const view = viewOf(extent, DAY_MS, window.from + DAY_MS / 2);
  try {
    const { rows } = await readRows(requestFor(dataset, view), signal);
    return { points: drawnIn(rows, view, [extent]), slots: silentSlots(silences, view) };
  } catch (error) {
    if (error instanceof Fault) return undefined;
    throw error;
  }
}

/** @param {any} found a condition; what has no meaning for the dataset is absent */
function factsOf({ first, last, observed_increment: step, silences, ids_missing: missing, repeats, document }) {
  const number = (value) => (value === null || value === undefined ? undefined : whole(value));
  return [
    ['First event', first && instant(first)],
    ['Last event', last && instant(last)],
    ['Price', step?.price && `multiples of ${step.price}`],
    ['Quantity', step?.quantity && `multiples of ${step.quantity}`],
    ['Silences', silences && silencesText(silences)],
    ['Ids missing', number(missing)],
    ['Repeats dropped', number(repeats)],
    ['Document', document?.name],
    ['Captured', document?.captured_utc && minute(document.captured_utc)],
    ['Last-Modified', document?.last_modified],
    ['ETag', document?.etag && html`<code>${document.etag}</code>`],
  ];
}

function silencesText({ count, longest_ms: longest, unknown }) {
  if (count === 0) return 'none above a minute';
  const known = unknown === 0 ? 'all proved' : unknown === count ? 'none proved' : `${whole(unknown)} unknown`;
  return `${whole(count)} above a minute, the longest ${duration(longest / 1000)}, ${known}`;
}

function SilenceList({ dataset, list }) {
  const longest = list.toSorted((a, b) => b.ms - a.ms).slice(0, LISTED);
  const around = ({ from_utc: from, to_utc: to }) =>
    hashOf('candles', {
      dataset: dataset.key,
      ...instrumentOf(dataset),
      from: new Date(Date.parse(from) - AROUND_MS).toISOString(),
      to: new Date(Date.parse(to) + AROUND_MS).toISOString(),
    });
  const rows = longest.map((one) => [
    html`<a href=${around(one)}>${clock(one.from_utc)}</a>`,
    clock(one.to_utc),
    duration(one.ms / 1000),
    one.state,
  ]);
  const said = list.length > LISTED ? `The ${LISTED} longest silences` : counted(list.length, 'silence');
  return html`<details><summary>${said}</summary>
    <div class="short-list"><${Table} caption=${said} columns=${['From', 'To', 'Length', 'It is']} rows=${rows} /></div>
    <p class="faint">It is proved where the exchange numbers its trades, and the ids on both sides follow each other.</p></details>`;
}
