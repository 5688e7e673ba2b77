/** Makes elements without parsing HTML, so that no text of a source becomes markup. */

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [properties] attributes; `on...` are listeners, null and false are left out
 * @param {...(Node | string | number | null | undefined | false | readonly (Node | string)[])} children
 * @returns {HTMLElement}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(
    ...children
      .flat()
      .filter(isThere)
      .map((child) => (child instanceof Node ? child : String(child))),
  );
  return element;
}

/** @param {unknown} child */
const isThere = (child) => child !== null && child !== undefined && child !== false;

/**
 * @param {string} id
 * @returns {any}
 */
export const byId = (id) => document.getElementById(id);

/**
 * @param {Element} parent
 * @param {...(Node | string)} children
 */
export const fill = (parent, ...children) => parent.replaceChildren(...children);

/**
 * A table in a box that scrolls where the table is too wide.
 * @param {{ caption: string, columns: readonly { name: string, number?: boolean }[], rows: readonly (Node | string)[][] }} table
 */
export function table({ caption, columns, rows }) {
  const head = columns.map(({ name, number }) => h('th', { scope: 'col', class: number ? 'number' : null }, name));
  const body = rows.map((cells) =>
    h('tr', {}, ...cells.map((cell, index) => h('td', { class: columns[index].number ? 'number' : null }, cell))),
  );
  return h(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    h(
      'table',
      {},
      h('caption', { class: 'hidden' }, caption),
      h('thead', {}, h('tr', {}, ...head)),
      h('tbody', {}, ...body),
    ),
  );
}

/**
 * Text with a button that copies it, where the browser lets a page: it does so with TLS and on the own machine.
 * @param {string} text
 * @param {string} label what it is
 */
export function code(text, label) {
  const button = h('button', { type: 'button', class: 'copy quiet', 'aria-label': `Copy ${label}` }, 'Copy');
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
    setTimeout(() => {
      button.textContent = 'Copy';
    }, 1500);
  });
  const box = h('pre', { tabindex: 0, 'aria-label': label }, h('code', {}, text));
  return h('div', { class: 'command' }, box, navigator.clipboard ? button : null);
}
