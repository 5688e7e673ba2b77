/**
 * Runs: the work in progress that other processes can see, with its process, start and progress. A run holds a session
 * lock with its own number, so that a killed run is not mistaken for a running one.
 */
import { hostname } from 'node:os';
import { type ClientBase, DatabaseError, type Pool } from 'pg';
import { TidemarkError } from '../errors.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { SLOTS } from '../registry/instruments.ts';
import { type Client, connect, RUN_LOCK, WORK_LOCK } from './connect.ts';

export type RunKind = 'backfill' | 'reingest' | 'follow' | 'replay' | 'verify' | 'recover' | 'compact';
type RunState = 'running' | 'waiting' | 'done' | 'failed' | 'interrupted';

export interface RunCounts {
  readonly proved: number;
  readonly unchanged: number;
  readonly refused: number;
  readonly quarantined: number;
  readonly failed: number;
  readonly rows: number;
}

/** A partition that a run failed. */
export interface FailedUnit {
  readonly dataset: string;
  /** Or the document, where its partitions are not known. */
  readonly partition: string;
  readonly code: string;
  readonly reason: string;
  readonly at: string;
}

const MAX_REASON = 500;

/** The record of a partition that failed now. A document may have put any text into the reason. */
export const failedUnit = (
  dataset: string,
  { partition, code = 'UNEXPECTED', reason = '' }: Pick<FailedUnit, 'partition'> & Partial<FailedUnit>,
): FailedUnit => ({
  dataset,
  partition,
  code,
  reason: reason.slice(0, MAX_REASON).toWellFormed().replaceAll('\0', ''),
  at: new Date().toISOString(),
});

interface RunProgress extends Partial<RunCounts> {
  readonly planned?: number | null;
  readonly at_partition?: string | null;
  readonly failed_unit?: FailedUnit;
  readonly state?: RunState;
  readonly failures?: number;
  readonly fault?: string | null;
  /** The connection that holds the publisher leases. */
  readonly lease_backend?: number | null;
  readonly next_at?: Date | null;
  readonly succeeded_at?: Date | null;
}

interface RunNeeds {
  readonly databaseUrl: string;
  readonly kind: RunKind;
  readonly subject: string;
  readonly datasets: readonly DatasetDefinition[];
  /** The command line, as an operator would type it. */
  readonly command: string;
  /** Whether only one run of this kind may work on the subject at a time. */
  readonly exclusive?: boolean;
}

/** A row of the table `runs`, as reports show it. */
export interface RunRow extends RunCounts {
  readonly run_id: number;
  readonly kind: RunKind;
  readonly subject: string;
  readonly command: string;
  readonly host: string;
  readonly pid: number;
  /** `lost`: the run never ended, and its process no longer exists. */
  readonly state: RunState | 'lost';
  readonly planned: number | null;
  readonly at_partition: string | null;
  /** The first; of what is followed the latest. */
  readonly failed_unit: FailedUnit | null;
  readonly failures: number;
  readonly fault: string | null;
  readonly next_at_utc: string | null;
  readonly succeeded_at_utc: string | null;
  readonly started_at_utc: string;
  readonly updated_at_utc: string;
  readonly ended_at_utc: string | null;
}

/** Shortest time between two writes of progress. The end is always written. */
const WRITE_INTERVAL_MS = 1000;
/** Runs that ended longer ago are deleted: the ledger and the partitions show what they did. */
const RETENTION_DAYS = 90;

export class RunRecorder implements AsyncDisposable {
  readonly id: number;
  readonly #needs: RunNeeds;
  #client: Client;
  #pending: Record<string, unknown> = {};
  #written = -WRITE_INTERVAL_MS;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();
  #ended = false;

  private constructor(needs: RunNeeds, client: Client, id: number) {
    this.#needs = needs;
    this.#client = client;
    this.id = id;
  }

