/**
 * Loads one attempt into storage in the caller's transaction, from the first frame to the recount. Readers see nothing
 * of it before the commit and all of it afterwards.
 */

import type { ClientBase } from 'pg';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import type { FrameHeader } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { RecordAssembler } from '../../shared/frame/records.ts';
import { factsText } from '../../shared/proof/facts.ts';
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
import { gappedIds, type RangesOfRows, rangedColumns, unitedRanges } from '../../shared/proof/value-ranges.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import {
  CopyRanges,
  type FoldingProjector,
  type KeptKlines,
  LoggedRows,
  type Projection,
  type RowProjector,
} from '../rows/binary-copy.ts';
import { CopyIn, CopySeries } from '../rows/copy-in.ts';
import { allowDeletes, compactableOf, indexChunks, type LoadTarget, prepareChunks } from './chunks.ts';
import { compareKlines, deleteKlines, storedKlinesSha256, storeKlines } from './kline-storage.ts';

/** A frame; without ranges where none are kept of its rows. */
export interface FrameEntry extends Partial<RangesOfRows> {
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
  /** Digest of the klines that are kept of the rows; null for datasets without. */
  readonly klinesSha256: string | null;
  /** As of the catalog. */
  readonly inexactSeconds: string | null;
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
  readonly shared?: CopySeries;
}

interface Folded {
  readonly rows: FoldingProjector;
  readonly columns: readonly string[];
}

interface SecondRows {
  readonly copy: Buffer;
  readonly columns: readonly string[];
}

export class PartitionLoad {
  readonly partition: PartitionRef;
  readonly frames: FrameEntry[] = [];
  readonly #client: ClientBase;
  readonly #dataset: DatasetDefinition;
  readonly #rows: RowProjector;
  readonly #ranges: CopyRanges;
  readonly #logged: LoggedRows;
  #rowsSha256: string | undefined;
  #facts: string | undefined;
  /** Present where aligned rows are made from this partition alone. */
  readonly #folded: Folded | undefined;
  readonly #assembler = new RecordAssembler();
  readonly #tables: LoadTables;
  readonly #seriesId: number;
  readonly #shared: CopySeries | undefined;
  /** Whether the rows go to the served tables, and klines with them. */
  readonly #isServed: boolean;
  #bytes = 0;
  /** Rows that ended series took, or that were written to the shared one. */
  #copied = 0;
  /** The open series of COPYs and its table. */
  #copy: { readonly into: string; readonly rows: CopySeries } | undefined;

  private constructor(client: ClientBase, needs: LoadNeeds, tables: LoadTables) {
    const { dataset, partition, projection } = needs;
    this.#client = client;
    this.#dataset = dataset;
    this.partition = partition;
    this.#folded = projection.seconds
      ? undefined
      : { rows: projection.createRows(partition), columns: projection.alignedColumns };
    this.#rows = this.#folded?.rows ?? projection.createRows(partition);
    const { columns, time } = dataset.native;
    this.#ranges = new CopyRanges(columns, rangedColumns(dataset), time.column, gappedIds(dataset));
    this.#logged = new LoggedRows(dataset.native.columns);
    this.#tables = tables;
    this.#isServed = needs.tables === undefined;
    this.#seriesId = needs.seriesId;
    this.#shared = needs.shared;
  }

  /**
   * Opens the load in the caller's transaction; rows that it replaces are already deleted, except those of a file day.
   */
  static async open(client: ClientBase, needs: LoadNeeds): Promise<PartitionLoad> {
    const { dataset } = needs;
    const { owner } = dataset.native;
    if (owner) await client.query(`select set_config('tidemark.instrument', $1, true)`, [owner.value]);
    // The window of a file day is emptied here, whatever it holds: an earlier revision, or rows that were quarantined.
    if (!needs.tables && dataset.native.scope.kind === 'window') await deleteWindow(client, dataset, needs.partition);
    const tables = needs.tables ?? { native: await target(client, needs), aligned: ALIGNED_TABLE };
    return new PartitionLoad(client, needs, tables);
  }

  /** Bytes of events so far. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Digest of the canonical bytes of the rows, after the last frame. */
  get rowsSha256(): string {
    this.#rowsSha256 ??= this.#logged.digest();
    return this.#rowsSha256;
  }

