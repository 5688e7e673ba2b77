/** GET /openapi.json and /docs: the contract for programs and for people, made once, when somebody asks. */
import { readFileSync } from 'node:fs';
import { answerBytes, requireAccept } from '../http/answer.ts';
import { queryParams } from '../http/request.ts';
import type { Exchange, Route, RouteDoc } from '../http/routes.ts';
import { type About, type Documented, documented, openapiDocument } from '../openapi/document.ts';
import { docsPage, SCRIPT_PATH, STYLE_PATH } from '../openapi/page.ts';
import { NO_PARAMETERS } from './datasets.ts';

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
  // SPDX has no name for a licence that is not granted; names of one's own begin like this.
  license: { name: LICENSE, identifier: `LicenseRef-${LICENSE}` },
  description:
    'Market data you can check. Rows are served once they have been counted and hashed equal to the vendor’s document they came in; what is proved so far is the tidemark, and every row below it can be followed back to the vendor’s bytes.\n\nTimes are UTC. A request is refused with every fault it has rather than answered with something else than was asked for.',
};

/** The page runs its own script and style and nothing else, and loads nothing from anywhere. */
const PAGE_POLICY =
  "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** Files of the page, read once. */
const FILES: readonly { readonly path: string; readonly file: string; readonly type: string; readonly what: string }[] =
  [
    { path: STYLE_PATH, file: 'docs.css', type: 'text/css', what: 'Its style.' },
    { path: SCRIPT_PATH, file: 'docs.js', type: 'text/javascript', what: 'Its script.' },
  ];

/** The routes that describe all routes, themselves included. */
export function openapiRoutes(others: readonly Route[]): Route[] {
  const all = (): Documented[] => documented([...others, ...routes]);
  const routes: Route[] = [
    fixed('/openapi.json', 'application/json', () => JSON.stringify(openapiDocument(all(), ABOUT)), {
      summary: 'This contract as OpenAPI 3.1',
      doc: 'Made from the tables that requests are checked by: the registry of datasets, the schemas of bodies and parameters, the routes and the codes of problems.',
      what: 'The document.',
    }),
    fixed('/docs', 'text/html', () => docsPage(all(), ABOUT), {
      summary: 'The same for people',
      doc: 'One page, light or dark as your system is; it loads nothing from elsewhere.',
      what: 'The page.',
      headers: { 'Content-Security-Policy': PAGE_POLICY, 'X-Content-Type-Options': 'nosniff' },
    }),
    ...FILES.map(({ path, file, type, what }) =>
      fixed(path, type, () => readFileSync(new URL(`../openapi/static/${file}`, import.meta.url), 'utf8'), {
        summary: `A part of /docs: ${file}`,
        doc: what,
        what,
      }),
    ),
  ];
  return routes;
}

interface FixedDoc extends Pick<RouteDoc, 'summary' | 'doc'> {
  readonly what: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A document that is the same for as long as the process lives. */
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
      answers: [{ doc: what, content: { [type]: {} } }],
      problems: ['QUERY_CONTRACT_ERROR'],
      examples: [{ title: path }],
    }),
    async handle(exchange: Exchange) {
      requireAccept(exchange.request, type);
      queryParams(exchange.url, NO_PARAMETERS);
      body ??= Buffer.from(make());
      answerBytes(exchange, body, {
        'Content-Type': type === 'application/json' ? type : `${type}; charset=utf-8`,
        'Cache-Control': 'no-cache',
        ...headers,
      });
    },
  };
}
