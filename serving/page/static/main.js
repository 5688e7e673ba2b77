/** The page: reads the service's status every few seconds while it is visible, and shows the view that the address names. */
import { ask, Fault, key, Latest } from './api.js';
import { Candles } from './candles.js';
import { Coverage } from './coverage.js';
import { Explore } from './explore.js';
import { findingsOf } from './findings.js';
import { Frame } from './frame.js';
import { Home } from './home.js';
import { coveredDatasets } from './instruments.js';
import { KeyDialog } from './key-dialog.js';
import { Looks } from './looks.js';
import { placeOf } from './place.js';
import { Component, html, render } from './view.js';
import { Work } from './work.js';

/** The interval at which the service collects its status. */
const POLL_MS = 5000;
const EXPORTS_SHOWN = 10;
const CHANGES_SHOWN = 12;

const VIEWS = /** @type {const} */ ({
  data: ['Data', Home],
  explore: ['Explore', Explore],
  frame: ['Frame', Frame],
  candles: ['Candles', Candles],
  coverage: ['Coverage', Coverage],
  work: ['Work', Work],
});

/** Of a link that signs in. Neither the address nor the history keeps it. */
const TOKEN = /^#sign-in=(.+)$/.exec(location.hash)?.[1];
if (TOKEN) history.replaceState(null, '', location.pathname);

/** What the service says at once. Facts about datasets are asked for again when one of them changed. */
function looker() {
  let discovered = { version: '', datasets: [], operators: {} };
  let listed = { last: -1, instruments: [] };
  return async (signal) => {
    // When exports or changes cannot be listed, the page still shows everything else.
    const [status, history, { exports }] = await Promise.all([
      ask('/v1/ops/status', { signal }),
      ask('/v1/ops/history', { signal }),
      ask(`/v1/raw/export?limit=${EXPORTS_SHOWN}`, { signal }).catch(() => ({ exports: [] })),
    ]);
    const since = Math.max(0, status.changes.last - CHANGES_SHOWN);
    const { changes } = await ask(`/v1/changes?since=${since}`, { signal }).catch(() => ({ changes: [] }));
    const version = status.datasets.map((one) => `${one.coverage_version} ${one.rows}`).join();
    if (version !== discovered.version) discovered = { ...(await ask('/v1/datasets', { signal })), version };
    // The status does not count other instruments than the default; their proofs are changes.
    const { last } = status.changes;
    if (last !== listed.last) listed = { ...(await ask('/v1/instruments', { signal })), last };
    // A key may cover fewer than the system has.
    status.datasets = status.datasets.filter(({ dataset }) => discovered.datasets.some((one) => one.key === dataset));
    const { instruments } = listed;
    const datasets = coveredDatasets({ ...discovered, instruments });
    return { ...discovered, datasets, instruments, status, history, exports, changes };
  };
}

class Page extends Component {
  state = { facts: undefined, fault: undefined, hash: location.hash, asksForKey: key.get() === '' && !TOKEN };
  #looks = this.#newLooks();

  #newLooks() {
    return new Looks(looker(), ({ value, fault }) => {
      if (value) this.setState({ facts: value, fault: undefined });
      else this.setState({ fault, ...(fault.isKey && { asksForKey: true }) });
    });
  }

  componentDidMount() {
    addEventListener('hashchange', () => {
      // The link to the content leads to no view.
      if (location.hash !== '#main') this.setState({ hash: location.hash });
    });
    if (TOKEN) void this.#signIn();
    else if (key.get() !== '') void this.#looks.now();
    setInterval(() => this.#lookAgain(), POLL_MS);
    document.addEventListener('visibilitychange', () => this.#lookAgain());
  }

  /** Exchanges the token, which works once, for the key. */
  async #signIn() {
    const end = await new Latest().ask((signal) => ask('/page/sign-in', { body: { token: TOKEN }, signal }));
    if (end.value) this.#use(end.value.key);
    else this.setState({ fault: end.fault, asksForKey: true });
  }

  /** A link may hold choices that this service, or this page, does not know. */
  componentDidCatch(error) {
    if (this.state.hash === '') throw error;
    const fault = new Fault('The address holds choices that are not known here.', { code: 'LINK' });
    this.setState({ hash: '', fault });
  }

  #lookAgain() {
    if (this.#looks.isBusy || document.visibilityState !== 'visible') return;
    if (key.get() !== '' && !this.state.asksForKey) void this.#looks.now();
  }

  #use = (text) => {
    key.set(text);
    this.setState({ asksForKey: false, fault: undefined });
    // What another key may see is not what this one may.
    this.#looks.stop();
    this.#looks = this.#newLooks();
    void this.#looks.now();
  };

  render() {
    const { facts, fault, hash, asksForKey } = this.state;
    const { view, choices } = placeOf(hash);
    const shown = view in VIEWS ? view : 'data';
    const findings = facts ? findingsOf(facts.status, facts.datasets) : [];
    const broken = findings.filter(({ weight }) => weight === 'bad').length;
    document.title = `${broken > 0 ? '● ' : ''}${VIEWS[shown][0]} · Tidemark`;
    const [, View] = VIEWS[shown];
    return html`<header class="top">
        <a class="brand" href="#data"><img src="page/mark.svg" alt="" width="28" height="28" /><span>Tidemark</span></a>
        <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [title]]) => html`<a href=${`#${name}`} aria-current=${name === shown ? 'page' : undefined}>${title}</a>`)}<a href="docs">Reference</a></nav>
        <div class="stand">${broken > 0 && html`<a class="fault" href="#data">${broken} need${broken === 1 ? 's' : ''} you</a>`}
          <span id="updated" class=${fault && !fault.isKey ? 'fault' : 'faint'}>${this.#stand()}</span>
          <button type="button" id="key-button" class="quiet" onClick=${() => this.setState({ asksForKey: true })}>Key</button></div>
      </header>
      <main id="main" tabindex="-1">${facts ? html`<${View} key=${`${shown} ${hash}`} view=${shown} facts=${facts} choices=${choices} />` : html`<p class="lead">${fault ? '' : 'Looking…'}</p>`}</main>
      ${asksForKey && html`<${KeyDialog} fault=${fault?.isKey ? fault : undefined} onKey=${this.#use} onClose=${() => this.setState({ asksForKey: false })} />`}`;
  }

  #stand() {
    const { facts, fault } = this.state;
    // A key without the scope does not get it by asking again.
    if (fault && !fault.isKey)
      return ['AUTH_SCOPE_MISSING', 'LINK'].includes(fault.code) ? fault.message : `${fault.message} Trying again.`;
    return facts ? `as of ${facts.status.at_utc.slice(11, 19)} UTC` : '';
  }
}

render(html`<${Page} />`, document.getElementById('page'));
