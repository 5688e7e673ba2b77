/** `up --only exports`: runs the export part of the service in a child process, which is restarted when it dies. */
import { once } from 'node:events';
import type { SettingName, Settings } from '../../../shared/config/settings.ts';
import { exportRootOf } from '../../../shared/config/settings.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { SupervisedChild } from '../child.ts';
import { openContext } from '../context.ts';
import { PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';

export async function runExportWorker(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'export-worker', { required });
  const { io, stack, settings, settingFlags, log, terminalLog, output, signal } = context;
  stack.supervise();
  const taking = Promise.withResolvers<number>();
  taking.promise.catch(() => {}); // awaited below
  const own = {
    ...settingFlags,
    SVC_DATABASE_URL: context.databaseUrls.export,
    // The worker has no callers, so it needs no key.
    SVC_INTERNAL_API_KEY: 'none',
  };
  await using _worker = new SupervisedChild({
    name: 'export-worker',
    module: 'serving/exports/worker-main.ts',
    args: ['--stdin'],
    inherits: io.env,
    log,
    terminalLog,
    input: JSON.stringify({
      cwd: PROJECT_ROOT,
      parent: process.pid,
      settings: own,
      sample_rights: settings.SVC_DATABASE_URL === undefined,
    }),
    onLine: (line) => taking.resolve((JSON.parse(line) as { pid: number }).pid),
    onRefusal: () =>
      taking.reject(
        new TidemarkError('CONFIGURATION_INVALID', 'The worker refused its settings; its log line above names them'),
      ),
  });
  const pid = await Promise.race([taking.promise, once(signal, 'abort').then(() => undefined)]);
  if (pid === undefined || signal.aborted) return 0;
  const root = exportRootOf(settings);
  const concurrency = settings.SVC_EXPORT_MAX_CONCURRENCY;
  output.answer(
    { command: 'up', only: 'exports', ok: true, pid, export_root: root, concurrency },
    () => `Running exports, up to ${concurrency} at once, into ${root}. Ctrl-C gives running exports back and stops.`,
  );
  await once(signal, 'abort');
  output.note('stopping');
  return 0;
}

/** With a database of the operator's own, the operator must state what may be exported from it. */
const required = (settings: Partial<Settings>): readonly SettingName[] =>
  settings.SVC_DATABASE_URL === undefined ? [] : ['SVC_SOURCE_RIGHTS_MATRIX_PATH'];
