/** GET /v1/changes: what was proved, revised, retracted, quarantined or refused, as pages of JSON or as a stream of events. */
import { z } from 'zod';
import { LEAF_KINDS } from '../../shared/proof-log/leaf.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import type { ChangeFeed, Covers } from '../changes/change-feed.ts';
import { Problem } from '../contract/problems.ts';
import { datasetKey, parsedText } from '../contract/shapes.ts';
import { count, instrumentName, textField } from '../discovery/schemas.ts';
import { answerBytes, DEDICATED, versionProblem } from '../http/answer.ts';
import { contractProblem, queryParams } from '../http/request.ts';
import { CATALOG_PROBLEMS, type Exchange, type Route, type RouteDoc } from '../http/routes.ts';
import type { ConcurrencyLimiter } from '../limits/concurrency-limiter.ts';
import type { StreamPlaces } from '../limits/stream-places.ts';
import { mediaQuality } from '../render/representations.ts';

const EVENT_STREAM = 'text/event-stream';
const JSON_TYPE = 'application/json';
/** How long a client waits before it connects again. */
const RECONNECT_MS = 1000;
const MAX_PAGE = 10_000;
const DEFAULT_PAGE = 1000;

const NUMBER = /^(?:0|[1-9]\d{0,14})$/;
const NUMBER_RULE = 'must be the number of a change, or 0 for the place before the first';
const parseNumber = (text: string): number | undefined => (NUMBER.test(text) ? Number(text) : undefined);

/** The place after the last change. */
const LATEST = 'latest';

const parameters = z.strictObject({
  since: parsedText((text) => (text === LATEST ? LATEST : parseNumber(text)), `${NUMBER_RULE}, or ${LATEST}`)
    .optional()
    .meta({
      description: `Changes after this number; 0, the default, begins with the first, \`${LATEST}\` with the next one.`,
    }),
  dataset: datasetKey.optional().meta({ description: 'Changes of this dataset, and of the proof log.' }),
  limit: parsedText((text) => {
    const limit = parseNumber(text) ?? 0;
    return limit >= 1 && limit <= MAX_PAGE ? limit : undefined;
  }, `must be a whole number from 1 to ${MAX_PAGE}`)
    .optional()
    .meta({
      type: 'integer',
      ...{ minimum: 1, maximum: MAX_PAGE, default: DEFAULT_PAGE },
      description: 'Changes on a page of JSON; event streams have no pages.',
    }),
});

const changesAnswer = z.strictObject({
  changes: z
    .array(
      z.looseObject({
        number: count('Its number: the index of its leaf in the proof log, plus one. No number is left out.'),
        salt: z
          .string()
          .nullable()
          .describe('What opens the commitments of the leaf; null for callers who may not read the rows.'),
        kind: z.enum(LEAF_KINDS).describe('What happened. `restored` and `rotated` are about the proof log.'),
        dataset: datasetKey.nullable(),
        instrument: instrumentName,
        partition: z.string().nullable().describe('The partition.'),
        revision: z.int().nullable().describe('Revision of the partition.'),
        rows: z.int().nullable().describe('Its rows.'),
        at: textField('Time of the commit, UTC.'),
        reason: z.string().nullable().describe('Why, in the words of a closed list.'),
      }),
    )
    .describe('Each with all members of its leaf (docs/proof-log.md).'),
  next: count('The number to ask on from.'),
});

export interface ChangesDeps {
  readonly feed: ChangeFeed;
  /** Of the catalog: pages of JSON read it, streams have places of their own. */
  readonly limiter: ConcurrencyLimiter;
  readonly places: StreamPlaces;
}

export function changesRoute(deps: ChangesDeps): Route {
  return {
    method: 'GET',
    path: '/v1/changes',
    access: 'read',
    doc: changesDoc,
    async handle(exchange) {
      const { accept } = exchange.request.headers;
      const [events, json] = [mediaQuality(accept, EVENT_STREAM), mediaQuality(accept, JSON_TYPE)];
      if (events === 0 && json === 0) {
        throw new Problem(
          'NOT_ACCEPTABLE',
          `The Accept header rules out ${JSON_TYPE} and ${EVENT_STREAM}, the types of this path. Accept one of them.`,
        );
      }
      const { since, dataset, limit = DEFAULT_PAGE } = queryParams(exchange.url, parameters);
      const { caller } = exchange;
      if (dataset !== undefined) caller.requireAny(DATASETS.get(dataset)!);
      const covers: Covers = (one) => (dataset === undefined || dataset === one.key) && caller.covers(one);
      if (events > json) await stream(exchange, deps, { since, covers });
      else await page(exchange, deps, { since, covers, limit });
    },
  };
}

