/** `backfill` and `reingest`: vendor documents into the log, each day proved. */
import { join } from 'node:path';

import type { SettingName } from '../../../shared/config/settings.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { ensureStream } from '../../../shared/nats/stream.ts';
import { type DatasetDefinition, datasetOf } from '../../../shared/registry/index.ts';
import { verifyCheckpoint } from '../../project/checkpoint.ts';
import { backfill, type UnitResult } from '../../publish/backfill.ts';
import { takeLease } from '../../publish/lease.ts';
import { Bell, waitForOutcome } from '../../publish/outcomes.ts';
import { Publisher } from '../../publish/publisher.ts';
import { cleanSpool } from '../../sources/documents/fetch.ts';
import { adapterOf } from '../../sources/index.ts';
import type { DocumentRequest } from '../../sources/types.ts';
import type { Context } from '../context.ts';
import { openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { bar, seconds, table } from '../output.ts';
import { startProjector } from '../projector-child.ts';

/** Nothing moving for this long means no projector is at work. */
const PATIENCE_MS = 300_000;

export async function runBackfill(command: ParsedCommand): Promise<number> {
  const dataset = datasetOf(command.positionals[0]);
  const { from, to, granularity, reason } = command.values as Record<string, string>;
  if (from > to) throw new TidemarkError('USAGE', `--from ${from} is after --to ${to}`);
  await using context = await openContext(command, 'backfill');
  return await ingest(context, dataset, {
    ...locationOf(context, dataset),
    from,
    to,
    granularity: granularity as DocumentRequest['granularity'],
    reason,
    synthetic: false,
  });
}

/** Where the dataset's one source has its documents. @throws TidemarkError CONFIGURATION_INVALID naming the setting. */
function locationOf(context: Context, dataset: DatasetDefinition): { location: URL; setting: SettingName } {
  const [names] = Object.values(dataset.locations);
  const set = names.flatMap((setting) => {
    const location = context.settings[setting];
    return location instanceof URL ? [{ location, setting }] : [];
  });
  if (set.length === 1) return set[0];
  const where = `where the documents of ${dataset.key} are`;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    set.length > 1
      ? `${names.join(' and ')} are set: only one of them may say ${where}`
      : `${names.join(' or ')} is not set: it says ${where} (an http(s) URL or a file:// folder)`,
  );
}

export interface IngestRequest {
  readonly location: URL;
  /** The setting the location came from; a sample's comes from none. */
  readonly setting?: SettingName;
  readonly from: string;
  readonly to: string;
  readonly granularity: DocumentRequest['granularity'];
  readonly reason?: string;
  readonly synthetic: boolean;
  /** False where a projector is at work already. */
  readonly ownProjector?: boolean;
}

/** Runs a backfill to its end and reports it. @returns the exit code. */
export async function ingest(context: Context, dataset: DatasetDefinition, request: IngestRequest): Promise<number> {
  const startedAt = performance.now();
  const results: UnitResult[] = [];
  for await (const result of ingestUnits(context, dataset, request)) {
    results.push(result);
    context.output.note(describe(result));
  }
  const report = summarise(
    request.reason === undefined ? 'backfill' : 'reingest',
    context,
    dataset,
    results,
    performance.now() - startedAt,
  );
  context.output.answer(report, () => reportText(report));
  return report.ok ? 0 : 1;
}

