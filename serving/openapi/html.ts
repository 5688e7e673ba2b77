/** HTML as text that is escaped unless it was made here. */

export class Html {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

export type Content = Html | string | number | readonly Content[];

/** A template whose values are escaped. */
export function html(parts: TemplateStringsArray, ...values: readonly Content[]): Html {
  return new Html(parts.reduce((text, part, index) => text + textOf(values[index - 1]) + part));
}

function textOf(content: Content): string {
  if (content instanceof Html) return content.text;
  if (Array.isArray(content)) return content.map(textOf).join('');
  return String(content).replaceAll(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

export const NOTHING = new Html('');

/** Words in backticks are code. */
export function prose(text: string): Html {
  return html`${text.split('`').map((part, index) => (index % 2 === 1 ? html`<code>${part}</code>` : part))}`;
}

export const paragraphs = (text: string): Html =>
  html`${text.split(/\n\n+/).map((paragraph) => html`<p>${prose(paragraph)}</p>`)}`;

/**
 * Wide tables scroll in a box of their own, so that the page does not.
 * @param label what the table is, for people who hear the page: no two of them are the same
 */
export function table(label: string, header: readonly string[], rows: readonly (readonly Content[])[]): Html {
  if (rows.length === 0) return NOTHING;
  return html`<div class="scroll" ${scrolling(label)}><table><thead><tr>${header.map((cell) => html`<th scope="col">${cell}</th>`)}</tr></thead>
<tbody>${rows.map((cells) => html`<tr>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>\n`)}</tbody></table></div>`;
}

/** Attributes of a box that scrolls: the keyboard reaches it, and it has a name there. */
export const scrolling = (label: string): Html => html`role="region" aria-label="${label}" tabindex="0"`;
