/**
 * Exports in the database: their requests, their progress, and the queue, which is the rows that are not over. The table of
 * transitions decides every change of state, under the row's lock; a worker's change counts only under the fence that it holds.
 */
import type { Pool, PoolClient } from 'pg';
import { createPool, EXPORT_CHANNEL, EXPORT_SUBMIT_LOCK } from '../../shared/db/connect.ts';
import { registeredInstruments } from '../../shared/db/instruments.ts';
import { OWNER } from '../../shared/keys/key.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import { writeJson } from '../../shared/strict-json.ts';
import type { Warning } from '../contract/problems.ts';
import { type ExportRow, type Progress, rowOf, type StoredArtifact } from './rows.ts';
import { type ExportEvent, type ExportState, TRANSITIONS } from './states.ts';

export interface NewExport
  extends Pick<
    ExportRow,
    | 'exportId'
    | 'request'
    | 'requestSha256'
    | 'apiKey'
    | 'dataset'
    | 'mode'
    | 'format'
    | 'rightsState'
    | 'rightsProvisional'
    | 'viewId'
    | 'viewVersion'
    | 'warnings'
    | 'asOf'
  > {
  readonly idempotencyKey: string | null;
}

export interface QueueLimits {
  readonly running: number;
  readonly waiting: number;
}

interface QueueLoad {
  readonly queued: number;
  readonly running: number;
  /** Of the submitting key. */
  readonly queuedOfKey: number;
}

type SubmitOutcome =
  | { readonly kind: 'accepted' | 'known'; readonly row: ExportRow }
  | { readonly kind: 'conflict' }
  | { readonly kind: 'full'; readonly why: string };

/** The numbered directories of an export that may be needed. */
export interface RunFolders {
  readonly state: ExportState;
  readonly fence: number;
  /** The fence of the artifact, while there is one. */
  readonly artifactFence: number | null;
}

/** The outcome of an event. */
export type ExportOutcome =
  | { readonly kind: 'done'; readonly row: ExportRow }
  /** The table does not allow the event in this state. */
  | { readonly kind: 'refused'; readonly row: ExportRow }
  /** Another run of the export has begun since. */
  | { readonly kind: 'taken'; readonly row: ExportRow }
  | { readonly kind: 'unknown' };

export interface ExportTransition {
  readonly event: ExportEvent;
  readonly from: ExportState;
  readonly row: ExportRow;
}

interface Change {
  /** Assignments; `$1` and `$2` are taken. */
  readonly set: string;
  readonly values: readonly unknown[];
}

interface StoreOptions {
  readonly databaseUrl: string;
  /** A worker that is silent for this long counts as dead. */
  readonly leaseMs: number;
  /** Called with every transition before it is committed. It must not throw. */
  readonly onTransition: (transition: ExportTransition) => Promise<void>;
}

/** Statements read or change one row or a page of rows. */
const STATEMENT_TIMEOUT_MS = 10_000;
const CONNECT_TIMEOUT_MS = 5000;
const CONNECTIONS = 4;
/** A clock is set by less than this all the time. */
const CLOCK_TOLERANCE_MS = 1000;
/** Transient faults get a growing pause before the next try. */
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 30_000;

const NOW = `date_trunc('milliseconds', clock_timestamp())`;
/** As the indexes have it. */
const keySql = (row: string): string => `coalesce(${row}.api_key, '${OWNER}')`;
const COLUMNS = `e.*, e.request::text as request_text, coalesce(e.expires_at <= clock_timestamp(), false) as is_expired`;

export class ExportStore implements AsyncDisposable {
  readonly #pool: Pool;
  readonly #options: StoreOptions;

