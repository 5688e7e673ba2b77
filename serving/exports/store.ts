/**
 * Exports in the database, the only record of requests and their progress. The table of transitions decides every
 * change of state, under the row's lock; a worker's change counts only under the fence that it holds.
 */
import type { Pool, PoolClient } from 'pg';
import { createPool, EXPORT_SUBMIT_LOCK } from '../../shared/db/connect.ts';
import { OWNER } from '../../shared/keys/key.ts';
import { DATASETS } from '../../shared/registry/index.ts';
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

export interface QueueLoad {
  readonly queued: number;
  readonly running: number;
}

type SubmitOutcome =
  | { readonly kind: 'accepted' | 'known'; readonly row: ExportRow }
  | { readonly kind: 'conflict' }
  | ({ readonly kind: 'full' } & QueueLoad);

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
  /** Another worker runs the export, or has run it since. */
  | { readonly kind: 'taken'; readonly row: ExportRow }
  | { readonly kind: 'unknown' };

export interface ExportTransition {
  readonly event: ExportEvent;
  readonly from: ExportState;
  readonly row: ExportRow;
}

interface StoreOptions {
  readonly databaseUrl: string;
  readonly leaseMs: number;
  /** Called with every transition before it is committed. It must not throw. */
  readonly onTransition: (transition: ExportTransition) => Promise<void>;
}

/** Statements read or change one row or a page of rows. */
const STATEMENT_TIMEOUT_MS = 10_000;
const CONNECT_TIMEOUT_MS = 5000;
const CONNECTIONS = 4;
/** A heartbeat later than the clock by more than this was written before the clock was set back. */
const CLOCK_TOLERANCE_MS = 1000;

const NOW = `date_trunc('milliseconds', clock_timestamp())`;
/** As the index of Idempotency-Key has it. */
const API_KEY = `coalesce(api_key, '${OWNER}')`;
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
         and ($3::int8 is null or number < $3) and ($5::text is null or ${API_KEY} = $5) order by number desc limit $4`,
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

  /** Keys of different callers have nothing to do with each other, even if they are equal. */
  async findByIdempotencyKey(
    apiKey: string,
    key: string,
    client: Pick<Pool, 'query'> = this.#pool,
  ): Promise<ExportRow | undefined> {
    const { rows } = await client.query(
      `select ${COLUMNS} from exports e where idempotency_key = $1 and ${API_KEY} = $2`,
      [key, apiKey],
    );
    return rows.length === 0 ? undefined : rowOf(rows[0]);
  }

  async load(client: Pick<Pool, 'query'> = this.#pool): Promise<QueueLoad> {
    const { rows } = await client.query(
      `select count(*) filter (where state = 'queued')::int as queued, count(*) filter (where state = 'running')::int as running
       from exports where state in ('queued', 'running')`,
    );
    return rows[0];
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
      const load = await this.load(client);
      if (isFull(load, limits)) return { kind: 'full', ...load };
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
      return { kind: 'accepted', row };
    });
  }

  /** Deletes an export that could not be queued: no caller knows about it. @returns false where a worker has taken it. */
  async withdraw(exportId: string): Promise<boolean> {
    const { rowCount } = await this.#pool.query(`delete from exports where export_id = $1 and state = 'queued'`, [
      exportId,
    ]);
    return rowCount !== 0;
  }

  /** `taken`: a worker with a recent heartbeat runs the export. */
  async claim(exportId: string, worker: string): Promise<ExportOutcome> {
    return await this.#step(exportId, 'claim', {
      // A worker that died and returned under the same name may claim its own export.
      allows: (row, isAlive) => !isAlive || row.worker === worker,
      set: `fence = fence + 1, worker = $2, heartbeat_at = clock_timestamp(),
        crashes = crashes + (case when worker is null or worker = $2 then 0 else 1 end), progress = default`,
      values: [worker],
    });
  }

  /** @returns whether this run still holds the export. */
  async beat(exportId: string, fence: number, progress: Progress): Promise<boolean> {
    const { rowCount } = await this.#pool.query(
      `update exports set heartbeat_at = clock_timestamp(), updated_at = greatest(updated_at, ${NOW}), progress = $3
       where export_id = $1 and fence = $2 and state = 'running'`,
      [exportId, fence, JSON.stringify(progress)],
    );
    return rowCount === 1;
  }

  /** @param isRetry whether the run failed and may succeed on another try. */
  async release(exportId: string, fence: number, isRetry: boolean): Promise<ExportOutcome> {
    return await this.#step(exportId, 'release', {
      allows: (row) => row.fence === fence,
      set: 'worker = null, retries = retries + $2',
      values: [isRetry ? 1 : 0],
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
      allows: (row) => row.fence === fence,
      set: `worker = null, artifact = $2, artifact_fence = fence, warnings = $3, as_of_utc = $4, progress = $5,
        expires_at = ${NOW} + $6 * interval '1 second'`,
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
      allows: (row) => row.fence === fence,
      set: 'worker = null, error_code = $2, error_message = $3',
      values: [code, message],
    });
  }

  async cancel(exportId: string, code: string, message: string): Promise<ExportOutcome> {
    return await this.#step(exportId, 'cancel', {
      set: 'worker = null, error_code = $2, error_message = $3',
      values: [code, message],
    });
  }

  /** Unfinished exports that nobody runs; their message may be lost. */
  async idle(olderThanMs: number): Promise<string[]> {
    const { rows } = await this.#pool.query(
      `select export_id from exports e where state in ('queued', 'running')
         and not coalesce(updated_at between clock_timestamp() - $1 * interval '1 ms' and clock_timestamp(), false)
         and not ${isAliveSql('$2')} order by number limit 1000`,
      [olderThanMs, this.#options.leaseMs],
    );
    return rows.map(({ export_id }) => export_id);
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
    step: {
      readonly allows?: (row: ExportRow, isAlive: boolean) => boolean;
      readonly set: string;
      readonly values: readonly unknown[];
    },
  ): Promise<ExportOutcome> {
    return await this.#transaction(async (client) => {
      const { rows } = await client.query(
        `select ${COLUMNS}, ${isAliveSql('$2')} as is_alive from exports e where export_id = $1 for update`,
        [exportId, this.#options.leaseMs],
      );
      if (rows.length === 0) return { kind: 'unknown' };
      const before = rowOf(rows[0]);
      const state = TRANSITIONS[before.state][event];
      if (state === null) return { kind: 'refused', row: before };
      if (step.allows && !step.allows(before, rows[0].is_alive)) return { kind: 'taken', row: before };
      const changed = await client.query(
        `with e as (update exports set state = $${step.values.length + 2}, updated_at = greatest(updated_at, ${NOW}), ${step.set}
         where export_id = $1 returning *) select ${COLUMNS} from e`,
        [exportId, ...step.values, state],
      );
      const row = rowOf(changed.rows[0]);
      await this.#options.onTransition({ event, from: before.state, row });
      return { kind: 'done', row };
    });
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

/** A worker runs the export and sent a heartbeat within the lease. A clock that was set back does not keep a dead worker alive. */
const isAliveSql = (leaseMs: string): string =>
  `coalesce(e.worker is not null and e.heartbeat_at between clock_timestamp() - ${leaseMs} * interval '1 ms'
     and clock_timestamp() + ${CLOCK_TOLERANCE_MS} * interval '1 ms', false)`;

/** The queue is not full while a worker is free, since an export then does not wait. */
export const isFull = ({ queued, running }: QueueLoad, limits: QueueLimits): boolean =>
  queued >= limits.waiting && queued + running >= limits.running;
