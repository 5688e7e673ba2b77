/** `quarantine list` and `release`: partitions in quarantine and why; takes one out. `ledger`: deliberate acts and refusals. */

import type { Pool } from 'pg';
import { type Catalog, record } from '../../../shared/db/catalog.ts';
import { type Client, connect } from '../../../shared/db/connect.ts';
import { coverWindow, lockCoverage, recoverSpan } from '../../../shared/db/partition-changes.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { compare, type Discrepancy } from '../../../shared/proof/recount.ts';
import { type DatasetDefinition, datasetOf } from '../../../shared/registry/index.ts';
import { keyFacts } from '../../../shared/registry/keys.ts';
import { DirtyBuckets } from '../../projector/dirty-buckets.ts';
import { keepKlines, remadeKlines } from '../../projector/kline-storage.ts';
import { stateProved, storedRowsSha256 } from '../../projector/logged-proof.ts';
import { partitionRefOf } from '../../projector/partition-load.ts';
import { takeOut } from '../../projector/retract.ts';
import { quarantinedBy, recountStored } from '../../projector/verify.ts';
import type { Projection } from '../../rows/binary-copy.ts';
import { fedDatasets, projectionOf } from '../../sources/index.ts';
import { type Context, openContext } from '../context.ts';
import { allInstruments, namedInstruments, typedKey } from '../instruments.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { grouped, table } from '../output.ts';

export interface Quarantined {
  readonly dataset: string;
  readonly partition: string;
  readonly since_utc: string;
  readonly attempt: number;
  readonly revision: number;
  /** `proof`, `verify` or `source`: the step that quarantined the partition. */
  readonly by: string;
  readonly reason: string;
  /** Rows that are stored but not served. */
  readonly stored_rows: number;
  readonly discrepancies: readonly Discrepancy[];
  readonly remedy: string;
}

/** The partitions of a dataset that are in quarantine, or the named one, and how many there are. */
async function quarantinedOf(
  { pool, catalog }: Pick<Context, 'pool' | 'catalog'>,
  dataset: DatasetDefinition,
  key: string | undefined,
): Promise<{ readonly total: number; readonly partitions: Quarantined[] }> {
  const { total, rows } = await catalog.quarantined(dataset, { limit: MAX_LISTED, key });
  const partitions: Quarantined[] = [];
  for (const row of rows) partitions.push(await describe(pool, dataset, row));
  return { total, partitions };
}

async function describe(pool: Pool, dataset: DatasetDefinition, row: PartitionRow): Promise<Quarantined> {
  const by = await quarantinedBy(pool, dataset, row.partitionKey);
  const { manifest, recount } = row;
  return {
    dataset: dataset.key,
    partition: row.partitionKey,
    since_utc: row.updatedAt.toISOString(),
    attempt: row.attempt,
    revision: row.revision,
    by,
    reason: row.reason ?? '',
    stored_rows: row.rows ?? 0,
    discrepancies: manifest && recount ? compare(dataset, manifest, recount) : [],
    remedy: remedyOf(dataset, row, by),
  };
}

const remedyOf = ({ key }: DatasetDefinition, { partitionKey }: PartitionRow, by: string): string =>
  by === 'verify'
    ? `./tidemark replay ${key} --partition ${partitionKey}`
    : `once its source is fixed: ./tidemark quarantine release ${key} ${partitionKey} --reason "...", then ./tidemark backfill`;

export interface ReleaseNeeds {
  readonly dataset: DatasetDefinition;
  readonly client: Client;
  readonly catalog: Catalog;
  readonly projection: Projection;
}

export interface Released {
  readonly partition: string;
  /**
   * `proved`: its rows match the manifest and are served again. `missing`: its rows were removed, and the next backfill
   * fetches it.
   */
  readonly state: 'proved' | 'missing';
  readonly rows: number;
}

