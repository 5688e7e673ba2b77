/**
 * GET / and /page/:file: the operator's page. The page is open because it holds no data; it requests all data with the key.
 * Its files are its own and those of three packages, read on the first request.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Problem } from '../contract/problems.ts';
import { requireAccept } from '../http/answer.ts';
import { answerDocument, TAGGED, UNCHANGED } from '../http/document.ts';
import { NO_PARAMETERS, queryParams } from '../http/request.ts';
import type { Exchange, Route, RouteDoc } from '../http/routes.ts';

const TYPES = {
  '.html': 'text/html',
  '.css': 'text/css',
  '.js': 'text/javascript',
  '.svg': 'image/svg+xml',
} as const;

interface PageFile {
  readonly type: (typeof TYPES)[keyof typeof TYPES];
  readonly url: URL;
}

const OWN = new URL('../page/static/', import.meta.url);
/** Modules that import nothing, so that the page needs neither a bundler nor an import map. */
const LIBRARIES: readonly (readonly [string, URL])[] = [
  [
    'lightweight-charts.js',
    new URL('./lightweight-charts.standalone.production.mjs', import.meta.resolve('lightweight-charts')),
  ],
  ['preact.js', new URL(import.meta.resolve('preact'))],
  ['htm.js', new URL(import.meta.resolve('htm'))],
];

/** The files by name: `/page/main.js` is `main.js`. */
const PAGE_FILES: ReadonlyMap<string, PageFile> = new Map([
  ...readdirSync(fileURLToPath(OWN))
    .filter((name) => typeOf(name) !== undefined)
    .map((name): [string, PageFile] => [name, { type: typeOf(name)!, url: new URL(name, OWN) }]),
  ...LIBRARIES.map(([name, url]): [string, PageFile] => [name, { type: 'text/javascript', url }]),
]);

function typeOf(name: string): PageFile['type'] | undefined {
  return TYPES[/\.\w+$/.exec(name)?.[0] as keyof typeof TYPES];
}

const cache = new Map<string, Buffer>();

function pageFile(name: string): { readonly type: PageFile['type']; readonly body: Buffer } | undefined {
  const file = PAGE_FILES.get(name);
  if (!file) return undefined;
  const body = cache.get(name) ?? readFileSync(file.url);
  cache.set(name, body);
  return { type: file.type, body };
}

/** The page may load its own files and call its own service, and nothing else. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS = {
  'Content-Security-Policy': POLICY,
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
} as const;

const INDEX = 'index.html';

export function pageRoutes(): Route[] {
  const types = [...new Set([...PAGE_FILES.values()].map(({ type }) => type))];
  return [
    {
      method: 'GET',
      path: '/',
      access: 'open',
      doc: (): RouteDoc => ({
        tag: 'operations',
        summary: 'The operator’s page',
        doc: 'The page shows what data is here and how the system stands, draws rows, and composes a request from your choices. It holds no data itself, asks for the key, and loads nothing from other hosts.',
        query: NO_PARAMETERS,
        headers: ['If-None-Match'],
        answers: [{ doc: 'The page.', content: { 'text/html': {} }, headers: TAGGED }, UNCHANGED],
        problems: ['QUERY_CONTRACT_ERROR'],
        examples: [{ title: 'The page' }],
      }),
      async handle(exchange) {
        requireAccept(exchange.request, 'text/html');
        await answerFile(exchange, INDEX);
      },
    },
    {
      method: 'GET',
      path: '/page/:file',
      access: 'open',
      doc: (): RouteDoc => ({
        tag: 'operations',
        summary: 'Part of the operator’s page',
        doc: 'The scripts and styles of the page.',
        segments: { file: { doc: 'Name of the part.', schema: { type: 'string', enum: [...PAGE_FILES.keys()] } } },
        query: NO_PARAMETERS,
        headers: ['If-None-Match'],
        answers: [
          { doc: 'The file.', content: Object.fromEntries(types.map((type) => [type, {}])), headers: TAGGED },
          UNCHANGED,
        ],
        problems: ['QUERY_CONTRACT_ERROR', 'ROUTE_NOT_FOUND'],
        examples: [{ title: 'The script of the page', path: { file: 'main.js' } }],
      }),
      handle: async (exchange) => answerFile(exchange, exchange.params.file),
    },
  ];
}

async function answerFile(exchange: Exchange, name: string): Promise<void> {
  const file = pageFile(name);
  if (!file) throw new Problem('ROUTE_NOT_FOUND', 'The page has no file of this name. Open the page at GET /.');
  const { type, body } = file;
  queryParams(exchange.url, NO_PARAMETERS);
  // Browsers revalidate the file every time and receive it only when it changed: a reload gets an upgrade.
  await answerDocument(exchange, body, {
    ...HEADERS,
    'Cache-Control': 'no-cache',
    'Content-Type': type.startsWith('image/') ? type : `${type}; charset=utf-8`,
  });
}
