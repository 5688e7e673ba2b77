/** The projector as a child of a command. */

import { type SpawnedChild, SupervisedChild, spawnChild } from './child.ts';
import type { Context } from './context.ts';
import { type Io, PROJECT_ROOT } from './io.ts';

const PROJECTOR = { name: 'projector', module: 'pipelines/projector/main.ts' } as const;

/**
 * A projector's process that loads its code while the command still loads its own, and waits for its options. Without them
 * it ends and has done nothing. Both take a fifth of a second, and the command needs the projector from its first frame on.
 */
export class WaitingProjector implements AsyncDisposable {
  #spawned: SpawnedChild | undefined;

  /** @param inWords whether the command shows its log lines in words */
  constructor(io: Io, inWords: boolean) {
    this.#spawned = spawnChild({ ...PROJECTOR, inherits: io.env, readsOutput: false, readsErrors: inWords });
    this.#spawned.exited.catch(() => {}); // whoever takes it awaits it
  }

  /** The process, for the first caller. */
  take(): SpawnedChild | undefined {
    const spawned = this.#spawned;
    this.#spawned = undefined;
    return spawned;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const spawned = this.take();
    spawned?.child.kill('SIGKILL');
    await spawned?.exited.catch(() => {});
  }
}

interface ProjectorStart {
  readonly waiting?: WaitingProjector;
  /** Whether it also puts old chunks into the columnstore: one that stays, not that of a backfill. */
  readonly compacts?: boolean;
}

/**
 * Starts a projector process, so that decoding and storing use one core and publishing the other. Several may run; a
 * lock lets one work, and another takes over when that one ends.
 */
export function startProjector(
  context: Context,
  datasets: readonly string[],
  { waiting, compacts = false }: ProjectorStart = {},
): AsyncDisposable {
  const { io, settings, log, terminalLog } = context;
  const urls = { databaseUrl: context.databaseUrls.ingest, natsUrl: context.natsUrls.projector };
  if (io.project) return io.project({ ...urls, datasets, settings, log });
  const input = JSON.stringify({
    ...urls,
    datasets,
    cwd: PROJECT_ROOT,
    parent: process.pid,
    compacts,
    settings: context.settingFlags,
  });
  return new SupervisedChild({ ...PROJECTOR, inherits: io.env, log, terminalLog, input }, waiting?.take());
}
