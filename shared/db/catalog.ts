/**
 * The catalog: reads and changes the state of partitions and attempts, and writes the ledger. Statements are plain SQL;
 * columns and types of their rows come from schema.ts.
 */

import type { ClientBase, Pool, QueryResultRow } from 'pg';
import type { DocumentFacts, Manifest, PartitionFacts } from '../frame/manifest.ts';
import type { LeafReason } from '../proof-log/leaf.ts';
import { parseMultirange, type Range } from '../ranges.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { baseOf, type Instrument, seriesKeyFor } from '../registry/instruments.ts';
import { keyFacts } from '../registry/keys.ts';
import { PROJECTOR_LOCK } from './connect.ts';
import { claimInstrument, registeredInstruments } from './instruments.ts';
import { arrivalSql, type LateArrival, PUBLISHED_SQL, REPACKED_SQL } from './late-arrivals.ts';
import type { LedgerKind } from './ledger-kinds.ts';
import { leafOf } from './partition-changes.ts';
import { proofSecret } from './proof-secret.ts';
import {
  type AttemptRow,
  attempts,
  type CatalogShape,
  type CheckpointRow,
  type CoverageRow,
  checkpoints,
  coverage,
  type LedgerRow,
  ledger,
  type PartitionRow,
  partitions,
  rowsOf,
  type StoredRow,
  storedColumns,
} from './schema.ts';

/** Writes an entry of the ledger. */
export async function record(
  client: ClientBase | Pool,
  dataset: DatasetDefinition,
  partition: string,
  kind: LedgerKind,
  reason: string,
  details: Readonly<Record<string, unknown>> = {},
): Promise<void> {
  await (client as Pool).query(
    'insert into ledger (dataset_id, partition_key, kind, reason, details) values ($1, $2, $3, $4, $5)',
    [dataset.number, partition, kind, reason, details],
  );
}

const PARTITION = rowsOf(partitions);
const ATTEMPT = rowsOf(attempts);
const COVERAGE = rowsOf(coverage);
const CHECKPOINT = rowsOf(checkpoints);
const LEDGER = rowsOf(ledger);
const PARTITION_STATUS = rowsOf(partitions, ['state', 'synthetic', 'revision', 'fromMs'], 'p');
const OPENING = storedColumns(partitions, ['partitionKey', 'sourceId', 'span', 'fromMs', 'toMs']);
/** Late arrivals at partition $2 of dataset $1 since an operator last had it published again, which they do not concern. */
const REFUSALS = `ledger where dataset_id = $1 and partition_key = $2 and kind = 'late_arrival_refused'
  and entry_id > (select coalesce(max(entry_id), 0) from ledger
    where dataset_id = $1 and partition_key = $2 and kind in ('revision_proved', 'released'))`;
const ATTEMPT_STATE = rowsOf(attempts, ['partitionKey', 'attempt', 'state', 'reason']);

/** What the database shows of the activity of a projector. */
export interface ProjectorActivity {
  /** Stream sequence of the checkpoint; 0 without one. */
  readonly sequence: number;
  /** The connection that holds the projector's lock. */
  readonly holder: { readonly name: string; readonly pid: number; readonly since: Date } | undefined;
  /** A text that changes when the holder does anything or another one takes its place. */
  readonly activity: string;
  /** Whether the holder is executing a statement now and waits neither for a lock nor for its client. */
  readonly isBusy: boolean;
}

type EndedState = 'proved' | 'quarantined';
type Refusal = { readonly document: DocumentFacts; readonly reason: string };
type Found = { readonly document: DocumentFacts; readonly found?: Pick<PartitionFacts, 'events_sha256'> };

export interface PartitionStatus {
  readonly partition: Pick<PartitionRow, 'state' | 'synthetic' | 'revision' | 'fromMs'> | undefined;
  readonly attemptState: AttemptRow['state'] | undefined;
}

export class Catalog {
  readonly #client: ClientBase | Pool;

  constructor(client: ClientBase | Pool) {
    this.#client = client;
  }