  /** @throws TidemarkError WORK_HELD naming the process that does the same work. */
  static async open(needs: RunNeeds): Promise<RunRecorder> {
    const { databaseUrl, kind, subject, datasets, command } = needs;
    const client = await connect({ url: databaseUrl, name: `tidemark run ${kind} ${subject}` });
    try {
      if (needs.exclusive) await takeWork(client, kind, subject);
      await client.query(`delete from runs where ended_at < now() - interval '${RETENTION_DAYS} days'`);
      // Take the lock before others see the row: without the lock the run would look killed.
      await client.query('begin');
      const { rows } = await client.query(
        `insert into runs (kind, subject, datasets, command, host, pid, state) values ($1, $2, $3, $4, $5, $6, 'running')
         returning run_id`,
        [kind, subject, datasets.map(({ number }) => number), command, hostname(), process.pid],
      );
      const id: number = rows[0].run_id;
      await client.query('select pg_advisory_lock($1, $2)', [RUN_LOCK, id]);
      await client.query('commit');
      return new RunRecorder(needs, client, id);
    } catch (error) {
      await client[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Records progress and writes it later, at most once a second. */
  note(progress: RunProgress): void {
    if (this.#ended) return;
    Object.assign(this.#pending, progress);
    if (this.#timer) return;
    const waitMs = Math.max(0, this.#written + WRITE_INTERVAL_MS - performance.now());
    this.#timer = setTimeout(() => this.#write(), waitMs).unref();
  }

  /** Writes progress now. If the database is unavailable it is lost; the next write has newer figures. */
  async write(progress: RunProgress): Promise<void> {
    if (this.#ended) return;
    Object.assign(this.#pending, progress);
    this.#write();
    await this.#writing;
  }

  async end(state: 'done' | 'failed' | 'interrupted', progress: RunProgress = {}): Promise<void> {
    if (this.#ended) return;
    this.#ended = true;
    Object.assign(this.#pending, { at_partition: null, lease_backend: null, ...progress, state, ended_at: new Date() });
    this.#write();
    await this.#writing;
  }

  #write(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#written = performance.now();
    const changes = this.#pending;
    this.#pending = {};
    this.#writing = this.#writing.then(() => this.#update(changes)).catch(() => {});
  }

  async #update(changes: Record<string, unknown>): Promise<void> {
    const names = Object.keys(changes);
    const sets = names.map((name, index) => `${name} = $${index + 2}`);
    const sql = `update runs set ${[...sets, 'updated_at = clock_timestamp()'].join(', ')} where run_id = $1`;
    const values = [this.id, ...names.map((name) => changes[name] ?? null)];
    try {
      await this.#client.query(sql, values);
    } catch (error) {
      // A statement that the database refuses (a full disk) leaves the connection and the lock as they are.
      if (error instanceof DatabaseError && error.severity === 'ERROR') throw error;
      // The connection was lost and the lock with it: take the lock again, under the same number.
      await this.#client[Symbol.asyncDispose]();
      const { databaseUrl, kind, subject } = this.#needs;
      this.#client = await connect({
        url: databaseUrl,
        name: `tidemark run ${kind} ${subject}`,
        connectTimeoutMs: 2000,
      });
      await this.#takeLock();
      await this.#client.query(sql, values);
    }
  }

  /** Waits for the lock: the database releases that of a lost connection only when it notices the loss. */
  async #takeLock(): Promise<void> {
    for (const deadline = performance.now() + LINGER_MS; performance.now() < deadline; ) {
      const asked = await this.#client.query('select pg_try_advisory_lock($1, $2) as held', [RUN_LOCK, this.id]);
      if (asked.rows[0].held) return;
      await this.#client.query('select pg_sleep(0.1)');
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end('failed');
    await this.#writing;
    await this.#client[Symbol.asyncDispose]();
  }
}

/** Longest wait until the database notices that the connection of a lock's holder is lost. */
const LINGER_MS = 2000;

async function takeWork(client: Client, kind: RunKind, subject: string): Promise<void> {
  for (const deadline = performance.now() + LINGER_MS; ; ) {
    const asked = await client.query('select pg_try_advisory_lock($1, hashtext($2)) as held', [
      WORK_LOCK,
      `${kind} ${subject}`,
    ]);
    if (asked.rows[0].held) return;
    if (performance.now() > deadline) break;
    await client.query('select pg_sleep(0.1)');
  }
  const [holder] = (await openRuns(client)).filter((run) => run.kind === kind && run.subject === subject);
  throw new TidemarkError('WORK_HELD', `Work of this kind (${kind}, ${subject}) is done ${describeHolder(holder)}`, {
    details: { host: holder?.host, pid: holder?.pid, since: holder?.started_at_utc },
  });
}

/** Describes the process of a run: `by pid 12 on host-a since ... (./tidemark ...)`. */
export function describeHolder(run: Pick<RunRow, 'host' | 'pid' | 'started_at_utc' | 'command'> | undefined): string {
  if (!run) return 'by another process';
  return `by pid ${run.pid} on ${run.host} since ${run.started_at_utc} (${run.command})`;
}

const COLUMNS = `run_id, kind, subject, command, host, pid,
  case when r.ended_at is null and not alive then 'lost' else state end as state,
  planned::float8, proved::float8, unchanged::float8, refused::float8, quarantined::float8, failed::float8, rows::float8,
  at_partition, failed_unit, failures, fault, next_at, succeeded_at, started_at, updated_at, ended_at`;
/** Runs with a column `alive`; pg_locks shows two-key locks with objsubid 2. */
const FROM = `from (select r.*, exists (select from pg_locks l where l.locktype = 'advisory' and l.classid = ${RUN_LOCK}
    and l.objid = r.run_id::oid and l.objsubid = 2 and l.granted
    and l.database = (select oid from pg_database where datname = current_database())) as alive from runs r) r`;

/** The running runs, oldest first. */
export async function openRuns(client: ClientBase | Pool): Promise<RunRow[]> {
  const { rows } = await (client as Pool).query(
    `select ${COLUMNS} ${FROM} where r.ended_at is null and alive order by run_id`,
  );
  return rows.map(reported);
}

/** Finished runs that reports show. */
const LATEST_RUNS = 20;

/** The latest runs, all in progress, and those that were killed until the same work begins again; newest first. */
export async function reportedRuns(client: ClientBase | Pool): Promise<RunRow[]> {
  const { rows } = await (client as Pool).query(
    `select ${COLUMNS} ${FROM}
     where (r.ended_at is null or r.run_id in (select run_id from runs order by run_id desc limit ${LATEST_RUNS}))
       and (alive or r.ended_at is not null
         or not exists (select from runs o where o.kind = r.kind and o.subject = r.subject and o.run_id > r.run_id))
     order by run_id desc`,
  );
  return rows.map(reported);
}

/** A report names at most this many partitions that failed. */
const MAX_FAILED_UNITS = 20;

/** What runs of ingestion failed and nobody has proved since, or the same command mended; the latest first. */
export async function unprovedFailures(
  client: ClientBase | Pool,
): Promise<(Pick<RunRow, 'kind' | 'subject' | 'command'> & { readonly failed_unit: FailedUnit })[]> {
  const { rows } = await (client as Pool).query(
    `select * from (
       select distinct on (failed_unit->>'dataset', failed_unit->>'partition') run_id, kind, subject, command, failed_unit
       from runs r where failed_unit is not null and kind in ('backfill', 'reingest', 'follow')
       order by failed_unit->>'dataset', failed_unit->>'partition', run_id desc) r
     where not exists (select from runs o where o.subject = r.subject and o.command = r.command and o.run_id > r.run_id
         and o.state = 'done')
       and not exists (select from partitions p
         join datasets d on d.dataset_id = case when p.dataset_id > ${SLOTS} then p.dataset_id >> 8 else p.dataset_id end
         where d.key = failed_unit->>'dataset' and p.state = 'proved' and p.proved_at > (failed_unit->>'at')::timestamptz
           and (p.partition_key = failed_unit->>'partition' or starts_with(p.partition_key, (failed_unit->>'partition') || ':')))
     order by run_id desc limit ${MAX_FAILED_UNITS}`,
  );
  return rows;
}

/** The newest runs in any state. */
export async function latestRuns(client: ClientBase | Pool, limit: number): Promise<RunRow[]> {
  const { rows } = await (client as Pool).query(`select ${COLUMNS} ${FROM} order by run_id desc limit $1`, [limit]);
  return rows.map(reported);
}

/** The run whose connection holds a publisher lease. */
export async function leaseHolder(client: ClientBase | Pool, backend: number): Promise<RunRow | undefined> {
  const { rows } = await (client as Pool).query(
    `select ${COLUMNS} ${FROM} where r.ended_at is null and alive and r.lease_backend = $1 order by run_id desc limit 1`,
    [backend],
  );
  return rows.map(reported)[0];
}

function reported(row: Record<string, unknown>): RunRow {
  const { next_at, succeeded_at, started_at, updated_at, ended_at, ...rest } = row as unknown as RunRow &
    Record<'next_at' | 'succeeded_at' | 'started_at' | 'updated_at' | 'ended_at', Date | null>;
  const iso = (date: Date | null) => date?.toISOString() ?? null;
  return {
    ...rest,
    next_at_utc: iso(next_at),
    succeeded_at_utc: iso(succeeded_at),
    started_at_utc: iso(started_at)!,
    updated_at_utc: iso(updated_at)!,
    ended_at_utc: iso(ended_at),
  };
}
