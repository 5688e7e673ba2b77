/** Answers that are one text: compressed as the client asks for, and with an entity tag where a client may revalidate them. */
import { createHash } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import { chooseCoding } from '../render/representations.ts';
import type { Coding } from '../render/response.ts';
import { answerBytes } from './answer.ts';
import type { AnswerDoc, Exchange } from './routes.ts';
import { isTagged } from './send-file.ts';

const TAG = { ETag: 'Identifies exactly these bytes, in this content coding.' } as const;
export const ENCODED = {
  'Content-Encoding': 'The coding that `Accept-Encoding` selected; absent without one.',
} as const;
export const TAGGED = { ...TAG, ...ENCODED } as const;
export const UNCHANGED: AnswerDoc = {
  status: 304,
  doc: 'The client already has the document.',
  content: {},
  headers: TAG,
};

/** By the uncompressed text, so that texts kept for the lifetime of the process are compressed and hashed once. */
const compressed = new WeakMap<Buffer, Map<string, Promise<Buffer>>>();
const digests = new WeakMap<Buffer, string>();

function compress(body: Buffer, coding: Coding): Promise<Buffer> {
  const known = compressed.get(body) ?? new Map<string, Promise<Buffer>>();
  compressed.set(body, known);
  let bytes = known.get(coding.name);
  if (!bytes) {
    const encoder = coding.create();
    bytes = buffer(encoder);
    encoder.end(body);
    known.set(coding.name, bytes);
  }
  return bytes;
}

function digestOf(body: Buffer): string {
  const digest = digests.get(body) ?? createHash('sha256').update(body).digest('base64url').slice(0, 22);
  digests.set(body, digest);
  return digest;
}

/** @throws Problem NOT_ACCEPTABLE */
export async function answerCompressed(
  exchange: Exchange,
  body: Buffer,
  headers: Readonly<Record<string, string>>,
): Promise<void> {
  const { request, response } = exchange;
  response.appendHeader('Vary', 'Accept-Encoding');
  const coding = chooseCoding(request.headers['accept-encoding'] as string | undefined);
  const bytes = coding ? await compress(body, coding) : body;
  answerBytes(exchange, bytes, { ...headers, ...(coding && { 'Content-Encoding': coding.name }) });
}

/** The same with an entity tag: 304 to a client that has these bytes. @throws Problem NOT_ACCEPTABLE */
export async function answerDocument(
  exchange: Exchange,
  body: Buffer,
  headers: Readonly<Record<string, string>> & { readonly 'Cache-Control': string },
): Promise<void> {
  const { request, response } = exchange;
  const coding = chooseCoding(request.headers['accept-encoding'] as string | undefined);
  // Compressed bytes are other bytes, and a strong tag names bytes (RFC 9110, 8.8.3.3).
  const etag = `"${digestOf(body)}${coding ? `-${coding.name}` : ''}"`;
  if (!isTagged(request.headers['if-none-match'] ?? '', etag)) {
    await answerCompressed(exchange, body, { ...headers, ETag: etag });
    return;
  }
  response.appendHeader('Vary', 'Accept-Encoding');
  const { 'Content-Type': _, ...kept } = headers;
  response.writeHead(304, { ...kept, ETag: etag }).end();
}
