/** What answers say of the proof log: the leaf of a partition, its proof of inclusion, and the checkpoint that both are under. */
import { z } from 'zod';
import type { FoundLeaf } from '../../shared/db/partition-changes.ts';
import { explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { type HashAt, inclusionProof } from '../../shared/proof-log/merkle.ts';
import { hashesOf, type TileSource } from '../../shared/proof-log/tiles.ts';

export const proofLogAnswer = z
  .strictObject({
    state: z
      .enum(['logged', 'pending', 'none'])
      .describe('`pending`: the next checkpoint will cover it. `none`: neither proved nor in quarantine.'),
    leaf_index: z.int().nonnegative().nullable().describe('Index of its leaf in the log, from 0.'),
    leaf: z.string().nullable().describe('The bytes of the leaf: JSON, exactly as they are hashed.'),
    salt: z
      .string()
      .nullable()
      .describe(
        'What opens the commitments of the leaf, 64 hexadecimal digits; null for callers who may not read the rows.',
      ),
    inclusion: z
      .array(z.string())
      .nullable()
      .describe('The hashes beside the path from the leaf to the root of the checkpoint, in base64 (RFC 6962).'),
  })
  .describe('Its statement in the proof log.');

export type ProofLogAnswer = z.input<typeof proofLogAnswer>;

export const checkpointField = z
  .string()
  .nullable()
  .describe('The last signed checkpoint of the proof log; null before the first.');

/** The last signed checkpoint, in a reader's snapshot. */
export interface SignedHead {
  readonly size: number;
  readonly checkpoint: string | null;
}

export const HEAD_SQL = 'select signed_size::text, checkpoint from proof_head';

export const signedHead = (rows: readonly (readonly (string | null)[])[]): SignedHead => ({
  size: Number(rows[0]?.[0] ?? 0),
  checkpoint: rows[0]?.[1] ?? null,
});

/** The header of answers with rows. Several lines do not fit into a header, so that the note is in base64. */
export const CHECKPOINT_HEADER = 'X-Svc-Checkpoint';

const UNKNOWN: ProofLogAnswer = { state: 'none', leaf_index: null, leaf: null, salt: null, inclusion: null };

/** Reads proofs from the files of the log. */
export class ProofLog {
  readonly source: TileSource;
  readonly #log: Logger;
  /** The tiles of the last tree that was asked for; a page of coverage asks for many proofs of one tree. */
  #kept: { readonly size: number; readonly at: HashAt } | undefined;

  constructor(folder: string, log: Logger) {
    this.source = folderSource(folder);
    this.#log = log;
  }

  async describe(leaf: FoundLeaf | null, { size }: SignedHead): Promise<ProofLogAnswer> {
    if (!leaf) return UNKNOWN;
    const { index, body, salt } = leaf;
    if (index === null || index >= size) return { ...UNKNOWN, state: 'pending', leaf: body, salt };
    return { state: 'logged', leaf_index: index, leaf: body, salt, inclusion: await this.#inclusion(index, size) };
  }

  /** Null where the files cannot be read: an answer about rows does not depend on them. */
  async #inclusion(index: number, size: number): Promise<string[] | null> {
    if (this.#kept?.size !== size) this.#kept = { size, at: hashesOf(this.source, size) };
    try {
      const proof = await inclusionProof(index, size, this.#kept.at);
      return proof.map((hash) => Buffer.from(hash).toString('base64'));
    } catch (error) {
      this.#kept = undefined;
      this.#log.warn({ index, size, fault: explain(error) }, 'a proof of inclusion cannot be made of the log’s files');
      return null;
    }
  }
}
