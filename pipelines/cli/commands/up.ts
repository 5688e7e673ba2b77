/** `up`, which is `npm start`: everything, until told to stop. */
import { once } from 'node:events';
import type { SettingName, Settings } from '../../../shared/config/settings.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { secretsPath } from '../../../shared/stack/secrets.ts';
import { feeds } from '../../sources/index.ts';
import { fedDatasets } from '../../sources/projections.ts';
import { SupervisedChild } from '../child.ts';
import { type Context, natsUrls, openContext, PROJECT_ROOT } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { localUrl, startProjector } from '../projector-child.ts';
import { loadSamples } from '../sample.ts';
import { isLocated } from '../selected-feeds.ts';
import { keepStreams } from '../streams.ts';
import { keepVerified } from '../verify-schedule.ts';
import { PARENT_VARIABLE } from './follow.ts';

/** First answer of the HTTP process: its start checks settings, rights and storage. */
const LISTEN_TIMEOUT_MS = 60_000;

export async function runUp(command: ParsedCommand): Promise<number> {
  const startedAt = performance.now();
  await using context = await openContext(command, 'up', requiredByUp);
  const { stack, signal, output } = context;
  const apiKey = apiKeyOf(context);
  stack.supervise();
  await using _streams = await keepStreams(context);
  await using _projector = startProjector(
    context,
    fedDatasets().map(({ key }) => key),
  );
  const listening = Promise.withResolvers<string>();
  listening.promise.catch(() => {}); // surfaces below
  await using serving = startServing(context, listening);
  await loadSamples(context);
  const url = await Promise.race([
    listening.promise,
    timeout(LISTEN_TIMEOUT_MS, serving),
    once(signal, 'abort').then(() => undefined),
  ]);
  if (url === undefined || signal.aborted) return 0;
  const elapsedMs = Math.round(performance.now() - startedAt);
  output.answer(
    { command: 'up', ok: true, url, state_dir: stack.stateDir, elapsed_ms: elapsedMs, processes: stack.processes },
    () => banner(context, url, apiKey, elapsedMs),
  );
  await using _following = startFollowing(context);
  const interval = context.settings.SVC_VERIFY_INTERVAL_SECONDS;
  const line = './tidemark up (scheduled verification)';
  const verification =
    interval > 0 ? keepVerified(context, fedDatasets(), { intervalMs: interval * 1000, line }) : undefined;
  await once(signal, 'abort');
  output.note('stopping');
  await verification;
  return 0;
}

/**
 * The key callers send: the operator's, or the one generated with the embedded database. With a database of the
 * operator's own nothing is generated, and nothing is assumed about what may be served from it.
 */
const requiredByUp = (settings: Partial<Settings>): readonly SettingName[] =>
  settings.SVC_DATABASE_URL === undefined ? [] : ['SVC_INTERNAL_API_KEY', 'SVC_SOURCE_RIGHTS_MATRIX_PATH'];

const apiKeyOf = ({ settings, stack }: Context): string => settings.SVC_INTERNAL_API_KEY ?? stack.apiKey!;

/** Its settings go by standard input: the key and the database's password are nobody else's to read. */
function startServing(context: Context, listening: PromiseWithResolvers<string>): SupervisedChild {
  const { io, stack, log, terminalLog, settingFlags } = context;
  const urls = natsUrls(context.settings, stack);
  const settings = {
    ...settingFlags,
    SVC_DATABASE_URL: localUrl(context, 'serve'),
    SVC_DATABASE_MONITOR_URL: localUrl(context, 'monitor'),
    // It reads the log and may do nothing else to it.
    SVC_NATS_READER_URL: urls.reader,
    // It fills the queue of exports and takes from it, and may do nothing else there.
    SVC_NATS_EXPORT_URL: urls.export,
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
      // The example's rights (everything allowed, artifacts that say "sample data only") are for our own database alone.
      sample_rights: context.settings.SVC_DATABASE_URL === undefined,
    }),
    onLine: (line) => {
      const { url } = JSON.parse(line) as { url?: string };
      if (url) listening.resolve(url);
    },
    onRefusal: () =>
      listening.reject(
        new TidemarkError(
          'CONFIGURATION_INVALID',
          'The HTTP service refuses its settings; its log line above says which',
        ),
      ),
  });
}

/** Of every source whose location is set, where `SVC_FOLLOW` says so. */
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
    output.note('SVC_FOLLOW is set, and no source: nothing is followed');
    return undefined;
  }
  return new SupervisedChild({
    name: 'follow',
    module: 'pipelines/cli/main.ts',
    args: ['follow', '--no-progress'],
    inherits: io.env,
    // Flags by the environment: secrets belong on no command line.
    env: { ...settingFlags, [PARENT_VARIABLE]: String(process.pid) },
    log,
    terminalLog,
    onRefusal: () => log.error('`follow` refuses its settings; its line above says which'),
  });
}

async function timeout(ms: number, child: SupervisedChild): Promise<never> {
  await new Promise((resolve) => setTimeout(resolve, ms).unref());
  throw new TidemarkError(
    'SERVICE_START_FAILED',
    `The HTTP service (pid ${child.pid}) did not start listening within ${ms / 1000} s`,
  );
}

function banner(context: Context, url: string, apiKey: string, elapsedMs: number): string {
  const body = JSON.stringify({ sources: ['exchange_a_spot_trades'], n_rows: 3 });
  const exported = JSON.stringify({ dataset: 'exchange_a_spot_trades', format: 'csv', n_rows: 1000 });
  const { shown, lines } = keyAsShown(context, apiKey);
  return [
    '',
    `Tidemark is up (${(elapsedMs / 1000).toFixed(1)} s)`,
    '',
    `  url    ${url}  (the operator's page; it asks for the key)`,
    ...lines.map((line, index) => `  ${index === 0 ? 'key  ' : '     '}  ${line}`),
    `  state  ${context.stack.stateDir}`,
    ...(context.terminalLog ? [`  log    ${context.terminalLog.path}`] : []),
    '',
    `  curl -s ${url}/v1/raw/query -H "X-API-Key: ${shown}" -d '${body}'`,
    `  curl -s ${url}/v1/raw/export -H "X-API-Key: ${shown}" -d '${exported}'`,
    '',
    'Ctrl-C stops everything. `./tidemark help` for backfill, replay, verify, status.',
  ].join('\n');
}

/**
 * A key of the operator's own is not repeated. A generated one is shown on a terminal, to be used; in a pipe or a file it
 * would stay where others read it, so the banner says where it is kept.
 */
function keyAsShown({ io, settings, stack }: Context, apiKey: string): { shown: string; lines: readonly string[] } {
  if (settings.SVC_INTERNAL_API_KEY !== undefined) {
    return { shown: '$SVC_INTERNAL_API_KEY', lines: ['$SVC_INTERNAL_API_KEY'] };
  }
  if (io.stdout.isTTY) return { shown: apiKey, lines: [apiKey] };
  const path = secretsPath(stack.stateDir);
  const quoted = `'${path.replaceAll("'", `'\\''`)}'`;
  return { shown: '$KEY', lines: [`apiKey in ${path}`, `KEY=$(sed -n 's/.*"apiKey": "\\(.*\\)".*/\\1/p' ${quoted})`] };
}
