/** Asks for the key while the page has none, or one that the service refuses. */
import { key } from './api.js';
import { byId } from './dom.js';

/** @param {() => void} onKey another one was entered */
export function keyGate(onKey) {
  const dialog = /** @type {HTMLDialogElement} */ (byId('key-dialog'));
  const input = /** @type {HTMLInputElement} */ (byId('key-input'));
  const why = byId('key-why');
  const usual = [...why.childNodes];
  byId('key-form').addEventListener('submit', () => {
    key.set(input.value.trim());
    input.value = '';
    onKey();
  });
  byId('key-forget').addEventListener('click', () => {
    key.forget();
    input.value = '';
    dialog.close();
    location.reload();
  });
  byId('key-button').addEventListener('click', () => open());
  /** @param {import('./api.js').Fault} [refusal] */
  function open(refusal) {
    if (dialog.open) return;
    if (refusal?.code === 'AUTH_INVALID_API_KEY')
      why.textContent = 'The service does not know that key. ./tidemark env prints it where the service runs.';
    else if (refusal) why.textContent = refusal.message;
    else why.replaceChildren(...usual);
    byId('key-forget').hidden = key.get() === '';
    dialog.showModal();
    input.focus();
  }
  return { open };
}
