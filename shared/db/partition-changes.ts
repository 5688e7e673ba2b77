/**
 * What the transaction that proves a partition, or takes it out of service, writes beside it. Coverage, the ranges that are
 * proved: ranges of file days, and spans of heights, snapshots, captures and vintages by source. And a leaf of
 * the proof log.
 */
import type { ClientBase, Pool } from 'pg';
import type { DocumentFacts, Manifest } from '../frame/manifest.ts';
import { saltOf } from '../proof-log/commitment.ts';
import { commitTo, encodeLeaf, LEAF_VERSION, type LeafKind, type LeafReason, offsetsText } from '../proof-log/leaf.ts';
import type { Range } from '../ranges.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import type { TimeWindow } from '../registry/keys.ts';
import { proofSecret } from './proof-secret.ts';
import type { PartitionRow } from './schema.ts';

/** What a proved partition covers of its source. */
export interface Extent {
  readonly sourceId: string;
  readonly span: Range;
  /** Event times of its rows. */
  readonly times: TimeWindow;
  readonly throughMs: number;
  readonly rows: number;
}

/** Locks the dataset's coverage until the transaction ends, so that its changes happen one after another. */
export async function lockCoverage(client: ClientBase, dataset: DatasetDefinition): Promise<{ synthetic: boolean }> {
  const { rows } = await client.query('select synthetic from coverage where dataset_id = $1 for update', [
    dataset.number,
  ]);
  return rows[0];
}

/** Adds a proved file day to the coverage. */
export async function coverWindow(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: TimeWindow,
  synthetic?: boolean,
): Promise<void> {
  await client.query(
    `update coverage set proved = proved + int8multirange(int8range($2, $3)), version = version + 1,
       synthetic = coalesce($4, synthetic), updated_at = clock_timestamp() where dataset_id = $1`,
    [dataset.number, window.fromMs, window.toMs, synthetic],
  );
}

/** Removes a file day from the coverage. */
export async function uncoverWindow(client: ClientBase, dataset: DatasetDefinition, window: TimeWindow): Promise<void> {
  await client.query(
    `update coverage set proved = proved - int8multirange(int8range($2, $3)), version = version + 1,
       updated_at = clock_timestamp() where dataset_id = $1`,
    [dataset.number, window.fromMs, window.toMs],
  );
}

/** Empties the coverage when the sample is retired. */
export async function clearCoverage(client: ClientBase, dataset: DatasetDefinition): Promise<void> {
  await client.query('delete from coverage_spans where dataset_id = $1', [dataset.number]);
  await client.query('delete from source_checks where dataset_id = $1', [dataset.number]);
  await client.query(
    `update coverage set proved = '{}', withheld = '{}', version = version + 1, updated_at = clock_timestamp()
     where dataset_id = $1`,
    [dataset.number],
  );
}

/** A newly proved partition. */
export interface ProvedExtent extends Extent {
  readonly key: string;
}

/**
 * Adds newly proved partitions, whose rows in the catalog are written already. It reads only the spans that they overlap or adjoin:
 * one statement for each transaction merges a history of single heights.
 */
export async function coverSpans(
  client: ClientBase,
  dataset: DatasetDefinition,
  arriving: readonly ProvedExtent[],
  synthetic?: boolean,
): Promise<void> {
  const bridged = isBridged(dataset);
  const bySource = Map.groupBy(arriving, ({ sourceId }) => sourceId);
  for (const [sourceId, extents] of bySource) {
    await client.query(
      `with arriving as (
         select int8range(from_at, to_at) as span, from_ms, to_ms, through_ms, 1::int8 as partitions, rows
         from unnest($3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[])
           a (from_at, to_at, from_ms, to_ms, through_ms, rows)),
       near as (
         delete from coverage_spans where dataset_id = $1 and source_id = $2 and (${bridged}
           or span && (select range_agg(int8range(lower(a.span) - 1, upper(a.span) + 1)) from arriving a))
         returning span, from_ms, to_ms, through_ms, partitions, rows),
       parts as (select * from near union all select * from arriving),
       runs as (select ${bridged ? 'range_merge(range_agg(span))' : 'unnest(range_agg(span))'} as run from parts)
       insert into coverage_spans (dataset_id, source_id, span, from_ms, to_ms, through_ms, partitions, rows)
       select $1, $2, run, min(from_ms), max(to_ms),
         (array_agg(through_ms order by upper(span) desc, through_ms desc))[1], sum(partitions), sum(rows)
       from runs join parts on parts.span && run group by run`,
      [
        dataset.number,
        sourceId,
        extents.map(({ span }) => span.from),
        extents.map(({ span }) => span.to),
        extents.map(({ times }) => times.fromMs),
        extents.map(({ times }) => times.toMs),
        extents.map(({ throughMs }) => throughMs),
        extents.map(({ rows }) => rows),
      ],
    );
    await updateProved(client, dataset, sourceId, { servedAgain: extents.map(({ key }) => key), synthetic });
  }
}

