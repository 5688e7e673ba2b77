/** Decides how and where the servers of a state folder run: as processes from packages, or in Docker; as which user. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { chmod, chown, mkdir, readlink, realpath, rename, rm, stat, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { codeOf, explain, TidemarkError } from '../errors.ts';
import type { Logger } from '../log/logger.ts';
import type { AcquireOptions } from './contract.ts';
import { createContainer, dockerAnswers } from './docker.ts';
import { ensureRuntime, type Runtime } from './install.ts';
import { createNats } from './nats.ts';
import { unsupportedMachine } from './packages.ts';
import { createPostgres, defaultProfile, socketDir } from './postgres.ts';
import { canEnter, type ServerUser, serverUser } from './processes.ts';
import { natsPasswords, type Secrets } from './secrets.ts';
import { SERVER_NAMES, type Server } from './server.ts';
import { readState, type StackState } from './state.ts';

export interface Place {
  readonly kind: StackState['kind'];
  readonly runtime: Runtime | undefined;
  readonly socketDir: string | undefined;
  readonly patienceMs: number;
  createServers(secrets: Secrets): Server[];
}

/** Call under the stack's lock. */
export async function choosePlace(stateDir: string, options: AcquireOptions): Promise<Place> {
  const { log, progress, signal, profile = defaultProfile() } = options;
  const docker: Place = {
    kind: 'docker',
    runtime: undefined,
    socketDir: undefined,
    patienceMs: profile.patienceMs,
    createServers: (secrets) => SERVER_NAMES.map((name) => createContainer(name, { stateDir, secrets, profile })),
  };
  const kind = (await readState(stateDir))?.kind;
  if (kind === 'docker') {
    if (!dockerAnswers()) {
      throw new TidemarkError('STACK_START_FAILED', `The stack in ${stateDir} runs in Docker, which does not answer`);
    }
    return docker;
  }
  const { dir, user } = await serverFolder(stateDir, log);
  let runtime: Runtime;
  try {
    runtime = await ensureRuntime({ user, progress, signal });
  } catch (error) {
    signal?.throwIfAborted();
    const code = codeOf(error);
    const recoverable = code === 'STACK_INSTALL_FAILED' || code === 'STACK_UNSUPPORTED_MACHINE';
    if (!recoverable || kind === 'embedded') throw error;
    if (!dockerAnswers()) throw code === 'STACK_UNSUPPORTED_MACHINE' ? unsupportedMachine() : error;
    if (code === 'STACK_INSTALL_FAILED') log.warn({ fault: explain(error) }, 'no packages; using Docker');
    progress?.('starting PostgreSQL 17 with TimescaleDB and nats-server in Docker');
    return docker;
  }
  const logDir = join(stateDir, 'log');
  await mkdir(logDir, { recursive: true });
  const common = { runtime, user, dir, profile, log };
  return {
    kind: 'embedded',
    runtime,
    socketDir: socketDir(dir),
    patienceMs: profile.patienceMs,
    createServers: (secrets) =>
      SERVER_NAMES.map((name) => {
        const logFile = join(logDir, `${name}.log`);
        return name === 'postgres'
          ? createPostgres({ ...common, logFile, password: secrets.databasePassword })
          : createNats({ ...common, logFile, passwords: natsPasswords(secrets) });
      }),
  };
}

/** The folder of the servers' data and the account they run as. */
async function serverFolder(stateDir: string, log: Logger): Promise<{ dir: string; user: ServerUser }> {
  let dir = join(stateDir, 'servers');
  let user = serverUser(dir);
  if (user.uid !== undefined && !canEnter(user, stateDir)) {
    dir = await folderElsewhere(stateDir, user, log);
    user = serverUser(dir);
  }
  for (const path of [dir, join(dir, 'run')]) {
    await mkdir(path, { recursive: true, mode: 0o700 });
    if (user.uid === undefined) continue;
    await chown(path, user.uid, user.gid as number);
    await chmod(path, 0o700);
  }
  // Running servers are recognised by their working directory, which is a real path.
  return { dir: await realpath(dir), user };
}

/**
 * For a state folder that the servers' account cannot get to (below root's home): a place that depends on its path
 * alone, linked from it. Without the link the state folder is a new one, and what is found there is an older one's.
 */
async function folderElsewhere(stateDir: string, user: ServerUser, log: Logger): Promise<string> {
  const hash = createHash('sha256').update(stateDir).digest('hex').slice(0, 12);
  const parent = await firstUsable(['/var/lib/tidemark', join(tmpdir(), 'tidemark-0')], user);
  const dir = join(parent, `${basename(dirname(stateDir))}-${hash}`);
  const link = join(stateDir, 'servers');
  const linked = await readlink(link).catch(() => undefined);
  if (linked !== dir) {
    if (existsSync(dir)) {
      const aside = `${dir}.removed-${Date.now()}`;
      await rename(dir, aside);
      log.warn({ aside }, 'data of a state folder that was removed is kept here; delete it when it is not needed');
    }
    if (linked !== undefined) log.warn({ linked, dir }, 'the state folder was moved or copied and starts empty');
    await rm(link, { force: true });
    await symlink(dir, link);
    log.info({ stateDir, dir, user: user.name }, 'the servers cannot reach the state folder; their data is kept here');
  }
  return dir;
}

async function firstUsable(candidates: readonly string[], user: ServerUser): Promise<string> {
  for (const dir of candidates) {
    try {
      await mkdir(dir, { recursive: true, mode: 0o755 });
      if ((await stat(dir)).uid === process.getuid?.() && canEnter(user, dir)) return dir;
    } catch {
      // the next one
    }
  }
  throw new TidemarkError('STACK_START_FAILED', `None of these folders can be used: ${candidates.join(', ')}`);
}
