/** A fault with its code, its message and the errors that it names. */
import { Fault } from './api.js';
import { h } from './dom.js';

/** @param {unknown} error */
export function problem(error) {
  if (!(error instanceof Fault)) throw error;
  return h(
    'div',
    { class: 'notice bad', role: 'alert' },
    h('b', {}, error.code),
    h('p', {}, error.message),
    error.errors.length > 0 &&
      h(
        'ul',
        {},
        ...error.errors.map(({ pointer, message }) => h('li', {}, h('code', {}, pointer || '/'), ` ${message}`)),
      ),
    error.requestId && h('p', { class: 'faint' }, 'request ', h('code', {}, error.requestId)),
  );
}
