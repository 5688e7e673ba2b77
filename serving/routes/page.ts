/** GET / and /page/:file: the operator's page. Open, as it holds nothing: what it shows it asks for with the key. */
import { createHash } from 'node:crypto';
import { Problem } from '../contract/problems.ts';
import { answerBytes, requireAccept } from '../http/answer.ts';
import { queryParams } from '../http/params.ts';
import { isTagged } from '../http/ranges.ts';
import type { Exchange, Route } from '../http/routes.ts';
import { type AnswerDoc, type RouteDoc, VALIDATOR_HEADERS } from '../openapi/route-doc.ts';
import { PAGE_FILES, pageFile } from '../page/files.ts';
import { NO_PARAMETERS } from './no-parameters.ts';

/** Its own files and its own service, and nothing from or to anywhere else. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS = {
  'Content-Security-Policy': POLICY,
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
} as const;

const TAGGED = { ETag: VALIDATOR_HEADERS.ETag };
const UNCHANGED: AnswerDoc = { status: 304, doc: 'The client has it already.', content: {}, headers: TAGGED };

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
        doc: 'Freshness, lag, coverage and work in progress, and a request put together by choosing. The page itself holds nothing and asks for the key; it loads nothing from elsewhere.',
        query: NO_PARAMETERS,
        headers: ['If-None-Match'],
        answers: [{ doc: 'The page.', content: { 'text/html': {} }, headers: TAGGED }, UNCHANGED],
        problems: ['QUERY_CONTRACT_ERROR'],
        examples: [{ title: 'The page' }],
      }),
      async handle(exchange) {
        requireAccept(exchange.request, 'text/html');
        answerFile(exchange, INDEX);
      },
    },
    {
      method: 'GET',
      path: '/page/:file',
      access: 'open',
      doc: (): RouteDoc => ({
        tag: 'operations',
        summary: 'A part of the operator’s page',
        doc: 'Its scripts and styles.',
        segments: { file: { doc: 'Name of the part.', schema: { type: 'string', enum: [...PAGE_FILES.keys()] } } },
        query: NO_PARAMETERS,
        headers: ['If-None-Match'],
        answers: [
          { doc: 'The file.', content: Object.fromEntries(types.map((type) => [type, {}])), headers: TAGGED },
          UNCHANGED,
        ],
        problems: ['QUERY_CONTRACT_ERROR', 'ROUTE_NOT_FOUND'],
        examples: [{ title: 'Its script', path: { file: 'main.js' } }],
      }),
      handle: async (exchange) => answerFile(exchange, exchange.params.file),
    },
  ];
}

function answerFile(exchange: Exchange, name: string): void {
  const file = pageFile(name);
  if (!file) throw new Problem('ROUTE_NOT_FOUND', 'The page has no such part.');
  const { type, body } = file;
  queryParams(exchange.url, NO_PARAMETERS);
  // Asked about each time, sent when it changed: an upgrade is a reload away.
  const etag = `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"`;
  const headers = { ...HEADERS, ETag: etag, 'Cache-Control': 'no-cache' };
  if (isTagged(exchange.request.headers['if-none-match'] ?? '', etag)) {
    exchange.response.writeHead(304, headers).end();
    return;
  }
  answerBytes(exchange, body, {
    ...headers,
    'Content-Type': type.startsWith('image/') ? type : `${type}; charset=utf-8`,
  });
}
