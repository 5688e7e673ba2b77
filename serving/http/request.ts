/** Reads requests: the target of the request line, query parameters, the dataset of the path, and JSON bodies. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { z } from 'zod';
import { closestName } from '../../shared/nearest.ts';
import { DATASET_KEYS, DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import { type Json, JsonFault, JsonLimit, parseJson } from '../../shared/strict-json.ts';
import { INSTRUMENT_POINTER } from '../contract/instruments.ts';
import { type ContractFault, MAX_FAULTS, Problem, type ProblemCode } from '../contract/problems.ts';
import { ClientGone } from './answer.ts';

/** What a request may say has limits of its own; this one bounds what is read of it. */
const MAX_BODY_BYTES = 1024 * 1024;

/**
 * Reads the body as JSON, whatever its Content-Type.
 * @param code of the route's contract faults
 * @throws Problem with the offset of a fault, or the exceeded limit.
 */
export async function readJson(request: IncomingMessage, response: ServerResponse, code: ProblemCode): Promise<Json> {
  const fault = (message: string) =>
    new Problem(code, `The body ${message}.`, { errors: [{ pointer: '', message: `the body ${message}` }] });
  if (request.headers['content-encoding'] !== undefined && request.headers['content-encoding'] !== 'identity') {
    throw fault('must not be compressed');
  }
  const tooLarge = () => fault(`is larger than ${MAX_BODY_BYTES} bytes`);
  // Refused before any byte is read: a client that asks first (Expect: 100-continue) then sends no body.
  if (Number(request.headers['content-length'] ?? 0) > MAX_BODY_BYTES) throw tooLarge();
  if (request.headers.expect !== undefined) response.writeContinue();
  const bytes = await readBytes(request);
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

/** Reads the whole body; undefined when it exceeds the limit. */
async function readBytes(request: IncomingMessage): Promise<Buffer | undefined> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > MAX_BODY_BYTES) return undefined;
      chunks.push(chunk);
    }
  } catch (cause) {
    throw new ClientGone({ cause });
  }
  return Buffer.concat(chunks);
}

/** The dataset of the path. @throws Problem DATASET_NOT_FOUND */
export function datasetParam(key: string): DatasetDefinition & { readonly key: DatasetKey } {
  const dataset = DATASETS.get(key) as (DatasetDefinition & { readonly key: DatasetKey }) | undefined;
  if (dataset) return dataset;
  const meant = closestName(key, DATASET_KEYS);
  const hint = meant === undefined ? '' : ` (did you mean ${meant}?)`;
  const detail = `The path names no dataset${hint}. The datasets are ${DATASET_KEYS.join(', ')}.`;
  throw new Problem('DATASET_NOT_FOUND', detail);
}

/** The schema of a URL without parameters: the service refuses any parameter instead of ignoring it. */
export const NO_PARAMETERS = z.strictObject({});

/** The parameters, parsed by the schema. @throws Problem QUERY_CONTRACT_ERROR with every fault; pointers are `?name`, and for an instrument that of bodies. */
export function queryParams<S extends z.ZodObject>(url: URL, schema: S): z.output<S> {
  const given: Record<string, string> = Object.create(null);
  const faults: ContractFault[] = [];
  const known = Object.keys(schema.shape);
  const pointerOf = (name: string) => (name === 'instrument' && known.includes(name) ? INSTRUMENT_POINTER : `?${name}`);
  for (const [name, value] of url.searchParams) {
    if (name in given) faults.push({ pointer: pointerOf(name), message: 'is given twice' });
    given[name] = value;
  }
  const outcome = schema.safeParse(given);
  for (const issue of outcome.success ? [] : outcome.error.issues) {
    if (issue.code === 'unrecognized_keys') {
      const message =
        known.length === 0
          ? 'is not a parameter: this path takes none'
          : `is not a parameter; the parameters are ${known.join(', ')}`;
      faults.push(...issue.keys.map((name) => ({ pointer: pointerOf(name), message })));
    } else faults.push({ pointer: pointerOf(String(issue.path[0] ?? '')), message: issue.message });
  }
  if (faults.length === 0 && outcome.success) return outcome.data;
  throw contractProblem(faults);
}

export function contractProblem(errors: readonly ContractFault[], code: ProblemCode = 'QUERY_CONTRACT_ERROR'): Problem {
  const [first] = errors;
  const others = errors.length > MAX_FAULTS ? 'more' : `${errors.length - 1} more`;
  const more = errors.length > 1 ? ` (and ${others})` : '';
  const sentence = `${first.pointer || 'The body'} ${first.message}${more}`;
  return new Problem(code, sentence.endsWith('?') ? sentence : `${sentence}.`, { errors });
}

/** Of an absolute target, all before its path. */
const ORIGIN = /^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i;
/** A slash of either kind, encoded. */
const ENCODED_SLASH = /%2f|%5c/i;

/**
 * Parses a request target: a path, or an absolute URL as clients send it to proxies. The host of the result has no
 * meaning. A path counts as it is written: a proxy that has a rule for `/v1/ops` must see the same path as this service, and
 * may read `/v1\ops`, `/v1/x/../ops`, `/v1/%2e/ops` and `/v1/x%2f..%2fops` as other ones.
 * @throws Problem HTTP_REQUEST_MALFORMED, or ROUTE_NOT_FOUND for a path that would be resolved to another
 */
export function parseTarget(target: string): URL {
  // A path cannot fail: the service appends it to a host, so that `//a` is a path too.
  const url = URL.parse(target.startsWith('/') ? `http://service${target}` : target, 'http://service');
  if (!url) {
    throw new Problem(
      'HTTP_REQUEST_MALFORMED',
      'The request target is not a URL. Send a path such as /healthz, or an absolute http URL.',
    );
  }
  const [path] = target.replace(ORIGIN, '').split('?', 1);
  const isAsWritten = url.pathname === (path === '' ? '/' : path) && !ENCODED_SLASH.test(path);
  if (isAsWritten || target === '*') return url;
  throw new Problem(
    'ROUTE_NOT_FOUND',
    'The path has a backslash, a dot segment, an encoded slash, a fragment or a character that a URL encodes. The service resolves none of them. Send the path as it is documented.',
  );
}