  constructor(options: StoreOptions) {
    this.#options = options;
    this.#pool = createPool({
      url: options.databaseUrl,
      name: 'tidemark exports',
      connectTimeoutMs: CONNECT_TIMEOUT_MS,
      statementTimeoutMs: STATEMENT_TIMEOUT_MS,
      max: CONNECTIONS,
    });
  }

  async find(exportId: string): Promise<ExportRow | undefined> {
    const { rows } = await this.#pool.query(`select ${COLUMNS} from exports e where export_id = $1`, [exportId]);
    return rows.length === 0 ? undefined : rowOf(rows[0]);
  }

  /** A page of exports, newest first, below a number. */
  async page(filter: {
    /** Undefined: of all keys. */
    readonly apiKey: string | undefined;
    readonly state: ExportState | undefined;
    /** One that the export reads; a frame may read several. */
    readonly dataset: string | undefined;
    readonly before: string | undefined;
    readonly limit: number;
  }): Promise<ExportRow[]> {
    const { rows } = await this.#pool.query(
      `select ${COLUMNS} from exports e where ($1::text is null or state = $1)
         and ($2::int2 is null or dataset_id = $2 or request -> 'columns' @> jsonb_build_array(jsonb_build_object('dataset', $6::text)))
         and ($3::int8 is null or number < $3) and ($5::text is null or ${keySql('e')} = $5) order by number desc limit $4`,
      [
        filter.state,
        filter.dataset && DATASETS.get(filter.dataset)?.number,
        filter.before,
        filter.limit,
        filter.apiKey,
        filter.dataset,
      ],
    );
    return rows.map(rowOf);
  }

  /** The instruments that requests may name. */
  instruments(): Promise<readonly DatasetDefinition[]> {
    return registeredInstruments(this.#pool);
  }

  /** Keys of different callers have nothing to do with each other, even if they are equal. */
  async findByIdempotencyKey(
    apiKey: string,
    key: string,
    client: Pick<Pool, 'query'> = this.#pool,
  ): Promise<ExportRow | undefined> {
    const { rows } = await client.query(
      `select ${COLUMNS} from exports e where idempotency_key = $1 and ${keySql('e')} = $2`,
      [key, apiKey],
    );
    return rows.length === 0 ? undefined : rowOf(rows[0]);
  }

  /** Why the queue takes no more exports of a key; undefined: it does. */
  async whyFull(
    apiKey: string,
    limits: QueueLimits,
    client: Pick<Pool, 'query'> = this.#pool,
  ): Promise<string | undefined> {
    const { rows } = await client.query(
      `select count(*) filter (where state = 'queued')::int as queued,
         count(*) filter (where state = 'running')::int as running,
         count(*) filter (where state = 'queued' and ${keySql('exports')} = $1)::int as "queuedOfKey"
       from exports where state in ('queued', 'running')`,
      [apiKey],
    );
    return whyFull(apiKey, rows[0], limits);
  }

  /** @param beforeCommit runs before the commit; its fault rolls the submission back. */
  async submit(
    one: NewExport,
    limits: QueueLimits,
    beforeCommit: (row: ExportRow) => Promise<void>,
  ): Promise<SubmitOutcome> {
    return await this.#transaction(async (client) => {
      await client.query('select pg_advisory_xact_lock($1, 0)', [EXPORT_SUBMIT_LOCK]);
      if (one.idempotencyKey !== null) {
        const row = await this.findByIdempotencyKey(one.apiKey, one.idempotencyKey, client);
        if (row) {
          return row.requestSha256 === one.requestSha256 ? { kind: 'known', row } : { kind: 'conflict' };
        }
      }
      const why = await this.whyFull(one.apiKey, limits, client);
      if (why !== undefined) return { kind: 'full', why };
      const { rows } = await client.query(
        `with e as (insert into exports (export_id, request, request_sha256, idempotency_key, dataset_id, mode, format,
           rights_state, rights_provisional, view_id, view_version, warnings, as_of_utc, api_key)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, nullif($14, '${OWNER}')) returning *) select ${COLUMNS} from e`,
        [
          one.exportId,
          writeJson(one.request),
          one.requestSha256,
          one.idempotencyKey,
          DATASETS.get(one.dataset)!.number,
          one.mode,
          one.format,
          one.rightsState,
          one.rightsProvisional,
          one.viewId,
          one.viewVersion,
          JSON.stringify(one.warnings),
          one.asOf,
          one.apiKey,
        ],
      );
      const row = rowOf(rows[0]);
      await beforeCommit(row);
      await client.query(`notify ${EXPORT_CHANNEL}`);
      return { kind: 'accepted', row };
    });
  }

  /**
   * Takes the next export for a worker: of the key with the fewest running exports, among several of the one that has waited longest
   * for a worker, the oldest. So the many exports of one key lock out nobody.
   * @param how.mine exports that this worker runs
   * @param how.takesOver whether exports of workers count whose lease is over
   */
  async take(
    worker: string,
    how: { readonly mine: readonly string[]; readonly takesOver: boolean },
  ): Promise<ExportRow | undefined> {
    return await this.#transaction(async (client) => {
      const { rows } = await client.query(
        `select ${COLUMNS} from exports e
         where state in ('queued', 'running') and (${isHeldSql('e', '$1')}) is false
           and export_id <> all ($2::uuid[]) and (worker is null or $3)
         order by
           (select count(*) from exports r where r.state = 'running' and r.worker is not null and ${isHeldSql('r', '$1')}
             and ${keySql('r')} = ${keySql('e')}),
           (select max(claimed_at) from exports r where ${keySql('r')} = ${keySql('e')}) nulls first,
           number
         limit 1 for update of e skip locked`,
        [Math.max(this.#options.leaseMs, MAX_RETRY_MS) + CLOCK_TOLERANCE_MS, how.mine, how.takesOver],
      );
      if (rows.length === 0) return undefined;
      return await this.#change(client, rowOf(rows[0]), 'claim', {
        set: `fence = fence + 1, worker = $3, claimed_at = clock_timestamp(), due_at = clock_timestamp() + $4 * interval '1 ms', progress = default,
          crashes = crashes + (case when worker is null or worker = $3 then 0 else 1 end)`,
        values: [worker, this.#options.leaseMs],
      });
    });
  }

  /** @returns whether this run still holds the export. */
  async beat(exportId: string, fence: number, progress: Progress): Promise<boolean> {
    const { rowCount } = await this.#pool.query(
      `update exports set due_at = clock_timestamp() + $4 * interval '1 ms', progress = $3,
         updated_at = greatest(updated_at, ${NOW})
       where export_id = $1 and fence = $2 and state = 'running'`,
      [exportId, fence, JSON.stringify(progress), this.#options.leaseMs],
    );
    return rowCount === 1;
  }

  /** Gives an export back to whoever takes it next. */
  async release(exportId: string, fence: number): Promise<ExportOutcome> {
    return await this.#step(exportId, 'release', {
      fence,
      set: 'worker = null, due_at = clock_timestamp()',
      values: [],
    });
  }

  /** Gives an export back after a run that may succeed on another try, which pauses longer each time. */
  async retry(exportId: string, fence: number): Promise<ExportOutcome> {
    return await this.#step(exportId, 'release', {
      fence,
      set: `worker = null, retries = retries + 1,
        due_at = clock_timestamp() + least($3 * 2 ^ least(retries, 20), $4) * interval '1 ms'`,
      values: [FIRST_RETRY_MS, MAX_RETRY_MS],
    });
  }

  async succeed(
    exportId: string,
    fence: number,
    result: {
      readonly artifact: StoredArtifact;
      readonly warnings: readonly Warning[];
      readonly asOfUtc: string | null;
      readonly ttlSeconds: number;
    },
  ): Promise<ExportOutcome> {
    const { artifact, warnings, asOfUtc, ttlSeconds } = result;
    return await this.#step(exportId, 'succeed', {
      fence,
      set: `worker = null, artifact = $3, artifact_fence = fence, warnings = $4, as_of_utc = $5, progress = $6,
        expires_at = ${NOW} + $7 * interval '1 second'`,
      values: [
        JSON.stringify(artifact),
        JSON.stringify(warnings),
        asOfUtc,
        JSON.stringify({ rows: artifact.row_count, bytes: artifact.bytes }),
        ttlSeconds,
      ],
    });
  }

  async fail(exportId: string, fence: number, code: string, message: string): Promise<ExportOutcome> {
    return await this.#step(exportId, 'fail', {
      fence,
      set: 'worker = null, error_code = $3, error_message = $4',
      values: [code, message],
    });
  }

  async cancel(exportId: string, code: string, message: string): Promise<ExportOutcome> {
    return await this.#step(exportId, 'cancel', {
      set: 'worker = null, error_code = $3, error_message = $4',
      values: [code, message],
    });
  }

  /** A page of the expired artifacts that are not deleted yet, oldest first, above a number. */
  async expired(above: string, limit: number): Promise<{ readonly exportId: string; readonly number: string }[]> {
    const { rows } = await this.#pool.query(
      `select export_id as "exportId", number from exports
       where state = 'succeeded' and removed_at is null and expires_at <= clock_timestamp() and number > $1
       order by number limit $2`,
      [above, limit],
    );
    return rows;
  }

  async noteRemoved(exportId: string): Promise<void> {
    await this.#pool.query('update exports set removed_at = clock_timestamp() where export_id = $1', [exportId]);
  }

  /** The directories by export id; ids that the database does not know are absent. */
  async foldersOf(exportIds: readonly string[]): Promise<Map<string, RunFolders>> {
    const { rows } = await this.#pool.query(
      `select export_id, state, fence, artifact_fence, removed_at from exports where export_id = any($1::uuid[])`,
      [exportIds],
    );
    return new Map(
      rows.map(({ export_id, state, fence, artifact_fence, removed_at }) => [
        export_id,
        {
          state,
          fence: Number(fence),
          artifactFence: removed_at === null && artifact_fence !== null ? Number(artifact_fence) : null,
        },
      ]),
    );
  }

  async noteHead(chain: string, sequence: number, hash: string): Promise<void> {
    await this.#pool.query(
      `insert into export_audit_heads (chain, sequence, hash) values ($1, $2, $3)
       on conflict (chain) do update set sequence = $2, hash = $3, updated_at = clock_timestamp()
       where export_audit_heads.sequence < $2`,
      [chain, sequence, hash],
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pool.end();
  }

  async #step(
    exportId: string,
    event: ExportEvent,
    { fence, ...change }: Change & { /** Undefined: whatever the fence is. */ readonly fence?: number },
  ): Promise<ExportOutcome> {
    return await this.#transaction(async (client) => {
      const { rows } = await client.query(`select ${COLUMNS} from exports e where export_id = $1 for update`, [
        exportId,
      ]);
      if (rows.length === 0) return { kind: 'unknown' };
      const before = rowOf(rows[0]);
      if (TRANSITIONS[before.state][event] === null) return { kind: 'refused', row: before };
      if (fence !== undefined && fence !== before.fence) return { kind: 'taken', row: before };
      const row = await this.#change(client, before, event, change);
      if (event === 'release') await client.query(`notify ${EXPORT_CHANNEL}`);
      return { kind: 'done', row };
    });
  }

  /** Makes a transition that the table allows. The caller holds the row's lock. */
  async #change(
    client: PoolClient,
    before: ExportRow,
    event: ExportEvent,
    { set, values }: Change,
  ): Promise<ExportRow> {
    const { rows } = await client.query(
      `with e as (update exports set state = $2, updated_at = greatest(updated_at, ${NOW}), ${set}
       where export_id = $1 returning *) select ${COLUMNS} from e`,
      [before.exportId, TRANSITIONS[before.state][event], ...values],
    );
    const row = rowOf(rows[0]);
    await this.#options.onTransition({ event, from: before.state, row });
    return row;
  }

  async #transaction<T>(work: (client: PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#pool.connect();
    let fault: unknown;
    try {
      await client.query('begin');
      const result = await work(client);
      await client.query('commit');
      return result;
    } catch (error) {
      fault = error;
      await client.query('rollback').catch(() => {});
      throw error;
    } finally {
      // A connection in an unknown state is not reused.
      client.release(fault !== undefined);
    }
  }
}

/**
 * A worker's lease, or the pause before the next try, is not over. One that reaches further than any does was written before
 * the clock was set back, and holds nothing.
 */
const isHeldSql = (row: string, longestMs: string): string =>
  `${row}.due_at between clock_timestamp() and clock_timestamp() + ${longestMs} * interval '1 ms'`;

/**
 * An accepted export never gives way, so a key is stopped before it has locked out others: it holds half of the queue at most, and
 * the last place is the owner's.
 */
function whyFull(apiKey: string, { queued, running, queuedOfKey }: QueueLoad, limits: QueueLimits): string | undefined {
  // With a worker free, an export does not wait.
  if (queued + running < limits.running) return undefined;
  if (queued >= limits.waiting) return `${queued} exports are waiting and ${running} are running.`;
  if (apiKey === OWNER) return undefined;
  if (queuedOfKey * 2 >= limits.waiting) {
    return `${queuedOfKey} exports of this key are waiting, and a key may hold half of the queue’s ${limits.waiting} places.`;
  }
  if (queued < limits.waiting - 1) return undefined;
  return `${queued} exports are waiting, and the last of the queue’s ${limits.waiting} places is kept for the owner’s key.`;
}
