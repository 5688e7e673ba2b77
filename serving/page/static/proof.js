/** The proof of a day: its partitions, the values that prove them, and links down to the source's own bytes. */
import { ask } from './api.js';
import { coveragePath } from './covered.js';
import { counted, minute, shortened, size, stretch, whole } from './format.js';
import { Revisions } from './revisions.js';
import { Asking, Badge, digest, Facts, html, Problem } from './view.js';

/** The most partitions of a day that the page shows; a day of blocks has 144 and more. */
const SHOWN = 20;

export class Proof extends Asking {
  #asked = '';
  #day = '';
  state = { end: undefined };

  async look() {
    const { dataset, chosen, seen } = this.props;
    const asked = chosen ? `${chosen.day} ${seen}` : '';
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.latest.stop();
    const isOther = chosen?.day !== this.#day;
    this.#day = chosen?.day;
    if (isOther) this.setState({ end: undefined });
    if (!chosen) return;
    // On a narrow screen the proof is below the calendar.
    if (isOther && this.box.getBoundingClientRect().top > innerHeight * 0.8)
      this.box.scrollIntoView({ block: 'center' });
    const [from, to] = [chosen.window.from, chosen.window.to].map((ms) => new Date(ms).toISOString());
    const end = await this.latest.ask((signal) => ask(coveragePath(dataset, { from, to, limit: '200' }), { signal }));
    if (end) this.setState({ end });
  }

  render() {
    const { chosen } = this.props;
    return html`<div ref=${(box) => {
      this.box = box;
    }}>${chosen ? html`<h2>${chosen.day}</h2>${this.props.children}${this.#shown()}` : html`<div class="empty"><b>Choose a day.</b><p>It shows what its rows were proved by: the source’s document, counts and digests, and every event’s own bytes.</p></div>`}</div>`;
  }

  #shown() {
    const { dataset, chosen, source, seen, revision, onRevision } = this.props;
    const { end } = this.state;
    if (!end) return html`<p class="faint">Looking…</p>`;
    if (end.fault) return html`<${Problem} fault=${end.fault} />`;
    const partitions = end.value.partitions.filter((one) => source === undefined || one.source_id === source);
    const more = `${end.value.next_cursor ? ' and more' : ''}${partitions.length > SHOWN ? `, the first ${SHOWN} shown` : ''}`;
    const said = `${counted(partitions.length, 'partition')}${more}`;
    return html`${partitions.length === 0 ? html`<${NoPartition} state=${chosen.state} />` : html`<p class="faint">${said}</p>`}
      ${partitions.slice(0, SHOWN).map((one, at) => html`<${Partition} key=${one.partition} dataset=${dataset} one=${one} isOpen=${at === 0} seen=${seen} revision=${revision} onRevision=${onRevision} />`)}`;
  }
}

const NoPartition = ({ state }) =>
  ['available', 'degraded', 'empty', 'part'].includes(state)
    ? html`<p>No partition begins or ends on this day: the one before it reaches over it, and what is here is proved.</p>`
    : html`<p>No partition of this day is known. <span class="faint">If it is expected, <code>./tidemark backfill</code> brings it in.</span></p>`;

function Partition({ dataset, one, isOpen, seen, revision, onRevision }) {
  const facts = [
    ['Window', one.start_utc && stretch(one.start_utc, one.end_utc).join(' to ')],
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
  const tone = isProved ? 'good' : one.state === 'quarantined' ? 'bad' : '';
  return html`<details class="partition" open=${isOpen}><summary><code>${one.partition}</code><${Badge} tone=${tone}>${one.state}<//></summary>
    ${one.reason && html`<p class="notice bad">${one.reason}</p>`}
    ${isProved && html`<p>What the database counted and hashed over its rows equals what was counted and hashed in the document.</p>`}
    <${Facts} facts=${facts} />
    ${isProved && one.first_offset !== null && html`<${Bytes} dataset=${dataset.key} one=${one} />`}
    <${Revisions} dataset=${dataset} partition=${one.partition} seen=${seen} revision=${revision} onRevision=${onRevision} />
  </details>`;
}

/** The first event of a partition as the source sent it. */
class Bytes extends Asking {
  state = { end: undefined, isReading: false };

  async #read() {
    const { dataset, one } = this.props;
    this.setState({ isReading: true });
    const query = new URLSearchParams({ partition: one.partition });
    const path = `/v1/lineage/${dataset}/${encodeURIComponent(one.first_offset)}?${query}`;
    const end = await this.latest.ask((signal) => ask(path, { signal }));
    if (end) this.setState({ end, isReading: false });
  }

  render() {
    const { end, isReading } = this.state;
    return html`<div class="bytes"><button type="button" class="quiet" onClick=${() => this.#read()}>Its first event, from the log</button>
      ${isReading && html`<p class="faint">Reading the log…</p>`}
      ${end?.fault && html`<${Problem} fault=${end.fault} />`}${end?.value && html`<${Event} event=${end.value} />`}</div>`;
  }
}

function Event({ event: { event_id: id, payload_raw: payload, payload_sha256_raw: sha256, frame } }) {
  const { stream, stream_sequence: sequence, position, rows } = frame;
  const facts = [
    ['Event', html`<code>${id}</code>`],
    ['Its sha256', digest(sha256)],
    ['Stream', `${stream}, message ${whole(sequence)}, event ${whole(position)} of ${whole(rows)}`],
  ];
  const text = payload.utf8 ?? payload.base64;
  return html`<${Facts} facts=${facts} />
    <p class="faint">The source’s own ${counted(payload.bytes, 'byte')}${payload.utf8 === null && ', in base64'}:</p>
    <pre tabindex="0" aria-label="Bytes of the event">${text.length > 2000 ? `${text.slice(0, 2000)}…` : text}</pre>`;
}
