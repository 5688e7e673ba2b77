/** The projector as a process of its own: decoding and storing use a core while publishing uses the other. */
import type { DatabaseRole } from '../../shared/db/roles.ts';
import { SupervisedChild } from './child.ts';
import { type Context, natsUrls, PROJECT_ROOT } from './context.ts';

/** Several may be started; the lock lets one work, and another takes over when it is gone. */
export function startProjector(context: Context, datasets: readonly string[]): AsyncDisposable {
  const { io, settings, stack, log, terminalLog } = context;
  const urls = { databaseUrl: localUrl(context, 'ingest'), natsUrl: natsUrls(settings, stack).projector };
  if (io.project) return io.project({ ...urls, datasets, settings, log });
  return new SupervisedChild({
    name: 'projector',
    module: 'pipelines/project/main.ts',
    inherits: io.env,
    log,
    terminalLog,
    input: JSON.stringify({
      ...urls,
      datasets,
      cwd: PROJECT_ROOT,
      parent: process.pid,
      settings: context.settingFlags,
    }),
  });
}

/** Through the unix socket where there is one: a day's rows are 250 MB. */
export function localUrl({ stack, databaseUrls }: Context, role: DatabaseRole): string {
  if (stack.databaseSocketDir === undefined) return databaseUrls[role];
  const url = new URL(databaseUrls[role]);
  url.searchParams.set('host', stack.databaseSocketDir);
  return url.href;
}
