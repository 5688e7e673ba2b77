/** As much of a document as the page's modules use, for tests that need no browser: elements, their text and their listeners. */

import { once } from 'node:events';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { vi } from 'vitest';

export class PageElement extends EventTarget {
  readonly tag: string;
  readonly attributes = new Map<string, string>();
  readonly style: Record<string, string> = {};
  readonly classList = { toggle() {} };
  children: (PageElement | string)[] = [];
  value = '';

  constructor(tag: string) {
    super();
    this.tag = tag;
  }

  get textContent(): string {
    return this.children.map((child) => (typeof child === 'string' ? child : child.textContent)).join('');
  }

  set textContent(text: string) {
    this.children = text === '' ? [] : [text];
  }

  append(...children: (PageElement | string)[]): void {
    this.children.push(...children);
  }

  replaceChildren(...children: (PageElement | string)[]): void {
    this.children = children;
  }

  setAttribute(name: string, value: string): void {
    this.attributes.set(name, value);
  }

  toggleAttribute(name: string, isThere: boolean): void {
    if (isThere) this.attributes.set(name, '');
    else this.attributes.delete(name);
  }

  getBoundingClientRect(): { top: number } {
    return { top: 0 };
  }

  /** The button of this text, or of this label. */
  button(name: string): PageElement {
    for (const child of this.children) {
      if (typeof child === 'string') continue;
      if (child.tag === 'button' && (child.textContent === name || child.attributes.get('aria-label') === name))
        return child;
    }
    throw new Error(`the element has no button ${name}`);
  }

  click(): void {
    this.dispatchEvent(new Event('click'));
  }
}

/** Listens, and gives the page's modules these globals and a `fetch` that reaches the server. */
export async function servePage(server: Server, globals: object): Promise<void> {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const ask = fetch;
  for (const [name, value] of Object.entries(globals)) vi.stubGlobal(name, value);
  vi.stubGlobal('fetch', (path: string, init: RequestInit) => ask(`http://127.0.0.1:${port}${path}`, init));
}

/** Globals of a page whose every id is an element. */
export function pageGlobals() {
  const elements = new Map<string, PageElement>();
  const byId = (id: string): PageElement => {
    if (!elements.has(id)) elements.set(id, new PageElement('div'));
    return elements.get(id)!;
  };
  const globals = {
    Node: PageElement,
    document: { createElement: (tag: string) => new PageElement(tag), getElementById: byId },
    sessionStorage: { getItem: () => 'key' },
    innerHeight: 900,
  };
  return { byId, globals };
}
