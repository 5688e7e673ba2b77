/** `up`, which is `npm start`: runs everything until it is stopped. */

import { once } from 'node:events';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { proofLogOf, type SettingName, type Settings } from '../../../shared/config/settings.ts';
import { DAY_MS } from '../../../shared/dates.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../../shared/errors.ts';
import { DATASETS } from '../../../shared/registry/index.ts';
import { requireOwnOrigin } from '../../proof-log/sequencer.ts';
import type { Feed, Sample } from '../../sources/feed-types.ts';
import { fedDatasets, feeds } from '../../sources/index.ts';
import { ALL_INSTRUMENTS } from '../../sources/trades/instruments.ts';
import { SupervisedChild } from '../child.ts';
import { type Context, openContext, settingsOf } from '../context.ts';
import { ingest } from '../ingest.ts';
import { EXIT, PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput, grouped, Summary, seconds } from '../output.ts';
import { isLocated } from '../over-partitions.ts';
import { startProjector } from '../projector.ts';
import { type RunningService, type Turn, takeTurn } from '../running.ts';
import { keepStreams } from '../streams.ts';
import { quoted } from './env.ts';
import { PARENT_VARIABLE } from './follow.ts';
import { lakeChild } from './lake.ts';
import { keepVerified } from './verify.ts';

export interface SampleReport {
  readonly feed: string;
  readonly partitions: number;
  readonly rows: number;
}

const LONGEST_NAME = Math.max(...[...DATASETS.keys()].map((key) => key.length));

/**
 * Samples that are ingested at the same time, of files and of others. One alone leaves a processor idle for a third of the
 * time, because publisher, projector and database wait for each other.
 */
const LOADED_AT_ONCE = 3;

/**
 * Loads the sample of every feed without partitions and source location: synthetic documents in the vendor's layout,
 * ingested like any other but marked. A sample that fails is reported and retried at the next start; the service
 * continues.
 */
export async function loadSamples(context: Context): Promise<SampleReport[]> {
  if (!context.settings.SVC_SAMPLE) return [];
  const wanted = feeds().filter((feed) => feed.sample && !isLocated(context.settings, feed));
  const isFiles = ({ datasets: [{ partition }] }: Feed) => partition.kind === 'file_day';
  // Files do not wait for the sample of Bitcoin, which first downloads a node and takes the longest.
  const [files, others] = [wanted.filter(isFiles), wanted.filter((feed) => !isFiles(feed))];
  return (await Promise.all([loadEach(context, files), loadEach(context, others)])).flat();
}

/** While samples are ingested the next ones are made. */
async function loadEach(context: Context, wanted: readonly Feed[]): Promise<SampleReport[]> {
  const reports: SampleReport[] = [];
  let last: Promise<unknown> = Promise.resolve();
  const samples = wanted.map((feed) => {
    const documents = last.then(() => makeDocuments(context, feed, feed.sample!));
    last = documents.catch(() => {}); // reported below
    return { feed, documents };
  });
  const left = samples.values();
  const loadNext = async () => {
    for (const { feed, documents } of left) {
      const report = await loadedOrReported(context, feed, documents);
      if (report) reports.push(report);
    }
  };
  await Promise.all(Array.from({ length: LOADED_AT_ONCE }, loadNext));
  return reports;
}

async function loadedOrReported(
  context: Context,
  feed: Feed,
  documents: Promise<Documents | undefined>,
): Promise<SampleReport | undefined> {
  try {
    if (context.output.terminal) context.output.progress(`${feed.name}  generating a synthetic sample`);
    const made = await documents;
    if (made && !context.signal.aborted) return await loadSample(context, feed, made);
  } catch (error) {
    // Another process is publishing real data, so no sample is needed.
    if (context.signal.aborted || codeOf(error) === 'WORK_HELD') return undefined;
    // A sample may lack a server that generates it, or space in a store. The service and the other samples continue.
    const code = codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED';
    context.log.warn({ feed: feed.name, code, fault: explain(error) }, 'the sample could not be loaded');
    context.output.note(`no sample of ${feed.name}: ${explain(error)} [${code}]`);
  } finally {
    await rm(folderOf(context, feed), { recursive: true, force: true });
  }
  return undefined;
}

type Documents = Awaited<ReturnType<Sample['make']>>;

const folderOf = ({ settings }: Context, { name }: Feed): string => join(settings.SVC_STATE_DIR, 'sample', name);

