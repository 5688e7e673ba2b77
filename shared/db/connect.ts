/** Connections. Everything that talks to PostgreSQL starts here, so that names, parsers and time-outs are the same. */

import pg from 'pg';
import { TidemarkError } from '../errors.ts';

export interface ConnectOptions {
  readonly url: string;
  /** Shown in pg_stat_activity; locks name their holder by it. */
  readonly name: string;
  readonly connectTimeoutMs?: number;
}

export type Client = pg.Client & AsyncDisposable;

/** Parsers: int8 and numeric stay text (exact), json stays parsed, timestamptz becomes a Date. */
const types = new pg.TypeOverrides();

/**
 * One connection, closed by `await using`.
 * @throws TidemarkError DATABASE_UNAVAILABLE
 */
export async function connect(options: ConnectOptions): Promise<Client> {
  const client = new pg.Client({
    connectionString: options.url,
    application_name: options.name,
    connectionTimeoutMillis: options.connectTimeoutMs ?? 10_000,
    keepAlive: true,
    types,
  });
  // A connection lost while idle is reported by the next query; without a listener it would end the process.
  client.on('error', () => {});
  try {
    await client.connect();
  } catch (cause) {
    throw new TidemarkError('DATABASE_UNAVAILABLE', `PostgreSQL at ${describeUrl(options.url)} does not let us in`, {
      cause,
    });
  }
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end().catch(() => {}) });
}

export function createPool(options: ConnectOptions & { max: number; statementTimeoutMs?: number }): pg.Pool {
  const pool = new pg.Pool({
    connectionString: options.url,
    application_name: options.name,
    connectionTimeoutMillis: options.connectTimeoutMs ?? 10_000,
    max: options.max,
    statement_timeout: options.statementTimeoutMs,
    query_timeout: options.statementTimeoutMs,
    keepAlive: true,
    types,
  });
  pool.on('error', () => {});
  // The pool listens to idle connections alone: one that is lost while it is in use, between two queries, would end the
  // process. Whoever uses it learns of the loss from the next query.
  pool.on('connect', (client) => client.on('error', () => {}));
  return pool;
}

/** Lends a connection of the pool; one that something failed on is closed, whatever it was. */
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

/** Channel on which the end of an attempt is announced: `<dataset>|<partition>|<attempt>|<state>`. */
export const OUTCOME_CHANNEL = 'tidemark_partition';

/** Channel on which a projector announces that it failed and starts again: a `ProjectorFailure` as JSON. */
export const PROJECTOR_CHANNEL = 'tidemark_projector';

export interface ProjectorFailure {
  /** Key of the dataset. */
  readonly dataset: string;
  /** For the operator; what the projector logs. */
  readonly message: string;
}

/** Advisory lock classes: the first key of `pg_advisory_lock(class, dataset number)`. Arbitrary, never reused. */
export const MIGRATION_LOCK = 7301;
/** One publisher per dataset: its frames lie in the log one attempt after the other. */
export const PUBLISHER_LOCK = 7302;
/** One projector per dataset. */
export const PROJECTOR_LOCK = 7303;
/** One holder per run, with the run's number: a run is alive while it is held. */
export const RUN_LOCK = 7304;
/** Work that is not to be done twice at once, with a number made of its name. */
export const WORK_LOCK = 7305;
/** One process at a time answers requests for recounts. Second key 0. */
export const RECOUNT_LOCK = 7306;
/** One submit of an export after the other: the limit of the queue is counted under it. Second key 0. */
export const EXPORT_SUBMIT_LOCK = 7310;

/* Which versions of TimescaleDB this release works with. Others are refused by name before anything is written. */

/** Minor versions of TimescaleDB 2, both included, that the tests were run against. */
const OLDEST_MINOR = 19;
const NEWEST_MINOR = 29;

export const SUPPORTED_TIMESCALE = `2.${OLDEST_MINOR} to 2.${NEWEST_MINOR}`;

/** What is wrong with a version, as an operator reads it; undefined for one that is supported. */
export function timescaleFault(version: string | null | undefined): string | undefined {
  if (!version) return `the server has no TimescaleDB; ${SUPPORTED_TIMESCALE} is needed`;
  const [, major, minor] = /^(\d+)\.(\d+)(?:\.|-|$)/.exec(version) ?? [];
  const isSupported = major === '2' && Number(minor) >= OLDEST_MINOR && Number(minor) <= NEWEST_MINOR;
  return isSupported ? undefined : `TimescaleDB ${version} is not supported; ${SUPPORTED_TIMESCALE} is needed`;
}

/** One row and column: the version of the database, or of what `create extension` would install there; null: neither. */
export const TIMESCALE_VERSION = `select coalesce(
    (select extversion from pg_extension where extname = 'timescaledb'),
    (select default_version from pg_available_extensions where name = 'timescaledb')) as version`;

/** @throws TidemarkError DATABASE_UNSUPPORTED naming the version found and those that are supported. */
export async function requireTimescale(client: Pick<pg.Client, 'query'>): Promise<void> {
  const { rows } = await client.query<{ version: string | null }>(TIMESCALE_VERSION);
  const fault = timescaleFault(rows[0].version);
  if (fault) throw new TidemarkError('DATABASE_UNSUPPORTED', `The database cannot be used: ${fault}`);
}
