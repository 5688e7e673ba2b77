/** Work in progress and the latest that ended: runs, exports, lakes, compacted tables, the proof log, changes and the queues of reads. */
import { counted, duration, minute, short, size, whole } from './format.js';
import { nameOf } from './request.js';
import { Badge, html, Table } from './view.js';

const ENDED_SHOWN = 8;

/** @param {{ facts: any }} page */
export function Work({ facts: { status, exports, changes } }) {
  const now = Date.parse(status.at_utc);
  const { listeners, max_listeners: most } = status.changes;
  const lists = [
    ['Runs', 'runs', html`<${Runs} runs=${status.runs} now=${now} />`],
    ['Exports', 'exports', html`<${Exports} exports=${exports} />`],
    ['Lakes', 'lakes', html`<${Lakes} lakes=${status.lakes} now=${now} />`],
    ...(status.columnstore?.length > 0
      ? [['Columnstore', 'columnstore', html`<${Columnstore} tables=${status.columnstore} />`]]
      : []),
    ['Proof log', 'proof-log', html`<${ProofLog} log=${status.proof_log} now=${now} />`],
    [
      'Changes',
      'changes',
      html`<p id="changes-said" class="faint">${counted(listeners, 'listener')} of ${short(most)}</p><div id="changes-list"><${Changes} changes=${changes} /></div>`,
    ],
    ['Reads of this process', 'queues', html`<${Queues} queues=${status.queues} />`],
  ];
  return html`<section aria-labelledby="work-title"><h1 id="work-title">Work</h1>
    ${lists.map(([title, id, content]) => html`<h2>${title}</h2><div id=${id}>${content}</div>`)}</section>`;
}

const Fault = ({ title, children }) => html`<span class="faint fault" title=${title}> ${children}</span>`;

const TONES = { running: 'good', failed: 'bad', lost: 'bad', succeeded: 'good' };

function Runs({ runs, now }) {
  // Runs in progress, and the latest that ended.
  const ended = runs.filter(({ ended_at_utc: end }) => end !== null).slice(0, ENDED_SHOWN);
  const shown = runs.filter((run) => run.ended_at_utc === null || ended.includes(run));
  if (shown.length === 0)
    return html`<div class="empty"><b>Nothing is at work.</b><p>A backfill or a follower shows here with its progress. How to begin one: <code>./tidemark help backfill</code></p></div>`;
  const rows = shown.map((run) => {
    const { kind, subject, command, host, pid, state, failed_unit: unit } = run;
    const fault = run.fault ?? (unit && `${unit.dataset} ${unit.partition}: ${unit.code}: ${unit.reason}`);
    return [
      html`<span title=${`${command} (pid ${pid} on ${host})`}><b>${kind}</b> <code>${subject}</code></span>`,
      html`<${Badge} tone=${TONES[state]}>${state}<//>${fault && html`<${Fault} title=${fault}>${fault}<//>`}`,
      html`<${Progress} ...${run} />`,
      short(run.rows),
      html`<${Since} run=${run} now=${now} />`,
    ];
  });
  const columns = ['What', 'State', 'Progress', ['Rows', 'number'], 'Since'];
  return html`<${Table} caption="Backfills, followers and other work, the newest first" columns=${columns} rows=${rows} />`;
}

function Progress({ planned, proved, unchanged, refused, quarantined, failed, at_partition: at, ended_at_utc: ended }) {
  const done = proved + unchanged + refused + quarantined + failed;
  const troubled = refused + quarantined + failed;
  const text = `${whole(done)}${planned === null ? '' : ` of ${whole(planned)}`}${troubled > 0 ? `, ${counted(troubled, 'fault')}` : ''}`;
  return html`<span>${planned !== null && html`<progress max=${Math.max(1, planned)} value=${done} aria-label=${text} />`}<span>${text}${ended === null && at && html`<span class="faint"> at ${at}</span>`}</span></span>`;
}

function Since({ run: { started_at_utc: started, ended_at_utc: ended }, now }) {
  const seconds = ((ended === null ? now : Date.parse(ended)) - Date.parse(started)) / 1000;
  return html`<span>${minute(started)}<span class="faint">, ${ended === null ? 'for' : 'took'} ${duration(seconds)}</span></span>`;
}

