/**
 * Small partitions that share one transaction: the rows of all go into one COPY, and one recount, one catalog update
 * and one rebuild of dirty buckets cover all of them. A fault of one fails them all; the load session then reads the
 * same messages again, with a transaction for each partition.
 */

import type { ClientBase } from 'pg';
import type { CoverageRow } from '../../shared/db/schema.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { describeDiscrepancies, type Recount, recountMany } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { SharedSeconds } from '../rows/binary-copy.ts';
import { CopySeries } from '../rows/copy-in.ts';
import { type Position, writeProved } from './commit.ts';
import { DirtyBuckets } from './dirty-buckets.ts';
import { dataFault } from './faults.ts';
import type { PartitionLoad } from './partition-load.ts';
import type { AttemptId } from './state.ts';

/** A partition whose rows are loaded and whose manifest has arrived. */
export interface Member {
  readonly name: AttemptId;
  readonly load: PartitionLoad;
  readonly manifest: Manifest;
  readonly sequence: number;
  /** The fault of the partition, if it is known before the recount. */
  readonly fault?: string;
}

export interface Fault {
  readonly reason: string;
  readonly recount: Recount | null;
}

interface BatchNeeds {
  readonly client: ClientBase;
  readonly dataset: DatasetDefinition;
  readonly seconds: SharedSeconds;
  /** The coverage before the transaction. */
  readonly coverage: CoverageRow | undefined;
  /** Whether all its partitions are synthetic; synthetic ones never join real ones. */
  readonly synthetic: boolean;
}

export class Batch {
  readonly copy: CopySeries;
  readonly coverage: CoverageRow | undefined;
  readonly synthetic: boolean;
  readonly dirty: DirtyBuckets;
  readonly #client: ClientBase;
  readonly #dataset: DatasetDefinition;
  readonly #members = new Map<string, Member>();

  private constructor({ client, dataset, coverage, synthetic }: BatchNeeds, dirty: DirtyBuckets) {
    this.#client = client;
    this.#dataset = dataset;
    this.coverage = coverage;
    this.synthetic = synthetic;
    this.dirty = dirty;
    const { table, columns } = dataset.native;
    this.copy = new CopySeries(
      client,
      table,
      columns.map(({ name }) => name),
    );
  }

  /** Opens an empty batch in the caller's transaction. */
  static async open(needs: BatchNeeds): Promise<Batch> {
    return new Batch(needs, await DirtyBuckets.open(needs.client, needs.dataset, needs.seconds));
  }

  /** Whether the batch already holds a partition of this key. */
  has(key: string): boolean {
    return this.#members.has(key);
  }

  get members(): readonly Member[] {
    return [...this.#members.values()];
  }

  add(member: Member): void {
    this.#members.set(member.name.partition, member);
  }

  /** Recounts the partitions and records them as proved. @returns the fault of the first that is at fault. */
  async prove(side: ClientBase, chunks: Set<number>, position: Position): Promise<Fault | undefined> {
    const { members } = this;
    let recount: Recount | null = null;
    try {
      await this.copy.end();
      const refs = members.map(({ load, manifest }) => ({
        key: load.partition.key,
        fromMs: manifest.from_ms,
        toMs: manifest.to_ms,
      }));
      const found = await recountMany(this.#client, this.#dataset, refs);
      for (const [index, { load, manifest, fault }] of members.entries()) {
        recount = found[index];
        const reason = fault ?? describeDiscrepancies(load.compare(manifest, recount));
        if (reason) return { reason, recount };
      }
      await this.dirty.addPartitions(refs);
      await this.dirty.ensureChunks(side, chunks);
      const proved = members.map(({ load, manifest, sequence }, index) => ({
        manifest,
        recount: found[index],
        frames: load.frames,
        rowsSha256: load.rowsSha256,
        facts: load.factsText(manifest),
        sequence,
      }));
      await writeProved(this.#client, this.#dataset, proved, position, () => this.dirty.rebuild());
      return undefined;
    } catch (error) {
      const reason = dataFault(error);
      if (reason === undefined) throw error;
      return { reason, recount };
    }
  }
}
