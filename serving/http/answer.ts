/** Answers that are one small document. */
import type { IncomingMessage } from 'node:http';
import { Problem } from '../contract/problems.ts';
import { mediaQuality } from './accept.ts';
import type { Exchange } from './routes.ts';

const JSON_TYPE = 'application/json';

/** @throws Problem NOT_ACCEPTABLE */
export function requireAccept(request: IncomingMessage, mediaType: string): void {
  if (mediaQuality(request.headers.accept, mediaType) > 0) return;
  throw new Problem('NOT_ACCEPTABLE', `This path is served as ${mediaType}.`);
}

/** @throws Problem NOT_ACCEPTABLE */
export const requireJson = (request: IncomingMessage): void => requireAccept(request, JSON_TYPE);

export function answerJson(
  exchange: Exchange,
  value: unknown,
  headers: Readonly<Record<string, string>> = {},
  status = 200,
): void {
  answerBytes(exchange, Buffer.from(JSON.stringify(value)), { 'Content-Type': JSON_TYPE, ...headers }, status);
}

export function answerBytes(
  { response }: Exchange,
  body: Buffer,
  headers: Readonly<Record<string, string>>,
  status = 200,
): void {
  response.writeHead(status, { ...headers, 'Content-Length': String(body.length) });
  response.end(body);
}