/** @returns the documents of a feed's sample, or undefined where the sample is not wanted. */
async function makeDocuments(context: Context, feed: Feed, sample: Sample): Promise<Documents | undefined> {
  const { settings, log, signal } = context;
  const todayMs = Math.floor(Date.now() / DAY_MS) * DAY_MS;
  if (signal.aborted || !(await isWanted(context, feed, { sample, todayMs }))) return undefined;
  const directory = folderOf(context, feed);
  await mkdir(directory, { recursive: true });
  return await sample.make({ directory, settings, todayMs, log, signal });
}

async function isWanted(
  { catalog }: Context,
  { datasets }: Feed,
  { sample, todayMs }: { readonly sample: Sample; readonly todayMs: number },
): Promise<boolean> {
  const others = await Promise.all((await catalog.instruments(datasets)).map((one) => catalog.counts(one)));
  if (others.some(({ real }) => real > 0)) return false;
  const counts = await Promise.all(datasets.map((dataset) => catalog.counts(dataset)));
  return isIncomplete(counts, { partitions: await sample.partitions(), first: sample.firstPartition?.(todayMs) });
}

type Counts = Awaited<ReturnType<Context['catalog']['counts']>>;

/**
 * Whether today's sample is incomplete and the database holds only synthetic rows, as after an interrupted first start.
 * @param first where the sample must begin to be today's
 */
export function isIncomplete(
  counts: readonly Counts[],
  { partitions, first }: { readonly partitions: number; readonly first: string | undefined },
): boolean {
  if (counts.some(({ real }) => real > 0)) return false;
  const isOlder = ({ firstSynthetic }: Counts) => firstSynthetic !== null && firstSynthetic !== first;
  if (first !== undefined && counts.some(isOlder)) return false;
  return counts.some(({ synthetic }) => synthetic < partitions);
}

async function loadSample(context: Context, feed: Feed, { location, selection }: Documents): Promise<SampleReport> {
  const { output } = context;
  const startedAt = performance.now();
  if (!output.terminal) output.note(`loading a synthetic sample of ${feed.name}`);
  const loaded = new Map(feed.datasets.map(({ key }) => [key, { partitions: 0, rows: 0 }]));
  const summary = new Summary('up', [feed], output);
  const line = './tidemark up (its sample)';
  const request = { kind: 'backfill', line, location, selection, synthetic: true, ownProjector: false } as const;
  for await (const unit of ingest(context, feed, request)) {
    const isLoaded = unit.state === 'proved' || unit.state === 'unchanged';
    summary.add(feed, unit, isLoaded);
    const counts = loaded.get(unit.dataset);
    if (!isLoaded || !counts) continue;
    counts.partitions++;
    counts.rows += unit.rows;
  }
  if (output.terminal) {
    const lines = [...loaded].map(([dataset, counts]) => lineOf(dataset, counts));
    // Datasets of one feed are loaded together.
    for (const line of lines.slice(0, -1)) output.note(line);
    output.note(`${lines.at(-1)}  ${seconds(performance.now() - startedAt).padStart(7)}`);
  }
  const all = [...loaded.values()];
  return {
    feed: feed.name,
    partitions: all.reduce((sum, { partitions }) => sum + partitions, 0),
    rows: all.reduce((sum, { rows }) => sum + rows, 0),
  };
}

function lineOf(dataset: string, { partitions, rows }: { partitions: number; rows: number }): string {
  const amount = `${partitions} partitions`.padStart(15);
  return `  ${dataset.padEnd(LONGEST_NAME)} ${amount} ${grouped(rows).padStart(9)} rows, synthetic`;
}

/** Time until the HTTP process listens: its start checks settings, rights and storage. */
const LISTEN_TIMEOUT_MS = 60_000;

