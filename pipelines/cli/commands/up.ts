/** `up`, which is `npm start`: everything, until told to stop. */
import { once } from 'node:events';
import { join } from 'node:path';
import { TidemarkError } from '../../../shared/errors.ts';
import { DATASETS } from '../../../shared/registry/index.ts';
import { SupervisedChild } from '../child.ts';
import { type Context, openContext, PROJECT_ROOT } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { startProjector } from '../projector-child.ts';
import { loadSamples } from '../sample.ts';

/** First answer of the HTTP process: its start checks settings, rights and storage. */
const LISTEN_TIMEOUT_MS = 60_000;
/** The example's rights: everything allowed, artifacts that say "sample data only". */
const SAMPLE_RIGHTS = 'serving/rights/sample/matrix.json';

export async function runUp(command: ParsedCommand): Promise<number> {
  const startedAt = performance.now();
  await using context = await openContext(command, 'up');
  const { stack, signal, output } = context;
  const apiKey = apiKeyOf(context);
  const rights = rightsOf(context);
  stack.supervise();
  await using _projector = startProjector(context, [...DATASETS.keys()]);
  const listening = Promise.withResolvers<string>();
  await using serving = startServing(context, { apiKey, rights }, listening.resolve);
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

function rightsOf(context: Context): string {
  const { SVC_SOURCE_RIGHTS_MATRIX_PATH: given, SVC_DATABASE_URL: database } = context.settings;
  if (given !== undefined) return given;
  if (database === undefined) return join(PROJECT_ROOT, SAMPLE_RIGHTS);
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    'SVC_SOURCE_RIGHTS_MATRIX_PATH is not set: with SVC_DATABASE_URL no sample matrix is assumed',
  );
}

function startServing(
  context: Context,
  secrets: { apiKey: string; rights: string },
  onUrl: (url: string) => void,
): SupervisedChild {
  const { stack, log, settings } = context;
  return new SupervisedChild({
    name: 'serving',
    module: 'serving/main.ts',
    log,
    env: {
      SVC_DATABASE_URL: stack.databaseUrl,
      SVC_NATS_URL: stack.natsUrl,
      SVC_INTERNAL_API_KEY: secrets.apiKey,
      SVC_SOURCE_RIGHTS_MATRIX_PATH: secrets.rights,
      SVC_STATE_DIR: settings.SVC_STATE_DIR,
      SVC_HTTP_HOST: settings.SVC_HTTP_HOST,
      ...(settings.SVC_HTTP_PORT === undefined ? {} : { SVC_HTTP_PORT: String(settings.SVC_HTTP_PORT) }),
    },
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
