/** The named keys in the database. The operator's command writes them, and the HTTP service reads them. Its clock decides. */
import { TidemarkError } from '../errors.ts';
import { keyDigest, newKey, type Scope } from './key.ts';

/** A `pg` client or pool. */
interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>;
}

export interface KeyTerms {
  readonly scopes: readonly Scope[];
  /** Keys of datasets, or `dataset:instrument` (`coversInstrument`). Null: all. */
  readonly datasets: readonly string[] | null;
  readonly requestsPerMinute: number | null;
  readonly concurrentReads: number | null;
  readonly expiresAt: Date | null;
}

export type KeyState = 'active' | 'expired' | 'revoked';

export interface KeyRow extends KeyTerms {
  readonly id: string;
  readonly name: string;
  readonly state: KeyState;
  readonly createdAt: Date;
  readonly rotatedAt: Date | null;
  readonly revokedAt: Date | null;
  /** Until when the key before the last rotation holds. */
  readonly previousUntil: Date | null;
}

/** A key with what its text is compared with. */
export interface KeyRecord extends KeyRow {
  readonly digest: Buffer;
  readonly previousDigest: Buffer | null;
  readonly previousHolds: boolean;
}

const COLUMNS = `key_id, name, scopes, datasets, requests_per_minute, concurrent_reads, created_at, expires_at, rotated_at,
  revoked_at, previous_until, case when revoked_at is not null then 'revoked'
    when expires_at <= clock_timestamp() then 'expired' else 'active' end as state`;

/** Every key, the revoked ones included, with its digests. */
export async function loadKeys(client: Queryable): Promise<KeyRecord[]> {
  const { rows } = await client.query(
    `select ${COLUMNS}, digest, previous_digest, coalesce(previous_until > clock_timestamp(), false) as previous_holds
     from api_keys`,
  );
  return rows.map((row) => ({
    ...rowOf(row),
    digest: row.digest as Buffer,
    previousDigest: row.previous_digest as Buffer | null,
    previousHolds: row.previous_holds === true,
  }));
}

export async function listKeys(client: Queryable): Promise<KeyRow[]> {
  const { rows } = await client.query(`select ${COLUMNS} from api_keys order by created_at, name`);
  return rows.map(rowOf);
}

interface ShownKey {
  readonly key: KeyRow;
  /** The whole key. It is stored nowhere. */
  readonly text: string;
}

/** @throws TidemarkError USAGE */
export async function addKey(client: Queryable, name: string, terms: KeyTerms): Promise<ShownKey> {
  const { id, text, digest } = newKey();
  const { rows } = await client.query(
    `insert into api_keys (key_id, name, digest, scopes, datasets, requests_per_minute, concurrent_reads, expires_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (name) do nothing returning ${COLUMNS}`,
    [id, name, digest, terms.scopes, terms.datasets, terms.requestsPerMinute, terms.concurrentReads, terms.expiresAt],
  );
  if (rows.length > 0) return { key: rowOf(rows[0]), text };
  const { state } = await keyNamed(client, name);
  throw new TidemarkError('USAGE', `There is a key ${name} already, and it is ${state}`, {
    details: { name },
    remedy:
      'Choose another name. Names of revoked keys stay taken, because exports and the audit log name keys by them; `./tidemark keys rotate` replaces a key that is in use.',
  });
}

/** Gives the key another secret. @param graceSeconds how long the present one still holds. @throws TidemarkError */
export async function rotateKey(client: Queryable, name: string, graceSeconds: number): Promise<ShownKey> {
  const { id, state } = await keyNamed(client, name);
  const { text } = newKey(id);
  const { rows } = await client.query(
    `update api_keys set previous_digest = digest, digest = $2, rotated_at = date_trunc('milliseconds', statement_timestamp()),
       previous_until = date_trunc('milliseconds', statement_timestamp()) + $3 * interval '1 second'
     where key_id = $1 and revoked_at is null and coalesce(expires_at > clock_timestamp(), true) returning ${COLUMNS}`,
    [id, keyDigest(text), graceSeconds],
  );
  if (rows.length > 0) return { key: rowOf(rows[0]), text };
  throw new TidemarkError('USAGE', `The key ${name} is ${state}`, {
    details: { name },
    remedy: 'Make a new key under another name with `./tidemark keys add`.',
  });
}

/** Revokes the key for good; one that was revoked stays as it is. @throws TidemarkError USAGE */
export async function revokeKey(client: Queryable, name: string): Promise<KeyRow> {
  const { rows } = await client.query(
    `update api_keys set revoked_at = coalesce(revoked_at, date_trunc('milliseconds', clock_timestamp()))
     where name = $1 returning ${COLUMNS}`,
    [name],
  );
  return rows.length > 0 ? rowOf(rows[0]) : await keyNamed(client, name);
}

async function keyNamed(client: Queryable, name: string): Promise<KeyRow> {
  const { rows } = await client.query(`select ${COLUMNS} from api_keys where name = $1`, [name]);
  if (rows.length > 0) return rowOf(rows[0]);
  throw new TidemarkError('USAGE', `There is no key ${JSON.stringify(name)}`, {
    details: { name },
    remedy: '`./tidemark keys list` shows the keys.',
  });
}

// biome-ignore lint/suspicious/noExplicitAny: a row of the database
const rowOf = (row: any): KeyRow => ({
  id: row.key_id,
  name: row.name,
  state: row.state,
  scopes: row.scopes,
  datasets: row.datasets,
  requestsPerMinute: row.requests_per_minute,
  concurrentReads: row.concurrent_reads,
  createdAt: row.created_at,
  expiresAt: row.expires_at,
  rotatedAt: row.rotated_at,
  revokedAt: row.revoked_at,
  previousUntil: row.previous_until,
});