  /** The canonical bytes of its facts, after the last frame. */
  factsText(manifest: Manifest): string {
    this.#facts ??= factsText(this.#dataset, manifest, this.#folded?.rows.facts());
    return this.#facts;
  }

  /** Adds the next frame. */
  async add(sequence: number, header: FrameHeader, raw: Buffer): Promise<void> {
    this.#bytes += raw.length;
    this.#checkOrder(header);
    const body = this.#assembler.take(header, raw);
    let ranges: RangesOfRows | undefined;
    if (body) {
      const { copy, rows } = this.#rows.rows(body, header.rows, header);
      if (rows !== header.rows) {
        throw new TidemarkError(
          'LOG_DAMAGED',
          `Frame ${header.frame} holds ${rows} events, its header says ${header.rows}`,
        );
      }
      ranges = this.#rangesOf(copy, header);
      this.#logged.update(copy);
      if (this.#shared) {
        await this.#shared.write(copy);
        this.#copied += rows;
      } else {
        await (await this.#copyFor(header)).write(copy);
      }
    } else if (header.rows !== 0) {
      throw new TidemarkError('LOG_DAMAGED', `Frame ${header.frame} holds a part and counts ${header.rows} events`);
    }
    this.frames.push({ sequence, header, ...ranges });
  }

  /** @throws TidemarkError LOG_DAMAGED when the frame does not follow the one before: an event is looked up by offsets. */
  #checkOrder({ frame, part = 1, first_offset }: FrameHeader): void {
    const before = this.frames.at(-1)?.header;
    if (this.#dataset.offset.order !== 'numeric' || part > 1 || before === undefined) return;
    if (BigInt(first_offset) > BigInt(before.last_offset)) return;
    throw new TidemarkError(
      'LOG_DAMAGED',
      `Frame ${frame} begins at ${first_offset}, which does not follow ${before.last_offset}, the end of the frame before`,
    );
  }

  /** @throws TidemarkError LOG_DAMAGED when the header misstates the times: reads with filters rely on them. */
  #rangesOf(copy: Buffer, header: FrameHeader): RangesOfRows | undefined {
    const facts = this.#ranges.of(copy, header.rows);
    if (!facts || header.rows === 0) return undefined;
    if (facts.firstMs !== header.first_ms || facts.lastMs !== header.last_ms) {
      throw new TidemarkError(
        'LOG_DAMAGED',
        `Frame ${header.frame} holds times from ${facts.firstMs} to ${facts.lastMs} ms, its header says ${header.first_ms} to ${header.last_ms}`,
      );
    }
    return { ranges: facts.ranges, granules: facts.granules };
  }

