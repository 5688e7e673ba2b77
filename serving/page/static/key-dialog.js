/** Asks for the key while the page has none, or one that the service refuses. */
import { key } from './api.js';
import { Component, html } from './view.js';

export class KeyDialog extends Component {
  componentDidMount() {
    this.dialog.showModal();
    this.dialog.querySelector('input').focus();
  }

  render() {
    const { fault, onKey, onClose } = this.props;
    // A refused link says itself where the key is.
    const isUnknown = fault?.code === 'AUTH_INVALID_API_KEY' && !fault.message.startsWith('The link');
    const use = (event) => {
      event.preventDefault();
      onKey(event.target.elements.key.value.trim());
    };
    const forget = () => {
      key.forget();
      location.reload();
    };
    return html`<dialog aria-labelledby="key-title" onClose=${onClose} ref=${(dialog) => {
      this.dialog = dialog;
    }}><form onSubmit=${use}>
      <h2 id="key-title">The key of this service</h2>
      ${fault && html`<p class="fault">${isUnknown ? 'The service does not know that key.' : fault.message}</p>`}
      ${(!fault || isUnknown) && html`<p>Numbers about the system are for those who have its key. <code>./tidemark env</code> prints it where the service runs.</p>`}
      <label for="key-input">X-API-Key</label>
      <input id="key-input" name="key" type="password" required spellcheck="false" autocomplete="off" />
      <p class="faint">Kept for this tab alone, and sent to this service alone.</p>
      <p class="actions"><button type="submit" class="main">Use it</button>${key.get() !== '' && html`<button type="button" class="quiet" onClick=${forget}>Forget it</button>`}</p>
    </form></dialog>`;
  }
}
