/** `quarantine`: what is kept back and why. `release`: its way out. `ledger`: what was done on purpose, and refused. */
import { connect } from '../../../shared/db/connect.ts';
import { Reports } from '../../../shared/db/reports.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { datasetOf } from '../../../shared/registry/index.ts';
import { type Quarantined, quarantinedOf, release } from '../../prove/quarantine.ts';
import { fedDatasets, projectionOf } from '../../sources/projections.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../exit.ts';
import type { ParsedCommand } from '../options.ts';
import { table } from '../output.ts';

/** Partitions of one dataset that are listed. */
const MAX_LISTED = 1000;

const chosen = (name: string | undefined) => (name === undefined ? fedDatasets() : [datasetOf(name)]);

export async function runQuarantine(command: ParsedCommand): Promise<number> {
  const [name, partition] = command.positionals;
  const datasets = chosen(name);
  await using context = await openContext(command, 'quarantine');
  const all: Quarantined[] = [];
  for (const dataset of datasets) all.push(...(await quarantinedOf(context.pool, dataset, MAX_LISTED)));
  const partitions = partition === undefined ? all : all.filter((one) => one.partition === partition);
  if (partition !== undefined && partitions.length === 0) {
    throw new TidemarkError('PARTITION_UNKNOWN', `${name} ${partition} is not in quarantine`);
  }
  context.output.answer({ command: 'quarantine', ok: true, partitions }, () =>
    partitions.length === 0 ? 'Nothing is in quarantine.' : partitions.map(describe).join('\n\n'),
  );
  return EXIT.DONE;
}

function describe(one: Quarantined): string {
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

export async function runRelease(command: ParsedCommand): Promise<number> {
  const [name, partition] = command.positionals;
  const dataset = datasetOf(name);
  await using context = await openContext(command, 'release');
  await using client = await connect({ url: context.databaseUrls.ingest, name: 'tidemark release' });
  const { catalog } = context;
  const needs = { dataset, client, catalog, projection: projectionOf(dataset) };
  const released = await release(partition, command.values.reason as string, needs);
  context.output.answer({ command: 'release', ok: true, dataset: dataset.key, ...released }, () =>
    released.state === 'proved'
      ? `${partition} is what its manifest says again: served, ${released.rows.toLocaleString('en-US')} rows.`
      : `${partition} is given up: missing, until it is ingested again.`,
  );
  return EXIT.DONE;
}

export async function runLedger(command: ParsedCommand): Promise<number> {
  const datasets = chosen(command.positionals[0]);
  const { kind, limit = '50' } = command.values as { kind?: string; limit?: string };
  await using context = await openContext(command, 'ledger');
  const reports = new Reports(context.pool);
  const found = [];
  for (const dataset of datasets) {
    for (const row of await reports.ledger(dataset, kind, Number(limit))) {
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
      ? 'No entry.'
      : table(
          ['at', 'dataset', 'partition', 'kind', 'reason'],
          entries.map((entry) => [entry.at_utc, entry.dataset, entry.partition, entry.kind, entry.reason]),
        ),
  );
  return EXIT.DONE;
}
