/** Follows what is proved, revised, retracted or quarantined, and continues where it was after a lost connection. */
import type { DatasetKey } from './datasets.ts';
import { ConnectionError, IncompleteAnswerError, ServiceError } from './errors.ts';
import type { Options } from './requests.ts';
import { jittered, PASSING, sleep, Transport, type TransportOptions } from './transport.ts';

/** One change: its number, and the members of its leaf in the proof log. */
export interface Change {
  /** 1 for the first; no number is left out. */
  readonly number: number;
  /** What opens the commitments of the leaf; null where the key or the rights do not allow the rows. */
  readonly salt: string | null;
  /** `restored` and `rotated` are about the proof log itself and name no dataset. */
  readonly kind: 'proved' | 'revised' | 'retracted' | 'quarantined' | 'refused' | 'restored' | 'rotated';
  readonly dataset: DatasetKey | null;
  /** Absent for the default, whose partitions name none. */
  readonly instrument?: string;
  readonly partition: string | null;
  readonly revision: number | null;
  readonly synthetic: boolean;
  readonly rows: number | null;
  /** Time of the commit, ISO-8601. */
  readonly at: string;
  /** Why the partition is not served. */
  readonly reason: string | null;
}

export interface ChangesRequest {
  /** Changes after this number; default 0. `latest`: only those to come. */
  readonly since?: number | 'latest';
  /** Changes of this dataset alone. */
  readonly dataset?: DatasetKey;
}

/** A revision of a partition, or a document that its vendor published in place of the served one. */
export interface Revision {
  /** Number of the change that made it known. */
  readonly id: number;
  readonly dataset: DatasetKey;
  /** Absent for the default. */
  readonly instrument?: string;
  readonly partition: string;
  readonly revision: number;
  readonly state: 'served' | 'replaced' | 'withdrawn' | 'refused' | 'taken_back' | 'accepted';
  /** The changes from and to which it was served; null from: never, null to: still. */
  readonly from_change: number | null;
  readonly to_change: number | null;
  readonly from_utc: string | null;
  readonly to_utc: string | null;
  readonly found_utc: string | null;
  readonly taken_back_utc: string | null;
  readonly synthetic: boolean;
  readonly rows: number | null;
  readonly document: Readonly<Record<'name' | 'sha256' | 'etag' | 'last_modified' | 'fetched_utc', string | null>>;
  /** To the served revision, row by row. */
  readonly differences: {
    readonly added: number;
    readonly removed: number;
    readonly altered: number;
    /** Of the file that lists them. */
    readonly sha256: string | null;
    readonly bytes: number;
  } | null;
  readonly fault: string | null;
}

/** Longest pause before the client connects again. */
const MAX_PAUSE_MS = 15_000;
const FIRST_PAUSE_MS = 250;

export class Changes {
  readonly #transport: Transport;

  /** @throws TypeError as Transport */
  constructor(options: TransportOptions) {
    this.#transport = new Transport(options);
  }

  /** A page of changes, and the number to ask on from. @throws HistoricalDataError, or the reason of the signal */
  async page(
    request: ChangesRequest & { readonly limit?: number } = {},
    { signal }: Options = {},
  ): Promise<{ readonly changes: readonly Change[]; readonly next: number }> {
    const headers = { Accept: 'application/json' };
    return await this.#transport.json({ method: 'GET', path: pathOf(request), headers, signal });
  }

  /** The revisions of a dataset, page by page. @throws HistoricalDataError, or the reason of the signal */
  async *revisions(
    {
      dataset,
      instrument,
      partition,
    }: { readonly dataset: DatasetKey; readonly instrument?: string; readonly partition?: string },
    { signal }: Options = {},
  ): AsyncGenerator<Revision> {
    const query = new URLSearchParams({
      dataset,
      ...(instrument === undefined ? {} : { instrument }),
      ...(partition === undefined ? {} : { partition }),
    });
    for (let cursor: string | null = ''; cursor !== null; ) {
      if (cursor !== '') query.set('cursor', cursor);
      const headers = { Accept: 'application/json' };
      const page: { revisions: Revision[]; next_cursor: string | null } = await this.#transport.json({
        ...{ method: 'GET', path: `/v1/revisions?${query}`, headers, signal },
      });
      yield* page.revisions;
      cursor = page.next_cursor;
    }
  }

  /**
   * Every change, in order and once, until the signal. A lost connection and a service that restarts are waited for.
   * @throws ServiceError when the service refuses, such as a number that it does not have; the reason of the signal.
   */
  async *follow(request: ChangesRequest = {}, { signal }: Options = {}): AsyncGenerator<Change, never> {
    let place: string | undefined;
    for (let failures = 0; ; failures++) {
      try {
        const headers = { Accept: 'text/event-stream', ...(place !== undefined && { 'Last-Event-ID': place }) };
        const response = await this.#transport.send({ method: 'GET', path: pathOf(request), headers, signal });
        for await (const { id, data } of eventsOf(response)) {
          failures = 0;
          place = id ?? place;
          if (data !== undefined) yield JSON.parse(data) as Change;
        }
      } catch (error) {
        signal?.throwIfAborted();
        const isPassing =
          error instanceof ConnectionError ||
          error instanceof IncompleteAnswerError ||
          // 429 and 503, whatever their code.
          (error instanceof ServiceError && PASSING.has(error.status));
        if (!isPassing) throw error;
      }
      await sleep(jittered(Math.min(FIRST_PAUSE_MS * 2 ** failures, MAX_PAUSE_MS)), signal);
    }
  }
}

function pathOf(request: object): string {
  const given = Object.entries(request).filter(([, value]) => value !== undefined);
  return `/v1/changes?${new URLSearchParams(given.map(([name, value]): [string, string] => [name, String(value)]))}`;
}

interface StreamedEvent {
  readonly id: string | undefined;
  /** Absent where an event only moves the place. */
  readonly data: string | undefined;
}

/** The complete events of a stream; one that is cut off is not among them. */
async function* eventsOf({ body }: Response): AsyncGenerator<StreamedEvent> {
  if (!body) return;
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (text + decoder.decode(value, { stream: true })).split('\n\n');
      text = events.pop()!;
      for (const event of events) yield { id: fieldOf(event, 'id'), data: fieldOf(event, 'data') };
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

const fieldOf = (event: string, name: string): string | undefined =>
  event
    .split('\n')
    .find((line) => line.startsWith(`${name}: `))
    ?.slice(name.length + 2);
