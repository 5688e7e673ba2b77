/**
 * Macro benchmark. The history is as long as the real one: four series, thousands of vintages, observations from 1950 on. It
 * compares the ingest, from the provider's answers to proved and visible with every vintage as a partition, with `psql
 * \copy` of the same rows into an equal hypertable with the same unique key. Process starts are included; reads of the whole
 * history follow.
 *
 * Options: --monthly N vintages of each monthly series (670), --daily N (3,740), --json.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { connect } from '../shared/db/connect.ts';
import { macroSeriesMetrics } from '../shared/registry/datasets/macro_series_metrics.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { benchHarness, ROOT } from './harness.ts';
import { historyOf, serveHistory, vintagesOf } from './macro-history.ts';
import { cpuSeconds, median, rounded, watch } from './measure.ts';
import { optionsOf } from './options.ts';
import { startService } from './service.ts';

const { native } = macroSeriesMetrics;
const QUERY = '/v1/raw/query';
const ESTIMATE = '/v1/raw/estimate';
/** Measured reads of each kind. */
const READS = 5;

export async function run(argv: readonly string[]): Promise<void> {
  const { monthly, daily, json } = optionsOf(argv, { counts: { monthly: [670, 1], daily: [3740, 1] } });
  await using harness = await benchHarness('macro');
  const { directory, stack, note } = harness;
  const histories = historyOf({ monthly, daily });
  const vintages = vintagesOf(histories);
  await using provider = await serveHistory(histories);
  note(`${vintages} vintages of ${histories.length} series`);
  const ours = await measured(stack, () => backfill(stack, provider.url));
  await using client = await connect({ url: stack.databaseUrl, name: 'bench' });
  const counted = await client.query(
    `select (select count(*)::int from partitions where dataset_id = $1 and state = 'proved') as proved,
       (select count(*)::int from ${native.table}) as rows`,
    [macroSeriesMetrics.number],
  );
  const [{ proved, rows }] = counted.rows;
  if (proved !== vintages) throw new Error(`${proved} of ${vintages} vintages are proved`);
  const csv = join(directory, 'rows.csv');
  await prepareBaseline(stack);
  const columns = native.columns.map(({ name }) => name).join(', ');
  const copying = (what: string) => () => psql(stack, `\\copy ${what} '${csv}' with (format csv)`);
  await measured(stack, copying(`(select ${columns} from ${native.table}) to`));
  await client.query('checkpoint');
  const theirs = await measured(stack, copying(`baseline_metrics (${columns}) from`));
  const result = {
    bench: 'macro',
    vintages,
    rows,
    seconds: ours.seconds,
    vintages_per_second: Math.round(vintages / ours.seconds),
    rows_per_second: Math.round(rows / ours.seconds),
    client_cpu: ours.clientCpu,
    postgres_cpu: ours.postgresCpu,
    peak_mib: ours.peakMib,
    psql_seconds: theirs.seconds,
    ratio: rounded(ours.seconds / theirs.seconds, 1),
    read_ms: await readings(stack),
  };
  process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${table(result)}\n`);
}

/** Median times of reads of the whole history, to the last byte; the status of a read that the service refuses. */
async function readings(stack: Stack): Promise<Record<string, number | string>> {
  await using service = await startService(stack.databaseUrl);
  const whole = { sources: [macroSeriesMetrics.key] };
  const aligned = { ...whole, mode: 'aligned_1s' };
  const asOf = { as_of: '2020-01-01T00:00:00Z' };
  const { sources: _, ...route } = aligned;
  const reads: Record<string, readonly [path: string, body: object]> = {
    native: [QUERY, whole],
    aligned: [QUERY, aligned],
    native_as_of: [QUERY, { ...whole, ...asOf }],
    aligned_as_of: [QUERY, { ...aligned, ...asOf }],
    historical_aligned: [`/v1/historical/${macroSeriesMetrics.historicalPath}`, route],
    aligned_latest_100: [QUERY, { ...aligned, n_rows: 100 }],
    estimate: [ESTIMATE, aligned],
  };
  const found: Record<string, number | string> = {};
  for (const [name, [path, body]] of Object.entries(reads)) {
    const times: number[] = [];
    for (let at = 0; at <= READS; at++) {
      const startedAt = performance.now();
      const { status } = await service.ask(path, body);
      if (status !== 200) {
        found[name] = `status ${status}`;
        break;
      }
      // The first read is the warm-up.
      if (at > 0) times.push(performance.now() - startedAt);
    }
    found[name] ??= rounded(median(times), 1);
  }
  return found;
}

const table = (result: Record<string, unknown>): string =>
  Object.entries(result)
    .map(([name, value]) => `${name.padEnd(34)} ${typeof value === 'object' ? JSON.stringify(value) : value}`)
    .join('\n');

/** Creates an equal, empty hypertable with its indexes. */
async function prepareBaseline(stack: Stack): Promise<void> {
  await using client = await connect({ url: stack.databaseUrl, name: 'bench' });
  await client.query(`create table baseline_metrics (like ${native.table})`);
  await client.query(
    `select create_hypertable('baseline_metrics', by_range('${native.time.column}', ${native.chunkMs}::int8),
       create_default_indexes => false)`,
  );
  await client.query(
    `create unique index on baseline_metrics ("${native.time.column}", metric_id);
     create index on baseline_metrics (partition_key)`,
  );
}

function psql(stack: Stack, command: string) {
  const program = join(stack.runtime?.postgresBin ?? '/usr/bin', 'psql');
  const args = [stack.databaseUrl, '-v', 'ON_ERROR_STOP=1', '-qc', command];
  return spawn(program, args, { stdio: ['ignore', 'ignore', 'inherit'] });
}

function backfill(stack: Stack, url: string) {
  return spawn(join(ROOT, 'tidemark'), ['backfill', 'macro', '--json'], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: {
      ...process.env,
      SVC_STATE_DIR: stack.stateDir,
      SVC_MACRO_BASE_URL: url,
      SVC_MACRO_API_KEY: 'bench-key-0123',
      SVC_LOG_LEVEL: 'warn',
    },
  });
}

async function measured(stack: Stack, start: () => ReturnType<typeof spawn>) {
  const postgres = stack.processes.find(({ name }) => name === 'postgres')?.pid ?? 0;
  const before = cpuSeconds(postgres);
  const startedAt = performance.now();
  const child = start();
  const watched = watch(child.pid!, 500);
  const [code] = await once(child, 'exit');
  const seconds = (performance.now() - startedAt) / 1000;
  const { peakMib, cpu } = watched.stop();
  if (code !== 0) throw new Error(`the measured process ended with ${code}`);
  return {
    seconds: rounded(seconds),
    clientCpu: rounded(cpu),
    postgresCpu: rounded(cpuSeconds(postgres) - before),
    peakMib,
  };
}