export async function runUp(command: ParsedCommand): Promise<number> {
  if (command.values.only === 'exports') return await (await import('./export-worker.ts')).runExportWorker(command);
  const startedAt = performance.now();
  const { settings } = settingsOf(command, { required: requiredByUp });
  await requireOwnOrigin(proofLogOf(settings));
  const turn = await turnOf(command, settings.SVC_STATE_DIR);
  if ('url' in turn) return alreadyRuns(command, settings.SVC_STATE_DIR, turn);
  await using _turn = turn;
  await using context = await openContext(command, 'up', { required: requiredByUp });
  const { stack, signal, output } = context;
  const apiKey = apiKeyOf(context);
  stack.supervise();
  await using _streams = await keepStreams(context);
  await using _projector = startProjector(
    context,
    fedDatasets().map(({ key }) => key),
    { compacts: true },
  );
  const listening = Promise.withResolvers<string>();
  listening.promise.catch(() => {}); // awaited below
  let signIn: string | undefined;
  await using serving = startServing(
    context,
    turn.identity,
    (url, token) => {
      // That of a process before it signs in no more.
      signIn = token;
      // It listens on another port after a restart where its own was taken meanwhile.
      turn.listens(url, apiKey).then(() => listening.resolve(url), listening.reject);
    },
    listening.reject,
  );
  // Before the sample is loaded: a port that another program has is reported at once.
  const url = await Promise.race([
    listening.promise,
    timeout(LISTEN_TIMEOUT_MS, serving),
    aborted(signal).then(() => undefined),
  ]);
  if (url === undefined) return 0;
  await loadSamples(context);
  if (signal.aborted) return 0;
  const elapsedMs = Math.round(performance.now() - startedAt);
  output.answer(
    { command: 'up', ok: true, url, state_dir: stack.stateDir, elapsed_ms: elapsedMs, processes: stack.processes },
    () => banner(context, { url, apiKey, signIn, elapsedMs }),
  );
  await using _following = startFollowing(context);
  await using _lake = startLake(context);
  const interval = context.settings.SVC_VERIFY_INTERVAL_SECONDS;
  const line = './tidemark up (scheduled verification)';
  const verification =
    interval > 0 ? keepVerified(context, fedDatasets(), { intervalMs: interval * 1000, line }) : undefined;
  await once(signal, 'abort');
  output.note('stopping');
  await verification;
  return 0;
}

const aborted = async (signal: AbortSignal): Promise<void> => {
  if (!signal.aborted) await once(signal, 'abort');
};

async function turnOf(command: ParsedCommand, stateDir: string): Promise<Turn | RunningService> {
  const stopping = new AbortController();
  const forget = command.io.onStop(() => stopping.abort(new Error('interrupted')));
  const onWait = () => createOutput(command).note('waiting for another `up` of this state folder, which starts');
  try {
    return await takeTurn({ stateDir, signal: stopping.signal, onWait });
  } finally {
    forget();
  }
}

/** A second start has nothing to do: the user asked for a service here, and there is one. */
function alreadyRuns(command: ParsedCommand, stateDir: string, { url, process: { pid } }: RunningService): number {
  const answer = { command: 'up', ok: true, url, state_dir: stateDir, already_running: true, pid };
  createOutput(command).answer(answer, () =>
    [
      `Tidemark already runs at ${url} (process ${pid})`,
      '',
      `  state  ${stateDir}`,
      '',
      'eval "$(./tidemark env)" sets TIDEMARK_URL and TIDEMARK_KEY in this shell.',
      'Ctrl-C in its terminal stops it, as does SIGTERM; SVC_STATE_DIR names another folder for a second one.',
    ].join('\n'),
  );
  return EXIT.DONE;
}

/**
 * The settings that `up` requires. The callers' key is the operator's, or generated with the embedded database. With a
 * database of the operator's own nothing is generated: the operator must state what may be served from it.
 */
const requiredByUp = (settings: Partial<Settings>): readonly SettingName[] =>
  settings.SVC_DATABASE_URL === undefined ? [] : ['SVC_INTERNAL_API_KEY', 'SVC_SOURCE_RIGHTS_MATRIX_PATH'];

const apiKeyOf = ({ settings, stack }: Context): string => settings.SVC_INTERNAL_API_KEY ?? stack.apiKey!;

/** The settings go through standard input, so that no other process can read the key and the database's password. */
function startServing(
  context: Context,
  identity: string,
  onListening: (url: string, signIn: string | undefined) => void,
  onRefusal: (error: unknown) => void,
): SupervisedChild {
  const { io, log, terminalLog, settingFlags } = context;
  const urls = context.natsUrls;
  const settings = {
    ...settingFlags,
    SVC_DATABASE_URL: context.databaseUrls.serve,
    SVC_DATABASE_MONITOR_URL: context.databaseUrls.monitor,
    // This account may only read the log.
    SVC_NATS_READER_URL: urls.reader,
    SVC_INTERNAL_API_KEY: apiKeyOf(context),
  };
  return new SupervisedChild({
    name: 'serving',
    module: 'serving/main.ts',
    args: ['--stdin'],
    inherits: io.env,
    log,
    terminalLog,
    input: JSON.stringify({
      cwd: PROJECT_ROOT,
      parent: process.pid,
      settings,
      identity,
      sign_in: showsKey(context),
      // The example's rights (everything allowed, artifacts that say "sample data only") apply to the embedded database
      // only.
      sample_rights: context.settings.SVC_DATABASE_URL === undefined,
    }),
    onLine: (line) => {
      const { url, sign_in: token } = JSON.parse(line) as { url?: string; sign_in?: string };
      if (url) onListening(url, token);
    },
    onRefusal: () =>
      onRefusal(
        new TidemarkError(
          'CONFIGURATION_INVALID',
          'The HTTP service refused its settings; its log line above names them',
        ),
      ),
  });
}

