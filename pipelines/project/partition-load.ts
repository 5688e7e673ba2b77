/**
 * One partition attempt on its way into storage: one transaction from the first frame to the proof. Nothing of it is
 * visible before the commit, and everything is afterwards: rows, aligned rows, frames index, coverage, checkpoint.
 */
import type { ClientBase } from 'pg';
import { TidemarkError } from '../../shared/errors.ts';
import type { FrameHeader } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { compare, type Discrepancy, type Recount, recount, seriesCondition } from '../../shared/proof/recount.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Window } from '../../shared/registry/partitions.ts';
import type { RowProjector } from '../sources/types.ts';
import { indexChunks, type LoadTarget, prepareChunks } from './chunks.ts';
import { CopyIn } from './copy-in.ts';

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
  /** Where the time after the last frame went, ms by step. */
  readonly steps: Readonly<Record<string, number>>;
}

export class PartitionLoad {
  readonly window: Window;
  readonly frames: FrameEntry[] = [];
  readonly #client: ClientBase;
  readonly #dataset: DatasetDefinition;
  readonly #projector: RowProjector;
  readonly #tables: LoadTables;
  readonly #seriesId: number;
  #copy: CopyIn | undefined;

  private constructor(
    client: ClientBase,
    dataset: DatasetDefinition,
    window: Window,
    projector: RowProjector,
    tables: LoadTables,
    seriesId: number,
  ) {
    this.#client = client;
    this.#dataset = dataset;
    this.window = window;
    this.#projector = projector;
    this.#tables = tables;
    this.#seriesId = seriesId;
  }

  /** Opens the load in the caller's transaction; whatever the window held before goes first. */
  static async open(
    client: ClientBase,
    needs: {
      dataset: DatasetDefinition;
      window: Window;
      projector: RowProjector;
      seriesId: number;
      /** Scratch tables to load into; default the served ones. */
      tables?: LoadTables;
    },
  ): Promise<PartitionLoad> {
    const { dataset, window, projector, seriesId } = needs;
    const tables = needs.tables ?? { native: await prepareChunks(client, dataset, window), aligned: ALIGNED_TABLE };
    // A revision, or a partition quarantined after it was stored. Readers see the old rows until the commit.
    if (!needs.tables) await deleteRows(client, dataset, window);
    const load = new PartitionLoad(client, dataset, window, projector, tables, seriesId);
    const columns = dataset.native.columns.map((column) => column.name);
    load.#copy = new CopyIn(client, tables.native.table, columns, tables.native.fresh);
    return load;
  }

  /** The next frame, in order. */
  async add(sequence: number, header: FrameHeader, raw: Buffer): Promise<void> {
    const { copy, rows } = this.#projector.rows(raw, header.rows);
    if (rows !== header.rows) {
      throw new TidemarkError(
        'LOG_FRAME_CORRUPT',
        `Frame ${header.frame} holds ${rows} events, its header says ${header.rows}`,
      );
    }
    await this.#copy!.write(copy);
    this.frames.push({ sequence, header });
  }

  /** Everything is in: aligned rows, index, recount. The caller decides by the discrepancies and commits. */
  async finish(manifest: Manifest): Promise<LoadResult> {
    const steps: Record<string, number> = {};
    let at = performance.now();
    const step = (name: string) => {
      const now = performance.now();
      steps[name] = Math.round(now - at);
      at = now;
    };
    await this.#copy!.end();
    this.#copy = undefined;
    step('copy_end_ms');
    const aligned = this.#projector.aligned({ datasetId: this.#dataset.number, seriesId: this.#seriesId });
    const alignedCopy = new CopyIn(this.#client, this.#tables.aligned, this.#projector.alignedColumns);
    await alignedCopy.write(aligned.copy);
    await alignedCopy.end();
    step('aligned_ms');
    await indexChunks(this.#client, this.#dataset, this.#tables.native);
    step('index_ms');
    const found = await recount(
      this.#client,
      this.#dataset,
      this.window,
      { native: this.#tables.native.table, aligned: this.#tables.aligned },
      this.#projector.alignedColumns,
    );
    step('recount_ms');
    const discrepancies = compare(this.#dataset, manifest, found);
    if (this.frames.length !== manifest.frames) {
      discrepancies.push({ fact: 'frames', expected: `${manifest.frames}`, found: `${this.frames.length}` });
    }
    return { recount: found, discrepancies, steps };
  }

  /** Ends the COPY if one is open; the caller rolls back. */
  async abort(): Promise<void> {
    await this.#copy?.abort();
    this.#copy = undefined;
  }
}

/** Takes a partition's rows out of storage, in the caller's transaction. */
export async function deleteRows(client: ClientBase, dataset: DatasetDefinition, window: Window): Promise<void> {
  const time = `"${dataset.native.time.column}"`;
  await client.query(
    `delete from ${dataset.native.table} where ${time} >= ${window.fromMs} and ${time} < ${window.toMs}`,
  );
  await client.query(
    `delete from ${ALIGNED_TABLE} t where t.dataset_id = ${dataset.number}${seriesCondition(dataset)}
     and t.aligned_at_utc >= '${new Date(window.fromMs).toISOString()}'
     and t.aligned_at_utc < '${new Date(window.toMs).toISOString()}'`,
  );
}
