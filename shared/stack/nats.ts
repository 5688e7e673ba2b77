/** The embedded nats-server with JetStream. */
import { createHash } from 'node:crypto';
import { chown, mkdir, statfs, writeFile } from 'node:fs/promises';
import { connect as connectTcp } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';
import { accountsConfiguration, accountUrl, type NatsRole } from '../nats/accounts.ts';
import type { Runtime } from './packages.ts';
import {
  endProcess,
  endProcessesIn,
  faultText,
  isAlive,
  isOutage,
  type ServerUser,
  spawnServer,
  tailOf,
} from './processes.ts';
import type { Profile, Server, ServerRecord, StackFault } from './server.ts';

const MIB = 1024 * 1024;
const GIB = 1024 * MIB;

/** Longest start: JetStream reads and checks its files before it answers. */
const START_TIMEOUT_MS = 600_000;
const STOP_MS = 30_000;

interface NatsOptions {
  readonly runtime: Runtime;
  readonly user: ServerUser;
  /** Folder of its data, which `user` owns. */
  readonly dir: string;
  readonly logFile: string;
  readonly passwords: Readonly<Record<NatsRole, string>>;
  readonly profile: Profile;
  readonly log: Logger;
}

export function createNats(options: NatsOptions): Server {
  const { runtime, user, logFile, log } = options;
  const accounts = options.profile.logAccounts ?? 1;
  const storeDir = join(options.dir, 'nats');
  const configPath = join(options.dir, 'run', 'nats.conf');
  const stop = async (record: ServerRecord) => {
    const ended = await endProcess(record, [
      { signal: 'SIGTERM', waitMs: STOP_MS },
      { signal: 'SIGKILL', waitMs: 5_000 },
    ]);
    if (!ended) throw new TidemarkError('STACK_START_FAILED', `nats-server (pid ${record.pid}) cannot be stopped`);
  };
  return {
    name: 'nats',
    checkIntervalMs: 250,

    async start(port, signal) {
      await mkdir(storeDir, { recursive: true, mode: 0o700 });
      if (user.uid !== undefined) await chown(storeDir, user.uid, user.gid as number);
      await endProcessesIn(storeDir, 'nats-server', 'SIGTERM', log, options.profile.responseTimeoutMs);
      const serverName = serverNameOf(storeDir);
      const text = natsConfiguration({
        serverName,
        listen: `127.0.0.1:${port}`,
        storeDir,
        maxFileStoreBytes: (await fileStoreLimit(options.dir)) * accounts,
        durable: options.profile.durable,
        passwords: options.passwords,
        accounts,
      });
      await writeFile(configPath, text, { mode: 0o600 });
      if (user.uid !== undefined) await chown(configPath, user.uid, user.gid as number);
      const ref = await spawnServer(runtime.natsServer, ['--config', configPath], { user, cwd: storeDir, logFile });
      const record = { ...ref, port };
      try {
        await untilReady(record, serverName, options, signal);
      } catch (error) {
        await stop(record);
        throw error;
      }
      return record;
    },

    isAlive,

    fault: (record, timeoutMs, signal) =>
      natsFault(natsUrl(record, 'publisher', options.passwords), timeoutMs, { signal }),

    stop,

    async kill(record) {
      await endProcess(record, [{ signal: 'SIGKILL', waitMs: 10_000 }]);
    },
  };
}

export function natsUrl(
  record: { port: number },
  role: NatsRole,
  passwords: Readonly<Record<NatsRole, string>>,
): string {
  return accountUrl(`127.0.0.1:${record.port}`, role, passwords[role]);
}

interface Greeting {
  readonly server_name?: string;
  readonly jetstream?: boolean;
  readonly tls_required?: boolean;
  readonly tls_available?: boolean;
}

/** JetStream's files of a server alone do not depend on its name, so another folder, as of a copy, has another name. */
const serverNameOf = (storeDir: string): string =>
  `tidemark-${createHash('sha256').update(storeDir).digest('hex').slice(0, 12)}`;

/**
 * Why nats-server cannot be used, or undefined: connects and authenticates as a client does. For a TLS address it checks
 * only the greeting; the client library checks the rest.
 * @param options.serverName the name of the only server that may answer
 * @throws the reason of the signal
 */