  /**
   * The COPY into the chunk that the frame lies in, or into the hypertable if none holds all of it, which happens where others
   * made chunks that divide the day. The chunk's constraint refuses rows whose times the header misstates.
   */
  async #copyFor(header: FrameHeader): Promise<CopySeries> {
    const { native } = this.#tables;
    const chunk = native.chunks.find(({ fromMs, toMs }) => header.first_ms >= fromMs && header.last_ms < toMs);
    const into = chunk?.table ?? native.table;
    if (this.#copy?.into !== into) {
      await this.#endCopy();
      const columns = this.#dataset.native.columns.map((column) => column.name);
      this.#copy = { into, rows: new CopySeries(this.#client, into, columns, chunk?.fresh) };
    }
    return this.#copy.rows;
  }

  async #endCopy(): Promise<void> {
    this.#copied += (await this.#copy?.rows.end()) ?? 0;
    this.#copy = undefined;
  }

  /** Indexes, stores the aligned rows and recounts. The caller decides by the discrepancies. */
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
    // The database builds the index on one core, 0.65 s for 3.5 M rows, so the aligned rows and klines are made meanwhile. The
    // recount does not need to come first: the rows are in memory, and it does not use the index.
    const indexing = indexChunks(this.#client, this.#dataset, this.#tables.native);
    const folding = this.#fold();
    folding.catch(() => {});
    await indexing;
    const folded = await folding;
    step('index_ms');
    if (folded) {
      await this.#copyAligned(folded.seconds);
      step('aligned_ms');
      if (this.#isServed) await storeKlines(this.#client, folded.klines);
      step('klines_ms');
    }
    const klines = folded?.klines;
    const found = await this.#recount(manifest);
    step('recount_ms');
    const discrepancies = this.compare(manifest, found);
    // Klines of rows that differ differ as well, and would tell nothing new.
    if (klines && discrepancies.length === 0) {
      discrepancies.push(...(await this.#compareKlines(klines, manifest, found)));
    }
    const { sha256 = null, inexactSeconds = null } = klines ?? {};
    return { recount: found, discrepancies, klinesSha256: sha256, inexactSeconds, steps };
  }

  /** Compares klines with the manifest, and those that are stored with those that were made. */
  async #compareKlines(klines: KeptKlines, manifest: Manifest, found: Recount): Promise<Discrepancy[]> {
    const discrepancies = compareKlines(this.#dataset, klines, manifest, found.aligned_rows);
    if (!this.#isServed) return discrepancies;
    const stored = await storedKlinesSha256(this.#client, this.#dataset, this.partition, klines.inexactSeconds);
    if (stored !== klines.sha256) {
      discrepancies.push({ fact: 'klines_sha256', expected: klines.sha256, found: stored });
    }
    return discrepancies;
  }

  /** Ends the frames. @throws TidemarkError LOG_DAMAGED when the last event is incomplete. */
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

  /** The aligned rows and the klines that are kept, where they are made from this partition alone. */
  async #fold(): Promise<{ seconds: SecondRows; klines: KeptKlines } | undefined> {
    if (!this.#folded) return undefined;
    const { rows, columns } = this.#folded;
    const seconds = rows.aligned({ datasetId: this.#dataset.number, seriesId: this.#seriesId });
    return { seconds: { ...seconds, columns }, klines: rows.klines(this.#dataset.number) };
  }

  async #copyAligned({ copy: rows, columns }: SecondRows): Promise<void> {
    const copy = new CopyIn(this.#client, this.#tables.aligned, columns);
    await copy.write(rows);
    await copy.end();
  }

  async #recount(manifest: Manifest): Promise<Recount> {
    const { table } = this.#tables.native;
    if (!this.#folded) {
      const partition = { key: this.partition.key, fromMs: manifest.from_ms, toMs: manifest.to_ms };
      return await recountNative(this.#client, this.#dataset, partition, table);
    }
    const tables = { native: table, aligned: this.#tables.aligned };
    const ranges = unitedRanges(this.frames.flatMap((frame) => (frame.header.rows > 0 ? [frame.ranges] : [])));
    const partition = { ...this.partition, ranges };
    return await recount(this.#client, this.#dataset, partition, tables, this.#folded.columns);
  }

  /** Discards an open COPY; the caller rolls back. */
  async abort(): Promise<void> {
    await this.#copy?.rows.abort();
    this.#copy = undefined;
  }
}

/** A file day of a default instrument fills chunks of its own; other partitions share chunks, whose index exists. */
async function target(client: ClientBase, { dataset, partition }: LoadNeeds): Promise<LoadTarget> {
  if (dataset.native.scope.kind === 'window' && !dataset.native.owner)
    return await prepareChunks(client, dataset, partition);
  return { table: dataset.native.table, chunks: [] };
}

/** Deletes a partition's native rows, in the caller's transaction. */
export async function deleteNative(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<void> {
  if (compactableOf(dataset)) await allowDeletes(client, dataset.native.table, partition);
  await client.query(`delete from ${dataset.native.table} t where ${scopeSql(dataset, partition)}`);
}

/** Deletes a file day's rows, aligned rows and klines included. */
export async function deleteWindow(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<void> {
  await deleteNative(client, dataset, partition);
  await deleteKlines(client, dataset, partition);
  await client.query(
    `delete from ${ALIGNED_TABLE} t where t.dataset_id = ${dataset.number}${seriesCondition(dataset)}
     and t.aligned_at_utc >= '${new Date(partition.fromMs).toISOString()}'
     and t.aligned_at_utc < '${new Date(partition.toMs).toISOString()}'`,
  );
}

/** Where the rows of a catalog's partition are; its times are known from its first proof on. */
export function partitionRefOf(row: PartitionRow): PartitionRef {
  assert(row.fromMs !== null && row.toMs !== null, `the times of ${row.partitionKey} are known`);
  return { key: row.partitionKey, fromMs: row.fromMs, toMs: row.toMs, ranges: row.valueRanges ?? undefined };
}
