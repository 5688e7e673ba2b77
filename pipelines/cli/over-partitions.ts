/** `replay` and `verify` go over partitions one by one; they differ in what they do with each. */
import type { Settings } from '../../shared/config/settings.ts';
import { DAY_MS, parseDay } from '../../shared/dates.ts';
import { type RunKind, RunRecorder } from '../../shared/db/runs.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../shared/errors.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import { fedDatasets, feedOf, feeds } from '../sources/index.ts';
import type { Feed } from '../sources/types.ts';
import { type Context, openContext } from './context.ts';
import { EXIT } from './io.ts';
import type { ParsedCommand } from './options.ts';
import { bar, seconds, table } from './output.ts';

export interface PartitionReport {
  readonly partition: string;
  readonly state: string;
  readonly rows?: number;
  readonly code?: string;
  readonly reason?: string;
}

export interface Over {
  readonly name: RunKind;
  /** States of partitions that are gone over. */
  readonly states: readonly PartitionRow['state'][];
  /** Ends that are good. */
  readonly good: readonly string[];
  readonly work: (dataset: DatasetDefinition, row: PartitionRow, context: Context) => Promise<PartitionReport>;
}

interface Unit extends PartitionReport {
  readonly dataset: string;
}

/** Datasets by key; `all`: every one that a source is written for. */
export function selectedDatasets(names: readonly string[]): DatasetDefinition[] {
  return names.includes('all') ? fedDatasets() : [...new Set(names.map(datasetOf))];
}

/** Runs the work over the partitions of the range and reports; a fault of one does not stop the others. */
export async function overPartitions(command: ParsedCommand, over: Over): Promise<number> {
  const chosen = selectedDatasets(command.positionals);
  const { from, to, partition, 'from-height': low, 'to-height': high } = command.values as Record<string, string>;
  if (from !== undefined && to !== undefined && from > to) {
    throw new TidemarkError('USAGE', `--from ${from} is after --to ${to}`);
  }
  if (low !== undefined && high !== undefined && Number(low) > Number(high)) {
    throw new TidemarkError('USAGE', `--from-height ${low} is above --to-height ${high}`);
  }
  await using context = await openContext(command, over.name);
  const startedAt = performance.now();
  const units: Unit[] = [];
  for (const dataset of chosen) {
    if (!context.signal.aborted) await overDataset(dataset, command, over, context, units);
  }
  if (partition !== undefined && units.length === 0 && !context.signal.aborted) {
    // Whoever names one partition wants to hear of it: nothing done is not done well.
    const states = over.states.join(' or ');
    throw new TidemarkError('PARTITION_UNKNOWN', `${command.positionals.join(' ')} ${partition} is not ${states}`);
  }
  const elapsedMs = Math.round(performance.now() - startedAt);
  const interrupted = context.signal.aborted;
  const ok = !interrupted && units.every((unit) => over.good.includes(unit.state));
  const named = chosen.map(({ key }) => key).join(' ');
  context.output.answer({ command: over.name, dataset: named, ok, interrupted, elapsed_ms: elapsedMs, units }, () =>
    units.length === 0
      ? 'Nothing to do: no such partition is proved.'
      : `${summaryOf(units)}\n${units.length} in ${seconds(elapsedMs)}`,
  );
  return interrupted ? EXIT.INTERRUPTED : ok ? EXIT.DONE : EXIT.FAILED;
}

async function overDataset(
  dataset: DatasetDefinition,
  command: ParsedCommand,
  over: Over,
  context: Context,
  units: Unit[],
): Promise<void> {
  const rows = (await wantedRows(dataset, command, context)).filter(
    // What was never stored has no times.
    (row) => over.states.includes(row.state) && row.manifest !== null && row.fromMs !== null,
  );
  if (rows.length === 0) return;
  await using run = await RunRecorder.open({
    databaseUrl: context.databaseUrls.ingest,
    kind: over.name,
    subject: dataset.key,
    datasets: [dataset],
    command: command.line,
    exclusive: true,
  });
  await run.write({ planned: rows.length });
  const counts = { proved: 0, failed: 0, rows: 0 };
  for (const [index, row] of rows.entries()) {
    if (context.signal.aborted) break;
    context.output.progress(`${bar(index, rows.length)} ${index}/${rows.length}  ${dataset.key}  ${row.partitionKey}`);
    let report: PartitionReport;
    try {
      report = await over.work(dataset, row, context);
    } catch (error) {
      const code = codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED';
      report = { partition: row.partitionKey, state: 'failed', code, reason: explain(error) };
    }
    const { partition, ...rest } = report;
    units.push({ dataset: dataset.key, partition, ...rest });
    counts[over.good.includes(report.state) ? 'proved' : 'failed']++;
    counts.rows += report.rows ?? 0;
    run.note({ ...counts, at_partition: row.partitionKey });
    const shown = report.rows === undefined ? '' : `${report.rows.toLocaleString('en-US')} rows `;
    context.output.note(`${partition}  ${report.state.padEnd(11)} ${shown}${report.reason ?? ''}`.trimEnd());
  }
  await run.end(context.signal.aborted ? 'interrupted' : counts.failed > 0 ? 'failed' : 'done', counts);
}

async function wantedRows(dataset: DatasetDefinition, { values }: ParsedCommand, { catalog }: Context) {
  const { from, to, partition, 'from-height': low, 'to-height': high } = values as Record<string, string | undefined>;
  if (partition !== undefined) return await catalog.partitionsOf(dataset, [partition]);
  if (low !== undefined || high !== undefined) {
    if (dataset.partition.kind !== 'height') throw new TidemarkError('USAGE', `${dataset.key} has no heights`);
    const span = { from: Number(low ?? 0), to: high === undefined ? Number.MAX_SAFE_INTEGER : Number(high) + 1 };
    return await catalog.overlapping(dataset, dataset.sources[0], span);
  }
  return await catalog.partitions(dataset, startOf(dataset, from), endOf(dataset, to));
}

function summaryOf(units: readonly Unit[]): string {
  const groups = Map.groupBy(units, ({ dataset, state }) => `${dataset}\n${state}`);
  const rows = [...groups].map(([key, list]) => [...key.split('\n'), list.length]);
  return table(['dataset', 'state', 'partitions'], rows);
}

/** Days are the vendor's file days, which need not be UTC days; elsewhere UTC days that a partition's rows begin in. */
function startOf(dataset: DatasetDefinition, day: string | undefined): number | undefined {
  if (day === undefined) return undefined;
  return dataset.partition.kind === 'file_day' ? windowOf(dataset, day).fromMs : parseDay(day);
}

function endOf(dataset: DatasetDefinition, day: string | undefined): number | undefined {
  const start = startOf(dataset, day);
  return start === undefined ? undefined : start + DAY_MS;
}

/* Which feeds a command is about: those named, or all whose source a setting names. */

/** Where its documents are, a setting says. */
export const isLocated = (settings: Settings, { datasets }: Feed): boolean =>
  datasets.some(({ locations }) =>
    Object.values(locations)
      .flat()
      .some((name) => settings[name] !== undefined),
  );

export const ALL = 'all';

/**
 * Feeds by name, each once; `all`: every one whose source is set.
 * @throws TidemarkError USAGE for an unknown one, CONFIGURATION_INVALID where `all` is none.
 */
export function selectedFeeds(names: readonly string[], settings: Settings): Feed[] {
  if (!names.includes(ALL)) return [...new Set(names.map(feedOf))];
  const located = feeds().filter((feed) => isLocated(settings, feed));
  if (located.length > 0) return located;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    'No source is set: `all` is every feed whose location one of the settings of the group Sources names',
  );
}
