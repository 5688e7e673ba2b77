/** The view library, and the parts that several views are made of. Text is never parsed as HTML, so no text of a source becomes markup. */
import { Latest } from './api.js';
import { shortened } from './format.js';
import htm from './htm.js';
import { Component, createElement, render } from './preact.js';

export { Component, render };
/** Makes elements from a template. @type {(parts: TemplateStringsArray, ...values: any[]) => any} */
export const html = /** @type {any} */ (htm).bind(createElement);

/** Asks the service for what it shows: `look` is called whenever it is shown or shown anew, and decides whether to ask. */
export class Asking extends Component {
  latest = new Latest();

  componentDidMount() {
    this.look();
  }

  componentDidUpdate() {
    this.look();
  }

  componentWillUnmount() {
    this.latest.stop();
  }

  /** @returns {void | Promise<void>} */
  look() {}

  /** @returns {any} */
  render() {}
}

/** @param {{ caption: string, columns: readonly (string | [string, 'number'])[], rows: readonly any[][], kind?: string }} table */
export function Table({ caption, columns, rows, kind }) {
  const named = columns.map((column) => (typeof column === 'string' ? [column, undefined] : column));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table class=${kind}>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${named.map(([name, type]) => html`<th scope="col" class=${type}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, at) => html`<td class=${named[at][1]}>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** @param {{ tone?: string, title?: string, children?: any }} badge */
export const Badge = ({ tone = '', title, children }) =>
  html`<span class=${`badge ${tone}`} title=${title}>${children}</span>`;

/** @param {string} text hexadecimal; the whole is its title */
export const digest = (text) => html`<code title=${text}>${shortened(text)}</code>`;

/** Those that are known. @param {{ facts: readonly (readonly [string, any])[] }} facts */
export const Facts = ({ facts }) =>
  html`<dl>${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;

/** A refusal or an outage: its code, its message and the faults that it names. */
export const Problem = ({ fault }) => html`<div class="notice bad" role="alert">
  <b>${fault.code}</b><p>${fault.message}</p>
  ${fault.errors.length > 0 && html`<ul>${fault.errors.map(({ pointer, message }) => html`<li><code>${pointer || '/'}</code> ${message}</li>`)}</ul>`}
  ${fault.requestId && html`<p class="faint">request <code>${fault.requestId}</code></p>`}
</div>`;

/** @param {{ label: string, name: string, value: any, options: readonly (string | [any, string])[], onChange: (value: string) => void, part?: boolean }} select */
export function Select({ label, name, value, options, onChange, part = false }) {
  const pairs = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const control = html`<select name=${name} aria-label=${part ? label : undefined} value=${value}
    onInput=${(event) => onChange(event.target.value)}>
    ${pairs.map(([key, text]) => html`<option value=${key} selected=${String(key) === String(value)}>${text}</option>`)}
  </select>`;
  return part ? control : html`<label><span>${label}</span>${control}</label>`;
}

/** @param {{ label: string, name: string, checked: boolean, onChange: (checked: boolean) => void }} check */
export const Check = ({ label, name, checked, onChange }) =>
  html`<label class="check whole"><input type="checkbox" name=${name} checked=${checked}
    onInput=${(event) => onChange(event.target.checked)} />${label}</label>`;

/** Text to paste, with a button that copies it where the browser lets a page do so: with TLS, and on the own machine. */
export class Code extends Component {
  state = { copied: false };

  async copy() {
    await navigator.clipboard.writeText(this.props.text);
    this.setState({ copied: true });
    setTimeout(() => this.setState({ copied: false }), 1500);
  }

  render() {
    const { text, label } = this.props;
    return html`<div class="command"><pre tabindex="0" aria-label=${label}><code>${text}</code></pre>
      ${navigator.clipboard && html`<button type="button" class="copy quiet" aria-label=${`Copy ${label}`} onClick=${() => this.copy()}>${this.state.copied ? 'Copied' : 'Copy'}</button>`}</div>`;
  }
}

/** The same request in several languages. The one that a reader chose stays chosen in every view. */
export class Snippets extends Component {
  static chosen = 'curl';

  render() {
    const { of } = this.props;
    const choose = (name) => {
      Snippets.chosen = name;
      this.setState({});
    };
    return html`<div class="said">
      <div class="tabs" role="group" aria-label="The same request as">${Object.keys(of).map((name) => html`<button type="button" class="quiet" aria-pressed=${String(name === Snippets.chosen)} onClick=${() => choose(name)}>${name}</button>`)}</div>
      <${Code} text=${of[Snippets.chosen]} label=${Snippets.chosen} />
      <p class="faint small"><code>eval "$(./tidemark env)"</code> sets both variables where the service runs; elsewhere <code>TIDEMARK_URL=${addressOf(document.baseURI)}</code>.</p>
    </div>`;
  }
}

/** @param {string} uri of the page */
const addressOf = (uri) => uri.replace(/[?#].*$/, '').replace(/\/$/, '');

/**
 * A line over time without axes. Null ends it, as a time without a value does.
 * @param {{ values: readonly (number | null)[], label: string, steps?: boolean, fromZero?: boolean }} spark
 */
export function Spark({ values, label, steps = false, fromZero = false }) {
  const known = values.filter((value) => value !== null);
  const least = Math.min(...known, ...(fromZero ? [0] : []));
  const most = Math.max(...known, ...(fromZero ? [1] : []));
  const x = (at) => ((at / Math.max(1, values.length - 1)) * 100).toFixed(2);
  const y = (value) => (most === least ? 50 : 95 - (90 * (value - least)) / (most - least)).toFixed(2);
  let path = '';
  values.forEach((value, at) => {
    if (value === null) return;
    const before = values[at - 1] ?? null;
    path +=
      before === null ? `M${x(at)} ${y(value)}h.01` : `${steps ? `L${x(at)} ${y(before)}` : ''}L${x(at)} ${y(value)}`;
  });
  return html`<svg class="spark" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label=${label}><title>${label}</title><path d=${path} vector-effect="non-scaling-stroke" /></svg>`;
}