  async #query<T extends QueryResultRow>(sql: string, values: readonly unknown[]): Promise<T[]> {
    return (await (this.#client as Pool).query<T>(sql, [...values])).rows;
  }

  /** Selects rows of one table. @param rest The statement from `from` on. */
  async #select<Row>({ columns, decode }: CatalogShape<Row>, rest: string, values: readonly unknown[]): Promise<Row[]> {
    return decode(await this.#query(`select ${columns} ${rest}`, values));
  }

  async partition(dataset: DatasetDefinition, key: string): Promise<PartitionRow | undefined> {
    const rest = 'from partitions where dataset_id = $1 and partition_key = $2';
    return (await this.#select(PARTITION, rest, [dataset.number, key]))[0];
  }

  async projectorActivity(dataset: DatasetDefinition): Promise<ProjectorActivity> {
    const [row] = await this.#query<Record<string, never>>(
      `select c.stream_sequence as sequence, a.pid, a.application_name as name, a.backend_start as since,
         concat_ws(' ', a.pid, a.state_change, p.tuples_processed) as activity,
         coalesce(a.state = 'active' and coalesce(a.wait_event_type, '') not in ('Client', 'Lock'), false) as busy
       from (select $1::int8 as id) d
       left join checkpoints c on c.dataset_id = d.id
       left join pg_locks l on l.locktype = 'advisory' and l.classid = $2 and l.objid::int8 = d.id and l.objsubid = 2
         and l.granted and l.database = (select oid from pg_database where datname = current_database())
       left join pg_stat_activity a on a.pid = l.pid
       left join pg_stat_progress_copy p on p.pid = a.pid`,
      [baseOf(dataset).number, PROJECTOR_LOCK],
    );
    const { sequence, pid, name, since, activity, busy } = row;
    const holder = pid === null ? undefined : { name, pid, since };
    return { sequence: Number(sequence ?? 0), holder, activity, isBusy: busy };
  }

  /** The partitions whose window starts in [fromMs, toMs), in order of time. */
  async partitions(dataset: DatasetDefinition, fromMs = -8.64e15, toMs = 8.64e15): Promise<PartitionRow[]> {
    return await this.#select(
      PARTITION,
      `from partitions where dataset_id = $1 and from_ms >= $2 and from_ms < $3
       order by from_ms, partition_key`,
      [dataset.number, fromMs, toMs],
    );
  }