export async function* ingestUnits(
  context: Context,
  dataset: DatasetDefinition,
  request: IngestRequest,
): AsyncGenerator<UnitResult> {
  const { settings, log, signal, catalog, stack, output } = context;
  stack.supervise();
  await cleanSpool(join(settings.SVC_STATE_DIR, 'spool'));
  const source = adapterOf(dataset).createSource({
    settings,
    location: request.location,
    setting: request.setting,
    log,
    signal,
  });
  const requests = source.plan(request.from, request.to, request.granularity);
  await using _projector = request.ownProjector === false ? undefined : startProjector(context, [dataset.key]);
  await using lease = await takeLease(stack.databaseUrl, dataset);
  await using bell = await Bell.open(stack.databaseUrl);
  const connection = await context.nats();
  await ensureStream(connection, dataset.key, settings.SVC_STREAM_MAX_BYTES);
  // Nothing is published to a log that cannot be projected.
  await verifyCheckpoint(connection, dataset, await catalog.checkpoint(dataset));
  const publisher = new Publisher({
    source,
    connection,
    catalog,
    log,
    options: {
      frameRawBytes: settings.SVC_FRAME_RAW_BYTES,
      window: settings.SVC_PUBLISH_WINDOW,
      synthetic: request.synthetic,
      reingestReason: request.reason,
    },
  });
  const wait = (partition: string, attempt: number) =>
    waitForOutcome({ catalog, bell, dataset, signal, patienceMs: PATIENCE_MS }, partition, attempt);
  const total = requests.reduce((sum, { partitions }) => sum + partitions.length, 0);
  let done = 0;
  let [current, before, latest] = ['', 0, 0];
  const startedAt = performance.now();
  yield* counted(
    backfill(requests, {
      source,
      publisher,
      lease,
      wait,
      log,
      signal,
      onProgress: ({ partition, rows, bytes }) => {
        if (partition !== current) [current, before, latest] = [partition, before + latest, 0];
        latest = rows;
        const rate = (before + rows) / Math.max((performance.now() - startedAt) / 1000, 0.001);
        output.progress(
          `${bar(done, total)} ${done}/${total} days  ${partition}  ${rows.toLocaleString('en-US')} rows  ${(bytes / 1e6).toFixed(1)} MB  ${Math.round(rate).toLocaleString('en-US')} rows/s`,
        );
      },
    }),
    () => done++,
  );
}

async function* counted<T>(items: AsyncGenerator<T>, count: () => void): AsyncGenerator<T> {
  for await (const item of items) {
    count();
    yield item;
  }
}

function summarise(
  command: string,
  context: Context,
  dataset: DatasetDefinition,
  units: readonly UnitResult[],
  elapsedMs: number,
) {
  const count = (state: UnitResult['state']) => units.filter((unit) => unit.state === state).length;
  const rows = units.reduce((sum, unit) => sum + (unit.state === 'proved' ? unit.rows : 0), 0);
  const interrupted = context.signal.aborted;
  return {
    command,
    dataset: dataset.key,
    ok: !interrupted && units.every((unit) => unit.state === 'proved' || unit.state === 'unchanged'),
    interrupted,
    proved: count('proved'),
    unchanged: count('unchanged'),
    refused: count('refused'),
    quarantined: count('quarantined'),
    failed: count('failed'),
    rows,
    elapsed_ms: Math.round(elapsedMs),
    rows_per_second: Math.round(rows / (elapsedMs / 1000)),
    units,
  };
}

function describe(unit: UnitResult): string {
  const head = `${unit.partition}  ${unit.state.padEnd(11)}`;
  if (unit.state === 'proved' || unit.state === 'unchanged') return `${head} ${unit.rows.toLocaleString('en-US')} rows`;
  return `${head} ${unit.code}: ${unit.reason}${unit.remedy ? `\n            ${unit.remedy}` : ''}`;
}

function reportText(report: ReturnType<typeof summarise>): string {
  const rows = (['proved', 'unchanged', 'refused', 'quarantined', 'failed'] as const)
    .filter((state) => report[state] > 0)
    .map((state) => [state, report[state]] as const);
  const head = report.interrupted ? 'Interrupted; run the same command to go on.\n' : '';
  return `${head}${table(['days', 'count'], rows)}\n${report.rows.toLocaleString('en-US')} rows proved in ${seconds(report.elapsed_ms)} (${report.rows_per_second.toLocaleString('en-US')} rows/s)`;
}
