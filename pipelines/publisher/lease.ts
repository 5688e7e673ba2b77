/** One publisher per dataset: session locks of PostgreSQL, which end with their connection, however it ends. */

import { setTimeout as delay } from 'node:timers/promises';
import { type Client, connect, PUBLISHER_LOCK } from '../../shared/db/connect.ts';
import { describeHolder, leaseHolder, type RunRow } from '../../shared/db/runs.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

/** The database takes a moment to notice that a publisher was killed, and holds its lock until then. */
const LINGER_MS = 2000;
/** `follow` holds its lease for one document at a time, and other publishers wait for its end. */
const FOLLOWED_LINGER_MS = 60_000;
const POLL_MS = 100;

export interface Lease extends AsyncDisposable {
  /**
   * Takes the lease before a document, unless it is held already.
   * @throws TidemarkError WORK_HELD when another publisher has it.
   */
  ensure(): Promise<void>;
  /**
   * Called before an attempt and before its manifest, so that the frames of two publishers do not mix.
   * @throws TidemarkError DATABASE_UNAVAILABLE when the connection is gone, and the lock with it.
   */
  check(): Promise<void>;
  /** Releases the lease while there is nothing to publish. */
  rest(): Promise<void>;
}

export interface LeaseNeeds {
  readonly databaseUrl: string;
  /** All datasets that one source feeds. */
  readonly datasets: readonly DatasetDefinition[];
  /** Ends a wait for another publisher. */
  readonly signal?: AbortSignal;
  /** Whether `ensure` waits for as long as another publisher has the lease. */
  readonly waitsForever?: boolean;
  /** Receives the server process of the connection that holds the lease; null when it is released. */
  readonly onHeld?: (backend: number | null) => void;
}

/** Returns a lease that `ensure` takes. */
export function openLease(needs: LeaseNeeds): Lease {
  let client: Client | undefined;
  // The steps run one after the other: the lease must not be taken while it is being released.
  let turn: Promise<void> = Promise.resolve();
  const inTurn = (step: () => Promise<void>): Promise<void> => {
    const done = turn.then(step);
    turn = done.catch(() => {});
    return done;
  };
  const drop = async () => {
    const held = client;
    client = undefined;
    if (!held) return;
    await held[Symbol.asyncDispose]();
    needs.onHeld?.(null);
  };
  return {
    ensure: () =>
      inTurn(async () => {
        if (client && (await isAlive(client))) return;
        await drop();
        client = await acquire(needs);
        const { rows } = await client.query('select pg_backend_pid() as pid');
        needs.onHeld?.(rows[0].pid);
      }),
    async check() {
      if (client && (await isAlive(client))) return;
      throw new TidemarkError(
        'DATABASE_UNAVAILABLE',
        `The lease of ${needs.datasets[0].key} was lost while publishing`,
        {
          remedy:
            'Run the same command again; it continues where the lost connection, which held the lease, stopped it.',
        },
      );
    },
    rest: () => inTurn(drop),
    [Symbol.asyncDispose]: () => inTurn(drop),
  };
}

const isAlive = (client: Client) =>
  client.query('select 1').then(
    () => true,
    () => false,
  );

async function acquire(needs: LeaseNeeds): Promise<Client> {
  const { databaseUrl, datasets } = needs;
  const name = `tidemark publisher ${datasets[0].key} pid ${process.pid}`;
  const client = await connect({ url: databaseUrl, name });
  try {
    // Always in the same order, so that two publishers of several datasets do not wait for each other.
    for (const dataset of datasets.toSorted((a, b) => a.number - b.number)) await lock(client, dataset, needs);
    return client;
  } catch (error) {
    await client[Symbol.asyncDispose]();
    throw error;
  }
}

async function lock(client: Client, dataset: DatasetDefinition, { signal, waitsForever }: LeaseNeeds): Promise<void> {
  let lookedAt = 0;
  let limitMs = LINGER_MS;
  for (const startedAt = performance.now(); ; await delay(POLL_MS)) {
    const asked = await client.query('select pg_try_advisory_lock($1, $2) as held', [PUBLISHER_LOCK, dataset.number]);
    if (asked.rows[0].held) return;
    signal?.throwIfAborted();
    const waitedMs = performance.now() - startedAt;
    if (waitedMs - lookedAt > 1000) {
      lookedAt = waitedMs;
      if ((await holderOf(client, dataset)).run?.kind === 'follow') limitMs = FOLLOWED_LINGER_MS;
    }
    if (!waitsForever && waitedMs > limitMs) break;
  }
  const { run, name, since } = await holderOf(client, dataset);
  const unnamed = `by ${name ?? 'another process'}${since ? `, connected since ${since.toISOString()}` : ''}`;
  throw new TidemarkError('WORK_HELD', `${dataset.key} is being published ${run ? describeHolder(run) : unnamed}`, {
    details: { dataset: dataset.key, host: run?.host, pid: run?.pid, since: run?.started_at_utc },
  });
}

interface Holder {
  /** The command that holds it, if it recorded itself. */
  readonly run: RunRow | undefined;
  readonly name: string | undefined;
  readonly since: Date | undefined;
}

async function holderOf(client: Client, dataset: DatasetDefinition): Promise<Holder> {
  const { rows } = await client.query(
    `select pid, a.application_name, a.backend_start from pg_locks l join pg_stat_activity a using (pid)
     where l.locktype = 'advisory' and l.classid = $1 and l.objid = $2 and l.granted
       and l.database = (select oid from pg_database where datname = current_database())`,
    [PUBLISHER_LOCK, dataset.number],
  );
  const [{ pid, application_name: name, backend_start: since }] = rows.length > 0 ? rows : [{}];
  return { run: pid === undefined ? undefined : await leaseHolder(client, pid), name, since };
}
