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
