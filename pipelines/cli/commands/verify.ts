/** `verify`: recounts stored rows, and on request compares them byte by byte with the log; once, or continuously. */

import { setTimeout as sleep } from 'node:timers/promises';
import { withClient } from '../../../shared/db/connect.ts';
import { RunRecorder } from '../../../shared/db/runs.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../../shared/errors.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { type VerifyResult, verifyPartition } from '../../projector/verify.ts';
import { projectionOf } from '../../sources/index.ts';
import { type Context, openContext } from '../context.ts';
import { allInstruments } from '../instruments.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions, selectedDatasets } from '../over-partitions.ts';

/** Interval of the checks whether a partition is due. */
const DUE_CHECK_MS = 30_000;
const RETRY_MS = 60_000;
/**
 * A partition that could not be verified (for example because the log lost it) is retried after this time, or the
 * interval if that is shorter.
 */
const FAILED_MS = 3_600_000;
const NO_FAULT = { fault: null };

export interface VerifySchedule {
  readonly intervalMs: number;
  /** The command line as an operator would type it. */
  readonly line: string;
  readonly deep?: boolean;
}

/**
 * Verifies all proved partitions in turn until the signal, the longest unverified first. That spreads the work over the
 * interval and continues it after a restart. Of several processes one works and the others wait.
 */
export async function keepVerified(
  context: Context,
  datasets: readonly DatasetDefinition[],
  schedule: VerifySchedule,
): Promise<void> {
  const { signal, log, databaseUrls } = context;
  for (let isReported = false; !signal.aborted; ) {
    try {
      await using run = await RunRecorder.open({
        databaseUrl: databaseUrls.ingest,
        kind: 'verify',
        subject: datasets.length === 1 ? datasets[0].key : 'scheduled',
        datasets,
        command: schedule.line,
        exclusive: true,
      });
      await verifyInTurn(context, datasets, schedule, run);
      await run.end('interrupted');
    } catch (error) {
      if (signal.aborted) return;
      if (codeOf(error) !== 'WORK_HELD') log.warn({ fault: explain(error) }, 'verification restarts');
      else if (!isReported) context.output.note(`${explain(error)}; waiting to take over`);
      isReported = true;
      await sleep(RETRY_MS, undefined, { signal }).catch(() => {});
    }
  }
}

async function verifyInTurn(
  context: Context,
  datasets: readonly DatasetDefinition[],
  { intervalMs, deep = false }: VerifySchedule,
  run: RunRecorder,
): Promise<void> {
  const { signal, reportedLog, catalog, settings } = context;
  const counts = { proved: 0, quarantined: 0, failed: 0, rows: 0 };
  // A partition that cannot be verified would stay the longest unverified and block all others, so it is set aside for
  // a while.
  const failed = new Map<string, Pick<PartitionRow, 'datasetId' | 'partitionKey'> & { readonly againMs: number }>();
  while (!signal.aborted) {
    for (const [id, { againMs }] of failed) if (againMs <= Date.now()) failed.delete(id);
    const all = await allInstruments(context, datasets);
    const due = await catalog.longestUnverified(all, new Date(Date.now() - intervalMs), [...failed.values()]);
    const dataset = due && all.find(({ number }) => number === due.datasetId);
    if (!due || !dataset) {
      await run.write({ state: 'waiting', at_partition: null, failed: failed.size, ...(failed.size ? {} : NO_FAULT) });
      await sleep(Math.min(DUE_CHECK_MS, intervalMs), undefined, { signal }).catch(() => {});
      continue;
    }
    const id = `${dataset.key} ${due.partitionKey}`;
    let result: VerifyResult;
    try {
      const needs = {
        dataset,
        catalog,
        connection: await context.nats('operator'),
        projection: projectionOf(dataset),
        batchBytes: settings.limits.pullBytes,
        deep,
      };
      result = await withClient(context.pool, (client) => verifyPartition(due, { ...needs, client }));
    } catch (error) {
      const code = codeOf(error);
      // An outage of a store is not the partition's fault. A partition that was replaced meanwhile has just been
      // proved.
      if (outageCode(error) !== undefined || code?.endsWith('_UNAVAILABLE')) throw error;
      if (code === 'PARTITION_CHANGED') continue;
      const fault = `${id} cannot be verified: ${explain(error)}`;
      context.output.note(fault);
      reportedLog.error(
        { dataset: dataset.key, partition: due.partitionKey, code, fault: explain(error) },
        'not verified',
      );
      const { datasetId, partitionKey } = due;
      failed.set(id, { datasetId, partitionKey, againMs: Date.now() + Math.min(FAILED_MS, intervalMs) });
      counts.failed = failed.size;
      await run.write({ state: 'running', at_partition: id, ...counts, fault });
      continue;
    }
    counts[result.state]++;
    counts.failed = failed.size;
    counts.rows += result.rows;
    run.note({ state: 'running', at_partition: id, ...counts, ...(failed.size ? {} : NO_FAULT) });
    if (result.state === 'proved') continue;
    const { partition, reason } = result;
    reportedLog.error({ dataset: dataset.key, partition, reason }, 'a proved partition no longer matches: quarantined');
    context.output.note(`${dataset.key}  ${partition}  quarantined ${reason}`);
  }
}

export async function runVerify(command: ParsedCommand): Promise<number> {
  const { every } = command.values as { every?: string };
  if (every !== undefined) {
    const chosen = ['from', 'to', 'partition', 'instrument', 'from-height', 'to-height'].find(
      (name) => command.values[name],
    );
    if (chosen) throw new TidemarkError('USAGE', `--every takes every partition in turn: leave --${chosen} out`);
    await using context = await openContext(command, 'verify');
    await keepVerified(context, selectedDatasets(command.positionals), {
      intervalMs: Number(every) * 1000,
      line: command.line,
      deep: command.values.deep === true,
    });
    return EXIT.DONE;
  }
  return await overPartitions(command, {
    name: 'verify',
    states: ['proved'],
    good: ['proved'],
    work: async (dataset, row, context) => {
      const needs = {
        dataset,
        catalog: context.catalog,
        connection: await context.nats('operator'),
        projection: projectionOf(dataset),
        batchBytes: context.settings.limits.pullBytes,
        deep: command.values.deep === true,
      };
      return await withClient(context.pool, (client) => verifyPartition(row, { ...needs, client }));
    },
  });
}
