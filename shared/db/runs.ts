/**
 * Work in progress, as others see it: who does what, since when, how far it has come. A run holds a session lock of its
 * own number, so that one that was killed is not taken for one that goes on.
 */
import { hostname } from 'node:os';
import { type ClientBase, DatabaseError, type Pool } from 'pg';
import { TidemarkError } from '../errors.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { type Client, connect, RUN_LOCK, WORK_LOCK } from './connect.ts';

export type RunKind = 'backfill' | 'reingest' | 'reparse' | 'follow' | 'replay' | 'verify' | 'recover';
export type RunState = 'running' | 'waiting' | 'done' | 'failed' | 'interrupted';

export interface RunCounts {
  readonly proved: number;
  readonly unchanged: number;
  readonly refused: number;
  readonly quarantined: number;
  readonly failed: number;
  readonly rows: number;
}

export interface RunProgress extends Partial<RunCounts> {
  readonly planned?: number | null;
  readonly at_partition?: string | null;
  readonly state?: RunState;
  readonly failures?: number;
  readonly fault?: string | null;
  /** The connection that holds the publisher leases. */
  readonly lease_backend?: number | null;
  readonly next_at?: Date | null;
  readonly succeeded_at?: Date | null;
}

export interface RunNeeds {
  readonly databaseUrl: string;
  readonly kind: RunKind;
  readonly subject: string;
  readonly datasets: readonly DatasetDefinition[];
  /** As an operator would type it. */
  readonly command: string;
  /** Nobody else may do the same to the same subject meanwhile. */
  readonly exclusive?: boolean;
}

/** A row of the table, as reports show it. */
export interface RunRow extends RunCounts {
  readonly run_id: number;
  readonly kind: RunKind;
  readonly subject: string;
  readonly command: string;
  readonly host: string;
  readonly pid: number;
  /** `lost`: it never came to its end, and nobody is at it any more. */
  readonly state: RunState | 'lost';
  readonly planned: number | null;
  readonly at_partition: string | null;
  readonly failures: number;
  readonly fault: string | null;
  readonly next_at_utc: string | null;
  readonly succeeded_at_utc: string | null;
  readonly started_at_utc: string;
  readonly updated_at_utc: string;
  readonly ended_at_utc: string | null;
}

/** Progress is written this often at most; the end always. */
const WRITE_INTERVAL_MS = 1000;
/** Runs that ended longer ago are forgotten: what they did is in the ledger and in the partitions. */
const KEPT_DAYS = 90;

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

  /** @throws TidemarkError WORK_HELD naming who is at the same work. */
  static async open(needs: RunNeeds): Promise<RunRecorder> {
    const { databaseUrl, kind, subject, datasets, command } = needs;
    const client = await connect({ url: databaseUrl, name: `tidemark run ${kind} ${subject}` });
    try {
      if (needs.exclusive) await takeWork(client, kind, subject);
      await client.query(`delete from runs where ended_at < now() - interval '${KEPT_DAYS} days'`);
      // The lock before the row is seen: a row without it would look like one that was killed.
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

  /** Kept, and written a moment later: once a second at most. */
  note(progress: RunProgress): void {
    if (this.#ended) return;
    Object.assign(this.#pending, progress);
    if (this.#timer) return;
    const waitMs = Math.max(0, this.#written + WRITE_INTERVAL_MS - performance.now());
    this.#timer = setTimeout(() => this.#write(), waitMs).unref();
  }

  /** Written now. A database that is away loses it: the next one says more. */
  async tell(progress: RunProgress): Promise<void> {
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
      // What the database refuses (a full disk) leaves connection and lock as they are.
      if (error instanceof DatabaseError && error.severity === 'ERROR') throw error;
      // The connection was lost, and the lock with it: taken again under the same number.
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

  /** The lock of the connection that was lost ends when the database notices, which takes it a moment. */
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

/** A killed holder's lock ends when the database notices, which takes it a moment. */
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
  throw new TidemarkError('WORK_HELD', `${kind} of ${subject} is being done ${describeHolder(holder)}`, {
    details: { host: holder?.host, pid: holder?.pid, since: holder?.started_at_utc },
  });
}

/** `by pid 12 on host-a since ... (./tidemark ...)`. */
export function describeHolder(run: Pick<RunRow, 'host' | 'pid' | 'started_at_utc' | 'command'> | undefined): string {
  if (!run) return 'by another process';
  return `by pid ${run.pid} on ${run.host} since ${run.started_at_utc} (${run.command})`;
}

const COLUMNS = `run_id, kind, subject, command, host, pid,
  case when r.ended_at is null and not alive then 'lost' else state end as state,
  planned::float8, proved::float8, unchanged::float8, refused::float8, quarantined::float8, failed::float8, rows::float8,
  at_partition, failures, fault, next_at, succeeded_at, started_at, updated_at, ended_at`;
/** `(class, number)` locks have objsubid 2. */
const FROM = `from (select r.*, exists (select from pg_locks l where l.locktype = 'advisory' and l.classid = ${RUN_LOCK}
    and l.objid = r.run_id::oid and l.objsubid = 2 and l.granted
    and l.database = (select oid from pg_database where datname = current_database())) as alive from runs r) r`;

/** Those at work now, the oldest first. */
export async function openRuns(client: ClientBase | Pool): Promise<RunRow[]> {
  const { rows } = await (client as Pool).query(
    `select ${COLUMNS} ${FROM} where r.ended_at is null and alive order by run_id`,
  );
  return rows.map(reported);
}

/** The newest runs, whatever became of them. */
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
