/**
 * Requests a recount of partitions whose rows a read did not find as proved. The request is all that this process writes:
 * the projector process recounts the rows, and it alone takes a partition out of service.
 */
import { SECOND_MS } from '../../../shared/dates.ts';
import { explain } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import { scopeJoinSql } from '../../../shared/proof/recount.ts';
import { ALIGNED_TABLE } from '../../../shared/registry/aligned-storage.ts';
import { nativeRows } from '../../../shared/registry/instruments.ts';
import { KLINE_TABLES } from '../../../shared/registry/kept-klines.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { PgPool } from '../../db/pool.ts';
import { sourceSizeOf } from '../klines/sources.ts';
import { KEPT_ROWS } from '../klines/sums.ts';
import type { LostRows } from '../read-model.ts';

/** Partitions per request. A window in which more partitions differ has lost more than a recount can repair. */
const MAX_ASKED = 100;
/** Time to recount the rows of a long window and find the partitions that differ. */
const TIMEOUT_MS = 20_000;

export class RecountRequests {
  readonly #pool: PgPool;
  readonly #log: Logger | undefined;

  constructor(pool: PgPool, log: Logger | undefined) {
    this.#pool = pool;
    this.#log = log;
  }

  /** Never throws: the read has already failed, and its caller gets that failure whatever happens to the request. */
  async ask(request: ReadRequest, lost: LostRows): Promise<void> {
    const { dataset, mode } = request;
    const facts = { dataset: dataset.key, mode, ...lost.count.window, partitions: lost.count.partitions };
    this.#log?.error(facts, `a read found other rows than were proved: ${lost.message}`);
    try {
      const params = new Params();
      const reason = params.add(text(`${mode}: ${lost.message}`));
      const statement = `insert into recount_requests (dataset_id, partition_key, reason)
        select p.dataset_id, p.partition_key, ${reason} from partitions p
        where p.dataset_id = ${params.add(int2(dataset.number))} and p.state = 'proved'
          and ${differing(request, lost, params)} order by p.from_ms limit ${MAX_ASKED}
        on conflict do nothing`;
      await this.#run(statement, params);
    } catch (error) {
      this.#log?.error(
        { ...facts, fault: explain(error) },
        'the recount could not be requested; run ./tidemark verify for the dataset',
      );
    }
  }

  async #run(statement: string, params: Params): Promise<void> {
    const { connection } = await this.#pool.acquire(true);
    try {
      // The pool's sessions are read-only unless a transaction says otherwise.
      await connection.run([
        { statement: { text: 'begin read write' } },
        { statement: { text: `set local statement_timeout = ${TIMEOUT_MS}` } },
        { statement: { text: statement, params: params.list } },
        { statement: { text: 'commit' } },
      ]);
      this.#pool.release(connection);
    } catch (error) {
      this.#pool.discard(connection);
      throw error;
    }
  }
}

/** A condition: the aligned row `t` lies in the times of the partition `p`. */
const OF_PARTITION = `t.dataset_id = p.dataset_id and t.aligned_at_utc >= to_timestamp(p.from_ms / 1000)
  and t.aligned_at_utc < to_timestamp(p.to_ms / 1000.0)`;

/** A condition on partitions `p`: the partitions that the read named, or those in its window whose row count differs. */
function differing(request: ReadRequest, { count: { window, partitions } }: LostRows, params: Params): string {
  if (partitions) return `p.partition_key = any (${params.add(array(partitions.map(text)))})`;
  const { dataset, mode } = request;
  const { time } = dataset.native;
  const native = `select count(*) from ${nativeRows(dataset)} t where t."${time.column}" >= p.from_ms
    and t."${time.column}" < p.to_ms and ${scopeJoinSql(dataset)}`;
  const { countField } = dataset.aligned;
  const isCounted = dataset.partition.kind === 'file_day' || !countField;
  const aligned = `select ${isCounted ? 'count(*)' : `coalesce(sum(t."${countField}"), 0)`} from ${ALIGNED_TABLE} t where ${OF_PARTITION}`;
  const counted = mode === 'native' || !isCounted ? 'p.rows' : 'p.aligned_rows';
  const found = mode === 'native' ? native : aligned;
  const kept = keptRows(request);
  const keptDiffers = kept === undefined ? '' : ` or p.klines_sha256 is not null and ${counted} <> (${kept})`;
  return `p.from_ms < ${params.add(int8(window.to))} and p.to_ms > ${params.add(int8(window.from))}
    and (${counted} <> (${found})${keptDiffers})`;
}

/** The number of rows that the kept klines or the seconds of a partition `p` aggregate; undefined for a read that uses neither. */
function keptRows(request: ReadRequest): string | undefined {
  const { mode, klineMs } = request;
  const keptMs = klineMs === undefined ? undefined : sourceSizeOf(request, klineMs);
  if (keptMs === undefined) return undefined;
  if (keptMs === SECOND_MS) {
    return `select coalesce(sum(t.trade_count), 0) from ${ALIGNED_TABLE} t where ${OF_PARTITION}`;
  }
  const table = mode === 'native' ? KLINE_TABLES.native : KLINE_TABLES.aligned;
  return `select coalesce(sum(k.${KEPT_ROWS[mode]}), 0) from ${table} k where k.dataset_id = p.dataset_id
    and k.size_s = ${keptMs / 1000} and k.start_ms >= p.from_ms and k.start_ms < p.to_ms`;
}
