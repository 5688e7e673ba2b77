/** Runs `replay` and `verify` over partitions one by one, and selects datasets and feeds by name. */
import { type Settings, settingValue } from '../../shared/config/settings.ts';
import { DAY_MS, parseDay } from '../../shared/dates.ts';
import { failedUnit, type RunKind, RunRecorder } from '../../shared/db/runs.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../shared/errors.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { dayKeyOf, windowOf } from '../../shared/registry/keys.ts';
import type { Feed } from '../sources/feed-types.ts';
import { fedDatasets, feedOf, feeds } from '../sources/index.ts';
import { type Context, openContext } from './context.ts';
import { namedInstruments, typedKey } from './instruments.ts';
import { EXIT } from './io.ts';
import type { ParsedCommand } from './options.ts';
import { bar, grouped, seconds, table } from './output.ts';

export interface PartitionReport {
  readonly partition: string;
  readonly state: string;
  readonly rows?: number;
  readonly code?: string;
  readonly reason?: string;
}

export interface PartitionWork {
  readonly name: RunKind;
  /** States of the partitions to process. */
  readonly states: readonly PartitionRow['state'][];
  /** Outcomes that count as success. */
  readonly good: readonly string[];
  readonly work: (dataset: DatasetDefinition, row: PartitionRow, context: Context) => Promise<PartitionReport>;
}

interface InstrumentOptions {
  readonly instrument?: string;
  readonly partition?: string;
}

interface ReportedUnit extends PartitionReport {
  readonly dataset: string;
}

/** Datasets by key; `all` is every dataset with an adapter. */
export function selectedDatasets(names: readonly string[]): DatasetDefinition[] {
  return names.includes('all') ? fedDatasets() : [...new Set(names.map(datasetOf))];
}

/** Processes the partitions of the range and reports. A fault of one does not stop the others. */
export async function overPartitions(command: ParsedCommand, job: PartitionWork): Promise<number> {
  const chosen = selectedDatasets(command.positionals);
  checkRange(command, chosen);
  const { partition } = command.values;
  await using context = await openContext(command, job.name);
  const startedAt = performance.now();
  const units: ReportedUnit[] = [];
  for (const dataset of await namedInstruments(context, chosen, command.values as InstrumentOptions)) {
    if (!context.signal.aborted)
      await overDataset(dataset, command, job, context, { units, isNamed: chosen.length > 1 });
  }
  if (partition !== undefined && units.length === 0 && !context.signal.aborted) {
    // An operator who names one partition must learn that it was not processed.
    const states = job.states.join(' or ');
    throw new TidemarkError('USAGE', `${command.positionals.join(' ')} ${partition} is not ${states}`, {
      remedy: '`./tidemark status` lists the existing partitions.',
    });
  }
  const elapsedMs = Math.round(performance.now() - startedAt);
  const interrupted = context.signal.aborted;
  const ok = !interrupted && units.every((unit) => job.good.includes(unit.state));
  const named = chosen.map(({ key }) => key).join(' ');
  context.output.answer({ command: job.name, dataset: named, ok, interrupted, elapsed_ms: elapsedMs, units }, () =>
    textOf(units, { elapsedMs, interrupted }),
  );
  return interrupted ? EXIT.INTERRUPTED : ok ? EXIT.DONE : EXIT.FAILED;
}

/** Ways to select partitions, of which a command takes one. */
const WAYS = [['partition'], ['from', 'to'], ['from-height', 'to-height']];

/** @throws TidemarkError USAGE */
function checkRange({ values }: ParsedCommand, chosen: readonly DatasetDefinition[]): void {
  const { from, to, 'from-height': low, 'to-height': high } = values as Record<string, string | undefined>;
  if (from !== undefined && to !== undefined && from > to) {
    throw new TidemarkError('USAGE', `--from ${from} is after --to ${to}`);
  }
  if (low !== undefined && high !== undefined && Number(low) > Number(high)) {
    throw new TidemarkError('USAGE', `--from-height ${low} is above --to-height ${high}`);
  }
  const given = WAYS.map((names) => names.filter((name) => values[name] !== undefined)).filter(({ length }) => length);
  if (given.length > 1) {
    const [one, other] = given.map(([name]) => `--${name}`);
    throw new TidemarkError('USAGE', `${one} and ${other} select partitions in different ways: leave one of them out`);
  }
  const without = chosen.find(({ partition }) => partition.kind !== 'height');
  if (without && (low !== undefined || high !== undefined)) {
    throw new TidemarkError('USAGE', `${without.key} has no heights`);
  }
}

