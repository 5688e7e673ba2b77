/** The embedded PostgreSQL: created once, started and stopped as a plain process, recovered after any crash. */
import { existsSync } from 'node:fs';
import { chmod, chown, mkdir, mkdtemp, readdir, realpath, rename, rm, statfs, writeFile } from 'node:fs/promises';
import { totalmem } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { DatabaseClient } from '../db/connect.ts';
import { DATABASE_ROLES, type DatabaseRole, type RolePasswords, roleName } from '../db/roles.ts';
import { isRefusal, TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';
import type { Runtime } from './packages.ts';
import {
  asUser,
  endProcess,
  endProcessesIn,
  faultText,
  isAlive,
  isOutage,
  openFolder,
  run,
  type ServerUser,
  spawnServer,
  tailOf,
} from './processes.ts';
import type { Profile, Server, ServerRecord, StackFault } from './server.ts';

const MIB = 1024 * 1024;
const GIB = 1024 * MIB;

export const DATABASE_USER = 'tidemark';
export const DATABASE_NAME = 'tidemark';

/**
 * The arguments of initdb about text, in every kind of stack: PostgreSQL's own C.UTF-8, the same order on every machine, whatever
 * locales it has. The encoding is stated, because initdb derives SQL_ASCII from `--locale=C`, and this provider refuses that.
 */
export const INITDB_TEXT_ARGS: readonly string[] = [
  '--encoding=UTF8',
  '--locale-provider=builtin',
  '--builtin-locale=C.UTF-8',
  '--locale=C',
];

/** Longest start: crash recovery replays up to max_wal_size. */
const START_TIMEOUT_MS = 600_000;
const FAST_STOP_MS = 60_000;

interface PostgresOptions {
  readonly runtime: Runtime;
  readonly user: ServerUser;
  /** Folder of its data, which `user` owns. */
  readonly dir: string;
  readonly logFile: string;
  readonly password: string;
  readonly profile: Profile;
  readonly log: Logger;
}

export function createPostgres(options: PostgresOptions): Server {
  const { runtime, user, logFile } = options;
  const dataDir = join(options.dir, 'postgres');

  const stop = async (record: ServerRecord) => {
    // SIGINT: roll back transactions, checkpoint, end. SIGQUIT: end now, recover at the next start.
    const ended = await endProcess(record, [
      { signal: 'SIGINT', waitMs: FAST_STOP_MS },
      { signal: 'SIGQUIT', waitMs: 10_000 },
      { signal: 'SIGKILL', waitMs: 5_000 },
    ]);
    if (!ended) throw new TidemarkError('STACK_START_FAILED', `PostgreSQL (pid ${record.pid}) cannot be stopped`);
  };
  return {
    name: 'postgres',
    checkIntervalMs: 250,

    async start(port, signal) {
      if (!existsSync(dataDir)) await initialise(options, dataDir, signal);
      await clearRemnants(dataDir, options);
      const configPath = join(dataDir, 'postgresql.conf');
      await writeFile(configPath, await configuration(options, port));
      // The server reads it under its own account, whatever umask this process has.
      await chmod(configPath, 0o644);
      const ref = await spawnServer(join(runtime.postgresBin, 'postgres'), ['-D', dataDir], {
        user,
        cwd: dataDir,
        logFile,
      });
      const record = { ...ref, port };
      try {
        await untilReady(record, dataDir, options, signal);
        await ensureDatabase(postgresUrl(record, options.password, 'postgres'));
      } catch (error) {
        await stop(record);
        throw error;
      }
      return record;
    },

    isAlive,

    fault: (record, timeoutMs, signal) =>
      postgresFault(postgresUrl(record, options.password, 'postgres'), timeoutMs, { signal }),

    stop,

    async kill(record) {
      await endProcess(record, [{ signal: 'SIGKILL', waitMs: 10_000 }]);
    },
  };
}

/** The URL of the superuser. */
export function postgresUrl(record: { port: number }, password: string, database = DATABASE_NAME): string {
  return `postgres://${DATABASE_USER}:${password}@127.0.0.1:${record.port}/${database}`;
}

export const roleUrls = (record: { port: number }, passwords: RolePasswords): Record<DatabaseRole, string> =>
  byRole((role) => `postgres://${roleName(role)}:${passwords[role]}@127.0.0.1:${record.port}/${DATABASE_NAME}`);

/** The same URL for every role, where the operator gives one. */
export const everyRole = (url: string): Record<DatabaseRole, string> => byRole(() => url);

const byRole = (urlOf: (role: DatabaseRole) => string) =>
  Object.fromEntries(DATABASE_ROLES.map((role) => [role, urlOf(role)])) as Record<DatabaseRole, string>;

/**
 * Why the database cannot be used, or undefined. A database whose connections are all in use counts as usable.
 * @param options.dataDir the folder of the only server that may answer
 * @throws the reason of the signal
 */
export async function postgresFault(
  url: string,
  timeoutMs: number,
  { dataDir, signal }: { readonly dataDir?: string; readonly signal?: AbortSignal } = {},
): Promise<StackFault | undefined> {
  const client = new DatabaseClient({
    connectionString: url,
    connectionTimeoutMillis: timeoutMs,
    query_timeout: timeoutMs,
    application_name: 'tidemark stack',
  });
  client.on('error', () => {});
  const end = () => client.connection.stream.destroy();
  signal?.addEventListener('abort', end);
  try {
    await client.open(signal);
    await client.query('SELECT 1');
    if (dataDir === undefined) return undefined;
    const { rows } = await client.query('SHOW data_directory');
    if (await isSameFolder(rows[0].data_directory, dataDir)) return undefined;
    return { kind: 'refused', reason: 'another server has the port' };
  } catch (error) {
    signal?.throwIfAborted();
    const code = (error as { code?: string }).code ?? '';
    if (code === TOO_MANY_CONNECTIONS && dataDir === undefined) return undefined;
    const kind =
      code === CANNOT_CONNECT_NOW || code === TOO_MANY_CONNECTIONS
        ? 'starting'
        : /^[0-9A-Z]{5}$/.test(code) || isRefusal(error)
          ? 'refused'
          : 'silent';
    return { kind, reason: faultText(error), passing: isOutage(error) };
  } finally {
    signal?.removeEventListener('abort', end);
    await client.end().catch(() => {});
  }
}

async function isSameFolder(one: string, other: string): Promise<boolean> {
  const [a, b] = await Promise.all([one, other].map((path) => realpath(path).catch(() => path)));
  return a === b;
}

// SQLSTATEs
const TOO_MANY_CONNECTIONS = '53300';
const CANNOT_CONNECT_NOW = '57P03';

/** Creates the cluster in a temporary folder and renames it when complete, so that a killed initdb leaves no partial cluster. */
async function initialise(options: PostgresOptions, dataDir: string, signal: AbortSignal | undefined): Promise<void> {
  const { runtime, user, profile, log } = options;
  log.info({ dataDir }, 'creating the database cluster');
  const prefix = `${basename(dataDir)}.new-`;
  for (const name of await readdir(options.dir)) {
    if (name.startsWith(prefix)) await rm(join(options.dir, name), { recursive: true, force: true });
  }
  const work = await mkdtemp(join(options.dir, prefix));
  const passwordFile = join(work, 'password');
  const cluster = join(work, 'data');
  await writeFile(passwordFile, `${options.password}\n`, { mode: 0o600 });
  await mkdir(cluster, { mode: 0o700 });
  if (user.uid !== undefined) {
    for (const path of [work, passwordFile, cluster]) await chown(path, user.uid, user.gid as number);
  }
  try {
    await run(
      join(runtime.postgresBin, 'initdb'),
      [
        `--pgdata=${cluster}`,
        `--username=${DATABASE_USER}`,
        `--pwfile=${passwordFile}`,
        '--auth=scram-sha-256',
        ...INITDB_TEXT_ARGS,
        '--no-instructions',
        ...(profile.durable ? [] : ['--no-sync']),
      ],
      { ...asUser(user), cwd: work, ownEnv: true, signal },
    );
    await rename(cluster, dataDir);
  } catch (cause) {
    signal?.throwIfAborted();
    throw new TidemarkError('STACK_START_FAILED', 'initdb could not create the database cluster', { cause });
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

/**
 * Clears what a killed postmaster left. Its backends end by themselves, and must have ended before a new one starts. After
 * that its lock files are stale, but PostgreSQL would take them for those of a live server where their pid exists: as
 * another program (usual in containers, where pids start at 1 again) or as a zombie.
 */
async function clearRemnants(dataDir: string, { dir, log, profile }: PostgresOptions): Promise<void> {
  const runDir = join(dir, 'run');
  await endProcessesIn(dataDir, 'postgres', 'SIGQUIT', log, profile.responseTimeoutMs);
  await rm(join(dataDir, 'postmaster.pid'), { force: true });
  for (const name of await readdir(runDir)) {
    if (name.startsWith('.s.PGSQL.')) await rm(join(runDir, name), { force: true });
  }
}

async function untilReady(
  record: ServerRecord,
  dataDir: string,
  options: PostgresOptions,
  signal: AbortSignal | undefined,
): Promise<void> {
  const url = postgresUrl(record, options.password, 'postgres');
  const started = performance.now();
  let isReported = false;
  for (;;) {
    const fault = await postgresFault(url, 5_000, { dataDir, signal });
    const hasEnded = !isAlive(record);
    if (fault === undefined && !hasEnded) return;
    const reason = fault?.reason ?? 'it has ended';
    const waitedMs = performance.now() - started;
    if (hasEnded || fault?.kind === 'refused' || waitedMs > START_TIMEOUT_MS) {
      throw new TidemarkError(
        'STACK_START_FAILED',
        `PostgreSQL did not start (${reason}); the end of ${options.logFile}:\n${tailOf(options.logFile, 6)}`,
        { details: { logFile: options.logFile, port: record.port } },
      );
    }
    if (!isReported && waitedMs > 3_000) {
      isReported = true;
      options.log.info({ reason }, 'PostgreSQL is recovering; waiting');
    }
    await sleep(waitedMs < 1_000 ? 20 : 200, undefined, { signal });
  }
}

async function ensureDatabase(url: string): Promise<void> {
  const client = new DatabaseClient({ connectionString: url });
  client.on('error', () => {});
  await client.open();
  try {
    const found = await client.query('SELECT 1 FROM pg_database WHERE datname = $1', [DATABASE_NAME]);
    if (found.rowCount === 0) await client.query(`CREATE DATABASE ${DATABASE_NAME}`);
  } finally {
    await client.end();
  }
}

export function defaultProfile(): Profile {
  // The memory limit of a container, if there is one, else the memory of the machine.
  const limit = process.constrainedMemory();
  const memory = limit > 0 && limit < totalmem() ? limit : totalmem();
  return { sharedBuffersBytes: Math.min(Math.floor(memory / 4), 4 * GIB), durable: true, responseTimeoutMs: 15_000 };
}

/** Settings that are the same for a process and a container. */
export function postgresSettings(profile: Profile, maxWalBytes: number): Record<string, string> {
  return {
    max_connections: '200',
    shared_buffers: megabytes(profile.sharedBuffersBytes),
    // Shared buffers are a quarter of a small memory; the planner may assume about half of the memory as cache.
    effective_cache_size: megabytes(profile.sharedBuffersBytes * 2),
    // 512 MB where memory is 4 GB or more
    maintenance_work_mem: profile.sharedBuffersBytes >= GIB ? '512MB' : '256MB',
    work_mem: '32MB',
    max_locks_per_transaction: '1024',
    max_worker_processes: '24',
    random_page_cost: '1.1',
    jit: 'off',
    wal_level: 'replica',
    wal_compression: 'lz4',
    min_wal_size: profile.durable ? '512MB' : '80MB',
    max_wal_size: megabytes(maxWalBytes),
    checkpoint_timeout: '15min',
    default_toast_compression: 'lz4',
    // synchronous_commit stays on always: without it a killed server loses what it has confirmed.
    fsync: profile.durable ? 'on' : 'off',
    shared_preload_libraries: 'timescaledb',
    'timescaledb.telemetry_level': 'off',
    'timescaledb.max_background_workers': '8',
    password_encryption: 'scram-sha-256',
    datestyle: 'ISO, YMD',
    log_timezone: 'GMT',
    log_line_prefix: '%m [%p] %q%a ',
    log_checkpoints: 'off',
  };
}

/** max_wal_size: 4 GB avoids checkpoints during a backfill; a nearly full disk gets less, but at least 1 GB. */
function maxWalBytes(freeBytes: number): number {
  return Math.min(4 * GIB, Math.max(GIB, freeBytes / 8));
}

const megabytes = (bytes: number) => `${Math.max(16, Math.floor(bytes / MIB))}MB`;

async function configuration(options: PostgresOptions, port: number): Promise<string> {
  const { profile } = options;
  const disk = await statfs(options.dir);
  const shm = await statfs('/dev/shm').catch(() => undefined);
  const values: Record<string, string> = {
    ...postgresSettings(profile, maxWalBytes(disk.bavail * disk.bsize)),
    listen_addresses: '127.0.0.1',
    port: String(port),
    unix_socket_directories: '',
    // Parallel queries share memory in /dev/shm. Containers often have 64 MB of it, which large joins exceed.
    dynamic_shared_memory_type: shm && shm.bavail * shm.bsize >= 256 * MIB ? 'posix' : 'mmap',
    // The name UTC needs the machine's zone files; GMT is built in and is the same zone.
    timezone: existsSync('/usr/share/zoneinfo/UTC') ? 'UTC' : 'GMT',
    log_destination: 'stderr',
    logging_collector: 'off',
  };
  await openFolder(join(options.dir, 'postgres', 'conf.d'));
  return [
    '# Written at every start. Settings of your own: ALTER SYSTEM, or a *.conf file in conf.d beside this file.',
    ...Object.entries(values).map(([name, value]) => `${name} = '${value.replaceAll("'", "''")}'`),
    "include_dir = 'conf.d'",
    '',
  ].join('\n');
}
