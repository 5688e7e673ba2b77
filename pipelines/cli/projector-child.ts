/** The projector as a process of its own: decoding and storing use a core while publishing uses the other. */
import type { Stack } from '../../shared/stack/stack.ts';
import { SupervisedChild } from './child.ts';
import { type Context, PROJECT_ROOT } from './context.ts';

/** Several may be started; the lock lets one work, and another takes over when it is gone. */
export function startProjector(context: Context, datasets: readonly string[]): SupervisedChild {
  const { stack, log, terminalLog } = context;
  return new SupervisedChild({
    name: 'projector',
    module: 'pipelines/project/main.ts',
    log,
    terminalLog,
    input: JSON.stringify({
      databaseUrl: localUrl(stack),
      natsUrl: stack.natsUrl,
      datasets,
      cwd: PROJECT_ROOT,
      parent: process.pid,
      settings: context.settingFlags,
    }),
  });
}

/** Through the unix socket where there is one: a day's rows are 250 MB. */
export function localUrl({ databaseUrl, databaseSocketDir }: Stack): string {
  if (databaseSocketDir === undefined) return databaseUrl;
  const url = new URL(databaseUrl);
  url.searchParams.set('host', databaseSocketDir);
  return url.href;
}
