/** The projector as a process of its own: decoding and storing use a core while publishing uses the other. */
import { SupervisedChild } from './child.ts';
import { type Context, PROJECT_ROOT } from './context.ts';

/** Several may be started; the lock lets one work, and another takes over when it is gone. */
export function startProjector(context: Context, datasets: readonly string[]): SupervisedChild {
  const { stack, log } = context;
  return new SupervisedChild({
    name: 'projector',
    module: 'pipelines/project/main.ts',
    log,
    input: JSON.stringify({
      databaseUrl: stack.databaseUrl,
      natsUrl: stack.natsUrl,
      datasets,
      cwd: PROJECT_ROOT,
    }),
  });
}
