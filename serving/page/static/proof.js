/** The proof of a day: its partitions, the values that prove them, and links down to the source's own bytes. */
import { ask } from './api.js';
import { byId, fill, h } from './dom.js';
import { counted, minute, moment, shortened, size, whole } from './format.js';
import { problem } from './problem.js';

/** The most partitions of a day that the page shows; a day of blocks has 144 and more. */
const SHOWN = 20;
/** Ends the request whose answer would come after another day, or none, was chosen. */
let looking = new AbortController();

export function showNoProof() {
  looking.abort();
  fill(
    byId('proof'),
    h(
      'div',
      { class: 'empty' },
      h('b', {}, 'Choose a day.'),
      h(
        'p',
        {},
        'It shows what its rows were proved by: the source’s document, counts and digests, and every event’s own bytes.',
      ),
    ),
  );
}

/**
 * @param {any} coverage
 * @param {{ from: number, to: number }} window
 * @param {{ day: string, state: string }} chosen
 * @param {string | undefined} source
 */
export async function showProof({ dataset }, window, { day, state }, source) {
  looking.abort();
  looking = new AbortController();
  const { signal } = looking;
  const box = byId('proof');
  fill(box, h('h3', {}, day), h('p', { class: 'faint' }, 'Looking…'));
  // On a narrow screen the proof is below the calendar.
  if (box.getBoundingClientRect().top > innerHeight * 0.8) box.scrollIntoView({ block: 'center' });
  const query = new URLSearchParams({ from: iso(window.from), to: iso(window.to), limit: '200' });
  try {
    const { partitions: all, next_cursor: more } = await ask(`/v1/coverage/${dataset}?${query}`, { signal });
    if (signal.aborted) return;
    const partitions = all.filter((one) => source === undefined || one.source_id === source);
    fill(
      box,
      h('h3', {}, day),
      partitions.length === 0 ? none(state) : h('p', { class: 'faint' }, said(partitions.length, more)),
      ...partitions
        .slice(0, SHOWN)
        .map((one, index) => partition(dataset, one, partitions.length === 1 || index === 0)),
    );
  } catch (error) {
    if (signal.aborted) return;
    fill(box, h('h3', {}, day), problem(error));
  }
}

const said = (count, more) =>
  `${counted(count, 'partition')}${more ? ' and more' : ''}${count > SHOWN ? `, the first ${SHOWN} shown` : ''}`;

/** @param {string} state */
const none = (state) =>
  state === 'proved' || state === 'part'
    ? h(
        'p',
        {},
        'No partition begins or ends on this day: the one before it reaches over it, and what is here is proved.',
      )
    : h(
        'p',
        {},
        'No partition of this day is known. ',
        h('span', { class: 'faint' }, 'If it is expected, ', h('code', {}, './tidemark backfill'), ' brings it in.'),
      );

const iso = (ms) => new Date(ms).toISOString();

function partition(dataset, one, isOpen) {
  const facts = [
    ['Window', one.start_utc && `${moment(one.start_utc)} to ${moment(one.end_utc)}`],
    ['Rows', one.rows === null ? null : whole(one.rows)],
    ['Offsets', one.first_offset === null ? null : `${shortened(one.first_offset)} to ${shortened(one.last_offset)}`],
    ['Document', one.document && `${one.document.name}, ${size(one.document.bytes)}`],
    ['Its sha256', one.document?.sha256 && digest(one.document.sha256)],
    ['Events’ sha256', one.events_sha256 && digest(one.events_sha256)],
    ['Rows hash', one.rows_hash && digest(one.rows_hash)],
    ['Ingested', one.ingested_at_utc && minute(one.ingested_at_utc)],
    ['Proved', one.proved_at_utc && minute(one.proved_at_utc)],
    ['Revision', one.revision > 1 || one.attempt > 1 ? `${one.revision}, attempt ${one.attempt}` : null],
    ['Source', one.synthetic ? 'sample: made here, no source published it' : one.source_id],
  ];
  const isProved = one.state === 'proved';
  return h(
    'details',
    { class: 'partition', open: isOpen },
    h(
      'summary',
      {},
      h('code', {}, one.partition),
      h('span', { class: `badge ${isProved ? 'good' : one.state === 'quarantined' ? 'bad' : ''}` }, one.state),
    ),
    one.reason && h('p', { class: 'notice bad' }, one.reason),
    isProved &&
      h(
        'p',
        {},
        'What the database counted and hashed over its rows equals what was counted and hashed in the document.',
      ),
    h(
      'dl',
      {},
      ...facts.filter(([, value]) => value).flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]),
    ),
    isProved && one.first_offset !== null && bytesButton(dataset, one),
  );
}

const digest = (text) => h('code', { title: text }, shortened(text));

function bytesButton(dataset, { partition: key, first_offset: offset }) {
  const box = h('div', {});
  const button = h('button', { type: 'button', class: 'quiet' }, 'Its first event, from the log');
  button.addEventListener('click', async () => {
    fill(box, h('p', { class: 'faint' }, 'Reading the log…'));
    try {
      const event = await ask(
        `/v1/lineage/${dataset}/${encodeURIComponent(offset)}?${new URLSearchParams({ partition: key })}`,
      );
      fill(box, event_(event));
    } catch (error) {
      fill(box, problem(error));
    }
  });
  return h('div', { class: 'bytes' }, button, box);
}

function event_({ event_id: id, payload_raw: payload, payload_sha256_raw: sha256, frame }) {
  const facts = [
    ['Event', h('code', {}, id)],
    ['Its sha256', digest(sha256)],
    [
      'Stream',
      `${frame.stream}, message ${whole(frame.stream_sequence)}, event ${whole(frame.position)} of ${whole(frame.rows)}`,
    ],
  ];
  const text = payload.utf8 ?? `${payload.base64.slice(0, 400)}${payload.base64.length > 400 ? '…' : ''}`;
  return h(
    'div',
    {},
    h('dl', {}, ...facts.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])),
    h(
      'p',
      { class: 'faint' },
      `The source’s own ${counted(payload.bytes, 'byte')}${payload.utf8 === null ? ', in base64' : ''}:`,
    ),
    h(
      'pre',
      { tabindex: 0, 'aria-label': 'Bytes of the event' },
      text.length > 2000 ? `${text.slice(0, 2000)}…` : text,
    ),
  );
}
