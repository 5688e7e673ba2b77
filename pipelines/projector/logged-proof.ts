/** Proofs of stored rows for the proof log: the digest of rows as they are stored, and leaves of partitions proved again. */
import { createHash } from 'node:crypto';
import type { ClientBase } from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import { provingLeafSql, statementOf, writeLeaves } from '../../shared/db/partition-changes.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert } from '../../shared/errors.ts';
import { type Discrepancy, identityOrder, type PartitionRef, scopeSql } from '../../shared/proof/recount.ts';
import { decodeLeaf, type Leaf } from '../../shared/proof-log/leaf.ts';
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
  stated: { readonly rowsSha256: string; readonly reason?: string },
): Promise<void> {
  await writeLeaves(client, dataset, [statementOf(row, { kind: 'proved', ...stated })]);
}

/** The leaf that proved a partition; undefined where somebody removed it. */
export async function provingLeaf(
  client: ClientBase,
  dataset: DatasetDefinition,
  { partitionKey }: PartitionRow,
): Promise<Leaf | undefined> {
  const { rows } = await client.query<{ body: Buffer | null }>(
    `select ${provingLeafSql('l.body')} as body from partitions p where p.dataset_id = $1 and p.partition_key = $2`,
    [dataset.number, partitionKey],
  );
  const body = rows[0]?.body;
  return body ? decodeLeaf(body) : undefined;
}

/** In which digests the catalog differs from the leaf, as when somebody changed rows and their digests together. */
export function leafDiscrepancies(leaf: Leaf | undefined, row: PartitionRow): Discrepancy[] {
  if (!leaf) return [];
  const { manifest } = row;
  assert(manifest, 'a proved partition has a manifest');
  const facts = [
    ['rows', leaf.rows, manifest.rows],
    ['rows_hash', leaf.rows_hash, manifest.rows_hash],
    ['events_sha256', leaf.events_sha256, manifest.events_sha256],
    ['document', leaf.document?.sha256, manifest.document.sha256],
  ] as const;
  return facts.flatMap(([fact, expected, found]) =>
    expected === found ? [] : [{ fact: `${fact} of the proof log`, expected: `${expected}`, found: `${found}` }],
  );
}
