/**
 * Small partitions on their way into storage together, in one transaction: the rows of all go into one COPY, and what is
 * counted, said and made again is so once for all of them. One that is at fault takes the others along; the caller then
 * goes through the same messages with a transaction for each.
 */

import type { ClientBase } from 'pg';
import type { CoverageRow } from '../../shared/db/schema.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { describeDiscrepancies, type Recount, recountMany } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { SharedSeconds } from '../rows/binary-copy.ts';
import { type Position, writeProved } from './commit.ts';
import { DirtyBuckets } from './dirty-buckets.ts';
import { dataFault } from './faults.ts';
import { type PartitionLoad, SharedCopy } from './partition-load.ts';
import type { AttemptId } from './state.ts';

/** A partition whose rows are in, and whose manifest has come. */
export interface Member {
  readonly name: AttemptId;
  readonly load: PartitionLoad;
  readonly manifest: Manifest;
  readonly sequence: number;
  /** What is wrong with it, where that is known before anything is counted. */
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
  /** As it was before the transaction. */
  readonly coverage: CoverageRow | undefined;
  /** Of all its partitions: made-up ones never join real ones. */
  readonly synthetic: boolean;
}

export class Batch {
  readonly copy: SharedCopy;
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
    this.copy = new SharedCopy(
      client,
      table,
      columns.map(({ name }) => name),
    );
  }

  /** In the caller's transaction. */
  static async open(needs: BatchNeeds): Promise<Batch> {
    return new Batch(needs, await DirtyBuckets.open(needs.client, needs.dataset, needs.seconds));
  }

  /** Whether it has a partition of the key already. */
  has(key: string): boolean {
    return this.#members.has(key);
  }

  get members(): readonly Member[] {
    return [...this.#members.values()];
  }

  add(member: Member): void {
    this.#members.set(member.name.partition, member);
  }

  /** Counts what is stored and writes that it is proved. @returns what is wrong with it, or with one of it. */
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
        const reason = fault ?? describeDiscrepancies(load.judge(manifest, recount));
        if (reason) return { reason, recount };
      }
      await this.dirty.addPartitions(refs);
      await this.dirty.ensureChunks(side, chunks);
      const proved = members.map(({ load, manifest, sequence }, index) => ({
        manifest,
        recount: found[index],
        frames: load.frames,
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
