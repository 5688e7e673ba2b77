/**
 * GET /v1/proofs/...: the files of the proof log, without a key, for pages of any origin. Tiles never change and may be cached for
 * ever, the other files for a second.
 */
import { createHash } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import { CHECKPOINT_FILE, KEY_FILE, ROTATIONS_FILE } from '../../shared/proof-log/folder.ts';
import { parseTilePath, type TileSource } from '../../shared/proof-log/tiles.ts';
import { Problem } from '../contract/problems.ts';
import { answerBytes } from '../http/answer.ts';
import { NO_PARAMETERS, queryParams } from '../http/request.ts';
import {
  type ExampleDoc,
  type Exchange,
  fileContent,
  type Route,
  type RouteDoc,
  type SegmentDoc,
} from '../http/routes.ts';
import { isTagged } from '../http/send-file.ts';
import { chooseCoding } from '../render/representations.ts';
import type { Coding } from '../render/response.ts';

export const PROOF_PATHS = '/v1/proofs/';

const TEXT = 'text/plain; charset=utf-8';
const BYTES = 'application/octet-stream';
const FOR_EVER = 'public, max-age=31536000, immutable';
const SHORTLY = 'public, max-age=1';

/** The parts of a tile's index, three digits each, and `.p/<width>` of an incomplete tile. */
const INDEX_SEGMENTS = ['n1', 'n2', 'n3', 'n4'];

/** By the number of segments; a young log has the incomplete tile alone. */
const EXAMPLES: readonly ExampleDoc[] = [
  { title: 'The first 256 leaves', path: { level: 'entries', n1: '000' }, status: 404 },
  { title: 'The hash of the first leaf', path: { level: '0', n1: '000.p', n2: '1' } },
  { title: 'A tile of a large log', path: { level: '0', n1: 'x001', n2: 'x234', n3: '067' }, status: 404 },
  { title: 'Its incomplete end', path: { level: '0', n1: 'x001', n2: 'x234', n3: '068.p', n4: '17' }, status: 404 },
];

interface PlainFile {
  readonly path: string;
  readonly file: string;
  readonly operation: string;
  readonly summary: string;
  readonly doc: string;
}

const PLAIN: readonly PlainFile[] = [
  {
    path: '/v1/proofs/checkpoint',
    file: CHECKPOINT_FILE,
    operation: 'getCheckpoint',
    summary: 'The last checkpoint of the proof log',
    doc: 'Origin, size and root of the log in a signed note (C2SP `tlog-checkpoint`). Whoever keeps it can hold every later answer against it.',
  },
  {
    path: '/v1/proofs/key',
    file: KEY_FILE,
    operation: 'getProofKey',
    summary: 'The key that verifies checkpoints',
    doc: 'One line, `name+hash+base64` (C2SP `signed-note`, Ed25519). Keep it: a key that comes with what it verifies proves nothing.',
  },
  {
    path: '/v1/proofs/rotations',
    file: ROTATIONS_FILE,
    operation: 'getKeyRotations',
    summary: 'Rotations of the key',
    doc: 'Signed notes, the oldest first: each names the next key and the size of the tree above which only that one counts, and is signed by the key before it. Not found before the first rotation.',
  },
];

const PROBLEM_CODES: RouteDoc['problems'] = ['QUERY_CONTRACT_ERROR', 'PROOF_LOG_NOT_FOUND'];

