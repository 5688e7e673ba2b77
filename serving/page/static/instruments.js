/** Instruments of the trade datasets, as /v1/instruments lists them for the reader's key. */
import { dayOf } from './format.js';
import { html, Select } from './view.js';

const DAY_MS = 86_400_000;

/** @param {any} facts @param {{ key: string }} dataset @returns {any[]} */
export const instrumentsOf = ({ instruments }, { key }) => instruments.filter(({ dataset }) => dataset === key);

/**
 * A dataset as requests for one of its instruments see it.
 * @param {any} facts
 * @param {any} dataset of /v1/datasets
 * @param {string} [name] the default without
 * @throws Error if the name, which a link may hold, is not listed
 */
export function withInstrument(facts, dataset, name) {
  if (!name) return dataset;
  const found = instrumentsOf(facts, dataset).find(({ instrument }) => instrument === name);
  if (!found) throw new Error(`${dataset.key} has no instrument ${name}`);
  return found.default ? dataset : named(dataset, found);
}

function named(dataset, { instrument, rows, intervals }) {
  const days = intervals.flatMap(({ first_proved: first, last_proved: last }) => (first === null ? [] : [first, last]));
  const [from, through] = days.length === 0 ? [null, null] : [days[0], dayOf(Date.parse(days.at(-1)) + DAY_MS)];
  const midnight = (day) => day && `${day}T00:00:00.000Z`;
  const proved = { proved_from_utc: midnight(from), proved_through_utc: midnight(through) };
  return { ...dataset, instrument, availability: { ...dataset.availability, rows, ...proved } };
}

/** Proved rows of the instruments that are not the default. @param {any} facts @param {{ key: string }} dataset */
export const otherRows = ({ instruments }, dataset) =>
  instruments.filter((one) => !one.default && one.dataset === dataset.key).reduce((sum, { rows }) => sum + rows, 0);

/** A key may cover others than the default: then the first of them stands for it. @param {any} facts */
export const coveredDatasets = (facts) =>
  facts.datasets.map((dataset) => {
    const listed = instrumentsOf(facts, dataset);
    return listed.length === 0 || listed.some((one) => one.default) ? dataset : named(dataset, listed[0]);
  });

/**
 * Chooses between several instruments; nothing where there is one. The default is an empty choice, so that addresses do not name it.
 * @param {{ facts: any, dataset: any, label?: string, name?: string, part?: boolean, onChange: (name: string) => void }} select
 */
export function InstrumentSelect({ facts, dataset, label = 'Instrument', name = 'instrument', part, onChange }) {
  const listed = instrumentsOf(facts, dataset);
  if (listed.length < 2) return null;
  const options = listed.map(({ instrument, default: isDefault, rows }) => [
    isDefault ? '' : instrument,
    rows > 0 ? instrument : `${instrument} (nothing yet)`,
  ]);
  return html`<${Select} label=${label} name=${name} part=${part} value=${dataset.instrument ?? ''} options=${options} onChange=${onChange} />`;
}
