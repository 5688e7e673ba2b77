/** Shows runs in progress and the latest ended ones, exports by state, lakes, compacted tables, the proof log, and the queues of reads. */
import { byId, fill, h, table } from './dom.js';
import { counted, duration, minute, short, size, whole } from './format.js';

const ENDED_SHOWN = 8;

/** @param {any} status */
export function showWork(status) {
  const now = Date.parse(status.at_utc);
  // Runs in progress, and the latest that ended.
  const ended = status.runs.filter(({ ended_at_utc: end }) => end !== null).slice(0, ENDED_SHOWN);
  const shown = status.runs.filter((run) => run.ended_at_utc === null || ended.includes(run));
  fill(byId('runs'), shown.length === 0 ? noRuns() : runTable(shown, now));
  fill(byId('lakes'), lakesOf(status.lakes, now));
  fill(byId('columnstore'), ...columnstoreOf(status.columnstore ?? []));
  fill(byId('proof-log'), proofLogOf(status.proof_log, now));
  fill(byId('queues'), queueTable(status.queues));
}

const noRuns = () =>
  h(
    'div',
    { class: 'empty' },
    h('b', {}, 'Nothing is at work.'),
    h(
      'p',
      {},
      'A backfill or a follower shows here with its progress. How to begin one: ',
      h('code', {}, './tidemark help backfill'),
    ),
  );

function runTable(runs, now) {
  return table({
    caption: 'Backfills, followers and other work, the newest first',
    columns: [
      { name: 'What' },
      { name: 'State' },
      { name: 'Progress' },
      { name: 'Rows', number: true },
      { name: 'Since' },
    ],
    rows: runs.map((run) => [what(run), state(run), progress(run), short(run.rows), since(run, now)]),
  });
}

const what = ({ kind, subject, command, host, pid }) =>
  h('span', { title: `${command} (pid ${pid} on ${host})` }, h('b', {}, kind), ' ', h('code', {}, subject));

const TONES = { running: 'good', done: '', waiting: '', failed: 'bad', lost: 'bad', interrupted: '' };

const state = ({ state: name, fault }) =>
  h(
    'span',
    {},
    h('span', { class: `badge ${TONES[name] ?? ''}` }, name),
    fault && h('span', { class: 'faint fault', title: fault }, ` ${fault}`),
  );

function progress({ planned, proved, unchanged, refused, quarantined, failed, at_partition: at, ended_at_utc: ended }) {
  const done = proved + unchanged + refused + quarantined + failed;
  const troubled = refused + quarantined + failed;
  const text = `${whole(done)}${planned === null ? '' : ` of ${whole(planned)}`}${troubled > 0 ? `, ${counted(troubled, 'fault')}` : ''}`;
  return h(
    'span',
    { class: 'progress' },
    planned !== null && h('progress', { max: Math.max(1, planned), value: done, 'aria-label': text }),
    h('span', {}, text, ended === null && at ? h('span', { class: 'faint' }, ` at ${at}`) : ''),
  );
}

function since({ started_at_utc: started, ended_at_utc: ended }, now) {
  const seconds = ((ended === null ? now : Date.parse(ended)) - Date.parse(started)) / 1000;
  return h(
    'span',
    { class: 'line' },
    minute(started),
    h('span', { class: 'faint' }, ended === null ? `, for ${duration(seconds)}` : `, took ${duration(seconds)}`),
  );
}

/** @param {readonly any[]} exports the newest, as GET /v1/raw/export has them */
export function showExports(exports) {
  const box = byId('exports');
  if (exports.length === 0) {
    fill(
      box,
      h('p', { class: 'faint' }, 'None yet. ', h('code', {}, 'POST /v1/raw/export'), ' makes files in the background.'),
    );
    return;
  }
  fill(
    box,
    table({
      caption: 'Exports, the newest first',
      columns: [
        { name: 'Export' },
        { name: 'State' },
        { name: 'Rows', number: true },
        { name: 'Size', number: true },
        { name: 'Submitted' },
      ],
      rows: exports.map((one) => [
        h(
          'span',
          { title: one.export_id },
          h('code', {}, one.dataset),
          ` ${one.mode === 'native' ? '' : 'aligned, '}${one.format}`,
        ),
        exportState(one),
        short(one.artifact?.row_count ?? one.progress.rows),
        size(one.artifact?.bytes ?? one.progress.bytes),
        minute(one.submitted_at),
      ]),
    }),
  );
}

