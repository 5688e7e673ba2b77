/** Proofs of stored rows for the proof log: the digest of rows as they are stored, and leaves of partitions proved again. */
import { createHash } from 'node:crypto';
import type { ClientBase } from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import { provingLeafSql, statementOf, writeLeaves } from '../../shared/db/partition-changes.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert } from '../../shared/errors.ts';
import { type Discrepancy, identityOrder, type PartitionRef, scopeSql } from '../../shared/proof/recount.ts';
import {
  decodeLeaf,
  differingFromLeaf,
  type Leaf,
  type LeafReason,
  offsetsText,
  type StatedFacts,
} from '../../shared/proof-log/leaf.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { loggedColumns } from '../../shared/registry/proof-rows.ts';
import { partitionRefOf } from './partition-load.ts';

/** sha256 of columns of a partition's stored rows as binary COPY, in the order of offsets. */
export async function storedDigest(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
  columns: readonly { readonly name: string }[],
): Promise<string> {
  const names = columns.map((column) => `t."${column.name}"`).join(', ');
  const stream = client.query(
    copyTo(
      `copy (select ${names} from ${dataset.native.table} t where ${scopeSql(dataset, partition)}
       order by ${identityOrder(dataset).join(', ')}) to stdout with (format binary)`,
    ),
  );
  const digest = createHash('sha256');
  for await (const chunk of stream) digest.update(chunk);
  return digest.digest('hex');
}

/** The digest that a leaf has as `rows_sha256`. */
export const storedRowsSha256 = (client: ClientBase, dataset: DatasetDefinition, row: PartitionRow): Promise<string> =>
  storedDigest(client, dataset, partitionRefOf(row), loggedColumns(dataset));

/** Adds the leaf of a partition whose stored rows were recounted and are served (again). */
export async function stateProved(
  client: ClientBase,
  dataset: DatasetDefinition,
  row: Pick<PartitionRow, 'partitionKey' | 'attempt' | 'revision' | 'synthetic' | 'manifest'>,
  stated: { readonly rowsSha256: string; readonly facts: string; readonly reason?: LeafReason },
): Promise<void> {
  await writeLeaves(client, dataset, [statementOf(row, { kind: 'proved', ...stated })]);
}

interface ProvingLeaf {
  readonly leaf: Leaf;
  readonly salt: Buffer;
}

/** The leaf that proved a partition; undefined where somebody removed it. */
export async function provingLeaf(
  client: ClientBase,
  dataset: DatasetDefinition,
  { partitionKey }: PartitionRow,
): Promise<ProvingLeaf | undefined> {
  const { rows } = await client.query<{ body: Buffer | null; salt: Buffer }>(
    `select l.body, l.salt from partitions p, lateral ${provingLeafSql('l.body, l.salt')} l
     where p.dataset_id = $1 and p.partition_key = $2`,
    [dataset.number, partitionKey],
  );
  return rows[0]?.body ? { leaf: decodeLeaf(rows[0].body), salt: rows[0].salt } : undefined;
}

/** In which facts the catalog, or the rows, differ from the leaf, as when somebody changed rows and their digests together. */
export const leafDiscrepancies = (proving: ProvingLeaf | undefined, facts: StatedFacts): Discrepancy[] =>
  proving === undefined
    ? []
    : differingFromLeaf(proving.leaf, proving.salt, facts).map((difference) => ({
        fact: 'leaf of the proof log',
        expected: 'what it states',
        found: difference,
      }));

/** The facts of the catalog that a leaf states or commits to. */
export function catalogFacts({ manifest, facts }: Pick<PartitionRow, 'manifest' | 'facts'>): StatedFacts {
  assert(manifest, 'a proved partition has a manifest');
  const { rows, rows_hash, events_sha256, document } = manifest;
  return { rows, rows_hash, events_sha256, document_sha256: document.sha256, offsets: offsetsText(manifest), facts };
}
