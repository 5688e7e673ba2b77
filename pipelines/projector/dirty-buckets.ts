/**
 * Dirty buckets: aligned rows of datasets whose partitions share seconds, such as two blocks of one second or the
 * captures of a day. The transaction that changes a partition rebuilds the seconds it touches from the native rows of
 * all proved partitions, so stored aligned rows always equal the proved rows.
 */

import type { ClientBase } from 'pg';
import { TidemarkError } from '../../shared/errors.ts';
import {
  alignedHashSql,
  type PartitionRef,
  scopeJoinSql,
  scopeOfManySql,
  scopeSql,
} from '../../shared/proof/recount.ts';
import { ALIGNED_CHUNK_MS, ALIGNED_DENSE_FROM_MS, ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { PARTITION_FACTS } from '../../shared/registry/definition.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { SharedSeconds } from '../rows/binary-copy.ts';
import { allowDecompression, ensureAlignedChunks } from './chunks.ts';

/** Temporary tables of the session; PostgreSQL empties them at the end of each transaction. */
const DIRTY = 'dirty_seconds';
const MADE = 'made_seconds';

/** Up to this number of dirty seconds, each is looked up on its own. */
const FEW_SECONDS = 200;

const FACTS = PARTITION_FACTS.map((fact) => `p.${fact}`).join(', ');

/** The second of a row, rounded down for times before 1970 as well; integer arithmetic is the fastest. */
function secondSql({ native }: DatasetDefinition): string {
  const time = `t."${native.time.column}"`;
  return `((${time} - ((${time} % 1000) + 1000) % 1000) / 1000)`;
}

/** Connections whose session has the tables: a verification prepares before each of thousands of partitions. */
const PREPARED = new WeakSet<ClientBase>();

export class DirtyBuckets {
  readonly #client: ClientBase;
  readonly #dataset: DatasetDefinition;
  readonly #shared: SharedSeconds;
  /** The number of dirty seconds. */
  #seconds = 0;
  #bounds: { readonly first: number; readonly last: number } | undefined;

  private constructor(client: ClientBase, dataset: DatasetDefinition, shared: SharedSeconds) {
    this.#client = client;
    this.#dataset = dataset;
    this.#shared = shared;
  }

  /** Creates the session's tables, once. Call it before a transaction: a rollback would drop them. */
  static async prepare(client: ClientBase): Promise<void> {
    if (PREPARED.has(client)) return;
    await client.query(
      `set client_min_messages = warning;
       create temp table if not exists ${DIRTY} (second int8 primary key) on commit delete rows;
       create temp table if not exists ${MADE} (like ${ALIGNED_TABLE}) on commit delete rows;
       alter table ${MADE} add column if not exists series_key text, alter series_id drop not null;
       reset client_min_messages`,
    );
    PREPARED.add(client);
  }

  /** Starts with no dirty second, inside a transaction. */
  static async open(client: ClientBase, dataset: DatasetDefinition, shared: SharedSeconds): Promise<DirtyBuckets> {
    await client.query(`delete from ${DIRTY}`);
    await allowDecompression(client);
    return new DirtyBuckets(client, dataset, shared);
  }

  /** Adds the seconds of a partition's stored rows. */
  async addPartition(partition: PartitionRef): Promise<void> {
    await this.#addRows(scopeSql(this.#dataset, partition));
  }

  /** Adds the seconds of the stored rows of several partitions. */
  async addPartitions(partitions: readonly PartitionRef[]): Promise<void> {
    await this.#addRows(scopeOfManySql(this.#dataset, partitions));
  }

  async #addRows(test: string): Promise<void> {
    await this.#add(
      `select distinct ${secondSql(this.#dataset)} as second from ${this.#dataset.native.table} t where ${test}`,
    );
  }

  /**
   * Adds the seconds that a verification compares: the own ones of a vintage, which spans decades; else the whole
   * window.
   */
  async addProof(partition: PartitionRef): Promise<void> {
    if (this.#dataset.partition.kind === 'vintage') await this.addPartition(partition);
    else await this.addWindow(partition);
  }

  /** Adds every second of the partition's window that has rows of any partition, native or aligned. */
  async addWindow(partition: PartitionRef): Promise<void> {
    const { native, number } = this.#dataset;
    const { fromMs, toMs } = partition;
    await this.#add(`select distinct ${secondSql(this.#dataset)} as second from ${native.table} t
      where t."${native.time.column}" >= ${fromMs} and t."${native.time.column}" < ${toMs}
      union select extract(epoch from a.aligned_at_utc)::int8 from ${ALIGNED_TABLE} a where a.dataset_id = ${number}
        and a.aligned_at_utc >= ${timestamp(Math.floor(fromMs / 1000))} and a.aligned_at_utc < ${timestamp(Math.ceil(toMs / 1000))}`);
  }

  async #add(select: string): Promise<void> {
    const { rows } = await this.#client.query(
      `with added as (insert into ${DIRTY} select second from (${select}) s on conflict do nothing returning second)
       select min(second)::text as first, max(second)::text as last, count(*)::int as seconds from added`,
    );
    this.#seconds += rows[0].seconds;
    if (rows[0].first === null) return;
    const [first, last] = [Number(rows[0].first), Number(rows[0].last)];
    this.#bounds = {
      first: Math.min(first, this.#bounds?.first ?? first),
      last: Math.max(last, this.#bounds?.last ?? last),
    };
  }

  /**
   * Creates the aligned chunks of the dirty seconds on another connection. Creating one blocks every other writer of
   * the table until the commit, which must not take as long as a load.
   */
  async ensureChunks(side: ClientBase, known: Set<number>): Promise<void> {
    if (!this.#bounds) return;
    const [dense, chunk] = [ALIGNED_DENSE_FROM_MS / 1000, ALIGNED_CHUNK_MS / 1000];
    const { rows } = await this.#client.query<{ chunk: string; second: string }>(
      `select floor(second / case when second < ${dense} then ${dense}.0 else ${chunk}.0 end)::int8 as chunk, min(second) as second
       from ${DIRTY} group by 1`,
    );
    const unknown = rows.filter((row) => !known.has(Number(row.chunk)));
    if (unknown.length === 0) return;
    await ensureAlignedChunks(
      side,
      this.#dataset,
      unknown.map(({ second }) => Number(second) * 1000),
    );
    for (const row of unknown) known.add(Number(row.chunk));
  }

  /** Computes what the dirty seconds must hold: rows of MADE, each with the number of its series. */
  async #make(): Promise<void> {
    const { columns, select } = this.#shared;
    const { number, aligned } = this.#dataset;
    const made = select(this.#rows());
    const seriesKey = aligned.seriesKey.length === 0 ? `''` : `concat_ws('|', ${aligned.seriesKey.join(', ')})`;
    // The planner has no statistics of the new rows, and would scan all of them for each of thousands of seconds.
    const many = this.#seconds > FEW_SECONDS;
    await this.#client.query(
      `delete from ${MADE};
       set local enable_nestloop = ${many ? 'off' : 'on'};
       insert into ${MADE} (dataset_id, series_key, aligned_at_utc, ${columns.join(', ')})
       select ${number}, ${seriesKey}, to_timestamp(m.second), ${columns.map((column) => `m.${column}`).join(', ')}
       from (${made}) m;
       set local enable_nestloop = on`,
    );
    if (aligned.seriesKey.length > 0) {
      await this.#client.query(
        `insert into series (dataset_id, key) select distinct dataset_id, series_key from ${MADE} m
         where not exists (select from series s where s.dataset_id = m.dataset_id and s.key = m.series_key)
         on conflict do nothing`,
      );
    }
    await this.#client.query(
      `update ${MADE} m set series_id = s.series_id from series s where s.dataset_id = m.dataset_id and s.key = m.series_key`,
    );
  }

  /**
   * SQL: the native rows of the dirty seconds that belong to proved partitions, each with the facts of its partition.
   * The second is compared twice: an index finds a few seconds among decades by their times, a hash join many by
   * equality.
   */
  #rows(): string {
    const { native, offset, number } = this.#dataset;
    const time = `t."${native.time.column}"`;
    const { fromMs, toMs } = this.#times();
    return `(with p as materialized (
        select p.partition_key, p.span, ${FACTS} from partitions p
        where p.dataset_id = ${number} and p.state = 'proved' and p.from_ms < ${toMs} and p.to_ms > ${fromMs})
      select t.*, s.second, ${offset.sql} as source_offset, ${FACTS}
      from ${DIRTY} s
      join ${native.table} t on ${secondSql(this.#dataset)} = s.second
        and ${time} >= s.second * 1000 and ${time} < s.second * 1000 + 1000
      join p on ${scopeJoinSql(this.#dataset)}
      where ${time} >= ${fromMs} and ${time} < ${toMs})`;
  }

  #times(): { readonly fromMs: number; readonly toMs: number } {
    const { first, last } = this.#bounds ?? { first: 0, last: -1 };
    return { fromMs: first * 1000, toMs: (last + 1) * 1000 };
  }

  /** SQL: the condition for the aligned rows `a` of the dirty seconds. */
  #storedSql(): string {
    const { fromMs, toMs } = this.#times();
    return `a.dataset_id = ${this.#dataset.number} and a.aligned_at_utc = to_timestamp(s.second)
      and a.aligned_at_utc >= ${timestamp(fromMs / 1000)} and a.aligned_at_utc < ${timestamp(toMs / 1000)}`;
  }

  /**
   * Rebuilds the dirty seconds. The catalog already lists which partitions are proved.
   * @throws TidemarkError LOG_DAMAGED when the aligned rows count another number of events than there are
   * rows.
   */
  async rebuild(): Promise<void> {
    if (!this.#bounds) return;
    await this.#make();
    await this.#client.query(`delete from ${ALIGNED_TABLE} a using ${DIRTY} s where ${this.#storedSql()}`);
    const columns = ['dataset_id', 'series_id', 'aligned_at_utc', ...this.#shared.columns].join(', ');
    await this.#client.query(`insert into ${ALIGNED_TABLE} (${columns}) select ${columns} from ${MADE}`);
    const { countField } = this.#dataset.aligned;
    if (countField === undefined) return;
    const counted = await this.#client.query(
      `select (select count(*) from ${this.#rows()} t) as expected, coalesce(sum(${countField}), 0) as found from ${MADE}`,
    );
    const [{ expected, found }] = counted.rows;
    if (expected !== found) {
      throw new TidemarkError('LOG_DAMAGED', `aligned_events: expected ${expected}, found ${found}`);
    }
  }

  /** Digests of the dirty seconds as they should be and as they are stored; they differ if storage was altered. */
  async compare(): Promise<{ readonly made: string; readonly stored: string }> {
    if (!this.#bounds) return { made: '0 rows', stored: '0 rows' };
    await this.#make();
    const hash = alignedHashSql(this.#dataset, ['aligned_at_utc', ...this.#shared.columns]);
    const digest = `count(*) || ' rows, ' || coalesce(sum(hashint4extended(t.series_id, ${hash})), 0) as digest`;
    const made = await this.#client.query(`select ${digest} from ${MADE} t`);
    const stored = await this.#client.query(
      `select ${digest} from (select a.* from ${ALIGNED_TABLE} a, ${DIRTY} s where ${this.#storedSql()}) t`,
    );
    return { made: made.rows[0].digest, stored: stored.rows[0].digest };
  }
}

const timestamp = (second: number) => `timestamptz '${new Date(second * 1000).toISOString()}'`;
