/** `up`, which is `npm start`: everything, until told to stop. */
import { once } from 'node:events';
import { TidemarkError } from '../../../shared/errors.ts';
import { DATASETS } from '../../../shared/registry/index.ts';
import { SupervisedChild } from '../child.ts';
import { type Context, openContext, PROJECT_ROOT } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { localUrl, startProjector } from '../projector-child.ts';
import { loadSamples } from '../sample.ts';

/** First answer of the HTTP process: its start checks settings, rights and storage. */
const LISTEN_TIMEOUT_MS = 60_000;

export async function runUp(command: ParsedCommand): Promise<number> {
  const startedAt = performance.now();
  await using context = await openContext(command, 'up');
  const { stack, signal, output } = context;
  const apiKey = apiKeyOf(context);
  checkRights(context);
  stack.supervise();
  await using _projector = startProjector(context, [...DATASETS.keys()]);
  const listening = Promise.withResolvers<string>();
  await using serving = startServing(context, listening.resolve);
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
  await once(signal, 'abort');
  output.note('stopping');
  return 0;
}

function apiKeyOf(context: Context): string {
  const key = context.settings.SVC_INTERNAL_API_KEY ?? context.stack.apiKey;
  if (key !== undefined) return key;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    'SVC_INTERNAL_API_KEY is not set: with SVC_DATABASE_URL no key is generated',
  );
}

/** With a database of the operator's own, nothing is assumed about what may be served from it. */
function checkRights({ settings }: Context): void {
  if (settings.SVC_DATABASE_URL !== undefined && settings.SVC_SOURCE_RIGHTS_MATRIX_PATH === undefined) {
    throw new TidemarkError(
      'CONFIGURATION_INVALID',
      'SVC_SOURCE_RIGHTS_MATRIX_PATH is not set: with SVC_DATABASE_URL no sample matrix is assumed',
    );
  }
}

/** Its settings go by standard input: the key and the database's password are nobody else's to read. */
function startServing(context: Context, onUrl: (url: string) => void): SupervisedChild {
  const { stack, log, settingFlags } = context;
  const settings = {
    ...settingFlags,
    SVC_DATABASE_URL: localUrl(stack),
    SVC_NATS_URL: stack.natsUrl,
    SVC_INTERNAL_API_KEY: apiKeyOf(context),
  };
  return new SupervisedChild({
    name: 'serving',
    module: 'serving/main.ts',
    args: ['--stdin'],
    log,
    input: JSON.stringify({
      cwd: PROJECT_ROOT,
      settings,
      // The example's rights (everything allowed, artifacts that say "sample data only") are for our own database alone.
      sample_rights: context.settings.SVC_DATABASE_URL === undefined,
    }),
    onLine: (line) => {
      const { url } = JSON.parse(line) as { url?: string };
      if (url) onUrl(url);
    },
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
  // A key of the operator's own is not repeated to the screen; a generated one is there to be used.
  const shown = context.settings.SVC_INTERNAL_API_KEY === undefined ? apiKey : '$SVC_INTERNAL_API_KEY';
  return [
    '',
    `Tidemark is up (${(elapsedMs / 1000).toFixed(1)} s)`,
    '',
    `  url    ${url}`,
    `  key    ${shown}`,
    `  state  ${context.stack.stateDir}`,
    '',
    `  curl -s ${url}/v1/raw/query -H "X-API-Key: ${shown}" -d '${body}'`,
    '',
    'Ctrl-C stops everything. `./tidemark help` for backfill, replay, verify, status.',
  ].join('\n');
}
