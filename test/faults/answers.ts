/** The questions of a campaign, in every representation, and what an answer says apart from when it was given. */
import { createHash } from 'node:crypto';
import { Agent, request as httpRequest, type IncomingMessage } from 'node:http';
import { windowOf } from '../../shared/registry/keys.ts';
import type { Vendor } from '../support/vendors.ts';

export interface Question {
  readonly name: string;
  readonly path: string;
  readonly body: object;
  readonly accept: string;
}

export interface Reply {
  readonly status: number;
  readonly body: Buffer;
  readonly headers: IncomingMessage['headers'];
}

const iso = (ms: number) => new Date(ms).toISOString();
const QUARTER_MS = 6 * 3_600_000;
const JSON_TYPE = 'application/json';

/** Fields that do not depend on when the day came in. */
const said = (fields: readonly { readonly name: string }[]) =>
  fields.map(({ name }) => name).filter((name) => !name.includes('ingested_at'));

/** Questions about one file day, whose answer the day's document alone decides. */
export function questionsOf({ dataset, layout }: Vendor, day: string): Question[] {
  const { fromMs, toMs } = windowOf(layout.dataset, day);
  const window = { time_range: [iso(fromMs), iso(toMs)] };
  const { native, aligned } = layout.dataset;
  const raw = (name: string, accept: string, more: object = {}): Question => ({
    ...{ name, accept, path: '/v1/raw/query' },
    body: { sources: [dataset], ...window, fields: said(native.fields), ...more },
  });
  const questions = [
    raw('json', JSON_TYPE),
    raw('ndjson', 'application/x-ndjson'),
    raw('csv', 'text/csv'),
    raw('arrow', 'application/vnd.apache.arrow.stream'),
    raw('seconds', JSON_TYPE, { mode: 'aligned_1s', fields: said(aligned.fields) }),
    raw('filtered', 'text/csv', { filters: [{ field: 'timestamp', op: 'gte', value: fromMs + QUARTER_MS }] }),
    {
      name: 'frame',
      path: '/v1/frame',
      accept: 'text/csv',
      body: {
        columns: [
          { name: 'close', dataset, field: 'price' },
          { name: 'trades', dataset, field: 'price', aggregate: 'count' },
        ],
        grid: '10m',
        ...window,
      },
    },
  ];
  // Its file days are days of UTC.
  if (dataset === 'exchange_a_spot_trades') {
    const path = '/v1/historical/exchange_a/spot/klines';
    questions.push({
      name: 'klines',
      path,
      accept: 'text/csv',
      body: { kline_size: '1h', start_date: day, end_date: day },
    });
  }
  return questions;
}

/** Digest of the rows of an answer. */
export function digestOf({ accept }: Pick<Question, 'accept'>, body: Buffer): string {
  const said = accept === JSON_TYPE ? JSON.stringify(JSON.parse(body.toString()).rows) : body;
  return createHash('sha256').update(said).digest('hex');
}

export const agent = new Agent({ keepAlive: true, maxSockets: 16 });

export interface AskOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE';
  readonly headers?: Record<string, string>;
  readonly body?: object;
  readonly signal?: AbortSignal;
}

/** The whole answer. @throws when the connection ends before it */
export async function ask(url: string, path: string, { method, headers, body, signal }: AskOptions): Promise<Reply> {
  const bytes = body === undefined ? undefined : Buffer.from(JSON.stringify(body));
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    const outgoing = httpRequest(
      url + path,
      {
        method: method ?? (bytes ? 'POST' : 'GET'),
        agent,
        signal,
        headers: { ...headers, ...(bytes && { 'content-length': String(bytes.length) }) },
      },
      resolve,
    );
    outgoing.on('error', reject);
    outgoing.end(bytes);
  });
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  if (!response.complete) throw new Error('the answer was cut');
  return { status: response.statusCode!, body: Buffer.concat(chunks), headers: response.headers };
}
