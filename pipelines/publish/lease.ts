/** One publisher per dataset: a session lock of PostgreSQL, which ends with its holder whatever happens to it. */
import { setTimeout as delay } from 'node:timers/promises';
import { type Client, connect } from '../../shared/db/connect.ts';
import { PUBLISHER_LOCK } from '../../shared/db/locks.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

/** A killed publisher's lock ends when the database notices, which takes it a moment. */
const LINGER_MS = 2000;

export interface Lease extends AsyncDisposable {
  /** @throws TidemarkError PUBLISHER_LEASE_HELD when the connection was lost and another took it meanwhile. */
  ensure(): Promise<void>;
}

/** @throws TidemarkError PUBLISHER_LEASE_HELD naming the holder. */
export async function takeLease(databaseUrl: string, dataset: DatasetDefinition): Promise<Lease> {
  const name = `tidemark publisher ${dataset.key} pid ${process.pid}`;
  let client = await acquire(databaseUrl, dataset, name);
  return {
    async ensure() {
      try {
        await client.query('select 1');
      } catch {
        client = await acquire(databaseUrl, dataset, name);
      }
    },
    [Symbol.asyncDispose]: () => client[Symbol.asyncDispose](),
  };
}

async function acquire(databaseUrl: string, dataset: DatasetDefinition, name: string): Promise<Client> {
  const client = await connect({ url: databaseUrl, name });
  for (const deadline = performance.now() + LINGER_MS; ; await delay(100)) {
    const asked = await client.query('select pg_try_advisory_lock($1, $2) as held', [PUBLISHER_LOCK, dataset.number]);
    if (asked.rows[0].held) return client;
    if (performance.now() > deadline) break;
  }
  const holder = await client.query(
    `select a.application_name, a.backend_start from pg_locks l join pg_stat_activity a using (pid)
     where l.locktype = 'advisory' and l.classid = $1 and l.objid = $2 and l.granted`,
    [PUBLISHER_LOCK, dataset.number],
  );
  await client[Symbol.asyncDispose]();
  const { application_name: who, backend_start: since } = holder.rows[0] ?? {};
  throw new TidemarkError(
    'PUBLISHER_LEASE_HELD',
    `${dataset.key} is being published by ${who ?? 'another process'}${since ? `, connected since ${since.toISOString()}` : ''}`,
    { details: { dataset: dataset.key, holder: who } },
  );
}