/**
 * Rebuilds the spans of a source within `span` from the catalog, after any other change of its partitions.
 * @param change `withheld`: partitions whose stored rows must not be served; `served`: partitions to serve again.
 */
export async function recoverSpan(
  client: ClientBase,
  dataset: DatasetDefinition,
  sourceId: string,
  span: Range,
  change: { readonly withheld?: readonly string[]; readonly served?: readonly string[] } = {},
): Promise<void> {
  const bridged = isBridged(dataset);
  await client.query(
    `with near as (
       delete from coverage_spans where dataset_id = $1 and source_id = $2
         and (${bridged} or span && int8range($3::int8 - 1, $4::int8 + 1)) returning span),
     area as (
       select range_merge(int8range($3, $4), range_merge(range_agg(span))) as area from near having count(*) > 0
       union all select int8range($3, $4) where not exists (select from near)),
     parts as (
       select p.span, p.from_ms, p.to_ms, p.through_ms, p.rows from partitions p, area
       where p.dataset_id = $1 and p.source_id = $2 and p.state = 'proved' and (${bridged} or p.span && area)),
     runs as (
       select ${bridged ? 'range_merge(range_agg(span))' : 'unnest(range_agg(span))'} as run from parts)
     insert into coverage_spans (dataset_id, source_id, span, from_ms, to_ms, through_ms, partitions, rows)
     select $1, $2, run, min(from_ms), max(to_ms),
       (array_agg(through_ms order by upper(span) desc, through_ms desc))[1], count(*), sum(rows)
     from runs join parts on parts.span && run group by run`,
    [dataset.number, sourceId, span.from, span.to],
  );
  const { withheld = [], served = [] } = change;
  await client.query(
    `update coverage set withheld = array(
       select key from (select unnest(withheld) as key union select unnest($2::text[])) keys
       where key <> all($3::text[]) order by key) where dataset_id = $1`,
    [dataset.number, withheld, served],
  );
  await updateProved(client, dataset, sourceId, {});
}

/** Records that a source was checked and had nothing newer, so that it is complete until `throughMs`. */
export async function recordCheck(
  client: ClientBase,
  dataset: DatasetDefinition,
  sourceId: string,
  throughMs: number,
): Promise<void> {
  await lockCoverage(client, dataset);
  await client.query(
    `insert into source_checks (dataset_id, source_id, through_ms) values ($1, $2, $3)
     on conflict (dataset_id, source_id) do update set checked_at = clock_timestamp(),
       through_ms = greatest(source_checks.through_ms, excluded.through_ms)`,
    [dataset.number, sourceId, throughMs],
  );
  await updateProved(client, dataset, sourceId, {});
}

/** Whether partitions come at no fixed distance, so that nothing is missing between two of them. */
const isBridged = ({ partition: { kind } }: DatasetDefinition) => kind === 'snapshot' || kind === 'vintage';

/** Whether a check of the source may bring no new partition, and then extends the coverage. */
const isChecked = ({ partition: { kind } }: DatasetDefinition) => kind === 'capture' || kind === 'vintage';

/** Derives from the spans how far the checks reach, and the ranges (`coverage.proved`) that readers use first. */
async function updateProved(
  client: ClientBase,
  dataset: DatasetDefinition,
  sourceId: string,
  change: { readonly servedAgain?: readonly string[]; readonly synthetic?: boolean },
): Promise<void> {
  if (isChecked(dataset)) {
    // A check extends the last span only; a span before a gap ends where the next partition was expected.
    await client.query(
      `update coverage_spans s set through_ms = case
         when exists (select from coverage_spans l where l.dataset_id = $1 and l.source_id = $2 and l.span >> s.span)
         then upper(s.span)
         else greatest(
           (select max(p.through_ms) from partitions p where p.dataset_id = $1 and p.source_id = $2
              and p.state = 'proved' and p.span && int8range(upper(s.span) - 1, upper(s.span))),
           (select c.through_ms from source_checks c where c.dataset_id = $1 and c.source_id = $2)) end
       where s.dataset_id = $1 and s.source_id = $2`,
      [dataset.number, sourceId],
    );
  }
  const range = isChecked(dataset) ? 'int8range(from_ms, greatest(through_ms, to_ms))' : 'span';
  const without =
    dataset.partition.kind === 'snapshot'
      ? `- coalesce((select range_agg(int8range(key::int8, key::int8 + 1)) from unnest(c.withheld) key), '{}')`
      : '';
  await client.query(
    `update coverage c set version = version + 1, synthetic = coalesce($3, synthetic), updated_at = clock_timestamp(),
       withheld = array(select key from unnest(withheld) key where key <> all($2::text[]) order by key) where dataset_id = $1`,
    [dataset.number, change.servedAgain ?? [], change.synthetic],
  );
  await client.query(
    `update coverage c set proved = coalesce((select range_agg(${range}) from coverage_spans where dataset_id = $1), '{}')
       ${without} where dataset_id = $1`,
    [dataset.number],
  );
}

