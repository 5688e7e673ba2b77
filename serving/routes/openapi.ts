/** GET /openapi.json and /docs: the contract for programs and for people, built on the first request. */
import { readFileSync } from 'node:fs';
import { requireAccept } from '../http/answer.ts';
import { answerDocument, TAGGED, UNCHANGED } from '../http/document.ts';
import { NO_PARAMETERS, queryParams } from '../http/request.ts';
import { type Exchange, fileContent, type Route, type RouteDoc } from '../http/routes.ts';
import { type About, type Documented, documented, openapiDocument } from '../openapi/document.ts';
import { docsPage, SCRIPT_PATH, STYLE_PATH } from '../openapi/page.ts';

const { version: VERSION_TEXT, license: LICENSE } = JSON.parse(
  readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
) as {
  readonly version: string;
  readonly license: string;
};
export const VERSION = VERSION_TEXT;

const ABOUT: About = {
  title: 'Tidemark',
  version: VERSION,
  // SPDX has no identifier for an unlicensed work; it prescribes this prefix for identifiers of one's own.
  license: { name: LICENSE, identifier: `LicenseRef-${LICENSE}` },
  description:
    'Market data you can check. The service serves a row only after its count and hash equal those of the vendor’s document. The tidemark is what is proved so far, and every row below it can be traced back to the vendor’s bytes.\n\nTimes are UTC. The service refuses a faulty request and lists every fault; it never answers a different request.',
};

/** The page runs only its own script and style, and loads nothing from other hosts. */
const PAGE_POLICY =
  "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** Static files of the page. */
const FILES: readonly { readonly path: string; readonly file: string; readonly type: string; readonly what: string }[] =
  [
    { path: STYLE_PATH, file: 'docs.css', type: 'text/css', what: 'The style of the page.' },
    { path: SCRIPT_PATH, file: 'docs.js', type: 'text/javascript', what: 'The script of the page.' },
  ];

/** The routes that describe all routes, including themselves. */
export function openapiRoutes(others: readonly Route[]): Route[] {
  const all = (): Documented[] => documented([...others, ...routes]);
  const routes: Route[] = [
    fixed('/openapi.json', 'application/json', () => JSON.stringify(openapiDocument(all(), ABOUT)), {
      operation: 'getOpenapi',
      summary: 'This contract as OpenAPI 3.1',
      doc: 'Generated from the tables that requests are checked against: the registry of datasets, the schemas of bodies and parameters, the routes and the problem codes.',
      what: 'The document.',
    }),
    fixed('/docs', 'text/html', () => docsPage(all(), ABOUT), {
      summary: 'This contract as a page for people',
      doc: 'One page in the light or dark style of your system. It loads nothing from other hosts.',
      what: 'The page.',
      headers: { 'Content-Security-Policy': PAGE_POLICY, 'X-Content-Type-Options': 'nosniff' },
    }),
    ...FILES.map(({ path, file, type, what }) =>
      fixed(path, type, () => readFileSync(new URL(`../openapi/static/${file}`, import.meta.url), 'utf8'), {
        summary: `Part of /docs: ${file}`,
        doc: what,
        what,
      }),
    ),
  ];
  return routes;
}

interface FixedDoc extends Pick<RouteDoc, 'operation' | 'summary' | 'doc'> {
  readonly what: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A document that stays the same for the lifetime of the process. */
function fixed(path: string, type: string, make: () => string, { what, headers, ...doc }: FixedDoc): Route {
  let body: Buffer | undefined;
  return {
    method: 'GET',
    path,
    access: 'open',
    doc: (): RouteDoc => ({
      ...doc,
      tag: 'service',
      query: NO_PARAMETERS,
      headers: ['If-None-Match'],
      answers: [{ doc: what, content: fileContent([type]), headers: TAGGED }, UNCHANGED],
      problems: ['QUERY_CONTRACT_ERROR'],
      examples: [{ title: path }],
    }),
    async handle(exchange: Exchange) {
      requireAccept(exchange.request, type);
      queryParams(exchange.url, NO_PARAMETERS);
      body ??= Buffer.from(make());
      await answerDocument(exchange, body, {
        'Content-Type': type === 'application/json' ? type : `${type}; charset=utf-8`,
        'Cache-Control': 'no-cache',
        ...headers,
      });
    },
  };
}
