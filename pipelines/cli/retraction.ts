/** Carries out the retractions that a feed yields: each is in the log and in the database before the feed goes on. */
import { jetstream } from '@nats-io/jetstream';
import { connect } from '../../shared/db/connect.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { explain, TidemarkError } from '../../shared/errors.ts';
import { encodeMessage, type Retraction, type RetractionHeader } from '../../shared/frame/codec.ts';
import { type NatsConnection, retryingRead } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, withheldSubject } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { retractSpan } from '../projector/retract.ts';
import type { UnitResult } from '../publisher/backfill.ts';
import { projectionOf } from '../sources/index.ts';
import type { DocumentRequest, FeedEvents, RetractionEvent } from '../sources/types.ts';
import type { Context } from './context.ts';
import { makeStreams } from './streams.ts';

export type Retract = (event: RetractionEvent) => Promise<void>;

/** Yields a feed's documents, and carries out the retractions between them in order. A failed one is thrown into the feed. */
export async function* documentsOf(events: FeedEvents, retract: Retract): AsyncGenerator<DocumentRequest> {
  try {
    for (let next = await events.next(); !next.done; ) {
      const event = next.value;
      if (event.kind === 'retraction') {
        next = await retract(event).then(
          () => events.next(),
          (error) => events.throw(error),
        );
      } else {
        yield event.request;
        next = await events.next();
      }
    }
  } finally {
    await events.return();
  }
}

/** Takes proved partitions out of service, and keeps them as results of the command, whatever it was asked for. */
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
    const marked: string[] = [];
    for (const row of await catalog.overlapping(dataset, sourceId, span)) {
      if (row.state !== 'proved') continue;
      await publishRetraction(connection, dataset, row, { reason });
      marked.push(row.partitionKey);
    }
    const retracted = await retractSpan(client, dataset, seconds, { sourceId, span }, { reason, by: 'source' });
    // Some were proved in between. A projector may have read the mark of others before this transaction.
    const late = retracted.filter((key) => !marked.includes(key));
    for (const row of await catalog.partitionsOf(dataset, late)) {
      await publishRetraction(connection, dataset, row, { reason });
    }
    const keys = [...marked, ...late];
    if (keys.length === 0) return;
    const { remedy } = new TidemarkError(code, reason);
    for (const partition of keys) {
      const unit: UnitResult = { dataset: dataset.key, partition, state: 'quarantined', rows: 0, code, reason, remedy };
      this.#units.set(`${dataset.key} ${partition}`, unit);
    }
    log.error({ dataset: dataset.key, partitions: keys.join(' '), code, reason }, 'the source retracted partitions');
  }

  /** The command reports each partition once: one that was also asked for is reported with what became of it. */
  reported({ dataset, partition }: UnitResult): void {
    this.#units.delete(`${dataset} ${partition}`);
  }

  /** Those that are not reported yet. */
  rest(): UnitResult[] {
    const units = [...this.#units.values()];
    this.#units.clear();
    return units;
  }
}

const ACK_TIMEOUT_MS = 10_000;

/**
 * Marks a proved partition as retracted in the log, for databases that are built again from it. An attempt has one mark,
 * however often it is retracted. @throws TidemarkError LOG_UNAVAILABLE
 */
export async function publishRetraction(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  row: PartitionRow,
  mark: Retraction,
): Promise<void> {
  const { partitionKey: partition, attempt, revision, manifest } = row;
  const document_sha256 = manifest?.document.sha256 ?? '';
  const message = await encodeMessage<RetractionHeader>(
    { kind: 'withheld', dataset: dataset.key, partition, revision, attempt, frame: 0, document_sha256 },
    Buffer.from(JSON.stringify(mark)),
  );
  try {
    await retryingRead((leftMs) =>
      jetstream(connection).publish(withheldSubject(dataset.key, partition, attempt), message, {
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
