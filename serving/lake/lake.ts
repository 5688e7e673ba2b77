/**
 * Keeps a lake: holds its lock, compares everything once, and with `follow` goes on with what each new leaf of the proof log
 * touches. States in the database how far the lake has come.
 */
import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import type { Settings } from '../../shared/config/settings.ts';
import { type Client, connect, LAKE_LOCK, PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { registeredInstruments } from '../../shared/db/instruments.ts';
import { codeOf, type ErrorCode, explain, outageCode, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import type { Range } from '../../shared/ranges.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { ConnectionLost } from '../db/pg-connection.ts';
import { ServerFault } from '../db/pg-messages.ts';
import { PgPool, poolOptions } from '../db/pool.ts';
import { artifactDeps } from '../exports/service.ts';
import type { FreshnessRule } from '../read/execute/warnings.ts';
import { ReadFault } from '../read/read-model.ts';
import type { LakeFolder } from './folder.ts';
import { SPANS } from './format.ts';
import { type LakeCounts, type LakeProgress, LakeWriter, type Scope, type Skipped } from './writer.ts';

export interface LakeOptions {
  readonly settings: Settings;
  readonly databaseUrl: string;
  readonly rights: RightsStore;
  readonly freshness: FreshnessRule;
  readonly log: Logger;
  readonly folder: LakeFolder;
  readonly synthetic: boolean;
  readonly signal: AbortSignal;
  readonly onProgress?: (progress: LakeProgress) => void;
}

export interface LakeReport extends LakeCounts {
  readonly folder: string;
  readonly files: number;
  readonly rows: number;
  readonly bytes: number;
  readonly change: number;
  readonly skipped: readonly Skipped[];
  readonly failed: readonly { readonly path: string; readonly why: string }[];
}

const POLL_MS = 1000;
const RETRY_MS = 3000;
/** The longest wait for the signature of what is proved. */
const SETTLE_MS = 5000;
/** Passes in a row that end nothing and find the plan changed while they write. */
const MAX_FRUITLESS = 20;
/** Leaves that one look takes; more make a comparison of everything. */
const MAX_LEAVES = 10_000;

/** One connection: it holds the lock, reads the proof log and states how far the lake has come. */
class LakeCatalog implements AsyncDisposable {
  readonly #client: Client;
  readonly #folder: string;

  private constructor(client: Client, folder: string) {
    this.#client = client;
    this.#folder = folder;
  }

  /** @throws TidemarkError WORK_HELD */
  static async open(databaseUrl: string, folder: string): Promise<LakeCatalog> {
    const client = await connect({ url: databaseUrl, name: 'tidemark lake' });
    const { rows } = await client.query(`select pg_try_advisory_lock(${LAKE_LOCK}, hashtext($1)) as held`, [folder]);
    if (rows[0].held) return new LakeCatalog(client, folder);
    const by = await client.query('select host, pid from lakes where folder = $1', [folder]);
    await client[Symbol.asyncDispose]();
    const [writer] = by.rows;
    const who = writer ? ` (process ${writer.pid} on ${writer.host} was the last to write to it)` : '';
    throw new TidemarkError('WORK_HELD', `Another process writes to the lake ${folder}${who}`);
  }

  /** The number of leaves with an index: every change up to it is visible to a snapshot that begins later. */
  async change(): Promise<number> {
    const { rows } = await this.#client.query(
      'select coalesce(max(leaf_index) + 1, 0)::text as change from proof_leaves',
    );
    return Number(rows[0].change);
  }

  /**
   * Waits until a sequencer that is at work has signed what is in the catalog: the manifests of files then prove it. Not for long,
   * because rows that are taken back must not stay in the lake while the proof log is at a standstill.
   */
  async settled(signal: AbortSignal): Promise<void> {
    const until = performance.now() + SETTLE_MS;
    while (performance.now() < until && !signal.aborted) {
      const { rows } = await this.#client.query(
        `select 1 from proof_head h where (h.signed_size < h.size or exists (select from proof_leaves where leaf_index is null))
           and exists (select from pg_locks where locktype = 'advisory' and classid = ${PROOF_LOG_LOCK} and granted
             and database = (select oid from pg_database where datname = current_database()))`,
      );
      if (rows.length === 0) return;
      await delay(SETTLE_MS / 50, undefined, { signal }).catch(() => {});
    }
  }

  /** The times that the leaves from `change` on touch, those without an index among them, by dataset. A partition that left the catalog has none any longer. */
  async touched(change: number, datasets: readonly DatasetDefinition[]): Promise<Scope> {
    const { rows } = await this.#client.query(
      `select l.dataset_id, p.from_ms::text, p.to_ms::text from proof_leaves l left join partitions p using (dataset_id, partition_key)
       where (l.leaf_index >= $1 or l.leaf_index is null) and l.dataset_id is not null and l.kind in ('proved', 'revised', 'retracted', 'quarantined')
       order by l.leaf_index limit ${MAX_LEAVES + 1}`,
      [change],
    );
    if (rows.length > MAX_LEAVES) return new Map(datasets.map((dataset) => [dataset, 'all']));
    const byNumber = new Map(datasets.map((dataset) => [dataset.number, dataset]));
    const scope = new Map<DatasetDefinition, Range[] | 'all'>();
    for (const { dataset_id: number, from_ms: from, to_ms: to } of rows) {
      const dataset = byNumber.get(number);
      if (!dataset) continue;
      const ranges = scope.get(dataset) ?? [];
      if (ranges === 'all') continue;
      if (from === null || SPANS[dataset.partition.kind].reachesFar) scope.set(dataset, 'all');
      else scope.set(dataset, [...ranges, { from: Number(from), to: Number(to) }]);
    }
    return scope;
  }

  /** The datasets, and what was ever proved of other instruments than their defaults. */
  async datasets(): Promise<DatasetDefinition[]> {
    return [...DATASETS.values(), ...(await registeredInstruments(this.#client))];
  }

  /** The versions of coverage: a check of a source prolongs its coverage without a leaf. */
  async versions(): Promise<ReadonlyMap<number, string>> {
    const { rows } = await this.#client.query('select dataset_id, version::text from coverage');
    return new Map(rows.map(({ dataset_id, version }) => [dataset_id, version]));
  }

  async state(writer: LakeWriter, synthetic: boolean, fault: string | undefined): Promise<void> {
    const { files, rows, bytes } = writer.totals();
    await this.#client.query(
      `insert into lakes (folder, host, pid, synthetic, files, rows, bytes, change, fault, written_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp())
       on conflict (folder) do update set host = excluded.host, pid = excluded.pid, synthetic = excluded.synthetic,
         files = excluded.files, rows = excluded.rows, bytes = excluded.bytes, change = excluded.change,
         fault = excluded.fault, checked_at = clock_timestamp(),
         written_at = case when (lakes.files, lakes.rows, lakes.bytes, lakes.change)
           is distinct from (excluded.files, excluded.rows, excluded.bytes, excluded.change)
           then excluded.written_at else lakes.written_at end`,
      [this.#folder, hostname(), process.pid, synthetic, files, rows, bytes, writer.change, fault ?? null],
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#client[Symbol.asyncDispose]();
  }
}

export class Lake implements AsyncDisposable {
  readonly #options: LakeOptions;
  readonly #pool: PgPool;
  #catalog: LakeCatalog;
  #writer: LakeWriter;
  /** The datasets that were compared as a whole, of which new leaves say what changed since. */
  readonly #compared = new Set<DatasetDefinition>();
  /** The versions of coverage that were looked at. */
  #versions: ReadonlyMap<number, string> = new Map();

  private constructor(options: LakeOptions, pool: PgPool, catalog: LakeCatalog, writer: LakeWriter) {
    this.#options = options;
    this.#pool = pool;
    this.#catalog = catalog;
    this.#writer = writer;
  }

  /** @throws TidemarkError USAGE, WORK_HELD, DISK_UNUSABLE */
  static async open(options: LakeOptions): Promise<Lake> {
    const { folder, databaseUrl } = options;
    await folder.readRoot();
    await using opened = new AsyncDisposableStack();
    const catalog = opened.use(await LakeCatalog.open(databaseUrl, folder.location));
    const pool = opened.use(new PgPool(poolOptions(databaseUrl)));
    const writer = await openWriter(options, pool);
    opened.move();
    return new Lake(options, pool, catalog, writer);
  }

  /** Brings the lake to what is proved now. */
  async write(): Promise<LakeReport> {
    this.#compared.clear();
    await this.#bring(0);
    return this.report();
  }

  report(): LakeReport {
    const { counts, change, skipped, failed } = this.#writer;
    return {
      folder: this.#options.folder.location,
      ...this.#writer.totals(),
      ...counts,
      change,
      skipped,
      failed: [...failed].map(([path, { why }]) => ({ path, why })),
    };
  }

  /**
   * Keeps the lake until the signal. Faults of database, disk and rights matrix are stated and tried again.
   * @param onRound called after each round that changed the lake
   */
  async follow(onRound: (report: LakeReport) => void): Promise<void> {
    const { signal, log, settings } = this.#options;
    let isFaulty = false;
    while (!signal.aborted) {
      try {
        if (isFaulty) await this.#reopen();
        const before = JSON.stringify(this.report());
        await this.#bring(settings.limits.lakeCommitMs);
        isFaulty = false;
        if (JSON.stringify(this.report()) !== before) onRound(this.report());
      } catch (error) {
        if (signal.aborted) return;
        if (!isTransient(error)) throw error;
        if (!isFaulty) log.error({ err: error }, 'the lake cannot be written now; it is tried again');
        isFaulty = true;
        await this.#catalog.state(this.#writer, this.#options.synthetic, explain(error)).catch(() => {});
      }
      await delay(isFaulty ? RETRY_MS : POLL_MS, undefined, { signal }).catch(() => {});
    }
  }

  /** The lock went with a lost connection, and another writer may have come: everything is read anew. */
  async #reopen(): Promise<void> {
    await this.#catalog[Symbol.asyncDispose]();
    this.#catalog = await LakeCatalog.open(this.#options.databaseUrl, this.#options.folder.location);
    this.#writer = await openWriter(this.#options, this.#pool);
    this.#compared.clear();
  }

  /** What the lake may lack: by leaves since its change, and as a whole where that does not tell. */
  async #scope(datasets: readonly DatasetDefinition[]): Promise<Scope> {
    const versions = await this.#catalog.versions();
    const scope = new Map(await this.#catalog.touched(this.#writer.change, datasets));
    const skipped = new Set(this.#writer.skipped.map(({ dataset }) => dataset));
    for (const dataset of datasets) {
      const isChanged = this.#versions.get(dataset.number) !== versions.get(dataset.number);
      if (isChanged && SPANS[dataset.partition.kind].reachesFar) this.#compared.delete(dataset);
      // What was refused may be allowed now, without a leaf.
      if (skipped.has(dataset.key)) this.#compared.delete(dataset);
      if (!this.#compared.has(dataset)) scope.set(dataset, 'all');
    }
    this.#versions = versions;
    return scope;
  }

  /** @param pauseMs between two commits of a table, unless rows were withdrawn */
  async #bring(pauseMs: number): Promise<void> {
    const { signal, synthetic } = this.#options;
    await this.#catalog.settled(signal);
    for (let fruitless = 0; ; ) {
      signal.throwIfAborted();
      const before = this.#writer.written;
      // First: a leaf that came between the two would be stated and never written.
      const change = await this.#catalog.change();
      const datasets = await this.#catalog.datasets();
      const scope = await this.#scope(datasets);
      const { done, waiting } = await this.#writer.pass({ datasets, scope, change, pauseMs });
      for (const dataset of done) this.#compared.add(dataset);
      if ([...scope.keys()].every((dataset) => done.has(dataset) || waiting.has(dataset))) break;
      fruitless = this.#writer.written > before ? 0 : fruitless + 1;
      if (fruitless === MAX_FRUITLESS) {
        throw new TidemarkError(
          'PARTITION_CHANGED',
          'What may be written changes with every look at rights and catalog',
        );
      }
      if (fruitless > 0) await delay(POLL_MS / 4, undefined, { signal });
    }
    await this.#catalog.state(this.#writer, synthetic, this.report().failed[0]?.why);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pool[Symbol.asyncDispose]();
    await this.#catalog[Symbol.asyncDispose]();
  }
}

function openWriter(options: LakeOptions, pool: PgPool): Promise<LakeWriter> {
  const { settings, freshness, rights, log, folder, synthetic, signal, onProgress } = options;
  const artifacts = artifactDeps(settings, { pool, freshness, log });
  return LakeWriter.open({ folder, settings, artifacts, pool, rights, synthetic, log, signal, onProgress });
}

/** A disk may get space, what changes may settle, and an operator corrects the rights matrix. */
const TRANSIENT: ReadonlySet<ErrorCode> = new Set([
  'DISK_UNUSABLE',
  'CONFIGURATION_INVALID',
  'WORK_HELD',
  'PARTITION_CHANGED',
  'DATABASE_UNAVAILABLE',
]);

function isTransient(error: unknown): boolean {
  const code = lakeFaultCode(error);
  return code !== undefined && TRANSIENT.has(code);
}

/** The code of a fault; undefined where it is one of the lake itself. */
export function lakeFaultCode(error: unknown): ErrorCode | undefined {
  // Of the plan, which is read beside the reader. Class 42 are faults of its statements.
  const isOfConnection =
    error instanceof ConnectionLost || (error instanceof ServerFault && !error.sqlState.startsWith('42'));
  const isOfRead = error instanceof ReadFault && (error.kind === 'backend' || error.kind === 'timeout');
  return isOfConnection || isOfRead ? 'DATABASE_UNAVAILABLE' : (codeOf(error) ?? outageCode(error));
}
