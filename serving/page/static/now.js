/** The state of the system: the verdict, what needs the operator, and a line for each dataset with its last days. */
import { DAY_MS, dayStart, daysOf, STATE_TEXT } from './days.js';
import { byId, fill, h } from './dom.js';
import { findingsOf, verdictOf } from './findings.js';
import { dayOf, duration, moment, short, size, whole } from './format.js';

/** The number of days in the strip of a dataset. */
const STRIP = 30;

/**
 * @param {any} status
 * @param {{ coverageOf: (dataset: string) => any, onDataset: (dataset: string) => void, titleOf: (dataset: string) => string }} means
 */
export function showNow(status, means) {
  const findings = findingsOf(status);
  const verdict = verdictOf(status, findings);
  const head = byId('verdict');
  // A screen reader reads the verdict out each time it is set.
  if (head.textContent !== verdict) head.textContent = verdict;
  byId('now').dataset.verdict = findings[0]?.weight ?? 'good';
  document.title = `${findings.some(({ weight }) => weight === 'bad') ? '● ' : ''}Tidemark`;
  const isSample = status.datasets.every(({ rows, synthetic }) => rows === 0 || synthetic);
  fill(byId('findings'), isSample ? sampleNote() : '', findingList(findings, means), summary(status));
  fill(byId('datasets'), datasetTable(status, means));
}

function findingList(findings, { onDataset }) {
  if (findings.length === 0)
    return h('p', { class: 'lead' }, 'No partition is quarantined or missing, nothing waits, and every check holds.');
  const LABELS = { bad: 'Needs you', warn: 'Remark' };
  return h(
    'ul',
    { class: 'findings' },
    ...findings.map(({ weight, text, what, dataset }) =>
      h(
        'li',
        { class: weight },
        h('b', { class: 'tag' }, LABELS[weight]),
        h('span', {}, text, ' ', h('span', { class: 'faint' }, what)),
        dataset &&
          h(
            'a',
            { href: '#coverage', 'aria-label': `Calendar of ${dataset}`, onclick: () => onDataset(dataset) },
            'Calendar',
          ),
      ),
    ),
  );
}

const sampleNote = () =>
  h(
    'p',
    { class: 'lead' },
    'Nothing real is here yet: the rows are a sample that no source published. It gives way to the first ',
    h('code', {}, './tidemark backfill'),
    '.',
  );

function summary(status) {
  const rows = status.datasets.reduce((sum, one) => sum + one.rows, 0);
  const partitions = status.datasets.reduce((sum, one) => sum + one.partitions.proved, 0);
  const log = status.datasets.reduce((sum, one) => sum + (one.log?.bytes ?? 0), 0);
  const facts = [
    [short(rows), 'proved rows'],
    [whole(partitions), 'proved partitions'],
    [size(log), 'log'],
    [size(status.database_bytes), 'database'],
  ];
  return h(
    'dl',
    { class: 'facts' },
    ...facts.map(([value, name]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))),
  );
}

function datasetTable(status, means) {
  const head = ['Dataset', `Last ${STRIP} days`, 'Proved through', 'Age', 'Rows', 'Waiting'];
  const now = Date.parse(status.at_utc);
  return h(
    'div',
    { class: 'scroll wide' },
    h(
      'table',
      { class: 'datasets' },
      h('caption', { class: 'hidden' }, 'How each dataset stands'),
      h(
        'thead',
        {},
        h('tr', {}, ...head.map((name, index) => h('th', { scope: 'col', class: index > 2 ? 'number' : null }, name))),
      ),
      h('tbody', {}, ...status.datasets.map((one) => datasetRow(one, now, means))),
    ),
  );
}

function datasetRow(one, now, { coverageOf, onDataset, titleOf }) {
  const { dataset, proved_through_utc: through, synthetic, rows, log, partitions } = one;
  const age = through === null ? undefined : Math.max(0, (now - Date.parse(through)) / 1000);
  const lag = log?.lag;
  const waiting = lag && lag.frames > 0 ? `${short(lag.events)} events` : log ? '0' : '–';
  return h(
    'tr',
    {},
    h(
      'th',
      { scope: 'row' },
      h('a', { href: '#coverage', onclick: () => onDataset(dataset) }, titleOf(dataset)),
      h('code', {}, dataset),
      synthetic && rows > 0 && h('span', { class: 'badge' }, 'sample'),
      partitions.quarantined > 0 && h('span', { class: 'badge bad' }, `${partitions.quarantined} quarantined`),
    ),
    h('td', { 'data-name': `Last ${STRIP} days` }, strip(coverageOf(dataset), now)),
    h(
      'td',
      { 'data-name': 'Proved through' },
      through === null ? h('span', { class: 'faint' }, 'nothing yet') : moment(through),
    ),
    h('td', { class: 'number', 'data-name': 'Age' }, age === undefined ? '' : duration(age)),
    h('td', { class: 'number', 'data-name': 'Rows' }, rows === 0 ? h('span', { class: 'faint' }, '0') : short(rows)),
    h(
      'td',
      { class: 'number', 'data-name': 'Waiting' },
      waiting,
      lag && lag.frames > 0 && h('span', { class: 'faint' }, ` for ${duration(lag.oldest_seconds)}`),
    ),
  );
}

/** The strip ends with the last known day, or with yesterday if that is close. */
function strip(coverage, now) {
  if (!coverage) return h('span', { class: 'strip' });
  const days = daysOf(coverage);
  if (!days.range) return h('span', { class: 'faint' }, '–');
  const today = dayStart(now);
  const end = days.range.to >= today - STRIP * DAY_MS ? today + DAY_MS : days.range.to;
  const cells = Array.from({ length: STRIP }, (_, index) => end - (STRIP - index) * DAY_MS);
  const states = cells.map((ms) => days.stateOf(ms));
  const counts = Object.entries(STATE_TEXT)
    .map(([state, text]) => ({ text, count: states.filter((one) => one === state).length }))
    .filter(({ count, text }) => count > 0 && text !== STATE_TEXT.none);
  const label = `${dayOf(cells[0])} to ${dayOf(end - 1)}: ${counts.map(({ count, text }) => `${count} ${text}`).join(', ') || 'nothing'}`;
  return h(
    'span',
    { class: 'strip', role: 'img', 'aria-label': label, title: label },
    ...states.map((state) => h('i', { class: state })),
  );
}
