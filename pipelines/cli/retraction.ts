/** Carries out the retractions that a feed yields: each is in the log and in the database before the feed goes on. */
import { jetstream } from '@nats-io/jetstream';
import { connect } from '../../shared/db/connect.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { ERROR_CODES, explain, TidemarkError } from '../../shared/errors.ts';
import { encodeMessage, type Retraction, type RetractionHeader } from '../../shared/frame/codec.ts';
import { type NatsConnection, retryingRead } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, retractionSubject } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { retractSpan } from '../projector/retract.ts';
import type { UnitResult } from '../publisher/backfill.ts';
import type { AvailabilityEvent, DocumentRequest, FeedEvents, RetractionEvent } from '../sources/feed-types.ts';
import { projectionOf } from '../sources/index.ts';
import type { Context } from './context.ts';
import { makeStreams } from './streams.ts';

export type Retract = (event: RetractionEvent) => Promise<void>;

/**
 * Yields a feed's documents, and carries out the retractions between them in order. A failed one is thrown into the feed.
 * @param onAvailability receives what the feed yields about its source between documents.
 */
export async function* documentsOf(
  events: FeedEvents,
  retract: Retract,
  onAvailability: (event: AvailabilityEvent) => void = () => {},
): AsyncGenerator<DocumentRequest> {
  try {
    for (let next = await events.next(); !next.done; ) {
      const event = next.value;
      if (event.kind === 'retraction') {
        next = await retract(event).then(
          () => events.next(),
          (error) => events.throw(error),
        );
      } else {
        if (event.kind === 'document') yield event.request;
        else onAvailability(event);
        next = await events.next();
      }
    }
  } finally {
    await events.return();
  }
}

/** Takes proved partitions out of service, and keeps them as results of the command, whatever range it has. */
export class Retractions {
  readonly #context: Context;
  readonly #units = new Map<string, UnitResult>();

  constructor(context: Context) {
    this.#context = context;
  }

  async carryOut({ dataset, span, code, reason }: RetractionEvent): Promise<void> {
    const { catalog, databaseUrls, log } = this.#context;
    await using client = await connect({ url: databaseUrls.ingest, name: 'tidemark retraction' });
    const { seconds } = projectionOf(dataset);
    const [sourceId] = dataset.sources;
    if (!seconds) throw new TidemarkError('USAGE', `${dataset.key} has file days, which are not retracted by spans`);
    // In the log first: a database that is built again from it must not serve what leaves service here.
    const connection = await this.#context.nats();
    await makeStreams(this.#context, [dataset.key]);
    const retracted: string[] = [];
    const { remedy } = ERROR_CODES[code];
    // A command that is retried after an outage may find the retraction carried out, so each partition is noted at once.
    const add = (partition: string) => {
      retracted.push(partition);
      const unit: UnitResult = { dataset: dataset.key, partition, state: 'quarantined', rows: 0, code, reason, remedy };
      this.#units.set(`${dataset.key} ${partition}`, unit);
    };
    try {
      for (const row of await catalog.overlapping(dataset, sourceId, span)) {
        if (row.state !== 'proved') continue;
        await publishRetraction(connection, dataset, row, { reason });
        add(row.partitionKey);
      }
      const changed = await retractSpan(client, dataset, seconds, { sourceId, span }, { reason, by: 'source' });
      // Partitions that were proved since they were listed have no message in the log yet.
      const late = changed.filter((key) => !retracted.includes(key));
      for (const key of late) add(key);
      for (const row of await catalog.partitionsOf(dataset, late)) {
        await publishRetraction(connection, dataset, row, { reason });
      }
    } finally {
      const facts = { dataset: dataset.key, partitions: retracted.join(' '), code, reason };
      if (retracted.length > 0) log.error(facts, 'the source retracted partitions');
    }
  }

  /** Notes a result that the command has reported, so that it reports a retracted partition only once. */
  reported({ dataset, partition }: UnitResult): void {
    this.#units.delete(`${dataset} ${partition}`);
  }

  /** The retracted partitions that are not reported yet. */
  rest(): UnitResult[] {
    const units = [...this.#units.values()];
    this.#units.clear();
    return units;
  }
}

const ACK_TIMEOUT_MS = 10_000;

/**
 * Writes the retraction of a proved partition to the log, for databases that are built again from it. The log holds at most
 * one retraction of an attempt. @throws TidemarkError LOG_UNAVAILABLE
 */
export async function publishRetraction(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  row: PartitionRow,
  retraction: Retraction,
): Promise<void> {
  const { partitionKey: partition, attempt, revision, manifest } = row;
  const document_sha256 = manifest?.document.sha256 ?? '';
  const message = await encodeMessage<RetractionHeader>(
    { kind: 'withheld', dataset: dataset.key, partition, revision, attempt, frame: 0, document_sha256 },
    Buffer.from(JSON.stringify(retraction)),
  );
  try {
    await retryingRead((leftMs) =>
      jetstream(connection).publish(retractionSubject(dataset.key, partition, attempt), message, {
        expect: { lastSubjectSequence: 0 },
        timeout: Math.min(ACK_TIMEOUT_MS, leftMs),
      }),
    );
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.WRONG_LAST_SEQUENCE) return;
    throw new TidemarkError(
      'LOG_UNAVAILABLE',
      `The retraction of ${dataset.key} ${partition} could not be written to the log: ${explain(error)}`,
      { cause: error },
    );
  }
}
