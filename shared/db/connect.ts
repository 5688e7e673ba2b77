/**
 * Connections to PostgreSQL, and what all their users share: parsers, timeouts, advisory locks, notification channels and
 * the supported versions and editions of TimescaleDB.
 */

import pg from 'pg';
import { TidemarkError } from '../errors.ts';

interface ConnectOptions {
  readonly url: string;
  /** Name in pg_stat_activity; messages name the holder of a lock by it. */
  readonly name: string;
  readonly connectTimeoutMs?: number;
  /** Ends the attempt to connect, not the connection. */
  readonly signal?: AbortSignal;
}

export type Client = pg.Client & AsyncDisposable;

/**
 * An end that waits notices within half a minute that the other is gone without a word (a cut cable, a machine that lost
 * power), where the defaults of Linux take two hours, for which the server would keep the advisory locks of a dead process.
 * An end with bytes under way notices by the retries of TCP, after a quarter of an hour.
 */
export const KEEP_ALIVE = {
  keepAlive: true,
  // Node then probes ten times, one second apart.
  keepAliveInitialDelayMillis: 10_000,
  options: '-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4',
} as const;

/** The default parsers: int8 and numeric stay text (exact), json is parsed, timestamptz becomes a Date. */
const types = new pg.TypeOverrides();

/**
 * A client of `pg` that has only what its URL and its caller say. `pg` fills what they leave open from libpq's variables
 * (`PGOPTIONS`, `PGSSLMODE`, `PGPASSFILE` ...), which the user's shell sets for other databases: a read-only session or TLS
 * that the server lacks would be ours.
 */
export class DatabaseClient extends pg.Client {
  constructor(config?: pg.ClientConfig) {
    for (const name of Object.keys(process.env)) if (name.startsWith('PG')) delete process.env[name];
    super(config);
  }

  /**
   * Opens the connection; one that fails is closed here, because a server waits a minute for a login that does not come.
   * @param signal ends the attempt, whose reason is then thrown
   */
  async open(signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    const end = () => this.connection.stream.destroy();
    signal?.addEventListener('abort', end);
    try {
      await this.connect();
    } catch (error) {
      end();
      signal?.throwIfAborted();
      throw error;
    } finally {
      signal?.removeEventListener('abort', end);
    }
  }
}

/**
 * Opens one connection, which `await using` closes.
 * @throws TidemarkError DATABASE_UNAVAILABLE; the reason of the signal
 */
export async function connect(options: ConnectOptions): Promise<Client> {
  const client = new DatabaseClient({
    connectionString: options.url,
    application_name: options.name,
    connectionTimeoutMillis: options.connectTimeoutMs ?? 10_000,
    ...KEEP_ALIVE,
    types,
  });
  // Without a listener a connection that is lost while idle would end the process. The next query reports the loss.
  client.on('error', () => {});
  try {
    await client.open(options.signal);
  } catch (cause) {
    options.signal?.throwIfAborted();
    throw new TidemarkError('DATABASE_UNAVAILABLE', `Cannot connect to PostgreSQL at ${describeUrl(options.url)}`, {
      cause,
    });
  }
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end().catch(() => {}) });
}

export function createPool(options: ConnectOptions & { max: number; statementTimeoutMs?: number }): pg.Pool {
  const pool = new pg.Pool({
    Client: DatabaseClient,
    connectionString: options.url,
    application_name: options.name,
    connectionTimeoutMillis: options.connectTimeoutMs ?? 10_000,
    max: options.max,
    statement_timeout: options.statementTimeoutMs,
    query_timeout: options.statementTimeoutMs,
    ...KEEP_ALIVE,
    types,
  });
  pool.on('error', () => {});
  // The pool listens to errors of idle connections only. A connection that is lost while it is lent, between two queries,
  // would end the process. The next query reports the loss.
  pool.on('connect', (client) => client.on('error', () => {}));
  return pool;
}

/** Lends a connection of the pool to `work`; after any error the connection is closed instead of reused. */
export async function withClient<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  try {
    const result = await work(client);
    client.release();
    return result;
  } catch (error) {
    client.release(true);
    throw error;
  }
}