const changesDoc = (): RouteDoc => ({
  operation: 'listChanges',
  tag: 'discovery',
  summary: 'What was proved, revised, retracted, quarantined or refused, in order and without a gap',
  doc: 'Ask with `since=0` once, then with `next`. With `Accept: text/event-stream` the answer does not end: each change comes as an event whose `id` is its number, and a client that connects again with `Last-Event-ID` (browsers’ `EventSource` does) continues after it. A change is sent after its commit.',
  query: parameters,
  headers: ['Last-Event-ID'],
  answers: [
    {
      doc: 'Changes, the oldest first.',
      content: { [JSON_TYPE]: changesAnswer, [EVENT_STREAM]: { type: 'string' } },
    },
  ],
  problems: [
    'QUERY_CONTRACT_ERROR',
    'NOT_ACCEPTABLE',
    'AUTH_DATASET_NOT_COVERED',
    'CHANGES_LISTENER_LIMIT_REACHED',
    ...CATALOG_PROBLEMS,
  ],
  examples: [
    { title: 'The first two changes', query: { limit: '2' } },
    { title: 'Changes of one dataset', query: { dataset: 'exchange_a_spot_trades', limit: '1' } },
  ],
});

interface Asked {
  readonly since: number | typeof LATEST | undefined;
  readonly covers: Covers;
}

async function page(
  exchange: Exchange,
  { feed, limiter }: ChangesDeps,
  { since = 0, covers, limit }: Asked & { readonly limit: number },
): Promise<void> {
  const slot = await limiter.acquire(exchange.signal, 'small', exchange.caller.name ?? '');
  try {
    const from = placeOf(since, '?since', await known(feed.last()));
    const { changes, next } = await known(feed.page(from, limit, covers));
    const body = Buffer.from(`{"changes":[${changes.join(',')}],"next":${next}}`);
    answerBytes(exchange, body, { 'Content-Type': JSON_TYPE, 'Cache-Control': 'no-store' });
  } finally {
    slot.release();
  }
}

async function stream(exchange: Exchange, { feed, places }: ChangesDeps, { since = 0, covers }: Asked): Promise<void> {
  const { request, response } = exchange;
  if (!response.useChunkedEncodingByDefault) {
    throw versionProblem('An event stream has no length', ', or ask for pages of JSON');
  }
  const resumed = request.headers['last-event-id'];
  const number = typeof resumed === 'string' ? parseNumber(resumed) : since;
  if (number === undefined) throw contractProblem([{ pointer: 'Last-Event-ID', message: NUMBER_RULE }]);
  const pointer = resumed === undefined ? '?since' : 'Last-Event-ID';
  const from = placeOf(number, pointer, await known(number === LATEST ? feed.last() : feed.lastSince(number)));
  exchange.signal.throwIfAborted();
  // A client that does not read would never take the end.
  const end = () => (response.writableNeedDrain ? response.destroy() : response.end());
  const give = places.take(exchange.caller, end);
  try {
    response.writeHead(200, {
      'Content-Type': EVENT_STREAM,
      'Cache-Control': 'no-store',
      // Proxies that gather an answer before they pass it on would hold every event back.
      'X-Accel-Buffering': 'no',
      Connection: 'close',
    });
    if (request.method === 'HEAD') {
      response.end();
      return;
    }
    response.emit(DEDICATED);
    // The service stops, and has ended the stream.
    if (response.writableEnded) return;
    response.write(`retry: ${RECONNECT_MS}\nid: ${from}\n\n`);
    await feed.listen(response, from, covers);
  } finally {
    give();
  }
}

/** @throws Problem QUERY_CONTRACT_ERROR for a number that no change has yet */
function placeOf(number: number | typeof LATEST, pointer: string, last: number): number {
  if (number === LATEST) return last;
  if (number <= last) return number;
  throw contractProblem([
    {
      pointer,
      message: `is ${number}, and the last change is ${last}: the number is of another service, or its database was restored to an earlier state; begin again with 0`,
    },
  ]);
}

/** @throws Problem QUERY_BACKEND_ERROR */
async function known<T>(asking: Promise<T>): Promise<T> {
  try {
    return await asking;
  } catch (cause) {
    throw new Problem('QUERY_BACKEND_ERROR', 'The database does not answer. Try again later.', { cause });
  }
}