export async function natsFault(
  url: string,
  timeoutMs: number,
  { serverName, signal }: { readonly serverName?: string; readonly signal?: AbortSignal } = {},
): Promise<StackFault | undefined> {
  signal?.throwIfAborted();
  const { hostname, port, username, password, protocol } = new URL(url);
  const socket = connectTcp({ host: hostname.replace(/^\[|\]$/g, ''), port: Number(port || 4222) });
  socket.setTimeout(timeoutMs);
  const end = () => socket.destroy();
  signal?.addEventListener('abort', end);
  try {
    const fault = await new Promise<StackFault | undefined>((resolve) => {
      const silent = (reason: string, passing?: boolean) => resolve({ kind: 'silent', reason, passing });
      const refused = (reason: string) => resolve({ kind: 'refused', reason });
      let text = '';
      socket.once('error', (error) => silent(faultText(error), isOutage(error)));
      socket.once('timeout', () => silent(`no answer within ${timeoutMs} ms`));
      socket.once('close', () => silent('connection closed', true));
      socket.on('data', (chunk) => {
        const greeted = text.includes('\r\n');
        text += chunk.toString('latin1');
        if (!greeted && text.includes('\r\n')) {
          const info = /^INFO (\{.*\})\s*\r\n/.exec(text);
          if (!info) return refused('not a nats-server');
          const { server_name, jetstream, tls_required, tls_available } = JSON.parse(info[1]) as Greeting;
          if (serverName !== undefined && server_name !== serverName) return refused('another server has the port');
          if (jetstream !== true) return refused('JetStream is not enabled');
          if (protocol === 'tls:' && !tls_required && !tls_available) return refused('the server does not offer TLS');
          if (protocol === 'tls:' || tls_required) return resolve(undefined);
          const login = {
            verbose: false,
            pedantic: false,
            name: 'tidemark stack',
            lang: 'node',
            version: '1',
            ...(password
              ? { user: decodeURIComponent(username), pass: decodeURIComponent(password) }
              : username
                ? { auth_token: decodeURIComponent(username) }
                : {}),
          };
          socket.write(`CONNECT ${JSON.stringify(login)}\r\nPING\r\n`);
        }
        if (text.includes('PONG')) resolve(undefined);
        const refusal = /-ERR '([^']*)'/.exec(text);
        if (refusal) refused(refusal[1]);
      });
    });
    signal?.throwIfAborted();
    return fault;
  } finally {
    signal?.removeEventListener('abort', end);
    socket.destroy();
  }
}

async function untilReady(
  record: ServerRecord,
  serverName: string,
  options: NatsOptions,
  signal: AbortSignal | undefined,
): Promise<void> {
  const url = natsUrl(record, 'publisher', options.passwords);
  const started = performance.now();
  for (;;) {
    const fault = await natsFault(url, 5_000, { serverName, signal });
    const hasEnded = !isAlive(record);
    if (fault === undefined && !hasEnded) return;
    const reason = fault?.reason ?? 'it has ended';
    const waitedMs = performance.now() - started;
    if (hasEnded || fault?.kind === 'refused' || waitedMs > START_TIMEOUT_MS) {
      throw new TidemarkError(
        'STACK_START_FAILED',
        `nats-server did not start (${reason}); the end of ${options.logFile}:\n${tailOf(options.logFile, 6)}`,
        { details: { logFile: options.logFile, port: record.port } },
      );
    }
    await sleep(waitedMs < 1_000 ? 10 : 200, undefined, { signal });
  }
}

/** The settings of the server, whether it is a process or a container. */
interface NatsConfiguration {
  readonly serverName?: string;
  readonly listen: string;
  readonly storeDir: string;
  readonly maxFileStoreBytes: number;
  readonly durable: boolean;
  readonly passwords: Readonly<Record<NatsRole, string>>;
  readonly accounts?: number;
}

export function natsConfiguration(values: NatsConfiguration): string {
  return `# Written at every start.
server_name: ${values.serverName ?? 'tidemark'}
listen: "${values.listen}"
max_payload: ${MIB}
# Bytes waiting for one client before it is cut off as too slow; a pull asks for at most 64 MiB at once.
max_pending: ${256 * MIB}
jetstream {
  store_dir: ${JSON.stringify(values.storeDir)}
  max_memory_store: ${256 * MIB}
  max_file_store: ${values.maxFileStoreBytes}
  # Acknowledged messages are on disk after this long at most; a power cut can take them, a killed process cannot.
  sync_interval: "${values.durable ? '10s' : '2m'}"
}
${accountsConfiguration(values.passwords, values.accounts)}`;
}

/** The bytes from which streams reserve their limits: a tenth of the disk stays for the database and everything else. */
async function fileStoreLimit(dir: string): Promise<number> {
  const disk = await statfs(dir);
  return Math.max(GIB, Math.floor((disk.blocks * disk.bsize * 9) / 10));
}