  /** The number of proved partitions of the sample, and of real partitions in any state. */
  async counts(
    dataset: DatasetDefinition,
  ): Promise<{ readonly synthetic: number; readonly real: number; readonly firstSynthetic: string | null }> {
    const [{ synthetic, real, first }] = await this.#query<{ synthetic: string; real: string; first: string | null }>(
      `select count(*) filter (where synthetic and state = 'proved') as synthetic,
         count(*) filter (where not synthetic) as real,
         min(partition_key) filter (where synthetic and state = 'proved') as first from partitions where dataset_id = $1`,
      [dataset.number],
    );
    return { synthetic: Number(synthetic), real: Number(real), firstSynthetic: first };
  }

  /** The key of the earliest real partition in any state. */
  async firstKey(dataset: DatasetDefinition): Promise<string | undefined> {
    const sql = `select partition_key as key from partitions where dataset_id = $1 and not synthetic and from_ms is not null
      order by from_ms limit 1`;
    return (await this.#query<{ key: string }>(sql, [dataset.number]))[0]?.key;
  }

  /** The keys among `keys` that need no more work, with their states: proved, or quarantined until an operator acts. */
  async endedKeys(dataset: DatasetDefinition, keys: readonly string[]): Promise<ReadonlyMap<string, EndedState>> {
    const sql = `select partition_key as key, state from partitions where dataset_id = $1
      and partition_key = any ($2::text[]) and state in ('proved', 'quarantined') and not synthetic`;
    const rows = await this.#query<{ key: string; state: EndedState }>(sql, [dataset.number, keys]);
    return new Map(rows.map(({ key, state }) => [key, state]));
  }

  /** The proved partition whose last verification is the longest ago, and before `before`. */
  async longestUnverified(
    datasets: readonly DatasetDefinition[],
    before: Date,
    except: readonly Pick<PartitionRow, 'datasetId' | 'partitionKey'>[] = [],
  ): Promise<PartitionRow | undefined> {
    const rest = `from partitions where dataset_id = any ($1::int2[]) and state = 'proved'
        and coalesce(verified_at, proved_at) < $2 and from_ms is not null
        and (dataset_id, partition_key) not in (select * from unnest($3::int2[], $4::text[]))
      order by coalesce(verified_at, proved_at) limit 1`;
    const parameters = [
      datasets.map(({ number }) => number),
      before,
      except.map(({ datasetId }) => datasetId),
      except.map(({ partitionKey }) => partitionKey),
    ];
    return (await this.#select(PARTITION, rest, parameters))[0];
  }

  /**
   * Of the real partitions that are proved and begin before a time, the one that its source was asked about the longest ago: of the
   * dataset or instrument whose turn it is.
   */
  async longestUnasked(
    datasets: readonly DatasetDefinition[],
    beforeMs: number,
  ): Promise<{ readonly dataset: DatasetDefinition; readonly key: string } | undefined> {
    const [found] = await this.#query<{ number: number; key: string }>(
      `select dataset_id as number, partition_key as key from (
         select distinct on (dataset_id) dataset_id, partition_key, max(asked_at) over (partition by dataset_id) as turn
         from partitions where dataset_id = any ($1::int2[]) and state = 'proved' and not synthetic and from_ms < $2
         order by dataset_id, coalesce(asked_at, proved_at), from_ms) p
       order by turn nulls first, dataset_id limit 1`,
      [datasets.map(({ number }) => number), beforeMs],
    );
    return found && { dataset: datasets.find(({ number }) => number === found.number)!, key: found.key };
  }

  /** When the source of any of the datasets was last asked about an old day, epoch ms. */
  async lastAsked(datasets: readonly DatasetDefinition[]): Promise<number | undefined> {
    const [{ at }] = await this.#query<{ at: Date | null }>(
      'select max(asked_at) as at from partitions where dataset_id = any ($1::int2[])',
      [datasets.map(({ number }) => number)],
    );
    return at?.getTime();
  }

  /** Notes that a source was asked about a partition, whatever it answered. */
  async noteAsked(dataset: DatasetDefinition, key: string): Promise<void> {
    await this.#query(
      'update partitions set asked_at = clock_timestamp() where dataset_id = $1 and partition_key = $2',
      [dataset.number, key],
    );
  }

  /** The known partitions among `keys`. */
  async partitionsOf(dataset: DatasetDefinition, keys: readonly string[]): Promise<PartitionRow[]> {
    return await this.#select(PARTITION, `from partitions where dataset_id = $1 and partition_key = any ($2::text[])`, [
      dataset.number,
      keys,
    ]);
  }

  /** The texts of the stored values of partitions of metrics, by metric id. */
  async valueTexts(dataset: DatasetDefinition, keys: readonly string[]): Promise<ReadonlyMap<string, string | null>> {
    const rows = await this.#query<{ metric_id: string; value_text: string | null }>(
      `select metric_id, value_text from ${dataset.native.table} where partition_key = any ($1::text[])`,
      [keys],
    );
    return new Map(rows.map(({ metric_id, value_text }) => [metric_id, value_text]));
  }

  /** The heights of stored blocks that do not follow the block stored below them, in order. A whole chain takes 0.6 s. */
  async chainBreaks(headers: DatasetDefinition): Promise<number[]> {
    const found = await this.#query<{ height: string }>(
      `select height from (
         select height, prev_hash, lag(height) over by_height as below, lag(block_hash) over by_height as below_hash
         from ${headers.native.table} window by_height as (order by height)) b
       where below = height - 1 and prev_hash <> below_hash order by height`,
      [],
    );
    return found.map(({ height }) => Number(height));
  }

  /** The captures of each group, a source and a day, in the order of their numbers. */
  async captures(dataset: DatasetDefinition, groups: readonly string[]): Promise<PartitionRow[]> {
    return await this.#select(
      PARTITION,
      `from partitions where dataset_id = $1
         and split_part(partition_key, ':', 1) || ':' || split_part(partition_key, ':', 2) = any ($2::text[])
       order by coalesce(nullif(split_part(partition_key, ':', 3), '')::int4, 1)`,
      [dataset.number, groups],
    );
  }

  /** The partitions of a source that overlap the span, in its order. */
  async overlapping(dataset: DatasetDefinition, sourceId: string, { from, to }: Range): Promise<PartitionRow[]> {
    return await this.#select(
      PARTITION,
      `from partitions where dataset_id = $1 and source_id = $2 and span && int8range($3, $4)
       order by span, partition_key`,
      [dataset.number, sourceId, from, to],
    );
  }

  /** The lowest value that an ended partition of a source covers: proved or quarantined, synthetic or real. */
  async firstEnded(dataset: DatasetDefinition, sourceId: string, synthetic: boolean): Promise<number | undefined> {
    const [{ first }] = await this.#query<{ first: string | null }>(
      `select min(lower(span)) as first from partitions
       where dataset_id = $1 and source_id = $2 and state in ('proved', 'quarantined') and synthetic = $3`,
      [dataset.number, sourceId, synthetic],
    );
    return first === null ? undefined : Number(first);
  }

  /** The parts of a span that no partition of a source in one of the given states covers, synthetic or real. */
  async uncovered(
    dataset: DatasetDefinition,
    sourceId: string,
    { from, to }: Range,
    { states, synthetic }: { readonly states: readonly PartitionRow['state'][]; readonly synthetic: boolean },
  ): Promise<Range[]> {
    const [{ missing }] = await this.#query<{ missing: string }>(
      `select (int8multirange(int8range($3, $4)) - coalesce(range_agg(span), '{}'))::text as missing from partitions
       where dataset_id = $1 and source_id = $2 and span && int8range($3, $4) and synthetic = $5 and state = any ($6::text[])`,
      [dataset.number, sourceId, from, to, synthetic, states],
    );
    return parseMultirange(missing);
  }

  /** The attempts at a partition, newest first. */
  async attempts(dataset: DatasetDefinition, key: string): Promise<AttemptRow[]> {
    return await this.#select(
      ATTEMPT,
      `from attempts where dataset_id = $1 and partition_key = $2 order by attempt desc`,
      [dataset.number, key],
    );
  }

  async attempt(dataset: DatasetDefinition, key: string, attempt: number): Promise<AttemptRow | undefined> {
    return (await this.attempts(dataset, key)).find((row) => row.attempt === attempt);
  }

  async coverage(dataset: DatasetDefinition): Promise<CoverageRow | undefined> {
    return (await this.#select(COVERAGE, 'from coverage where dataset_id = $1', [dataset.number]))[0];
  }

  /** The definition of another instrument of a dataset. */
  async instrument(base: DatasetDefinition, symbol: Instrument): Promise<DatasetDefinition> {
    return await claimInstrument(this.#client, base, symbol);
  }

  /** Every other instrument of these datasets that ever had a number. */
  async instruments(bases: readonly DatasetDefinition[]): Promise<DatasetDefinition[]> {
    return (await registeredInstruments(this.#client)).filter(({ base }) => base && bases.includes(base));
  }

  async checkpoint(dataset: DatasetDefinition): Promise<CheckpointRow | undefined> {
    return (await this.#select(CHECKPOINT, 'from checkpoints where dataset_id = $1', [baseOf(dataset).number]))[0];
  }

  async seriesId(dataset: DatasetDefinition, key = seriesKeyFor(dataset)): Promise<number> {
    const found = await this.#query<{ series_id: number }>(
      'select series_id from series where dataset_id = $1 and key = $2',
      [dataset.number, key],
    );
    return found[0].series_id;
  }

  /** What the projector needs to know of a partition, and of one attempt at it, to load it. */
  async partitionStatus(dataset: DatasetDefinition, key: string, attempt: number): Promise<PartitionStatus> {
    const rows = await this.#query<{ attemptState: AttemptRow['state'] | null }>(
      `select ${PARTITION_STATUS.columns}, a.state as "attemptState"
       from (select $1::int2 as id, $2::text as key) k
       left join partitions p on p.dataset_id = k.id and p.partition_key = k.key
       left join attempts a on a.dataset_id = k.id and a.partition_key = k.key and a.attempt = $3`,
      [dataset.number, key, attempt],
    );
    const [{ attemptState }] = rows;
    const [{ state, synthetic, revision, fromMs }] = PARTITION_STATUS.decode(rows);
    // Without a partition the join yields nulls.
    const isKnown = (state as string | null) !== null;
    return {
      attemptState: attemptState ?? undefined,
      partition: isKnown ? { state, synthetic, revision, fromMs } : undefined,
    };
  }

  /** The states of attempts, with the reasons of those that ended. */
  async attemptStates(
    dataset: DatasetDefinition,
    names: readonly { readonly partition: string; readonly attempt: number }[],
  ): Promise<readonly Pick<AttemptRow, 'partitionKey' | 'attempt' | 'state' | 'reason'>[]> {
    return await this.#select(
      ATTEMPT_STATE,
      `from attempts
       where dataset_id = $1 and (partition_key, attempt) in (select * from unnest($2::text[], $3::int4[]))`,
      [dataset.number, names.map(({ partition }) => partition), names.map(({ attempt }) => attempt)],
    );
  }

  /** The keys among `keys` that have an attempt. */
  async attemptedKeys(dataset: DatasetDefinition, keys: readonly string[]): Promise<ReadonlySet<string>> {
    const sql = `select distinct partition_key as key from attempts where dataset_id = $1 and partition_key = any ($2::text[])`;
    return new Set((await this.#query<{ key: string }>(sql, [dataset.number, keys])).map(({ key }) => key));
  }

  /**
   * Opens attempt number `attempt` of each key, or reopens it to resume an interrupted one. The partition moves to
   * `publishing` unless it is proved or quarantined: the rows of a proved partition are served while its revision is
   * published, and only a proof ends a quarantine. With `reingestReason`, the ledger records that a reingest started.
   */
  async openAttempts(
    dataset: DatasetDefinition,
    keys: readonly string[],
    opening: {
      readonly attempt: number;
      readonly revision: number;
      readonly publisher: string;
      readonly document: DocumentFacts;
      readonly synthetic: boolean;
      /** Why an operator replaces the partitions with a new revision. */
      readonly reingestReason?: string;
    },
  ): Promise<void> {
    const { attempt, revision, publisher, document, synthetic, reingestReason = null } = opening;
    const rows = keys.map((partitionKey) => {
      const { sourceId, span, times } = keyFacts(dataset, partitionKey);
      return (
        span
          ? { partitionKey, sourceId, span: `[${span.from},${span.to})`, fromMs: null, toMs: null }
          : { partitionKey, sourceId: null, span: null, fromMs: times.fromMs, toMs: times.toMs }
      ) satisfies StoredRow<typeof OPENING>;
    });
    // One statement, so that it is one transaction on a pool too.
    await this.#query(
      `with opening as (
         select * from jsonb_to_recordset($7) o (${OPENING.definitions})),
       abandoned as (
         update attempts set state = 'abandoned', reason = 'attempt ' || $2::int4 || ' follows', updated_at = clock_timestamp()
         where dataset_id = $1 and partition_key in (select "partitionKey" from opening) and state = 'publishing' and attempt < $2::int4),
       opened as (
         insert into attempts (dataset_id, partition_key, attempt, revision, state, publisher, document)
         select $1, "partitionKey", $2, $3, 'publishing', $4, $5 from opening
         on conflict (dataset_id, partition_key, attempt) do update set publisher = excluded.publisher, updated_at = clock_timestamp()),
       recorded as (
         insert into ledger (dataset_id, partition_key, kind, reason, details)
         select $1, "partitionKey", 'reingest_started', $8::text, jsonb_build_object('revision', $3::int4, 'attempt', $2::int4)
         from opening where $8::text is not null)
       insert into partitions (dataset_id, state, attempt, revision, synthetic, ${OPENING.names})
       select $1, 'publishing', $2, $3, $6, ${OPENING.members} from opening
       on conflict (dataset_id, partition_key) do update set state = 'publishing', attempt = excluded.attempt,
         revision = excluded.revision, synthetic = excluded.synthetic, reason = null, updated_at = clock_timestamp()
         where partitions.state not in ('proved', 'quarantined')`,
      [dataset.number, attempt, revision, publisher, document, synthetic, JSON.stringify(rows), reingestReason],
    );
  }

  /** Marks attempts whose manifest is in the log. The projector may have ended some already, so only open ones change. */
  async markPublished(
    dataset: DatasetDefinition,
    published: readonly { readonly manifest: Manifest; readonly sequence: number }[],
  ): Promise<void> {
    await this.#query(
      `with ended as (
         select manifest->>'partition' as key, (manifest->>'attempt')::int4 as attempt, manifest, sequence
         from jsonb_to_recordset($2) e (manifest jsonb, sequence int8)),
       published as (
         update attempts a set state = case when state = 'publishing' then 'published' else state end,
           manifest = e.manifest, manifest_sequence = e.sequence, frames = (e.manifest->>'frames')::int4,
           first_sequence = (e.manifest->>'first_sequence')::int8, updated_at = clock_timestamp()
         from ended e where a.dataset_id = $1 and a.partition_key = e.key and a.attempt = e.attempt)
       update partitions p set state = 'published', updated_at = clock_timestamp() from ended e
       where p.dataset_id = $1 and p.partition_key = e.key and p.attempt = e.attempt and p.state = 'publishing'`,
      [dataset.number, JSON.stringify(published)],
    );
  }

  /**
   * Abandons an attempt that is being published, or one that was published and will never be proved. Nothing refers to its frames;
   * a partition without an earlier proof is missing again. @returns false when the attempt was in another state
   */
  async abandonAttempt(
    dataset: DatasetDefinition,
    key: string,
    attempt: number,
    reason: string,
    state: 'publishing' | 'published' = 'publishing',
  ): Promise<boolean> {
    // Partitions are locked before attempts, as everywhere.
    const abandoned = await this.#query(
      `with removed as (
         delete from partitions where dataset_id = $1 and partition_key = $2 and attempt = $3 and state = $5 returning 1)
       update attempts set state = 'abandoned', reason = $4, manifest_sequence = null, first_sequence = null,
         updated_at = clock_timestamp()
       where dataset_id = $1 and partition_key = $2 and attempt = $3 and state = $5 and (select count(*) from removed) >= 0
       returning 1`,
      [dataset.number, key, attempt, reason, state],
    );
    return abandoned.length > 0;
  }

  /** Quarantined partitions in order of time, and how many there are; with a key that one alone. */
  async quarantined(
    dataset: DatasetDefinition,
    { limit, key }: { readonly limit: number; readonly key?: string },
  ): Promise<{ readonly total: number; readonly rows: PartitionRow[] }> {
    const chosen = `from partitions
      where dataset_id = $1 and state = 'quarantined' and ($2::text is null or partition_key = $2)`;
    const values = [dataset.number, key];
    const [{ total }] = await this.#query<{ total: string }>(`select count(*) as total ${chosen}`, values);
    const rows = await this.#select(PARTITION, `${chosen} order by from_ms, partition_key limit $3`, [
      ...values,
      limit,
    ]);
    return { total: Number(total), rows };
  }

  /** Entries of the ledger, newest first; of all kinds if `kind` is undefined. */
  async ledger(dataset: DatasetDefinition, kind: string | undefined, limit: number): Promise<LedgerRow[]> {
    return await this.#select(
      LEDGER,
      'from ledger where dataset_id = $1 and ($2::text is null or kind = $2) order by entry_id desc limit $3',
      [dataset.number, kind, limit],
    );
  }

  /** The documents refused since the partition was proved with other content, in the order in which they came. */
  async refusals(dataset: DatasetDefinition, key: string): Promise<readonly Refusal[]> {
    const sql = `select details -> 'document' as document, reason from ${REFUSALS} and details ? 'document' order by entry_id`;
    return await this.#query(sql, [dataset.number, key]);
  }

  /**
   * Records a refused document in the ledger, the proof log and, where its rows were compared, among the late arrivals, unless the
   * ledger has its content. @returns whether it had not
   */
  async recordRefusal(
    dataset: DatasetDefinition,
    key: string,
    reason: string,
    details: Found,
    arrival?: LateArrival,
  ): Promise<boolean> {
    const { attempt, body, salt } = await this.#refusal(
      dataset,
      key,
      details.document,
      'the partition is proved with other content',
    );
    const recorded = await this.#query(
      `with entry as (insert into ledger (dataset_id, partition_key, kind, reason, details)
         select $1, $2, 'late_arrival_refused', $3, $4 where not exists (
           select from ${REFUSALS} and (details -> 'document' ->> 'sha256' = $4::jsonb -> 'document' ->> 'sha256'
             or details -> 'found' ->> 'events_sha256' = $4::jsonb -> 'found' ->> 'events_sha256'))
         returning 1),
       leaf as (insert into proof_leaves (dataset_id, partition_key, attempt, kind, body, salt)
         select $1, $2, $5::int4, 'refused', $6::bytea, $7::bytea from entry
         returning entry_id, dataset_id, partition_key, attempt),
       arrived as (${arrivalSql('$8')})
       select from leaf`,
      [
        dataset.number,
        key,
        reason,
        details,
        attempt,
        body,
        salt,
        arrival === undefined ? null : JSON.stringify(arrival),
      ],
    );
    return recorded.length > 0;
  }

  /**
   * Records a document with the events that are proved, in another archive: of a vendor that packs anew for each request, the
   * first says it all.
   */
  async recordRepacked(dataset: DatasetDefinition, key: string, arrival: LateArrival): Promise<void> {
    const { attempt, body, salt } = await this.#refusal(
      dataset,
      key,
      arrival.document,
      'the partition is proved with the same events',
    );
    await this.#query(
      `with leaf as (insert into proof_leaves (dataset_id, partition_key, attempt, kind, body, salt)
         select $1, $2, $3::int4, 'refused', $4::bytea, $5::bytea where not exists (${REPACKED_SQL})
         returning entry_id, dataset_id, partition_key, attempt)
       ${arrivalSql('$6')}`,
      [dataset.number, key, attempt, body, salt, JSON.stringify(arrival)],
    );
  }

  async #refusal(dataset: DatasetDefinition, key: string, document: DocumentFacts, reason: LeafReason) {
    const known = await this.partition(dataset, key);
    const attempt = known?.attempt ?? 0;
    const stated = {
      kind: 'refused',
      partition: key,
      revision: known?.revision ?? 0,
      attempt,
      synthetic: known?.synthetic ?? false,
      manifest: null,
      document,
      reason,
    } as const;
    return { attempt, ...leafOf(dataset, stated, await proofSecret(this.#client)) };
  }

  /** Whether a document with the events of a proved attempt in another archive is recorded. */
  async isRepacked(dataset: DatasetDefinition, key: string, attempt: number): Promise<boolean> {
    return (await this.#query(REPACKED_SQL, [dataset.number, key, attempt])).length > 0;
  }

  /** Notes another document with the content that an attempt was proved with. */
  async noteSame(dataset: DatasetDefinition, key: string, attempt: number, document: DocumentFacts): Promise<void> {
    await this.#query('update partitions set same_document = $3 where dataset_id = $1 and partition_key = $2', [
      dataset.number,
      key,
      { attempt, document },
    ]);
  }

  /** The last of them. */
  async sameDocument(dataset: DatasetDefinition, key: string, attempt: number): Promise<DocumentFacts | undefined> {
    const [found] = await this.#query<{ document: DocumentFacts }>(
      `select same_document -> 'document' as document from partitions
       where dataset_id = $1 and partition_key = $2 and (same_document ->> 'attempt')::int4 = $3`,
      [dataset.number, key, attempt],
    );
    return found?.document;
  }

  /** Notes which document the source of a partition publishes now. @param isServed whether it has the proved content */
  async notePublished(dataset: DatasetDefinition, key: string, sha256: string, isServed: boolean): Promise<void> {
    await this.#query(PUBLISHED_SQL, [dataset.number, key, sha256, isServed]);
  }

  record(
    dataset: DatasetDefinition,
    key: string,
    kind: LedgerKind,
    reason: string,
    details?: Readonly<Record<string, unknown>>,
  ): Promise<void> {
    return record(this.#client, dataset, key, kind, reason, details);
  }
}