/** What a leaf states about an attempt at a partition. */
export interface Statement {
  readonly kind: Exclude<LeafKind, 'restored' | 'rotated'>;
  readonly partition: string;
  readonly attempt: number;
  readonly revision: number;
  readonly synthetic: boolean;
  readonly manifest: Manifest | null;
  /** Where no manifest names it. */
  readonly document?: DocumentFacts;
  /** The digest of the stored rows; absent unless the partition was proved. */
  readonly rowsSha256?: string;
  /** Their facts, in canonical bytes; absent likewise. */
  readonly facts?: string;
  readonly reason?: LeafReason;
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

/** A leaf as it is stored. */
export interface StoredLeaf {
  readonly body: Buffer;
  readonly salt: Buffer;
}

/** The leaf that states it. */
export function leafOf(dataset: DatasetDefinition, stated: Statement, secret: Uint8Array): StoredLeaf {
  const { kind, partition, revision, attempt, synthetic, manifest, reason } = stated;
  const document = manifest?.document ?? stated.document;
  const salt = saltOf(secret, { dataset: dataset.key, partition, revision });
  const body = encodeLeaf({
    v: LEAF_VERSION,
    kind,
    dataset: dataset.key,
    partition,
    revision,
    attempt,
    synthetic,
    document: document?.name ?? null,
    rows: manifest?.rows ?? null,
    ...commitTo(salt, {
      document_sha256: document?.sha256,
      ...(manifest && {
        offsets: offsetsText(manifest),
        rows_hash: manifest.rows_hash,
        events_sha256: manifest.events_sha256,
      }),
      rows_sha256: stated.rowsSha256,
      facts: stated.facts,
    }),
    at: new Date().toISOString(),
    reason: reason ?? null,
  });
  return { body, salt };
}

/** Adds leaves without an index, in the caller's transaction. */
export async function writeLeaves(
  client: ClientBase | Pool,
  dataset: DatasetDefinition,
  stated: readonly Statement[],
): Promise<void> {
  const secret = await proofSecret(client);
  const leaves = stated.map((one) => leafOf(dataset, one, secret));
  await (client as Pool).query(
    `insert into proof_leaves (dataset_id, partition_key, attempt, kind, body, salt)
     select $1, * from unnest($2::text[], $3::int4[], $4::text[], $5::bytea[], $6::bytea[])`,
    [
      dataset.number,
      stated.map(({ partition }) => partition),
      stated.map(({ attempt }) => attempt),
      stated.map(({ kind }) => kind),
      leaves.map(({ body }) => body),
      leaves.map(({ salt }) => salt),
    ],
  );
}

const leafSql = (columns: string, kinds: string): string => `(select ${columns} from proof_leaves l
  where l.dataset_id = p.dataset_id and l.partition_key = p.partition_key and l.attempt = p.attempt
    and ${kinds} order by l.entry_id desc limit 1)`;

const PROVING = `l.kind in ('proved', 'revised')`;

/** SQL of the leaf that proved the partition `p`: of its attempt, the newest. */
export const provingLeafSql = (columns: string): string => leafSql(columns, PROVING);

/**
 * SQL of the leaf that states what the partition `p` is: proved, or in quarantine, of which it is `retracted` where its source took
 * it back. Of other states there is none.
 */
export const statingLeafSql = (columns: string): string =>
  leafSql(
    columns,
    `case p.state when 'proved' then ${PROVING} when 'quarantined' then l.kind in ('quarantined', 'retracted') end`,
  );

/** A leaf as answers take it. */
export interface FoundLeaf {
  /** Null until it has one. */
  readonly index: number | null;
  readonly body: string;
  /** In hexadecimal digits; null where the caller may not have it. */
  readonly salt: string | null;
}

/** SQL to join a leaf of the partition `p` as `l`, if there is one. */
export const joinLeaf = (leafSqlOf: typeof provingLeafSql): string =>
  `left join lateral ${leafSqlOf('l.leaf_index, l.body, l.salt')} l on true`;
/** Its columns, as `foundLeaf` takes them. */
export const LEAF_COLUMNS = `l.leaf_index::text, convert_from(l.body, 'UTF8'), encode(l.salt, 'hex')`;

/** @returns null where there is none: somebody removed it */
export const foundLeaf = ([index, body, salt]: readonly (string | null)[]): FoundLeaf | null =>
  body === null ? null : { index: index === null ? null : Number(index), body, salt };
