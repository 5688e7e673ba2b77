/** A form that builds a request. The address holds its choices, so that a link to a result shows it. */
import { Latest, readRows } from './api.js';
import { remember } from './place.js';
import { snippetsOf } from './snippets.js';
import { Check, Component, html, Select, Snippets } from './view.js';

/** Choices are texts, as the address has them. */
export class Form extends Component {
  #latest = new Latest();
  state = { choices: { ...this.usual(), ...this.props.choices }, running: false, end: undefined };

  /** @returns {Record<string, string>} what the form begins with */
  usual() {
    return {};
  }

  /** @returns {any} */
  render() {
    return undefined;
  }

  componentDidMount() {
    if (Object.keys(this.props.choices).length > 0) void this.run();
  }

  componentWillUnmount() {
    this.#latest.stop();
  }

  /** @param {Record<string, string>} more */
  set(more) {
    this.setState({ choices: { ...this.state.choices, ...more } });
  }

  /** What is asked for, and whatever else belongs to its answer. @returns {any} */
  get means() {
    return {};
  }

  async run() {
    const { view } = this.props;
    const { means } = this;
    remember(view, this.state.choices);
    this.setState({ running: true, end: undefined });
    const startedAt = performance.now();
    const end = await this.#latest.ask((signal) => readRows(means.request, signal));
    if (!end) return;
    this.setState({ running: false, end: { ...means, ...end, ms: performance.now() - startedAt } }, () => {
      // On a narrow screen it begins below what is seen.
      const result = document.getElementById(`${view}-result`);
      if (result.getBoundingClientRect().top > innerHeight * 0.8) result.scrollIntoView();
    });
  }

  select(label, name, options) {
    const change = (value) => this.set({ [name]: value });
    return html`<${Select} label=${label} name=${name} value=${this.state.choices[name]} options=${options} onChange=${change} />`;
  }

  input(label, name, more) {
    const change = ({ target }) => this.set({ [name]: target.value });
    return html`<label><span>${label}</span><input name=${name} value=${this.state.choices[name]} onInput=${change} ...${more} /></label>`;
  }

  check(label, name) {
    const change = (on) => this.set({ [name]: on ? 'yes' : 'no' });
    return html`<${Check} label=${label} name=${name} checked=${this.state.choices[name] === 'yes'} onChange=${change} />`;
  }

  /** How many rows, or which days. */
  extent() {
    const { window } = this.state.choices;
    return html`${['latest', 'random'].includes(window) && this.input('How many', 'count', { type: 'number', min: 1, max: 10_000, required: true })}
      ${window === 'days' && [this.input('First day', 'from', { type: 'date' }), this.input('Last day', 'to', { type: 'date' })]}`;
  }

  /**
   * @param {{ controls: any, button: string, more?: any }} parts
   */
  form({ controls, button, more }) {
    const { view } = this.props;
    const { request, dataset } = this.means;
    const submit = (event) => {
      event.preventDefault();
      void this.run();
    };
    return html`<div class="explorer"><form id=${`${view}-form`} autocomplete="off" onSubmit=${submit}>${controls}
        <p class="actions whole"><button type="submit" class="main">${button}</button>${more}<span class="faint" role="status">${this.state.running && 'Running…'}</span></p>
      </form><${Snippets} of=${snippetsOf(request, dataset)} /></div>`;
  }
}
