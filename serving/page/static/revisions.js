/** The revisions of a partition: which was served when, and which rows a later document of the vendor changes. */
import { ask, download, readRows } from './api.js';
import { counted, instant, minute, whole } from './format.js';
import { instrumentOf } from './request.js';
import { Asking, Badge, digest, Facts, html, Problem, Table } from './view.js';

/** The most rows of a diff that the page shows. */
const SHOWN = 200;
/** One partition has hardly ever as many revisions. */
const LIMIT = '100';
const TONES = { served: 'good', refused: 'warn' };
const STATE_TEXT = {
  served: 'It is served.',
  replaced: 'Another revision took its place.',
  withdrawn: 'It left service.',
  refused: 'The vendor published it in place of the served document. It waits for an operator’s reingest.',
  taken_back: 'The vendor published it, and then the document before again.',
  accepted: 'An operator reingested it: it is served as another revision.',
};

export class Revisions extends Asking {
  #asked = '';
  state = { end: undefined };

  async look() {
    const { dataset, partition, seen } = this.props;
    if (seen === this.#asked) return;
    this.#asked = seen;
    const query = new URLSearchParams({ dataset: dataset.key, ...instrumentOf(dataset), partition, limit: LIMIT });
    const end = await this.latest.ask((signal) => ask(`/v1/revisions?${query}`, { signal }));
    if (end) this.setState({ end });
  }

  render() {
    const { revision, onRevision } = this.props;
    const { value, fault } = this.state.end ?? {};
    if (fault) return html`<${Problem} fault=${fault} />`;
    if (!value) return html`<p class="faint">Looking for revisions…</p>`;
    return html`<h3>${counted(value.revisions.length, 'revision')}</h3>
      ${value.revisions.length === 0 && html`<p class="faint">The proof log has none of it yet.</p>`}
      ${value.revisions.map((one) => html`<${Revision} key=${one.id} one=${one} isOpen=${String(one.id) === revision} onOpen=${onRevision} />`)}`;
  }
}

function Revision({ one, isOpen, onOpen }) {
  const { state, document, differences, fault } = one;
  const change = (number, utc) => number && `change ${whole(number)}, ${minute(utc)}`;
  const facts = [
    ['Served from', change(one.from_change, one.from_utc)],
    ['until', change(one.to_change, one.to_utc)],
    ['Found', one.found_utc && minute(one.found_utc)],
    ['Taken back', one.taken_back_utc && minute(one.taken_back_utc)],
    ['Document', document.name],
    ['Its sha256', document.sha256 && digest(document.sha256)],
    ['Last-Modified', document.last_modified],
    ['ETag', document.etag && html`<code>${document.etag}</code>`],
  ];
  return html`<div class="revision">
    <p class="line"><b>Revision ${one.revision}</b><${Badge} tone=${TONES[state] ?? ''}>${state.replace('_', ' ')}<//></p>
    <p>${STATE_TEXT[state]}</p><${Facts} facts=${facts} />
    ${fault && html`<p class="notice bad">It would be refused: ${fault}</p>`}
    ${differences ? html`<${Differences} one=${one} isOpen=${isOpen} onOpen=${onOpen} />` : one.found_utc && html`<p class="faint">There are no differences to read: the document could not be compared.</p>`}
  </div>`;
}

class Differences extends Asking {
  state = { end: undefined, isReading: false };

  componentDidMount() {
    if (this.props.isOpen) void this.#read();
  }

  get #path() {
    return `/v1/revisions/${this.props.one.id}/diff`;
  }

  async #read() {
    const { one, onOpen, isOpen } = this.props;
    if (!isOpen) onOpen(String(one.id));
    this.setState({ isReading: true });
    const end = await this.latest.ask((signal) => readRows({ path: this.#path }, signal));
    if (end) this.setState({ end, isReading: false });
  }

  async #download() {
    const { id } = this.props.one;
    const request = { path: this.#path, accept: 'application/x-ndjson' };
    const end = await this.latest.ask(() => download(request, `revision-${id}.ndjson`));
    if (end?.fault) this.setState({ end });
  }

  render() {
    const { added, removed, altered, sha256 } = this.props.one.differences;
    const { end, isReading } = this.state;
    const said =
      added + removed + altered === 0
        ? 'The same rows, in another order, form or archive.'
        : `It adds ${counted(added, 'row')}, removes ${whole(removed)} and alters ${whole(altered)}.`;
    if (sha256 === null)
      return html`<p>${said}</p><p class="faint">Which they are is not shown: the rights of the dataset keep its rows from this key.</p>`;
    return html`<p>${said} <span class="faint">Nothing of it is proved.</span></p>
      <p class="line"><button type="button" class="quiet" onClick=${() => this.#read()}>Read the differences</button>
        <button type="button" class="quiet" onClick=${() => this.#download()}>Download them</button></p>
      ${isReading && html`<p class="faint">Reading…</p>`}
      ${end?.fault && html`<${Problem} fault=${end.fault} />`}
      ${end?.value?.rows && html`<${ChangedRows} rows=${end.value.rows.slice(1)} count=${added + removed + altered} />`}`;
  }
}

const valueText = (name, value) => (name === 'timestamp' ? instant(new Date(value).toISOString()) : String(value));

function ChangedRows({ rows, count }) {
  if (rows.length === 0) return null;
  const shown = rows.slice(0, SHOWN);
  const said =
    count > shown.length ? `The first ${whole(shown.length)} of ${whole(count)} rows` : counted(count, 'row');
  const cells = shown.map(({ kind, served, found }) => {
    const row = found ?? served;
    const names = Object.keys(row).filter((name) => name !== 'trade_id' && served?.[name] !== found?.[name]);
    const text = (of, name) => html`<b>${valueText(name, of[name])}</b>`;
    const values = names.map(
      (name) =>
        html`<span>${name} ${served && found ? html`${text(served, name)} → ${text(found, name)}` : text(row, name)}</span>`,
    );
    return [row.trade_id, kind, html`<span class="values">${values}</span>`];
  });
  return html`<p class="faint">${said}</p>
    <div class="short-list"><${Table} caption=${said} columns=${['Trade', 'It is', 'Values']} rows=${cells} /></div>`;
}