/** Host, port and database of a connection URL, without credentials. */
export function describeUrl(text: string): string {
  const url = new URL(text);
  return `${url.hostname || url.searchParams.get('host') || 'localhost'}${url.port ? `:${url.port}` : ''}${url.pathname}`;
}

/** Channel of the notifications that an attempt has ended: `<dataset>|<partition>|<attempt>|<state>`. */
export const OUTCOME_CHANNEL = 'tidemark_partition';

/** Channel of the notifications that a projector has failed and restarts: a `ProjectorFailure` as JSON. */
export const PROJECTOR_CHANNEL = 'tidemark_projector';

export interface ProjectorFailure {
  /** Key of the dataset. */
  readonly dataset: string;
  /** The message that the projector logs for the operator. */
  readonly message: string;
}

/** Channel of the notifications that an export waits for a worker. */
export const EXPORT_CHANNEL = 'tidemark_export';

/** Advisory lock classes: the first key of `pg_advisory_lock(class, dataset number)`. Arbitrary, never reused. */
export const MIGRATION_LOCK = 7301;
/** One publisher per dataset, so that the attempts lie in the log one after the other. */
export const PUBLISHER_LOCK = 7302;
/** One projector per dataset. */
export const PROJECTOR_LOCK = 7303;
/** Held with the number of a run while the run is alive. */
export const RUN_LOCK = 7304;
/** Held for work that only one process may do at a time, with a hash of its name. */
export const WORK_LOCK = 7305;
/** Held by the one process that answers requests for recounts. Second key 0. */
export const RECOUNT_LOCK = 7306;
/** Held by the process that gives leaves of the proof log their indexes. Second key 0. */
export const PROOF_LOG_LOCK = 7307;
/** Held while an export is submitted, so that submits cannot exceed the limit of the queue together. Second key 0. */
export const EXPORT_SUBMIT_LOCK = 7310;

/** Held by the process that writes to a lake folder, with a hash of the folder's path. */
export const LAKE_LOCK = 7311;

/** The oldest and the newest minor version of TimescaleDB 2 that the tests were run against. */
const OLDEST_MINOR = 19;
const NEWEST_MINOR = 29;

export const SUPPORTED_TIMESCALE = `2.${OLDEST_MINOR} to 2.${NEWEST_MINOR}`;

/** Why a version is unsupported, for the operator; undefined for a supported one. */
export function timescaleFault(version: string | null | undefined): string | undefined {
  if (!version) return `the server has no TimescaleDB; ${SUPPORTED_TIMESCALE} is needed`;
  const [, major, minor] = /^(\d+)\.(\d+)(?:\.|-|$)/.exec(version) ?? [];
  const isSupported = major === '2' && Number(minor) >= OLDEST_MINOR && Number(minor) <= NEWEST_MINOR;
  return isSupported ? undefined : `TimescaleDB ${version} is not supported; ${SUPPORTED_TIMESCALE} is needed`;
}

/** SQL: the version of TimescaleDB in the database, or else the one that `create extension` would install; else null. */
export const TIMESCALE_VERSION = `select coalesce(
    (select extversion from pg_extension where extname = 'timescaledb'),
    (select default_version from pg_available_extensions where name = 'timescaledb')) as version`;

/** @throws TidemarkError DATABASE_UNSUITABLE naming the found and the supported versions, before anything is written. */
export async function requireTimescale(client: Pick<pg.Client, 'query'>): Promise<void> {
  const { rows } = await client.query<{ version: string | null }>(TIMESCALE_VERSION);
  const fault = timescaleFault(rows[0].version);
  if (fault) throw new TidemarkError('DATABASE_UNSUITABLE', `The database is not supported: ${fault}`);
}

/** Whether the server runs the edition of TimescaleDB that has the columnstore. */
export async function hasColumnstore(client: Pick<pg.ClientBase, 'query'>): Promise<boolean> {
  const { rows } = await client.query(
    `select coalesce(current_setting('timescaledb.license', true), '') = 'timescale' as held`,
  );
  return rows[0].held;
}
