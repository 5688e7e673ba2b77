/** Request bodies: read up to a limit, as JSON whatever their Content-Type. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { z } from 'zod';
import { DATASET_KEYS, DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import { type Json, JsonFault, JsonLimit, parseJson } from '../../shared/strict-json.ts';
import { type ContractFault, MAX_FAULTS, Problem, type ProblemCode } from '../contract/problems.ts';
import { ClientGone } from './answer.ts';

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

/* What a request says in its URL: the dataset of its path, and parameters behind the question mark. */

/** @throws Problem DATASET_NOT_FOUND */
export function datasetParam(key: string): DatasetDefinition & { readonly key: DatasetKey } {
  const dataset = DATASETS.get(key) as (DatasetDefinition & { readonly key: DatasetKey }) | undefined;
  if (!dataset) throw new Problem('DATASET_NOT_FOUND', `The datasets are ${DATASET_KEYS.join(', ')}.`);
  return dataset;
}

/** The parameters as the schema has them. @throws Problem QUERY_CONTRACT_ERROR with every fault, `?name` for a pointer. */
export function queryParams<S extends z.ZodObject>(url: URL, schema: S): z.output<S> {
  const given: Record<string, string> = Object.create(null);
  const faults: ContractFault[] = [];
  for (const [name, value] of url.searchParams) {
    if (name in given) faults.push({ pointer: pointerOf(name), message: 'is given twice' });
    given[name] = value;
  }
  const known = Object.keys(schema.shape);
  const outcome = schema.safeParse(given);
  for (const issue of outcome.success ? [] : outcome.error.issues) {
    if (issue.code === 'unrecognized_keys') {
      const message =
        known.length === 0 ? 'is no parameter: this path takes none' : `is no parameter; known: ${known.join(', ')}`;
      faults.push(...issue.keys.map((name) => ({ pointer: pointerOf(name), message })));
    } else faults.push({ pointer: pointerOf(String(issue.path[0] ?? '')), message: issue.message });
  }
  if (faults.length === 0 && outcome.success) return outcome.data;
  throw contractProblem(faults);
}

const pointerOf = (name: string) => `?${name}`;

export function contractProblem(errors: readonly ContractFault[], code: ProblemCode = 'QUERY_CONTRACT_ERROR'): Problem {
  const [first] = errors;
  const others = errors.length > MAX_FAULTS ? 'more' : `${errors.length - 1} more`;
  const more = errors.length > 1 ? ` (and ${others})` : '';
  return new Problem(code, `${first.pointer || 'The body'} ${first.message}${more}.`, { errors });
}

/* What a request asks for: the path and query of its first line. */

/**
 * Parses a request target: a path, or an absolute URL as clients send it to proxies. The host of the result stands for
 * nothing.
 * @throws Problem HTTP_REQUEST_MALFORMED
 */
export function parseTarget(target: string): URL {
  // A path cannot fail: it is appended to a host, so that `//a` is a path too.
  const url = URL.parse(target.startsWith('/') ? `http://service${target}` : target, 'http://service');
  if (url) return url;
  throw new Problem(
    'HTTP_REQUEST_MALFORMED',
    'The request target cannot be parsed: send a path such as /healthz, or an absolute http URL.',
  );
}
