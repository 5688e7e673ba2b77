/**
 * The same two servers as containers, for machines where the packages cannot be had but a Docker engine answers.
 * Argument building is kept apart from running, so that it can be checked where there is no engine.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../errors.ts';
import { accountsConfiguration } from '../nats/accounts.ts';
import { natsConfiguration, natsFault, natsUrl } from './nats.ts';
import { DATABASE_NAME, DATABASE_USER, postgresFault, postgresSettings, postgresUrl } from './postgres.ts';
import { run } from './run.ts';
import { natsPasswords, type Secrets } from './secrets.ts';
import type { Fault, Profile, Server, ServerName, ServerRecord } from './server.ts';

const IMAGES: Readonly<Record<ServerName, string>> = {
  postgres: 'timescale/timescaledb:2.19.3-pg17',
  // the plain tag holds no shell
  nats: 'nats:2.10.27-alpine@sha256:e243c53e5b2ebf24f5d8f05d7555462003c050a51ee0a2643d2dc89aea6d06a5',
};

/** The disk an engine keeps volumes on is not ours to measure. */
const MAX_WAL_BYTES = 4 * 1024 ** 3;
const FILE_STORE_BYTES = 1024 ** 4;

const START_TIMEOUT_MS = 600_000;
const STOP_SECONDS = 60;

export function dockerAnswers(): boolean {
  return spawnSync('docker', ['info'], { stdio: 'ignore', timeout: 10_000 }).status === 0;
}

/** Unique to the state folder, so that copies side by side do not meet. */
export function containerName(stateDir: string, server: ServerName): string {
  return `tidemark-${createHash('sha256').update(stateDir).digest('hex').slice(0, 12)}-${server}`;
}

/**
 * Arguments of `docker run`. Secrets travel in the environment of the docker command, named by `--env NAME`, so that
 * they show in no process list; data is in named volumes, since folders of the host bring user-id trouble.
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
  const settings = { ...postgresSettings(profile, MAX_WAL_BYTES), timezone: 'UTC' };
  return [
    ...common,
    ...['--publish', `127.0.0.1:${port}:5432`, '--volume', `${name}:/var/lib/postgresql/data`, '--shm-size', '1g'],
    ...['--env', `POSTGRES_USER=${DATABASE_USER}`, '--env', `POSTGRES_DB=${DATABASE_NAME}`],
    ...['--env', 'POSTGRES_PASSWORD', '--env', 'NO_TS_TUNE=true'],
    ...['--env', 'POSTGRES_INITDB_ARGS=--locale-provider=builtin --builtin-locale=C.UTF-8 --locale=C'],
    IMAGES.postgres,
    'postgres',
    ...Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]),
  ];
}

export function createContainer(
  server: ServerName,
  options: { readonly stateDir: string; readonly secrets: Secrets; readonly profile: Profile },
): Server {
  const { stateDir, secrets, profile } = options;
  const name = containerName(stateDir, server);
  const fault = (record: ServerRecord, timeoutMs: number): Promise<Fault | undefined> =>
    server === 'postgres'
      ? postgresFault(postgresUrl(record, secrets.databasePassword, 'postgres'), timeoutMs)
      : natsFault(natsUrl(record, 'publisher', natsPasswords(secrets)), timeoutMs);
  const runs = async () => {
    const result = await run('docker', ['inspect', '--format', '{{.State.Running}}', name], { check: false });
    return result.code === 0 && result.stdout.trim() === 'true';
  };
  return {
    name: server,
    checkIntervalMs: 2_000,

    async start(port) {
      await run('docker', ['rm', '--force', name], { check: false });
      await run('docker', dockerRunArgs(stateDir, server, port, profile), {
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
      const deadline = Date.now() + START_TIMEOUT_MS;
      for (let last = await fault(record, 5_000); last !== undefined; last = await fault(record, 5_000)) {
        if (Date.now() > deadline || !(await runs())) {
          const { stdout, stderr } = await run('docker', ['logs', '--tail', '6', name], { check: false });
          throw new TidemarkError(
            'STACK_START_FAILED',
            `The container ${name} did not start (${last.reason}):\n${stdout}${stderr}`,
          );
        }
        await sleep(200);
      }
      return record;
    },

    isAlive: runs,
    fault,

    async isCurrent() {
      if (server !== 'nats') return true;
      const format = '{{range .Config.Env}}{{println .}}{{end}}';
      const { code, stdout } = await run('docker', ['inspect', '--format', format, name], { check: false });
      return code === 0 && stdout.includes(accountsConfiguration(natsPasswords(secrets), profile.logAccounts));
    },

    async kill() {
      await run('docker', ['rm', '--force', name], { check: false });
    },

    async stop() {
      await run('docker', ['stop', '--time', String(STOP_SECONDS), name], { check: false });
      await run('docker', ['rm', '--force', name], { check: false });
    },
  };
}
