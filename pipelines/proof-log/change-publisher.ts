/**
 * Writes changes to their stream of the log, for consumers inside. The stream itself says how far it has come: the sequence of its
 * last message is the number of the last change in it. A message is written with the expectation that the one before it is the last,
 * so that a repetition, a second writer or a lost acknowledgement can neither double nor skip a change.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type JetStreamClient, type JetStreamManager, jetstream, jetstreamManager } from '@nats-io/jetstream';
import type { ClientBase } from 'pg';
import { connect } from '../../shared/db/connect.ts';
import { codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import {
  CHANGES_STREAM,
  changeSubject,
  ensureStream,
  JS_ERROR,
  jsErrorCode,
  messageAt,
  type StreamOptions,
  streamInfo,
} from '../../shared/nats/stream.ts';
import { changeNumber, changeText, decodeLeaf, leafOfChange } from '../../shared/proof-log/leaf.ts';
import { indexedLeaves } from './sequencer.ts';

/** Changes that are on their way at once. */
const WINDOW = 256;
/** How often the catalog is asked for new changes, and how long the writer waits after a failure. */
const POLL_MS = 500;
const RETRY_MS = 5000;

interface PublisherNeeds {
  readonly client: ClientBase;
  readonly manager: JetStreamManager;
  readonly jetstream: JetStreamClient;
}

/**
 * Writes what the stream lacks, at most one window. @returns how many changes it wrote
 * @throws TidemarkError LOG_REWOUND when the stream holds more changes than the catalog
 */
export async function publishChanges({ client, manager, jetstream: log }: PublisherNeeds): Promise<number> {
  const info = await streamInfo(manager, CHANGES_STREAM);
  if (!info) throw new TidemarkError('LOG_UNAVAILABLE', `The log has no stream ${CHANGES_STREAM} yet`);
  const { rows } = await client.query('select size from proof_head');
  const [from, size] = [info.state.last_seq, Number(rows[0]?.size ?? 0)];
  if (from > size) {
    throw new TidemarkError(
      'LOG_REWOUND',
      `The stream ${CHANGES_STREAM} holds ${from} changes, and the catalog ${size}: the database was restored to an earlier state`,
    );
  }
  const bodies = await indexedLeaves(client, from, Math.min(size, from + WINDOW));
  const written = await Promise.allSettled(
    bodies.map((body, at) => {
      const { dataset, kind } = decodeLeaf(body);
      const index = from + at;
      // The server takes them in the order in which this connection sends them.
      return log.publish(changeSubject(dataset, kind), changeText(index, body), {
        expect: { lastSequence: changeNumber(index) - 1 },
      });
    }),
  );
  const failed = written.find((one) => one.status === 'rejected');
  // Another writer was faster: the next round begins where the stream is then.
  if (failed && jsErrorCode(failed.reason) !== JS_ERROR.WRONG_LAST_SEQUENCE) throw failed.reason;
  return written.filter((one) => one.status === 'fulfilled').length;
}

/** Where the stream first holds something else than the catalog, in a sentence; undefined: it holds changes alone. */
export async function changeFault({ client, manager }: Omit<PublisherNeeds, 'jetstream'>): Promise<string | undefined> {
  const info = await streamInfo(manager, CHANGES_STREAM);
  if (!info) return undefined;
  const { rows } = await client.query('select size from proof_head');
  const [held, size] = [info.state.last_seq, Number(rows[0]?.size ?? 0)];
  if (held > size) return `it holds ${held} changes, and the catalog ${size}`;
  for (let from = 0; from < held; from += WINDOW) {
    const bodies = await indexedLeaves(client, from, Math.min(held, from + WINDOW));
    const messages = await Promise.all(
      bodies.map((_, at) => messageAt(manager, CHANGES_STREAM, changeNumber(from + at))),
    );
    for (const [at, message] of messages.entries()) {
      // A crash of the server may leave a hole.
      if (!message) continue;
      const index = from + at;
      const { dataset, kind } = decodeLeaf(bodies[at]);
      const isOurs = Buffer.from(message.data).equals(Buffer.from(changeText(index, bodies[at])));
      if (!isOurs || message.subject !== changeSubject(dataset, kind))
        return `its message ${changeNumber(index)} is not that change of the catalog: another program wrote it`;
    }
  }
  return undefined;
}

/**
 * The leaves from `size` on that the stream holds beyond the catalog: database and folder were restored, and the stream was not.
 * It ends at the first message that is none: another program wrote it.
 */
export async function leavesAhead(manager: JetStreamManager, size: number): Promise<Buffer[]> {
  const info = await streamInfo(manager, CHANGES_STREAM);
  const leaves: Buffer[] = [];
  for (let index = size; index < (info?.state.last_seq ?? 0); index++) {
    const message = await messageAt(manager, CHANGES_STREAM, changeNumber(index));
    const leaf = message && leafOfChange(index, Buffer.from(message.data).toString());
    if (!leaf) break;
    leaves.push(leaf);
  }
  return leaves;
}

/** As the sequencer asks, over a connection of its own. */
export const leavesAheadAt =
  (natsUrl: string) =>
  async (size: number): Promise<number> => {
    await using connection = await connectNats(natsUrl, 'tidemark proof log');
    return (await leavesAhead(await jetstreamManager(connection, { checkAPI: false }), size)).length;
  };

/**
 * Makes the stream anew and fills it from the catalog, which alone says what changed. Consumers of the stream begin anew; the
 * numbers stay. @returns how many changes it holds then
 */
export async function rewriteChanges(
  connection: NatsConnection,
  needs: PublisherNeeds,
  options: StreamOptions,
): Promise<number> {
  await needs.manager.streams.delete(CHANGES_STREAM);
  await ensureStream(connection, CHANGES_STREAM, options);
  let total = 0;
  // A projector that works meanwhile writes them, too.
  for (let left = -1; left !== 0; ) {
    await publishChanges(needs);
    const { state } = await needs.manager.streams.info(CHANGES_STREAM);
    const { rows } = await needs.client.query('select size from proof_head');
    total = state.last_seq;
    left = Number(rows[0]?.size ?? 0) - total;
  }
  return total;
}

interface PublishingNeeds {
  readonly databaseUrl: string;
  readonly natsUrl: string;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** Publishes changes until the signal. Neither proofs nor reads wait for it. */
export async function keepChangesPublished({ databaseUrl, natsUrl, log, signal }: PublishingNeeds): Promise<void> {
  let said: string | undefined;
  while (!signal.aborted) {
    try {
      await using client = await connect({ url: databaseUrl, name: 'tidemark changes' });
      await using connection = await connectNats(natsUrl, 'tidemark changes');
      const manager = await jetstreamManager(connection, { checkAPI: false });
      const needs = { client, manager, jetstream: jetstream(connection) };
      while (!signal.aborted) {
        const written = await publishChanges(needs);
        said = undefined;
        if (written < WINDOW) await delay(POLL_MS, undefined, { signal }).catch(() => {});
      }
    } catch (error) {
      if (signal.aborted) return;
      const fault = explain(error);
      if (fault !== said)
        log.warn({ code: codeOf(error), fault }, 'changes are not written to their stream; tried again');
      said = fault;
      await delay(RETRY_MS, undefined, { signal }).catch(() => {});
    }
  }
}
