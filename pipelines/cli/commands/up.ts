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
  stack.supervise();
  await using _projector = startProjector(context, [...DATASETS.keys()]);
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
  await once(signal, 'abort');
  output.note('stopping');
  return 0;
}

/**
 * The key callers send: the operator's, or the one generated with the embedded database. With a database of the
 * operator's own nothing is generated, and nothing is assumed about what may be served from it.
 * @throws TidemarkError CONFIGURATION_INVALID naming everything that is missing.
 */
function apiKeyOf({ settings, stack }: Context): string {
  const missing: string[] = [];
  const key = settings.SVC_INTERNAL_API_KEY ?? stack.apiKey;
  if (key === undefined) missing.push('SVC_INTERNAL_API_KEY: the key callers send is not generated');
  if (settings.SVC_DATABASE_URL !== undefined && settings.SVC_SOURCE_RIGHTS_MATRIX_PATH === undefined) {
    missing.push('SVC_SOURCE_RIGHTS_MATRIX_PATH: no sample matrix is assumed');
  }
  if (key !== undefined && missing.length === 0) return key;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    `With SVC_DATABASE_URL these must be set too:\n  ${missing.join('\n  ')}`,
  );
}

/** Its settings go by standard input: the key and the database's password are nobody else's to read. */
function startServing(context: Context, listening: PromiseWithResolvers<string>): SupervisedChild {
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
