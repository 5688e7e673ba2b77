/** What feeds share: events of documents, turns at intervals, and feeds whose code is loaded when it is used. */

import { setTimeout as sleep } from 'node:timers/promises';
import type { ArchiveFeed, DocumentEvent, DocumentRequest, Feed, FeedEvents, Sample } from './feed-types.ts';

type Requests = Iterable<DocumentRequest> | AsyncIterable<DocumentRequest>;

/** The events of a feed that yields documents alone. A function is called when the first event is asked for. */
export async function* documentEvents(requests: Requests | (() => Promise<Requests>)): FeedEvents<DocumentEvent> {
  const all = typeof requests === 'function' ? await requests() : requests;
  for await (const request of all) yield { kind: 'document', request };
}

export interface Schedule {
  readonly everyMs: number;
  /** Most that is added to each wait. */
  readonly jitterMs: number;
  readonly signal: AbortSignal;
  /** Between 0 and 1; for tests. */
  readonly random?: () => number;
}

/**
 * Yields at once and then at intervals, until the signal. Work that takes longer than the interval delays the next turn;
 * turns never overlap.
 */
export async function* turns({ everyMs, jitterMs, signal, random = Math.random }: Schedule): AsyncGenerator<number> {
  for (let turn = 0; !signal.aborted; turn++) {
    const due = performance.now() + everyMs + random() * jitterMs;
    yield turn;
    const left = due - performance.now();
    if (left > 0) await sleep(left, undefined, { signal }).catch(() => {});
  }
}

/**
 * The same, and between these turns others, which come when they are due.
 * @param otherDueMs in how many milliseconds the next of them is; undefined where none comes
 */
export async function* mixedTurns(
  { everyMs, jitterMs, signal, random = Math.random }: Schedule,
  otherDueMs: () => Promise<number | undefined>,
): AsyncGenerator<'turn' | 'other'> {
  for (let due = performance.now(); !signal.aborted; ) {
    const otherMs = await otherDueMs();
    const left = due - performance.now();
    if (left <= 0) {
      due = performance.now() + everyMs + random() * jitterMs;
      yield 'turn';
    } else if (otherMs !== undefined && otherMs <= 0) {
      yield 'other';
    } else {
      await sleep(Math.min(left, otherMs ?? left), undefined, { signal }).catch(() => {});
    }
  }
}

/*
 * A feed whose code is loaded when it is used. Every command and every projector has the table of feeds; reading it with
 * all that parses pages and checks answers takes 0.15 s of each start.
 */

/** What is known of a feed before its code is loaded. */
export type FeedDescriptor = Pick<Feed, 'name' | 'datasets' | 'options'> & {
  /** Whether its sample can write documents of given days. */
  readonly writesSample?: true;
};

/** What is loaded: a feed with a sample, whose documents are archived. */
export interface LoadedFeed extends Pick<Feed, 'open'> {
  readonly sample: Sample;
  readonly archived: Pick<ArchiveFeed, 'open'>;
}

export function lazyFeed({ writesSample, ...descriptor }: FeedDescriptor, load: () => Promise<LoadedFeed>): Feed {
  return {
    ...descriptor,
    open: async (needs) => (await load()).open(needs),
    sample: {
      partitions: async () => (await load()).sample.partitions(),
      make: async (needs) => (await load()).sample.make(needs),
      ...(writesSample ? { write: async (order) => (await load()).sample.write?.(order) } : {}),
    },
    archived: { options: descriptor.options, open: async (needs) => (await load()).archived.open(needs) },
  };
}