async function overDataset(
  dataset: DatasetDefinition,
  command: ParsedCommand,
  job: PartitionWork,
  context: Context,
  { units, isNamed }: { readonly units: ReportedUnit[]; readonly isNamed: boolean },
): Promise<void> {
  const rows = (await wantedRows(dataset, command, context)).filter(
    // A partition that was never stored has no times.
    (row) => job.states.includes(row.state) && row.manifest !== null && row.fromMs !== null,
  );
  if (rows.length === 0) return;
  await using run = await RunRecorder.open({
    databaseUrl: context.databaseUrls.ingest,
    kind: job.name,
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
      report = await job.work(dataset, row, context);
    } catch (error) {
      const code = codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED';
      report = { partition: row.partitionKey, state: 'failed', code, reason: explain(error) };
    }
    const { partition, ...rest } = report;
    units.push({ dataset: dataset.key, partition, ...rest });
    if (report.state === 'failed' && counts.failed === 0) run.note({ failed_unit: failedUnit(dataset.key, report) });
    counts[job.good.includes(report.state) ? 'proved' : 'failed']++;
    counts.rows += report.rows ?? 0;
    run.note({ ...counts, at_partition: row.partitionKey });
    context.output.note(lineOf(report, isNamed ? dataset.key : undefined));
  }
  await run.end(context.signal.aborted ? 'interrupted' : counts.failed > 0 ? 'failed' : 'done', counts);
}

/** A partition's line for people; it names the dataset if the command is about several. */
export function lineOf({ partition, state, rows, code, reason = '' }: PartitionReport, dataset?: string): string {
  const head = `${dataset === undefined ? '' : `${dataset}  `}${partition}  ${state.padEnd(11)}`;
  const shown = rows === undefined ? '' : `${grouped(rows)} rows `;
  return `${head} ${shown}${code === undefined ? reason : `${code}: ${reason}`}`.trimEnd();
}

async function wantedRows(dataset: DatasetDefinition, { values }: ParsedCommand, { catalog }: Context) {
  const { from, to, partition, 'from-height': low, 'to-height': high } = values as Record<string, string | undefined>;
  if (partition !== undefined) return await catalog.partitionsOf(dataset, [typedKey(dataset, partition)]);
  if (low !== undefined || high !== undefined) {
    const span = { from: Number(low ?? 0), to: high === undefined ? Number.MAX_SAFE_INTEGER : Number(high) + 1 };
    return await catalog.overlapping(dataset, dataset.sources[0], span);
  }
  return await catalog.partitions(dataset, startOf(dataset, from), endOf(dataset, to));
}

/** The answer for people. */
export function textOf(
  units: readonly ReportedUnit[],
  { elapsedMs, interrupted }: { readonly elapsedMs: number; readonly interrupted: boolean },
): string {
  const done = units.length === 0 ? [] : [summaryOf(units), `${units.length} in ${seconds(elapsedMs)}`];
  if (interrupted) return ['Interrupted before the end of the range.', ...done].join('\n');
  return done.length > 0 ? done.join('\n') : 'Nothing to do: the range has no partition that this command applies to.';
}

function summaryOf(units: readonly ReportedUnit[]): string {
  const groups = Map.groupBy(units, ({ dataset, state }) => `${dataset}\n${state}`);
  const rows = [...groups].map(([key, list]) => [...key.split('\n'), list.length]);
  return table(['dataset', 'state', 'partitions'], rows);
}

/**
 * Where the range starts. Days are the vendor's file days, which need not be UTC days; for other datasets, the UTC days
 * in which a partition's rows begin.
 */
function startOf(dataset: DatasetDefinition, day: string | undefined): number | undefined {
  if (day === undefined) return undefined;
  return dataset.partition.kind === 'file_day' ? windowOf(dataset, dayKeyOf(dataset, day)).fromMs : parseDay(day);
}

function endOf(dataset: DatasetDefinition, day: string | undefined): number | undefined {
  const start = startOf(dataset, day);
  return start === undefined ? undefined : start + DAY_MS;
}

/** Whether a setting names the location of the feed's documents. */
export const isLocated = (settings: Settings, { datasets }: Feed): boolean =>
  datasets.some(({ locations }) =>
    Object.values(locations)
      .flat()
      .some((name) => settingValue(settings, name) !== undefined),
  );

export const ALL = 'all';

/**
 * Feeds by name, without repetition; `all` is every feed whose source is set.
 * @throws TidemarkError USAGE for an unknown one, CONFIGURATION_INVALID if `all` is empty.
 */
export function selectedFeeds(names: readonly string[], settings: Settings): Feed[] {
  if (!names.includes(ALL)) return [...new Set(names.map(feedOf))];
  const located = feeds().filter((feed) => isLocated(settings, feed));
  if (located.length > 0) return located;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    'No source is set: `all` means every feed whose location is set, for instance in SVC_EXCHANGE_A_BASE_URL',
  );
}