const EXPORT_TONES = { succeeded: 'good', failed: 'bad' };

const exportState = ({ status: name, error_code: code, error_message: message }) =>
  h(
    'span',
    {},
    h('span', { class: `badge ${EXPORT_TONES[name] ?? ''}` }, name),
    code && h('span', { class: 'faint fault', title: message }, ` ${code}`),
  );

const lakesOf = (lakes, now) =>
  lakes.length === 0
    ? h(
        'p',
        { class: 'faint' },
        'None yet. ',
        h('code', {}, './tidemark lake --to FOLDER'),
        ' writes all proved rows as Parquet.',
      )
    : table({
        caption: 'Lakes, and how far they are',
        columns: [
          { name: 'Folder' },
          { name: 'State' },
          { name: 'Files', number: true },
          { name: 'Rows', number: true },
          { name: 'Size', number: true },
          { name: 'Written' },
        ],
        rows: lakes.map((one) => [
          h('code', { title: `on ${one.host}` }, one.folder),
          lakeState(one),
          whole(one.files),
          short(one.rows),
          size(one.bytes),
          `${duration((now - Date.parse(one.written_at_utc)) / 1000)} ago`,
        ]),
      });

const lakeState = ({ fault, behind, change }) =>
  h(
    'span',
    {},
    fault !== null
      ? h('span', { class: 'badge bad' }, 'failed')
      : h(
          'span',
          { class: `badge ${behind === 0 ? 'good' : ''}` },
          behind === 0 ? 'complete' : `${counted(behind, 'change')} behind`,
        ),
    h('span', { class: 'faint fault', title: fault }, fault === null ? ` to change ${whole(change)}` : ` ${fault}`),
  );

/** Nothing where TimescaleDB has no columnstore, or none of its chunks was compacted. */
const columnstoreOf = (tables) =>
  tables.length === 0
    ? []
    : [
        h('h3', {}, 'Columnstore'),
        table({
          caption: 'Chunks in columns by table',
          columns: [
            { name: 'Table' },
            { name: 'Chunks in columns' },
            { name: 'As rows', number: true },
            { name: 'In columns', number: true },
          ],
          rows: tables.map((one) => [
            h('code', {}, one.table),
            `${whole(one.compacted_chunks)} of ${whole(one.chunks)}`,
            size(one.row_bytes),
            size(one.column_bytes),
          ]),
        }),
      ];

/** The tree as it was signed last, and the leaves that wait for the next checkpoint. */
const proofLogOf = ({ size: leaves, root, signed_at_utc: at, pending }, now) =>
  root === null
    ? h('p', { class: 'faint' }, 'No checkpoint is signed yet.')
    : table({
        caption: 'The last signed checkpoint',
        columns: [
          { name: 'Leaves', number: true },
          { name: 'Root' },
          { name: 'Signed' },
          { name: 'Waiting', number: true },
        ],
        rows: [
          [
            whole(leaves),
            h('a', { href: '/v1/proofs/checkpoint' }, h('code', {}, `${root.slice(0, 12)}…`)),
            `${duration((now - Date.parse(at)) / 1000)} ago`,
            whole(pending),
          ],
        ],
      });

const queueTable = (queues) =>
  table({
    caption: 'Reads of this process by queue',
    columns: [
      { name: 'Queue' },
      { name: 'Running', number: true },
      { name: 'Waiting', number: true },
      { name: 'Parked', number: true },
      { name: 'Refused', number: true },
    ],
    rows: queues.map((one) => [
      one.queue,
      `${one.running} of ${one.max_running}`,
      `${one.waiting} of ${one.max_waiting}`,
      whole(one.parked),
      whole(one.rejected),
    ]),
  });
