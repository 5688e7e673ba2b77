/** The files of the operator's page: its own, and the chart library as it lies in its package. Read when first asked for. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const TYPES = {
  '.html': 'text/html',
  '.css': 'text/css',
  '.js': 'text/javascript',
  '.svg': 'image/svg+xml',
} as const;

export interface PageFile {
  readonly type: (typeof TYPES)[keyof typeof TYPES];
  readonly url: URL;
}

const OWN = new URL('./static/', import.meta.url);
/** One file, minified, with everything in it. */
const CHARTS = 'lightweight-charts.js';
const CHARTS_URL = new URL('./lightweight-charts.standalone.production.mjs', import.meta.resolve('lightweight-charts'));

/** By name: `/page/main.js` is `main.js`. */
export const PAGE_FILES: ReadonlyMap<string, PageFile> = new Map([
  ...readdirSync(fileURLToPath(OWN))
    .filter((name) => typeOf(name) !== undefined)
    .map((name): [string, PageFile] => [name, { type: typeOf(name)!, url: new URL(name, OWN) }]),
  [CHARTS, { type: 'text/javascript', url: CHARTS_URL }],
]);

function typeOf(name: string): PageFile['type'] | undefined {
  return TYPES[/\.\w+$/.exec(name)?.[0] as keyof typeof TYPES];
}

const held = new Map<string, Buffer>();

export function pageFile(name: string): { readonly type: PageFile['type']; readonly body: Buffer } | undefined {
  const file = PAGE_FILES.get(name);
  if (!file) return undefined;
  const body = held.get(name) ?? readFileSync(file.url);
  held.set(name, body);
  return { type: file.type, body };
}
