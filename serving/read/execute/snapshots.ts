/** Connections with an open snapshot: the service's own from the pool, or one of the caller's role. */
import { ConnectFault, PgConnection, type PgConnectionOptions, UnprovedCredentials } from '../../db/pg-connection.ts';
import type { PgPool } from '../../db/pool.ts';
import { type CoverageProbe, Session } from '../snapshot/session.ts';
import { ReadFault } from '../types.ts';
import type { ReadDeadline } from './optimistic-read.ts';

export interface SnapshotOptions {
  readonly pool: PgPool;
  readonly byokRole: string | undefined;
}

export class Snapshots {
  readonly #options: SnapshotOptions;

  constructor(options: SnapshotOptions) {
    this.#options = options;
  }

  /**
   * Opens a connection whose snapshot has answered the probe. A pooled connection may have died unnoticed while idle, so the
   * method retries once on a fresh one. @throws ReadFault credentials_refused
   */
  async begin<L extends Pick<CoverageProbe, 'steps'>>(
    createProbe: () => L,
    token: string | undefined,
    deadline: ReadDeadline,
  ): Promise<{ connection: PgConnection; probe: L }> {
    for (let fresh = false; ; fresh = true) {
      const { connection, reused } = await this.#connect(token, fresh, deadline);
      const probe = createProbe();
      try {
        await new Session(connection).begin(probe);
        return { connection, probe };
      } catch (error) {
        this.discard(connection);
        if (!reused || deadline.hasFired) throw error;
      }
    }
  }

  /** Ends the transaction in the background: the caller already has its rows. */
  end(connection: PgConnection, token: string | undefined): void {
    new Session(connection).commit().then(
      () => (token === undefined ? this.#options.pool.release(connection) : connection.end()),
      () => this.discard(connection),
    );
  }

  discard(connection: PgConnection): void {
    this.#options.pool.discard(connection);
  }

  async #connect(
    token: string | undefined,
    fresh: boolean,
    deadline: ReadDeadline,
  ): Promise<{ connection: PgConnection; reused: boolean }> {
    const { pool, byokRole } = this.#options;
    if (token !== undefined) {
      const caller = { user: byokRole!, password: token };
      return { connection: await openAsCaller({ ...pool.options, caller }, deadline), reused: false };
    }
    const connected = await pool.acquire(fresh);
    deadline.own(connected.connection);
    return connected;
  }
}

const PRIVILEGES_SQL = `select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls
  from pg_roles where rolname = session_user`;

/** @throws ReadFault credentials_refused, or credentials_unfit where the credentials prove or restrict nothing. */
async function openAsCaller(options: PgConnectionOptions, deadline: ReadDeadline): Promise<PgConnection> {
  let connection: PgConnection;
  try {
    connection = await PgConnection.open(options);
  } catch (cause) {
    if (cause instanceof UnprovedCredentials) throw new ReadFault('credentials_unfit', cause.message, { cause });
    // SQLSTATE class 28: invalid authorization.
    if (!(cause instanceof ConnectFault && cause.sqlState.startsWith('28'))) throw cause;
    throw new ReadFault('credentials_refused', 'the role or password was refused', { cause });
  }
  deadline.own(connection);
  try {
    const [[isPrivileged]] = await new Session(connection).rows(PRIVILEGES_SQL);
    if (isPrivileged === 'f') return connection;
    throw new ReadFault('credentials_unfit', 'the role of SVC_BYOK_DATABASE_ROLE can do more than read');
  } catch (error) {
    connection.abandon();
    throw error;
  }
}
