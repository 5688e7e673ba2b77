/**
 * Loads one attempt into storage in the caller's transaction, from the first frame to the recount. Readers see nothing
 * of it before the commit and all of it afterwards.
 */

import { once } from 'node:events';
import type { ClientBase } from 'pg';
import { type CopyStreamQuery, from as copyFrom } from 'pg-copy-streams';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import type { FrameHeader } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { RecordAssembler } from '../../shared/frame/records.ts';
import {
  compare,
  type Discrepancy,
  type PartitionRef,
  type Recount,
  recount,
  recountNative,
  scopeSql,
  seriesCondition,
} from '../../shared/proof/recount.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import {
  COPY_HEADER,
  COPY_TRAILER,
  type FoldingProjector,
  type Projection,
  type RowProjector,
} from '../rows/binary-copy.ts';
import { indexChunks, type LoadTarget, prepareChunks } from './chunks.ts';

/** One binary COPY ... FROM STDIN of encoded rows. */
export class CopyIn {
  readonly #stream: CopyStreamQuery;
  #failure: unknown;
  #draining: Promise<void> | undefined;
  /** Never resolves; rejects when the database refuses the rows. */
  readonly #failed: Promise<never>;

  constructor(client: ClientBase, table: string, columns: readonly string[], freeze = false) {
    const names = columns.map((name) => `"${name}"`).join(', ');
    this.#stream = client.query(
      copyFrom(`copy ${table} (${names}) from stdin with (format binary${freeze ? ', freeze' : ''})`),
    );
    this.#failed = new Promise((_, reject) => {
      this.#stream.on('error', (error) => {
        this.#failure ??= error;
        reject(error);
      });
    });
    this.#failed.catch(() => {});
    this.#stream.write(COPY_HEADER);
  }

  /**
   * Sends rows. Returns before the database has taken them, so that the caller encodes the next rows meanwhile, and
   * waits for the rows before them: at most two batches are in memory.
   */
  async write(rows: Buffer): Promise<void> {
    if (this.#failure) throw this.#failure;
    if (this.#draining) await Promise.race([this.#draining, this.#failed]);
    this.#draining = this.#stream.write(rows) ? undefined : this.#drained();
  }

  /** Ends the COPY. @returns the number of rows the database took. */
  async end(): Promise<number> {
    if (this.#failure) throw this.#failure;
    const finished = once(this.#stream, 'finish');
    this.#stream.end(COPY_TRAILER);
    await finished;
    return this.#stream.rowCount;
  }

  /**
   * Ends the COPY and discards its rows; the caller rolls the transaction back. A COPY that the database refused, or
   * that was lost with its connection, is already over: closing its stream would wait for an answer that never comes.
   */
  async abort(): Promise<void> {
    if (this.#failure || this.#stream.destroyed || this.#stream.writableFinished) return;
    const closed = once(this.#stream, 'close').catch(() => {});
    this.#stream.destroy();
    await closed;
  }

  #drained(): Promise<void> {
    return new Promise((resolve) => this.#stream.once('drain', resolve));
  }
}

/** A COPY that several partitions write to, one after another; the first rows open it. */
export class SharedCopy {
  readonly #open: () => CopyIn;
  #copy: CopyIn | undefined;

  constructor(client: ClientBase, table: string, columns: readonly string[]) {
    this.#open = () => new CopyIn(client, table, columns);
  }

  async write(rows: Buffer): Promise<void> {
    this.#copy ??= this.#open();
    await this.#copy.write(rows);
  }

  /** Ends the COPY, so that the connection is free again. @returns the number of rows the database took. */
  async end(): Promise<number> {
    const copy = this.#copy;
    this.#copy = undefined;
    return (await copy?.end()) ?? 0;
  }

  async abort(): Promise<void> {
    const copy = this.#copy;
    this.#copy = undefined;
    await copy?.abort();
  }
}

export interface FrameEntry {
  readonly sequence: number;
  readonly header: FrameHeader;
}

export interface LoadTables {
  readonly native: LoadTarget;
  readonly aligned: string;
}

export interface LoadResult {
  readonly recount: Recount;
  readonly discrepancies: readonly Discrepancy[];
  /** How long each step after the last frame took, in ms. */
  readonly steps: Readonly<Record<string, number>>;
}

interface LoadNeeds {
  readonly dataset: DatasetDefinition;
  /** Its times limit those of its rows, as far as they are known before the manifest. */
  readonly partition: PartitionRef;
  readonly projection: Projection;
  /** The number of the dataset's only series, where it has no series key. */
  readonly seriesId: number;
  /** Scratch tables to load into; default the served tables. */
  readonly tables?: LoadTables;
  /** The COPY that the rows share with other partitions; the caller ends it and recounts. */
  readonly shared?: SharedCopy;
}

interface Folded {
  readonly rows: FoldingProjector;
  readonly columns: readonly string[];
}

export class PartitionLoad {
  readonly partition: PartitionRef;
  readonly frames: FrameEntry[] = [];
  readonly #client: ClientBase;
  readonly #dataset: DatasetDefinition;
  readonly #rows: RowProjector;
  /** Present where one-second rows are made from this partition alone. */
  readonly #folded: Folded | undefined;
  readonly #assembler = new RecordAssembler();
  readonly #tables: LoadTables;
  readonly #seriesId: number;
  readonly #shared: SharedCopy | undefined;
  #bytes = 0;
  /** Rows that ended COPYs took, or that were written to the shared one. */
  #copied = 0;
  /** The open COPY and its table. */
  #copy: { readonly into: string; readonly rows: CopyIn } | undefined;

  private constructor(client: ClientBase, needs: LoadNeeds, tables: LoadTables) {
    const { dataset, partition, projection } = needs;
    this.#client = client;
    this.#dataset = dataset;
    this.partition = partition;
    this.#folded = projection.seconds
      ? undefined
      : { rows: projection.createRows(partition), columns: projection.alignedColumns };
    this.#rows = this.#folded?.rows ?? projection.createRows(partition);
    this.#tables = tables;
    this.#seriesId = needs.seriesId;
    this.#shared = needs.shared;
  }

  /**
   * Opens the load in the caller's transaction; rows that it replaces are already deleted, except those of a file day.
   */
  static async open(client: ClientBase, needs: LoadNeeds): Promise<PartitionLoad> {
    const { dataset } = needs;
    const tables = needs.tables ?? { native: await target(client, needs), aligned: ALIGNED_TABLE };
    // The window of a file day is emptied here, whatever it holds: an earlier revision, or rows that were quarantined.
    if (!needs.tables && dataset.native.scope.kind === 'window') await deleteWindow(client, dataset, needs.partition);
    return new PartitionLoad(client, needs, tables);
  }

  /** Bytes of events so far. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Adds the next frame. */
  async add(sequence: number, header: FrameHeader, raw: Buffer): Promise<void> {
    this.#bytes += raw.length;
    const body = this.#assembler.take(header, raw);
    if (body) {
      const { copy, rows } = this.#rows.rows(body, header.rows);
      if (rows !== header.rows) {
        throw new TidemarkError(
          'LOG_FRAME_CORRUPT',
          `Frame ${header.frame} holds ${rows} events, its header says ${header.rows}`,
        );
      }
      if (this.#shared) {
        await this.#shared.write(copy);
        this.#copied += rows;
      } else {
        await (await this.#copyFor(header)).write(copy);
      }
    } else if (header.rows !== 0) {
      throw new TidemarkError(
        'LOG_FRAME_CORRUPT',
        `Frame ${header.frame} holds a part and counts ${header.rows} events`,
      );
    }
    this.frames.push({ sequence, header });
  }

  /**
   * The COPY into the chunk that the frame lies in, or into the hypertable if the frame crosses midnight, as one of a
   * day may. The chunk's constraint refuses rows whose times the header misstates.
   */
  async #copyFor(header: FrameHeader): Promise<CopyIn> {
    const { native } = this.#tables;
    const chunk = native.chunks.find(({ fromMs, toMs }) => header.first_ms >= fromMs && header.last_ms < toMs);
    const into = chunk?.table ?? native.table;
    if (this.#copy?.into !== into) {
      await this.#endCopy();
      const columns = this.#dataset.native.columns.map((column) => column.name);
      this.#copy = { into, rows: new CopyIn(this.#client, into, columns, chunk?.fresh) };
    }
    return this.#copy.rows;
  }

  async #endCopy(): Promise<void> {
    this.#copied += (await this.#copy?.rows.end()) ?? 0;
    this.#copy = undefined;
  }

  /** Stores the one-second rows, recounts and indexes. The caller decides by the discrepancies. */
  async finish(manifest: Manifest): Promise<LoadResult> {
    const steps: Record<string, number> = {};
    let at = performance.now();
    const step = (name: string) => {
      const now = performance.now();
      steps[name] = Math.round(now - at);
      at = now;
    };
    this.complete();
    await this.#endCopy();
    step('copy_end_ms');
    if (this.#folded) {
      await this.#copyAligned(this.#folded);
      step('aligned_ms');
    }
    // Before the index: parallel workers of the recount read the rows into memory, the index alone reads them one by
    // one. Both take 2.2 s in this order and 2.9 s in the other for 3.5 M rows, medians of twelve runs on a busy
    // machine.
    const found = await this.#recount(manifest);
    step('recount_ms');
    await indexChunks(this.#client, this.#dataset, this.#tables.native);
    step('index_ms');
    return { recount: found, discrepancies: this.compare(manifest, found), steps };
  }

  /** Ends the frames. @throws TidemarkError LOG_FRAME_CORRUPT when the last event is incomplete. */
  complete(): void {
    this.#assembler.end();
  }

  /** Compares the recount with the manifest. */
  compare(manifest: Manifest, found: Recount): Discrepancy[] {
    const discrepancies = compare(this.#dataset, manifest, found);
    if (this.frames.length !== manifest.frames) {
      discrepancies.push({ fact: 'frames', expected: `${manifest.frames}`, found: `${this.frames.length}` });
    }
    // The recount misses rows that name another partition, or a time outside the manifest's.
    if (this.#copied !== found.rows) {
      discrepancies.push({ fact: 'rows of the partition', expected: `${this.#copied}`, found: `${found.rows}` });
    }
    return discrepancies;
  }

  async #copyAligned({ rows, columns }: Folded): Promise<void> {
    const aligned = rows.aligned({ datasetId: this.#dataset.number, seriesId: this.#seriesId });
    const copy = new CopyIn(this.#client, this.#tables.aligned, columns);
    await copy.write(aligned.copy);
    await copy.end();
  }

  async #recount(manifest: Manifest): Promise<Recount> {
    const { table } = this.#tables.native;
    if (!this.#folded) {
      const partition = { key: this.partition.key, fromMs: manifest.from_ms, toMs: manifest.to_ms };
      return await recountNative(this.#client, this.#dataset, partition, table);
    }
    const tables = { native: table, aligned: this.#tables.aligned };
    return await recount(this.#client, this.#dataset, this.partition, tables, this.#folded.columns);
  }

  /** Discards an open COPY; the caller rolls back. */
  async abort(): Promise<void> {
    await this.#copy?.rows.abort();
    this.#copy = undefined;
  }
}

/** A file day fills chunks of its own; other partitions share chunks, whose index exists. */
async function target(client: ClientBase, { dataset, partition }: LoadNeeds): Promise<LoadTarget> {
  if (dataset.native.scope.kind === 'window') return await prepareChunks(client, dataset, partition);
  return { table: dataset.native.table, chunks: [] };
}

/** Deletes a partition's native rows, in the caller's transaction. */
export async function deleteNative(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<void> {
  await client.query(`delete from ${dataset.native.table} t where ${scopeSql(dataset, partition)}`);
}

/** Deletes a file day's rows, one-second rows included. */
export async function deleteWindow(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<void> {
  await deleteNative(client, dataset, partition);
  await client.query(
    `delete from ${ALIGNED_TABLE} t where t.dataset_id = ${dataset.number}${seriesCondition(dataset)}
     and t.aligned_at_utc >= '${new Date(partition.fromMs).toISOString()}'
     and t.aligned_at_utc < '${new Date(partition.toMs).toISOString()}'`,
  );
}

/** Where the rows of a catalog's partition are; its times are known from its first proof on. */
export function partitionRefOf(row: PartitionRow): PartitionRef {
  assert(row.fromMs !== null && row.toMs !== null, `the times of ${row.partitionKey} are known`);
  return { key: row.partitionKey, fromMs: row.fromMs, toMs: row.toMs };
}