export function proofRoutes(source: TileSource): Route[] {
  const files = PLAIN.map(
    ({ path, file, operation, summary, doc }): Route => ({
      method: 'GET',
      path,
      access: 'open',
      doc: () => ({
        operation,
        tag: 'proofs',
        summary,
        doc,
        query: NO_PARAMETERS,
        headers: ['If-None-Match'],
        answers: [answerDoc(TEXT), UNCHANGED],
        problems: PROBLEM_CODES,
        examples: [{ title: summary, ...(file === ROTATIONS_FILE && { status: 404 }) }],
      }),
      async handle(exchange) {
        queryParams(exchange.url, NO_PARAMETERS);
        await send(exchange, source, { path: file, type: TEXT, cache: SHORTLY });
      },
    }),
  );
  const tiles = INDEX_SEGMENTS.map((_, at): Route => {
    const names = INDEX_SEGMENTS.slice(0, at + 1);
    return {
      method: 'GET',
      path: `/v1/proofs/tile/:level/${names.map((name) => `:${name}`).join('/')}`,
      access: 'open',
      doc: () => ({
        operation: names.length === 1 ? 'getTile' : `getTileIn${names.length}Parts`,
        tag: 'proofs',
        summary: `A tile of the proof log, its index in ${names.length} ${names.length === 1 ? 'part' : 'parts'}`,
        doc: 'The hashes of a level, or with the level `entries` the leaves, 256 a tile (C2SP `tlog-tiles`). An incomplete tile is asked for by its width, `000.p/17`.',
        segments: Object.fromEntries([['level', LEVEL], ...names.map((name) => [name, PART])]),
        query: NO_PARAMETERS,
        headers: ['If-None-Match', 'Accept-Encoding'],
        answers: [answerDoc(BYTES), UNCHANGED],
        problems: [...PROBLEM_CODES, 'NOT_ACCEPTABLE'],
        examples: [EXAMPLES[at]],
      }),
      async handle(exchange) {
        const { params, url } = exchange;
        queryParams(url, NO_PARAMETERS);
        const path = `tile/${params.level}/${names.map((name) => params[name]).join('/')}`;
        if (!parseTilePath(path))
          throw new Problem('PROOF_LOG_NOT_FOUND', `${path} is not the path of a tile, such as tile/0/x001/067.`);
        // Hashes cannot be compressed.
        const coding =
          params.level === 'entries' ? chooseCoding(exchange.request.headers['accept-encoding']) : undefined;
        const vary = params.level === 'entries' && { Vary: 'Accept-Encoding' };
        await send(exchange, source, { path, type: BYTES, cache: FOR_EVER, coding, ...vary });
      },
    };
  });
  return [...files, ...tiles];
}

const LEVEL: SegmentDoc = { doc: '`0` to `7`, or `entries`.', schema: { type: 'string' } };
const PART: SegmentDoc = {
  doc: 'Three digits of the index, `x001` before others; or the width.',
  schema: { type: 'string' },
};

const HEADERS = { ETag: 'Identifies exactly these bytes.' };
const answerDoc = (type: string) => ({
  doc: 'The file.',
  content: fileContent([type.split(';')[0]]),
  headers: HEADERS,
});
const UNCHANGED = { status: 304, doc: 'The client already has the file.', content: {}, headers: HEADERS };

interface SentFile {
  readonly path: string;
  readonly type: string;
  readonly cache: string;
  readonly coding?: Coding;
  readonly Vary?: string;
}

async function send(
  exchange: Exchange,
  source: TileSource,
  { path, type, cache, coding, ...headers }: SentFile,
): Promise<void> {
  const { request, response } = exchange;
  const bytes = await source(path);
  if (!bytes) throw new Problem('PROOF_LOG_NOT_FOUND', `The proof log has no ${path} (yet).`);
  const digest = createHash('sha256').update(bytes).digest('hex');
  const etag = `"${digest}${coding ? `-${coding.name}` : ''}"`;
  const sent = {
    ...{ ETag: etag, 'Content-Type': type, 'Cache-Control': cache, 'X-Content-Type-Options': 'nosniff' },
    ...headers,
  };
  const known = request.headers['if-none-match'];
  if (known !== undefined && isTagged(known, etag)) response.writeHead(304, sent).end();
  else if (coding) answerBytes(exchange, await coded(bytes, coding), { ...sent, 'Content-Encoding': coding.name });
  else answerBytes(exchange, Buffer.from(bytes), sent);
}

function coded(bytes: Uint8Array, coding: Coding): Promise<Buffer> {
  const stream = coding.create();
  stream.end(bytes);
  return buffer(stream);
}