/** Follows every source whose location is set, if `SVC_FOLLOW` is set. */
function startFollowing({
  io,
  settings,
  settingFlags,
  log,
  terminalLog,
  output,
}: Context): SupervisedChild | undefined {
  if (!settings.SVC_FOLLOW) return undefined;
  if (!feeds().some((feed) => isLocated(settings, feed))) {
    output.note('SVC_FOLLOW is set, but no source is: no feed is followed');
    return undefined;
  }
  return new SupervisedChild({
    name: 'follow',
    module: 'pipelines/cli/main.ts',
    args: ['follow', '--no-progress', '--instrument', ALL_INSTRUMENTS],
    inherits: io.env,
    // Passes flags through the environment, because secrets must not appear on a command line.
    env: { ...settingFlags, [PARENT_VARIABLE]: String(process.pid) },
    log,
    terminalLog,
    onRefusal: () => log.error('`follow` refused its settings; its log line above names them'),
  });
}

/** Keeps a lake, if `SVC_LAKE_FOLDER` is set. */
function startLake(context: Context): SupervisedChild | undefined {
  const { settings, log } = context;
  const { SVC_LAKE_FOLDER: folder } = settings;
  if (folder === undefined) return undefined;
  return new SupervisedChild({
    ...lakeChild(context, { folder, synthetic: false, follow: true }),
    log,
    onLine: (line) => {
      const { error } = JSON.parse(line) as { error?: { code: string; message: string } };
      if (error) log.error(error, 'the lake is not written');
    },
    onRefusal: () => {},
  });
}

async function timeout(ms: number, child: SupervisedChild): Promise<never> {
  await new Promise((resolve) => setTimeout(resolve, ms).unref());
  throw new TidemarkError(
    'STACK_START_FAILED',
    `The HTTP service (pid ${child.pid}) did not start listening within ${ms / 1000} s`,
    { remedy: 'Read the log on standard error: it says what the service waits for.' },
  );
}

interface Started {
  readonly url: string;
  readonly apiKey: string;
  /** The token of a link that signs in once. */
  readonly signIn: string | undefined;
  readonly elapsedMs: number;
}

const isLoopback = (url: string): boolean => ['127.0.0.1', 'localhost', '[::1]'].includes(new URL(url).hostname);

/** No line of it is longer than a narrow terminal: a command that wraps cannot be copied. */
function banner(context: Context, { url, apiKey, signIn, elapsedMs }: Started): string {
  const { stack, terminalLog, given } = context;
  const folder = given.has('SVC_STATE_DIR') ? ` --state-dir ${quoted(stack.stateDir)}` : '';
  return [
    '',
    `Tidemark is up (${(elapsedMs / 1000).toFixed(1)} s)`,
    '',
    `  url    ${url}  (the operator's page; it asks for the key)`,
    `  key    ${keyAsShown(context, apiKey)}`,
    `  state  ${stack.stateDir}`,
    ...(terminalLog ? [`  log    ${terminalLog.path}`] : []),
    '',
    'In another terminal:',
    '',
    `  eval "$(./tidemark env${folder})"`,
    '  curl -s $TIDEMARK_URL/v1/raw/query -H "X-API-Key: $TIDEMARK_KEY" \\',
    `    -d '${JSON.stringify({ sources: ['exchange_a_spot_trades'], n_rows: 3 })}'`,
    '',
    `${stopsWhat(context)} \`./tidemark help\` for backfill, replay, verify, status.`,
    ...(signIn !== undefined && isLoopback(url)
      ? ['', 'The page, signed in (this link works once, for ten minutes):', '', `  ${url}/#sign-in=${signIn}`]
      : []),
  ].join('\n');
}

/** The last process that uses the servers stops them, so only the process that started them can promise to. */
const stopsWhat = ({ stack }: Context) =>
  stack.owned ? 'Ctrl-C stops everything.' : 'Ctrl-C stops this process; servers that others use go on.';

/**
 * Never shows a key that the operator set. Shows a generated key on a terminal; in a pipe or file others could read it, so there
 * it names the command that prints it when it is asked to.
 */
function keyAsShown(context: Context, apiKey: string): string {
  if (context.settings.SVC_INTERNAL_API_KEY !== undefined) return 'that of SVC_INTERNAL_API_KEY';
  return showsKey(context) ? apiKey : '`./tidemark env` prints it';
}

const showsKey = ({ io, settings }: Context): boolean =>
  settings.SVC_INTERNAL_API_KEY === undefined && io.stdout.isTTY === true;
