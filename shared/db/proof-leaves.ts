/** Writes leaves of the proof log in the transaction of what they state, and reads the leaf of a partition. */
import type { ClientBase, Pool } from 'pg';
import type { DocumentFacts, Manifest } from '../frame/manifest.ts';
import { encodeLeaf, LEAF_VERSION, type Leaf, type LeafKind } from '../proof-log/leaf.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import type { PartitionRow } from './schema.ts';

/** What a leaf states about an attempt at a partition. */
export interface Statement {
  readonly kind: Exclude<LeafKind, 'restored'>;
  readonly partition: string;
  readonly attempt: number;
  readonly revision: number;
  readonly synthetic: boolean;
  readonly manifest: Manifest | null;
  /** Where no manifest names it. */
  readonly document?: DocumentFacts;
  /** The digests of what is stored; absent unless the partition was proved. */
  readonly rowsSha256?: string;
  readonly alignedHash?: string | null;
  readonly klinesSha256?: string | null;
  readonly reason?: string;
  readonly backfilled?: boolean;
}

/** What a leaf states about a partition of the catalog. */
export const statementOf = (
  row: Pick<PartitionRow, 'partitionKey' | 'attempt' | 'revision' | 'synthetic' | 'manifest'>,
  stated: Pick<Statement, 'kind'> & Partial<Statement>,
): Statement => ({
  partition: row.partitionKey,
  attempt: row.attempt,
  revision: row.revision,
  synthetic: row.synthetic,
  manifest: row.manifest,
  ...stated,
});

/** What a leaf states about an attempt that ended with its manifest. */
export const statementOfManifest = (
  manifest: Manifest,
  stated: Pick<Statement, 'kind'> & Partial<Statement>,
): Statement => ({
  partition: manifest.partition,
  attempt: manifest.attempt,
  revision: manifest.revision,
  synthetic: manifest.synthetic,
  manifest,
  ...stated,
});

function leafOf(dataset: DatasetDefinition, stated: Statement): Leaf {
  const { kind, partition, revision, attempt, synthetic, manifest, reason, backfilled } = stated;
  const document = manifest?.document ?? stated.document;
  return {
    v: LEAF_VERSION,
    kind,
    dataset: dataset.key,
    partition,
    revision,
    attempt,
    synthetic,
    document: document ? { name: document.name, sha256: document.sha256 } : null,
    rows: manifest?.rows ?? null,
    first_offset: manifest?.first_offset ?? null,
    last_offset: manifest?.last_offset ?? null,
    rows_hash: manifest?.rows_hash ?? null,
    events_sha256: manifest?.events_sha256 ?? null,
    rows_sha256: stated.rowsSha256 ?? null,
    aligned_hash: stated.alignedHash ?? null,
    klines_sha256: stated.klinesSha256 ?? null,
    at: new Date().toISOString(),
    reason: reason ?? null,
    ...(backfilled ? { backfilled } : {}),
  };
}

/** Adds leaves without an index, in the caller's transaction. */
export async function writeLeaves(
  client: ClientBase | Pool,
  dataset: DatasetDefinition,
  stated: readonly Statement[],
): Promise<void> {
  await (client as Pool).query(
    `insert into proof_leaves (dataset_id, partition_key, attempt, kind, body)
     select $1, * from unnest($2::text[], $3::int4[], $4::text[], $5::bytea[])`,
    [
      dataset.number,
      stated.map(({ partition }) => partition),
      stated.map(({ attempt }) => attempt),
      stated.map(({ kind }) => kind),
      stated.map((one) => encodeLeaf(leafOf(dataset, one))),
    ],
  );
}

/** SQL of the leaf that proved the partition `p`: of its attempt, the newest. */
export const provingLeafSql = (columns: string): string => `(select ${columns} from proof_leaves l
  where l.dataset_id = p.dataset_id and l.partition_key = p.partition_key and l.attempt = p.attempt
    and l.kind in ('proved', 'revised') order by l.entry_id desc limit 1)`;
