/** The last changes of the catalog, the newest first, and how many listeners follow them. */
import { byId, fill, h, table } from './dom.js';
import { counted, minute, short } from './format.js';

const SHOWN = 12;
const TONES = { proved: 'good', revised: 'good', quarantined: 'bad', retracted: 'bad', refused: 'bad', restored: '' };

/** Where to ask from, so that the answer has those that are shown. @param {any} status */
export const sinceOf = ({ changes: { last } }) => Math.max(0, last - SHOWN);

/**
 * @param {any} status
 * @param {readonly any[]} changes as GET /v1/changes has them
 */
export function showChanges({ changes: { listeners, max_listeners: most } }, changes) {
  const box = byId('changes-list');
  byId('changes-said').textContent = `${counted(listeners, 'listener')} of ${short(most)}`;
  if (changes.length === 0) {
    fill(box, h('p', { class: 'faint' }, 'None yet. ', h('code', {}, 'GET /v1/changes'), ' lists and streams them.'));
    return;
  }
  fill(
    box,
    table({
      caption: 'Changes, the newest first',
      columns: [
        { name: 'Number', number: true },
        { name: 'Change' },
        { name: 'Partition' },
        { name: 'Revision', number: true },
        { name: 'Rows', number: true },
        { name: 'Time' },
      ],
      rows: changes.toReversed().map(rowOf),
    }),
  );
}

const rowOf = ({ number, kind, dataset, partition, revision, rows, at, reason }) => [
  String(number),
  h(
    'span',
    {},
    h('span', { class: `badge ${TONES[kind]}` }, kind),
    reason && h('span', { class: 'faint fault', title: reason }, ` ${reason}`),
  ),
  dataset === null
    ? h('span', { class: 'faint' }, 'the proof log')
    : h('span', {}, h('code', {}, dataset), ` ${partition}`),
  revision === null ? '' : String(revision),
  rows === null ? '' : short(rows),
  minute(at),
];