const notQuarantined = (partition: string) =>
  new TidemarkError('USAGE', `${partition} is not in quarantine`, {
    remedy: '`./tidemark quarantine` lists what is.',
  });

/**
 * Takes a partition out of quarantine and records the reason in the ledger. Serves only rows that match their manifest:
 * rows that a verification quarantined and that match again return to service, all others are removed.
 * @throws TidemarkError USAGE if it is not in quarantine.
 */
export async function release(key: string, reason: string, needs: ReleaseNeeds): Promise<Released> {
  const { dataset, client, catalog, projection } = needs;
  if (projection.seconds) await DirtyBuckets.prepare(client);
  await client.query('begin');
  try {
    await lockCoverage(client, dataset);
    const [row] = (await catalog.partitionsOf(dataset, [key])).filter(({ state }) => state === 'quarantined');
    if (!row) throw notQuarantined(`${dataset.key} ${key}`);
    const isGood = row.rows !== null && (await matchesManifest(row, needs));
    if (isGood) await serveAgain(row, needs);
    else await removeRows(row, needs);
    const state = isGood ? 'proved' : 'missing';
    await record(client, dataset, key, 'released', reason, { state, was: row.reason, attempt: row.attempt });
    await client.query('commit');
    return { partition: key, state, rows: isGood ? (row.rows ?? 0) : 0 };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/**
 * Only rows that a verification quarantined can return. Rows that the source retracted match their manifest and are
 * wrong nevertheless.
 */
async function matchesManifest(row: PartitionRow, { dataset, client, projection }: ReleaseNeeds): Promise<boolean> {
  if ((await quarantinedBy(client, dataset, row.partitionKey)) !== 'verify' || !row.manifest) return false;
  // The aligned rows that it shares with other partitions were rebuilt without it.
  if (projection.seconds) return false;
  const { discrepancies } = await recountStored(client, dataset, projection, row, row.manifest);
  return discrepancies.length === 0;
}

async function serveAgain(row: PartitionRow, { dataset, client }: ReleaseNeeds): Promise<void> {
  await client.query(
    `update partitions set state = 'proved', reason = null, proved_at = clock_timestamp(), updated_at = clock_timestamp()
     where dataset_id = $1 and partition_key = $2`,
    [dataset.number, row.partitionKey],
  );
  const klines = await remadeKlines(client, dataset, row);
  await keepKlines(client, dataset, row, klines);
  await coverWindow(client, dataset, partitionRefOf(row));
  assert(row.facts, 'a partition that was proved has facts');
  const stated = {
    facts: row.facts,
    rowsSha256: await storedRowsSha256(client, dataset, row),
    reason: 'released from quarantine',
  } as const;
  await stateProved(client, dataset, row, stated);
}

async function removeRows(row: PartitionRow, { dataset, client, projection }: ReleaseNeeds): Promise<void> {
  const key = row.partitionKey;
  if (row.rows !== null && row.fromMs !== null) {
    const dirty = projection.seconds && (await DirtyBuckets.open(client, dataset, projection.seconds));
    await takeOut(client, dataset, partitionRefOf(row), dirty);
    await dirty?.rebuild();
  }
  await client.query('delete from frames where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
  await client.query('delete from partitions where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
  const { sourceId, span } = keyFacts(dataset, key);
  if (span) await recoverSpan(client, dataset, sourceId, span, { served: [key] });
}

/** Most partitions of one dataset that are listed. */
const MAX_LISTED = 1000;

const chosen = (name: string | undefined) => (name === undefined ? fedDatasets() : [datasetOf(name)]);

export async function listQuarantined(command: ParsedCommand): Promise<number> {
  const [name, partition] = command.positionals;
  const datasets = chosen(name);
  await using context = await openContext(command, 'quarantine');
  const { instrument } = command.values as { instrument?: string };
  // Without a dataset it lists whatever there is.
  const named = name === undefined && instrument === undefined;
  const all = named
    ? await allInstruments(context, datasets)
    : await namedInstruments(context, datasets, { instrument, partition, wherever: name === undefined });
  const partitions: Quarantined[] = [];
  const cut: string[] = [];
  let total = 0;
  for (const dataset of all) {
    const found = await quarantinedOf(context, dataset, partition && typedKey(dataset, partition));
    partitions.push(...found.partitions);
    total += found.total;
    if (found.total > MAX_LISTED) cut.push(cutLine(dataset, found.total));
  }
  if (partition !== undefined && partitions.length === 0) {
    throw notQuarantined(`${name} ${partition}`);
  }
  context.output.answer({ command: 'quarantine', action: 'list', ok: true, total, partitions }, () =>
    partitions.length === 0 ? 'No partition is in quarantine.' : [...partitions.map(linesOf), ...cut].join('\n\n'),
  );
  return EXIT.DONE;
}

const cutLine = ({ key }: DatasetDefinition, total: number): string =>
  `${key}: ${grouped(total)} partitions are in quarantine, of which the first ${grouped(MAX_LISTED)} are listed; ` +
  `any other is shown by ./tidemark quarantine list ${key} <partition>`;

function linesOf(one: Quarantined): string {
  const lines = [
    `${one.dataset}  ${one.partition}  attempt ${one.attempt}, revision ${one.revision}, since ${one.since_utc}, by ${one.by}`,
    one.reason,
  ];
  if (one.discrepancies.length > 0) {
    const rows = one.discrepancies.map(({ fact, expected, found }) => [fact, expected, found]);
    lines.push(table(['fact', 'expected', 'found'], rows));
  }
  lines.push(`what to do  ${one.remedy}`);
  return lines.join('\n');
}

export async function releaseQuarantined(command: ParsedCommand): Promise<number> {
  const [name, typed] = command.positionals;
  const { instrument } = command.values as { instrument?: string };
  await using context = await openContext(command, 'quarantine release');
  await using client = await connect({
    url: context.databaseUrls.ingest,
    name: 'tidemark quarantine release',
    signal: context.signal,
  });
  const { catalog } = context;
  const [dataset, ...more] = await namedInstruments(context, [datasetOf(name)], { instrument, partition: typed });
  if (dataset === undefined || more.length > 0) throw notQuarantined(`${name} ${typed}`);
  const partition = typedKey(dataset, typed);
  const needs = { dataset, client, catalog, projection: projectionOf(dataset) };
  const released = await release(partition, command.values.reason as string, needs);
  context.output.answer(
    { command: 'quarantine', action: 'release', ok: true, dataset: dataset.key, ...released },
    () =>
      released.state === 'proved'
        ? `${partition} matches its manifest again: its ${grouped(released.rows)} rows are served.`
        : `${partition} is removed; the next backfill fetches it again.`,
  );
  return EXIT.DONE;
}

export async function runLedger(command: ParsedCommand): Promise<number> {
  const datasets = chosen(command.positionals[0]);
  const { kind, limit = '50' } = command.values as { kind?: string; limit?: string };
  await using context = await openContext(command, 'ledger');
  const found = [];
  for (const dataset of await allInstruments(context, datasets)) {
    for (const row of await context.catalog.ledger(dataset, kind, Number(limit))) {
      const { entryId, at, partitionKey, reason, details } = row;
      found.push({
        entry: entryId,
        at_utc: at.toISOString(),
        dataset: dataset.key,
        partition: partitionKey,
        kind: row.kind,
        reason,
        details,
      });
    }
  }
  const entries = found.sort((a, b) => b.entry - a.entry).slice(0, Number(limit));
  context.output.answer({ command: 'ledger', ok: true, entries }, () =>
    entries.length === 0
      ? 'No entries.'
      : table(
          ['at', 'dataset', 'partition', 'kind', 'reason'],
          entries.map((entry) => [entry.at_utc, entry.dataset, entry.partition, entry.kind, entry.reason]),
        ),
  );
  return EXIT.DONE;
}
