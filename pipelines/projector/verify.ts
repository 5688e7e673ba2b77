/**
 * Verification of served partitions: repeats the recount and, on request, compares the rows byte by byte with the log. A
 * partition whose stored rows no longer match is quarantined.
 */

import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { type Consumer, type JetStreamClient, type JsMsg, jetstream, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { type ClientBase, DatabaseError } from 'pg';
import { Catalog } from '../../shared/db/catalog.ts';
import { type Client, connect, RECOUNT_LOCK } from '../../shared/db/connect.ts';
import type { Queryable } from '../../shared/db/roles.ts';
import type { AttemptRow, PartitionRow } from '../../shared/db/schema.ts';
import { assert, codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import { decodeBody, decodeHeader, type FrameHeader, MAX_MESSAGE_BYTES } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { RecordAssembler } from '../../shared/frame/records.ts';
import type { Logger } from '../../shared/logger.ts';
import { isLostReader, OUTAGE_LIMIT_MS, retryingRead } from '../../shared/nats/connect.ts';
import { messageAt } from '../../shared/nats/stream.ts';
import { factsText } from '../../shared/proof/facts.ts';
import {
  compare,
  type Discrepancy,
  describeDiscrepancies,
  type PartitionRef,
  type Recount,
  recount,
  recountNative,
} from '../../shared/proof/recount.ts';
import { differingRanges } from '../../shared/proof/value-ranges.ts';
import { COPY_HEADER, COPY_TRAILER } from '../../shared/proof-log/rows.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { LoggedRows, type Projection, type SharedSeconds } from '../rows/binary-copy.ts';
import { DirtyBuckets } from './dirty-buckets.ts';
import { compareShared, storedKlinesSha256 } from './kline-storage.ts';
import { catalogFacts, leafDiscrepancies, provingLeaf, storedDigest } from './logged-proof.ts';
import { partitionRefOf } from './partition-load.ts';
import { retractPartition } from './retract.ts';

/** A frame as it is read back from the log. */
export interface StoredFrame {
  readonly sequence: number;
  readonly header: FrameHeader;
  readonly raw: Buffer;
}

/** Frames that are decompressed in advance, as in the projector. */
const LOOKAHEAD = 4;

/**
 * The frames 0..n-1 of the attempt that a manifest ends; `manifestSequence` is the sequence of the manifest.
 * @throws TidemarkError LOG_DAMAGED when one is missing, altered or out of order.
 */
export async function* framesOf(
  connection: NatsConnection,
  manifest: Manifest,
  manifestSequence: number,
  batchBytes: number,
): AsyncGenerator<StoredFrame> {
  const { dataset, partition, attempt } = manifest;
  const prefetched: { sequence: number; header: FrameHeader; body: Promise<Buffer> }[] = [];
  let next = 0;
  const stretch = { dataset, first: manifest.first_sequence, last: manifestSequence - 1 };
  const batch = Math.max(1, Math.floor(batchBytes / MAX_MESSAGE_BYTES));
  for await (const message of messagesOf(connection, stretch, batch)) {
    const position = `${dataset} sequence ${message.seq}`;
    const header = decodeHeader(message.data, position);
    if (header.kind !== 'frame' || header.partition !== partition || header.attempt !== attempt) continue;
    if (header.frame !== next) {
      throw new TidemarkError('LOG_DAMAGED', `${position} holds frame ${header.frame}, expected frame ${next}`);
    }
    next++;
    const body = decodeBody(message.data, header, position);
    body.catch(() => {}); // the caller that awaits the body gets the error
    prefetched.push({ sequence: message.seq, header, body });
    if (prefetched.length >= LOOKAHEAD) yield await taken(prefetched.shift()!);
  }
  while (prefetched.length > 0) yield await taken(prefetched.shift()!);
  if (next !== manifest.frames) {
    throw new TidemarkError(
      'LOG_DAMAGED',
      `The log holds ${next} of ${manifest.frames} frames of ${dataset} ${partition} attempt ${attempt}`,
    );
  }
}

interface Stretch {
  readonly dataset: string;
  /** Sequences, both included. */
  readonly first: number;
  readonly last: number;
}

/** Longest time in which a reader delivers nothing before it is replaced. */
const FETCH_MS = 5000;
/** The pause before another reader is created. */
const PAUSE_MS = 200;

/**
 * Yields the messages of a range of sequences in order, up to the end of the log. A reader lives on one server of a cluster
 * and is lost with it; the next one continues where it stopped.
 * @throws TidemarkError LOG_UNAVAILABLE when nothing arrived for `OUTAGE_LIMIT_MS`.
 */
async function* messagesOf(
  connection: NatsConnection,
  { dataset, first, last }: Stretch,
  max_messages: number,
): AsyncGenerator<JsMsg> {
  const client = jetstream(connection);
  const manager = await jetstreamManager(connection, { checkAPI: false });
  let cameAt = performance.now();
  for (let next = first; next <= last; ) {
    const consumer = await readerAt(client, dataset, next);
    try {
      for (let came = true; came && next <= last; ) {
        came = false;
        const fetched = await consumer.fetch({ max_messages, expires: FETCH_MS });
        // Without a connection the client library would wait without end.
        const late = setTimeout(() => void fetched.close(), 2 * FETCH_MS);
        try {
          for await (const message of fetched) {
            came = true;
            next = message.seq + 1;
            if (message.seq <= last) yield message;
            cameAt = performance.now();
            if (next > last) break;
          }
        } finally {
          clearTimeout(late);
        }
      }
    } catch (error) {
      if (!isLostReader(error)) throw error;
    } finally {
      const removed = consumer.delete().catch(() => {});
      // The deletion of a reader that was lost is not awaited.
      if (next > last) await removed;
    }
    if (next > last || !(await messageAt(manager, dataset, last))) return;
    if (performance.now() - cameAt > OUTAGE_LIMIT_MS) {
      const message = `The log of ${dataset} delivered nothing for ${OUTAGE_LIMIT_MS / 1000} s at sequence ${next}`;
      throw new TidemarkError('LOG_UNAVAILABLE', message);
    }
    await delay(PAUSE_MS);
  }
}

const readerAt = (client: JetStreamClient, dataset: string, sequence: number): Promise<Consumer> =>
  retryingRead(() => client.consumers.get(dataset, { opt_start_seq: sequence }), {}, undefined, isLostReader);

async function taken(frame: { sequence: number; header: FrameHeader; body: Promise<Buffer> }): Promise<StoredFrame> {
  return { sequence: frame.sequence, header: frame.header, raw: await frame.body };
}

export interface VerifyNeeds {
  readonly dataset: DatasetDefinition;
  readonly client: ClientBase;
  readonly catalog: Catalog;
  readonly projection: Projection;
  /** Compares every row's bytes with the log as well; needs the next two. */
  readonly deep?: boolean;
  readonly connection?: NatsConnection;
  readonly batchBytes?: number;
}

export interface VerifyResult {
  readonly partition: string;
  readonly state: 'proved' | 'quarantined';
  readonly rows: number;
  readonly reason?: string;
}

/** A verdict needs one snapshot. When the coverage changed meanwhile, the next try sees the new one. */
const TRIES = 5;

export async function verifyPartition(row: PartitionRow, needs: VerifyNeeds): Promise<VerifyResult> {
  if (needs.projection.seconds) await DirtyBuckets.prepare(needs.client);
  for (let tries = 1; ; tries++) {
    try {
      return await verifyOnce(row, needs);
    } catch (error) {
      const moved = error instanceof DatabaseError && error.code === '40001';
      if (!moved || tries === TRIES) throw error;
    }
  }
}

async function verifyOnce(row: PartitionRow, needs: VerifyNeeds): Promise<VerifyResult> {
  const { dataset, client, projection } = needs;
  const partition = partitionRefOf(row);
  assert(row.manifest, 'a proved partition has a manifest');
  await client.query('begin isolation level repeatable read');
  try {
    await checkCurrent(row, needs);
    const { found, discrepancies } = await recountStored(client, dataset, projection, row, row.manifest);
    const leaf = await provingLeaf(client, dataset, row);
    discrepancies.push(...leafDiscrepancies(leaf, catalogFacts(row)));
    if (needs.deep && discrepancies.length === 0) {
      const log = await logDigests(row, partition, needs);
      const stored = await storedDigest(client, dataset, partition, dataset.native.columns);
      if (log.rows !== stored) discrepancies.push({ fact: 'rows_sha256', expected: log.rows, found: stored });
      const { events_sha256: expected } = row.manifest;
      discrepancies.push(...leafDiscrepancies(leaf, { rows_sha256: log.logged }));
      if (log.events !== expected) discrepancies.push({ fact: 'events_sha256', expected, found: log.events });
      if (row.klinesSha256 !== null && log.klines !== row.klinesSha256) {
        discrepancies.push({ fact: 'klines of the log', expected: row.klinesSha256, found: `${log.klines}` });
      }
      if (log.facts !== row.facts) {
        discrepancies.push({ fact: 'facts of the log', expected: `${row.facts}`, found: log.facts });
      }
    }
    const reason = describeDiscrepancies(discrepancies);
    if (reason) {
      await retractPartition(client, dataset, projection.seconds, row, { reason, by: 'verify', recount: found });
    }
    // A request that arrived after this snapshot is invisible here and stays.
    await client.query('delete from recount_requests where dataset_id = $1 and partition_key = $2', [
      dataset.number,
      row.partitionKey,
    ]);
    await client.query('commit');
    if (!reason) await noteVerified(row, needs);
    return {
      partition: row.partitionKey,
      state: reason ? 'quarantined' : 'proved',
      rows: found.rows,
      ...(reason ? { reason } : {}),
    };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Records the time of the verification in a statement of its own, so that no other process waits for its row lock. */
async function noteVerified({ partitionKey, attempt }: PartitionRow, { dataset, client }: VerifyNeeds): Promise<void> {
  await client.query(
    `update partitions set verified_at = clock_timestamp()
     where dataset_id = $1 and partition_key = $2 and attempt = $3 and state = 'proved'`,
    [dataset.number, partitionKey, attempt],
  );
}

/** Recounts stored native and aligned rows, and the digest of their klines. @returns the recount and its discrepancies. */
export async function recountStored(
  client: ClientBase,
  dataset: DatasetDefinition,
  projection: Projection,
  row: PartitionRow,
  manifest: Manifest,
): Promise<{ readonly found: Recount; readonly discrepancies: Discrepancy[] }> {
  const partition = partitionRefOf(row);
  if (projection.seconds) {
    const found = await recountNative(client, dataset, partition, dataset.native.table);
    const discrepancies = compare(dataset, manifest, found);
    const { made, stored } = await comparedSeconds(client, dataset, projection.seconds, partition);
    if (made !== stored) discrepancies.push({ fact: 'aligned_hash', expected: made, found: stored });
    return { found, discrepancies };
  }
  const tables = { native: dataset.native.table, aligned: ALIGNED_TABLE };
  const found = await recount(client, dataset, partition, tables, projection.alignedColumns);
  const discrepancies = compare(dataset, manifest, found);
  if (found.aligned_hash !== row.alignedHash) {
    discrepancies.push({ fact: 'aligned_hash', expected: `${row.alignedHash}`, found: `${found.aligned_hash}` });
  }
  if (row.klinesSha256 !== null) {
    const stored = await storedKlinesSha256(client, dataset, partition, row.inexactSeconds);
    if (stored !== row.klinesSha256) {
      discrepancies.push({ fact: 'klines_sha256', expected: row.klinesSha256, found: stored });
    }
    discrepancies.push(...(await compareShared(client, dataset, partition)));
  }
  // Altered rows have other ranges as well, which would tell nothing new.
  const other = discrepancies.length === 0 ? await differingRanges(client, dataset, partition) : undefined;
  if (other !== undefined) discrepancies.push({ fact: 'value_ranges', expected: 'those of the rows', found: other });
  return { found, discrepancies };
}

/**
 * Who took a partition out of service according to the ledger: `verify`, `source`, or `proof` where it never was
 * served.
 */
export async function quarantinedBy(client: Queryable, dataset: DatasetDefinition, key: string): Promise<string> {
  const { rows } = await client.query(
    `select details->>'by' as by from ledger where dataset_id = $1 and partition_key = $2 and kind = 'quarantined'
     order by entry_id desc limit 1`,
    [dataset.number, key],
  );
  return (rows[0]?.by as string | null | undefined) ?? 'proof';
}

/** Digests of the partition's seconds as the native rows of all partitions give them, and as they are stored. */
export async function comparedSeconds(
  client: ClientBase,
  dataset: DatasetDefinition,
  seconds: SharedSeconds,
  partition: PartitionRef,
): Promise<{ readonly made: string; readonly stored: string }> {
  const dirty = await DirtyBuckets.open(client, dataset, seconds);
  await dirty.addProof(partition);
  return await dirty.compare();
}

/** @throws TidemarkError PARTITION_CHANGED when the snapshot holds another attempt or state than `row`. */
async function checkCurrent(row: PartitionRow, { dataset, client }: VerifyNeeds): Promise<void> {
  const { rows } = await client.query<{ attempt: number; state: string }>(
    'select attempt, state from partitions where dataset_id = $1 and partition_key = $2',
    [dataset.number, row.partitionKey],
  );
  if (rows[0]?.attempt !== row.attempt || rows[0].state !== 'proved') {
    throw new TidemarkError('PARTITION_CHANGED', `${dataset.key} ${row.partitionKey} has changed since it was read`);
  }
}

/** The sequence of an attempt's manifest. @throws TidemarkError LOG_DAMAGED when the log lost it. */
export function inLog(dataset: DatasetDefinition, row: PartitionRow, attempt: AttemptRow | undefined): number {
  if (attempt?.manifestSequence) return attempt.manifestSequence;
  throw new TidemarkError('LOG_DAMAGED', `The log no longer holds ${dataset.key} ${row.partitionKey}`);
}

/**
 * sha256 of the partition in the log, in the order of offsets: of its rows as binary COPY, of its events, and of the klines that
 * its rows make.
 */
async function logDigests(
  row: PartitionRow,
  partition: PartitionRef,
  needs: VerifyNeeds,
): Promise<{ rows: string; logged: string; events: string; klines: string | undefined; facts: string }> {
  const { catalog, dataset, connection, projection, batchBytes } = needs;
  const attempt = await catalog.attempt(dataset, row.partitionKey, row.attempt);
  assert(row.manifest, 'a proved partition has a manifest');
  assert(connection && batchBytes !== undefined, 'a deep verification reads the log');
  const manifestSequence = inLog(dataset, row, attempt);
  const folded = projection.seconds ? undefined : projection.createRows(partition);
  const rows = folded ?? projection.createRows(partition);
  const assembler = new RecordAssembler();
  const digest = createHash('sha256').update(COPY_HEADER);
  const logged = new LoggedRows(dataset.native.columns);
  const events = createHash('sha256');
  for await (const frame of framesOf(connection, row.manifest, manifestSequence, batchBytes)) {
    events.update(frame.raw);
    const body = assembler.take(frame.header, frame.raw);
    if (!body) continue;
    const { copy } = rows.rows(body, frame.header.rows, frame.header);
    digest.update(copy);
    logged.update(copy);
  }
  folded?.aligned({ datasetId: dataset.number, seriesId: 0 });
  const klines = folded?.klines(dataset.number).sha256;
  const facts = factsText(dataset, row.manifest, folded?.facts());
  const all = digest.update(COPY_TRAILER).digest('hex');
  return { rows: all, logged: logged.digest(), events: events.digest('hex'), klines, facts };
}

/** Pause between two look-ups of the requests for recounts. */
const RECOUNT_POLL_MS = 5000;
/** Pause before the first look-up: a command that ends before it needs no connection. */
const RECOUNT_FIRST_MS = 1000;
/** The pause after a recount that failed, and while another process holds the lock. */
const RECOUNT_RETRY_MS = 15_000;

export interface RecountNeeds {
  readonly datasets: readonly DatasetDefinition[];
  readonly projectionOf: (dataset: DatasetDefinition) => Projection;
  readonly databaseUrl: string;
  readonly log: Logger;
  readonly signal: AbortSignal;
  /** When the requests are looked up for the first time. */
  readonly firstMs?: number;
}

/**
 * Carries out the recounts that reads ask for, until the signal: the service found another number of rows than was
 * proved and refused to answer. A partition that no longer matches its manifest is quarantined; any other stays in
 * service. One process recounts; others wait for its lock.
 */
export async function keepRecounted(needs: RecountNeeds): Promise<void> {
  const { databaseUrl, log, signal, firstMs = RECOUNT_FIRST_MS } = needs;
  await delay(firstMs, undefined, { signal }).catch(() => {});
  while (!signal.aborted) {
    try {
      await using client = await connect({ url: databaseUrl, name: 'tidemark recount' });
      const asked = await client.query('select pg_try_advisory_lock($1, 0) as held', [RECOUNT_LOCK]);
      while (asked.rows[0].held && !signal.aborted) {
        if (!(await answerRequest(client, needs))) await delay(RECOUNT_POLL_MS, undefined, { signal });
      }
    } catch (error) {
      if (signal.aborted) return;
      log.warn({ code: codeOf(error), fault: explain(error) }, 'a recount failed and is repeated later');
    }
    await delay(RECOUNT_RETRY_MS, undefined, { signal }).catch(() => {});
  }
}

/**
 * Recounts the partition of the oldest request. @returns its result; undefined if the queue is empty.
 * @throws what verification throws: the request moves behind the others.
 */
async function answerRequest(
  client: Client,
  { datasets, projectionOf, log }: Pick<RecountNeeds, 'datasets' | 'projectionOf' | 'log'>,
): Promise<VerifyResult | 'gone' | undefined> {
  const catalog = new Catalog(client);
  const all = [...datasets, ...(await catalog.instruments(datasets))];
  const { rows } = await client.query<{ dataset_id: number; partition_key: string; reason: string }>(
    `select dataset_id, partition_key, reason from recount_requests where dataset_id = any($1) order by asked_at limit 1`,
    [all.map(({ number }) => number)],
  );
  const [request] = rows;
  const dataset = all.find(({ number }) => number === request?.dataset_id);
  if (!request || !dataset) return undefined;
  const { partition_key: partition, reason: asked } = request;
  const row = await catalog.partition(dataset, partition);
  const facts = { dataset: dataset.key, partition, asked };
  if (row?.state !== 'proved') {
    await client.query('delete from recount_requests where dataset_id = $1 and partition_key = $2', [
      dataset.number,
      partition,
    ]);
    log.warn(facts, 'a recount was requested of a partition that is no longer proved');
    return 'gone';
  }
  try {
    const result = await verifyPartition(row, { dataset, client, catalog, projection: projectionOf(dataset) });
    if (result.state === 'quarantined') {
      log.error({ ...facts, reason: result.reason }, 'a recount confirmed what a read found: quarantined');
    } else {
      log.warn(facts, 'a recount found the partition as it was proved; it stays in service');
    }
    return result;
  } catch (error) {
    await client.query(
      'update recount_requests set asked_at = clock_timestamp() where dataset_id = $1 and partition_key = $2',
      [dataset.number, partition],
    );
    throw error;
  }
}
