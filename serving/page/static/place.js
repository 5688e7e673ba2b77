/** Where the reader is: a view and its choices, as the address's fragment holds them. A link to it shows the same. */

/** @param {string} hash `#explore?dataset=…` */
export function placeOf(hash) {
  const [view, query = ''] = hash.replace(/^#/, '').split('?');
  return { view, choices: Object.fromEntries(new URLSearchParams(query)) };
}

/**
 * @param {string} view
 * @param {Record<string, unknown>} choices empty ones are left out
 */
export function hashOf(view, choices = {}) {
  const given = Object.entries(choices).filter(([, value]) => value !== undefined && value !== '' && value !== false);
  const query = new URLSearchParams(given.map(([name, value]) => [name, value === true ? 'yes' : String(value)]));
  return `#${view}${given.length > 0 ? `?${query}` : ''}`;
}

/** Puts the choices into the address without a step in the history. */
export const remember = (view, choices) => history.replaceState(null, '', hashOf(view, choices));
