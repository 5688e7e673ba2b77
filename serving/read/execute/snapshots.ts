/** Connections with an open snapshot: the service's own from the pool, or one of the caller's own role. */
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
   * A connection whose snapshot has answered the look. One that was idle may have died unnoticed, so it gets a second
   * try. @throws ReadFault credentials_refused
   */
  async begin<L extends Pick<CoverageProbe, 'steps'>>(
    look: () => L,
    token: string | undefined,
    guard: ReadDeadline,
  ): Promise<{ wire: PgConnection; look: L }> {
    for (let fresh = false; ; fresh = true) {
      const { wire, reused } = await this.#connect(token, fresh, guard);
      const asked = look();
      try {
        await new Session(wire).begin(asked);
        return { wire, look: asked };
      } catch (error) {
        this.discard(wire);
        if (!reused || guard.hasFired) throw error;
      }
    }
  }

  /** The caller has what it wanted; the transaction's end is the connection's own affair. */
  end(wire: PgConnection, token: string | undefined): void {
    new Session(wire).commit().then(
      () => (token === undefined ? this.#options.pool.release(wire) : wire.end()),
      () => this.discard(wire),
    );
  }

  discard(wire: PgConnection): void {
    this.#options.pool.discard(wire);
  }

  async #connect(
    token: string | undefined,
    fresh: boolean,
    guard: ReadDeadline,
  ): Promise<{ wire: PgConnection; reused: boolean }> {
    const { pool, byokRole } = this.#options;
    if (token !== undefined) {
      const caller = { user: byokRole!, password: token };
      return { wire: await openAsCaller({ ...pool.options, caller }, guard), reused: false };
    }
    const connected = await pool.acquire(fresh);
    guard.own(connected.wire);
    return connected;
  }
}

const POWERS = `select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls
  from pg_roles where rolname = session_user`;

/** @throws ReadFault credentials_refused, or credentials_unfit where they prove or bound nothing. */
async function openAsCaller(options: PgConnectionOptions, guard: ReadDeadline): Promise<PgConnection> {
  let wire: PgConnection;
  try {
    wire = await PgConnection.open(options);
  } catch (cause) {
    if (cause instanceof UnprovedCredentials) throw new ReadFault('credentials_unfit', cause.message, { cause });
    // SQLSTATE class 28: invalid authorization.
    if (!(cause instanceof ConnectFault && cause.sqlState.startsWith('28'))) throw cause;
    throw new ReadFault('credentials_refused', 'the role or password was refused', { cause });
  }
  guard.own(wire);
  try {
    const [[powerful]] = await new Session(wire).rows(POWERS);
    if (powerful === 'f') return wire;
    throw new ReadFault('credentials_unfit', 'the role of SVC_BYOK_DATABASE_ROLE can do more than read');
  } catch (error) {
    wire.abandon();
    throw error;
  }
}
