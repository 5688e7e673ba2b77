/** `replay` and `verify` go over proved partitions one by one; they differ in what they do with each. */
import { connect } from '../../../shared/db/connect.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { codeOf, explain, TidemarkError } from '../../../shared/errors.ts';
import { outageCode } from '../../../shared/outage.ts';
import { datasetOf } from '../../../shared/registry/index.ts';
import { windowOf } from '../../../shared/registry/partitions.ts';
import { replayPartition } from '../../prove/replay.ts';
import { adapterOf } from '../../sources/index.ts';
import { type Context, openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { bar, seconds } from '../output.ts';

export interface PartitionReport {
  readonly partition: string;
  readonly state: string;
  readonly rows?: number;
  readonly code?: string;
  readonly reason?: string;
}

/** Runs `work` over the partitions of the range and reports; a fault of one does not stop the others. */
export async function overPartitions(
  command: ParsedCommand,
  name: string,
  states: readonly PartitionRow['state'][],
  good: readonly string[],
  work: (row: PartitionRow, context: Context) => Promise<PartitionReport>,
): Promise<number> {
  const dataset = datasetOf(command.positionals[0]);
  const { from, to } = command.values as Record<string, string | undefined>;
  if (from !== undefined && to !== undefined && from > to) {
    throw new TidemarkError('USAGE', `--from ${from} is after --to ${to}`);
  }
  await using context = await openContext(command, name);
  const startedAt = performance.now();
  // Days are the vendor's file days, which need not be UTC days.
  const fromMs = from === undefined ? undefined : windowOf(dataset, from).fromMs;
  const toMs = to === undefined ? undefined : windowOf(dataset, to).toMs;
  const all = await context.catalog.partitions(dataset, fromMs, toMs);
  const rows = all.filter((row) => states.includes(row.state) && row.manifest !== null);
  const units: PartitionReport[] = [];
  for (const row of rows) {
    if (context.signal.aborted) break;
    context.output.progress(`${bar(units.length, rows.length)} ${units.length}/${rows.length}  ${row.partitionKey}`);
    let unit: PartitionReport;
    try {
      unit = await work(row, context);
    } catch (error) {
      unit = {
        partition: row.partitionKey,
        state: 'failed',
        code: codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED',
        reason: explain(error),
      };
    }
    units.push(unit);
    context.output.note(
      `${unit.partition}  ${unit.state.padEnd(11)} ${unit.rows === undefined ? '' : `${unit.rows.toLocaleString('en-US')} rows `}${unit.reason ?? ''}`.trimEnd(),
    );
  }
  const elapsedMs = Math.round(performance.now() - startedAt);
  const interrupted = context.signal.aborted;
  const ok = !interrupted && units.every((unit) => good.includes(unit.state));
  const counts = Object.groupBy(units, (unit) => unit.state);
  const text = Object.entries(counts).map(([state, list]) => `${list?.length} ${state}`);
  context.output.answer({ command: name, dataset: dataset.key, ok, interrupted, elapsed_ms: elapsedMs, units }, () =>
    units.length === 0 ? 'Nothing to do: no such partition is proved.' : `${text.join(', ')} in ${seconds(elapsedMs)}`,
  );
  return ok ? 0 : 1;
}

export async function runReplay(command: ParsedCommand): Promise<number> {
  const dataset = datasetOf(command.positionals[0]);
  return await overPartitions(
    command,
    'replay',
    ['proved', 'quarantined'],
    ['identical', 'replaced'],
    async (row, context) => {
      await using client = await connect({ url: context.stack.databaseUrl, name: 'tidemark replay' });
      const result = await replayPartition(row, {
        dataset,
        client,
        catalog: context.catalog,
        connection: await context.nats(),
        createRows: adapterOf(dataset).createRows,
        batchBytes: context.settings.SVC_PULL_MAX_BYTES,
      });
      const reason = result.state === 'replaced' ? `differed in ${result.differing.join(', ')}` : undefined;
      return { partition: result.partition, state: result.state, rows: result.rows, ...(reason ? { reason } : {}) };
    },
  );
}
