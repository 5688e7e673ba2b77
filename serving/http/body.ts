/** Request bodies: read up to a limit, as JSON whatever their Content-Type. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type Json, JsonFault, JsonLimit, parseJson } from '../../shared/strict-json.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { ClientGone } from './client-gone.ts';

export interface BodyRule {
  readonly maxBytes: number;
  /** The contract code of the route. */
  readonly code: ProblemCode;
}

/** @throws Problem naming the offset of what is no JSON or too much of it, or the limit that was passed. */
export async function readJson(request: IncomingMessage, response: ServerResponse, rule: BodyRule): Promise<Json> {
  const fault = (message: string) =>
    new Problem(rule.code, `The body ${message}.`, { errors: [{ pointer: '', message: `the body ${message}` }] });
  if (request.headers['content-encoding'] !== undefined && request.headers['content-encoding'] !== 'identity') {
    throw fault('must not be compressed');
  }
  const tooLarge = () => fault(`is larger than ${rule.maxBytes} bytes`);
  // Told before a byte of it is read: a client that asks first (Expect: 100-continue) sends nothing in vain.
  if (Number(request.headers['content-length'] ?? 0) > rule.maxBytes) throw tooLarge();
  if (request.headers.expect !== undefined) response.writeContinue();
  const bytes = await readBytes(request, rule.maxBytes);
  if (!bytes) throw tooLarge();
  if (bytes.length === 0) throw fault('is empty; it must be a JSON object');
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw fault('is not UTF-8 text');
  }
  try {
    return parseJson(text);
  } catch (error) {
    if (error instanceof JsonLimit) throw fault(`has ${error.message}`);
    if (error instanceof JsonFault) throw fault(`is not JSON: ${error.message}`);
    throw error;
  }
}

/** The whole body, or undefined when it is larger than that. */
async function readBytes(request: IncomingMessage, maxBytes: number): Promise<Buffer | undefined> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > maxBytes) return undefined;
      chunks.push(chunk);
    }
  } catch (cause) {
    throw new ClientGone({ cause });
  }
  return Buffer.concat(chunks);
}

const DISCARD_MS = 5000;

/**
 * Throws away what of the body was not read, as it comes: a client that is answered and cut off while it still sends
 * does not get to read the answer. For a while; one that goes on sending has only itself to blame.
 */
export async function discardBody(request: IncomingMessage): Promise<void> {
  // A client that waits to be asked for its body sends none.
  if (request.complete || request.headers.expect !== undefined) return;
  request.resume();
  await new Promise<void>((resolve) => {
    const timer = setTimeout(done, DISCARD_MS);
    function done() {
      clearTimeout(timer);
      resolve();
    }
    request.once('end', done);
    request.once('close', done);
  });
}