/** The newest, as GET /v1/raw/export has them. */
function Exports({ exports }) {
  if (exports.length === 0)
    return html`<p class="faint">None yet. <code>POST /v1/raw/export</code> makes files in the background.</p>`;
  const rows = exports.map((one) => [
    html`<span title=${one.export_id}><code>${nameOf({ ...one, key: one.dataset })}</code> ${one.mode === 'native' ? '' : 'aligned, '}${one.format}</span>`,
    html`<${Badge} tone=${TONES[one.status]}>${one.status}<//>${one.error_code && html`<${Fault} title=${one.error_message}>${one.error_code}<//>`}`,
    short(one.artifact?.row_count ?? one.progress.rows),
    size(one.artifact?.bytes ?? one.progress.bytes),
    minute(one.submitted_at),
  ]);
  const columns = ['Export', 'State', ['Rows', 'number'], ['Size', 'number'], 'Submitted'];
  return html`<${Table} caption="Exports, the newest first" columns=${columns} rows=${rows} />`;
}

function Lakes({ lakes, now }) {
  if (lakes.length === 0)
    return html`<p class="faint">None yet. <code>./tidemark lake --to FOLDER</code> writes all proved rows as Parquet.</p>`;
  const rows = lakes.map(({ host, folder, files, rows: count, bytes, written_at_utc: at, fault, behind, change }) => [
    html`<code title=${`on ${host}`}>${folder}</code>`,
    fault !== null
      ? html`<${Badge} tone="bad">failed<//><${Fault} title=${fault}>${fault}<//>`
      : html`<${Badge} tone=${behind === 0 ? 'good' : ''}>${behind === 0 ? 'complete' : `${counted(behind, 'change')} behind`}<//><span class="faint"> to change ${whole(change)}</span>`,
    whole(files),
    short(count),
    size(bytes),
    `${duration((now - Date.parse(at)) / 1000)} ago`,
  ]);
  const columns = ['Folder', 'State', ['Files', 'number'], ['Rows', 'number'], ['Size', 'number'], 'Written'];
  return html`<${Table} caption="Lakes, and how far they are" columns=${columns} rows=${rows} />`;
}

const Columnstore = ({ tables }) => html`<${Table} caption="Chunks in columns by table"
  columns=${['Table', 'Chunks in columns', ['As rows', 'number'], ['In columns', 'number']]}
  rows=${tables.map((one) => [html`<code>${one.table}</code>`, `${whole(one.compacted_chunks)} of ${whole(one.chunks)}`, size(one.row_bytes), size(one.column_bytes)])} />`;

/** The tree as it was signed last, and the leaves that wait for the next checkpoint. */
const ProofLog = ({ log: { size: leaves, root, signed_at_utc: at, pending }, now }) =>
  root === null
    ? html`<p class="faint">No checkpoint is signed yet.</p>`
    : html`<${Table} caption="The last signed checkpoint" columns=${[['Leaves', 'number'], 'Root', 'Signed', ['Waiting', 'number']]}
        rows=${[[whole(leaves), html`<a href="v1/proofs/checkpoint"><code>${root.slice(0, 12)}…</code></a>`, `${duration((now - Date.parse(at)) / 1000)} ago`, whole(pending)]]} />`;

const CHANGES = { proved: 'good', revised: 'good', quarantined: 'bad', retracted: 'bad', refused: 'bad' };

/** As GET /v1/changes has them, shown the newest first. */
function Changes({ changes }) {
  if (changes.length === 0)
    return html`<p class="faint">None yet. <code>GET /v1/changes</code> lists and streams them.</p>`;
  const rows = changes
    .toReversed()
    .map(({ number, kind, dataset, partition, revision, rows: count, at, reason }) => [
      String(number),
      html`<${Badge} tone=${CHANGES[kind]}>${kind}<//>${reason && html`<${Fault} title=${reason}>${reason}<//>`}`,
      dataset === null ? html`<span class="faint">the proof log</span>` : html`<code>${dataset}</code> ${partition}`,
      revision === null ? '' : String(revision),
      count === null ? '' : short(count),
      minute(at),
    ]);
  const columns = [['Number', 'number'], 'Change', 'Partition', ['Revision', 'number'], ['Rows', 'number'], 'Time'];
  return html`<${Table} caption="Changes, the newest first" columns=${columns} rows=${rows} />`;
}

const Queues = ({ queues }) => html`<${Table} caption="Reads of this process by queue"
  columns=${['Queue', ['Running', 'number'], ['Waiting', 'number'], ['Parked', 'number'], ['Refused', 'number']]}
  rows=${queues.map((one) => [one.queue, `${one.running} of ${one.max_running}`, `${one.waiting} of ${one.max_waiting}`, whole(one.parked), whole(one.rejected)])} />`;
