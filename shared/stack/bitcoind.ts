/**
 * The embedded Bitcoin node, for samples and tests: offline, on the loopback address only, with a generated password. It
 * ends with the process that started it. A service uses the operator's node, which SVC_BITCOIN_RPC_URL names.
 */

import { randomBytes } from 'node:crypto';
import { mkdir, realpath, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';
import type { ReportProgress } from './apt.ts';
import { ensurePackages, type InstallOptions, type Recipe } from './packages.ts';
import {
  endProcess,
  endProcessesIn,
  faultText,
  isAlive,
  type ProcessRef,
  run,
  spawnServer,
  tailOf,
  withLock,
} from './processes.ts';
import { freePort, isPortFree } from './state.ts';

const BITCOIND = 'usr/bin/bitcoind';

/** The node comes from the distribution's backports and is installed only when a process starts one. */
const NODE: Recipe = {
  name: 'bitcoin',
  what: 'a Bitcoin node',
  names: ['bitcoin-knots', 'patchelf'],
  backports: true,
  unused: ['usr/share/bash-completion', 'usr/lib/systemd', 'usr/share/fish'],
  programs: async (root) => [join(root, BITCOIND), join(root, 'usr/bin/bitcoin-cli')],
  async smokeTest(prefix) {
    await run(join(prefix, BITCOIND), ['--version']);
  },
};

/** Installs the program if needed. @returns its path. @throws TidemarkError as `ensurePackages`. */
async function ensureBitcoind(options: InstallOptions): Promise<string> {
  return join(await ensurePackages(NODE, options), BITCOIND);
}

/** Longest start: the node may verify the last blocks of a real chain for minutes. */
const START_TIMEOUT_MS = 600_000;
const STOP_MS = 60_000;
const PORT_ATTEMPTS = 3;

const RPC_USER = 'tidemark';

export interface BitcoindOptions {
  /** Folder of its data, created if needed; one node uses it at a time. */
  readonly dir: string;
  readonly chain: 'main' | 'test' | 'signet' | 'regtest';
  /** Further lines of its configuration, `name=value`. */
  readonly configuration?: readonly string[];
  readonly log: Logger;
  readonly progress?: ReportProgress;
  readonly signal?: AbortSignal;
}

export interface Bitcoind extends AsyncDisposable {
  readonly url: string;
  readonly user: string;
  readonly password: string;
  readonly pid: number;
  readonly logFile: string;
  /** Ends the node with SIGKILL, as a crash would. */
  kill(): Promise<void>;
  /** Restarts the node on its port, with other further lines of configuration if given. */
  restart(configuration?: readonly string[]): Promise<void>;
}

/**
 * Starts a node and resolves when it answers.
 * @throws TidemarkError STACK_INSTALL_FAILED without the program, STACK_START_FAILED.
 */
export async function startBitcoind(options: BitcoindOptions): Promise<Bitcoind> {
  const { progress, signal, log } = options;
  const program = await ensureBitcoind({ user: { name: 'self' }, progress, signal });
  await mkdir(options.dir, { recursive: true, mode: 0o700 });
  // Running servers are found by their working directory, which is a real path.
  const dir = await realpath(options.dir);
  const password = randomBytes(24).toString('hex');
  const logFile = join(dir, 'node.log');
  let port = 0;
  let process: ProcessRef = { pid: 0, identity: '' };

  const launch = async (more: readonly string[]) => {
    const path = join(dir, 'bitcoin.conf');
    await writeFile(path, configuration({ ...options, password, port, more }), { mode: 0o600 });
    const args = [`-datadir=${dir}`, `-conf=${path}`];
    process = await spawnServer(program, args, { user: { name: 'self' }, cwd: dir, logFile });
    await untilReady(process, { port, password, logFile, signal });
  };
  const stop = async () => {
    const ended = await endProcess(process, [
      { signal: 'SIGTERM', waitMs: STOP_MS },
      { signal: 'SIGKILL', waitMs: 5_000 },
    ]);
    if (!ended)
      throw new TidemarkError('STACK_START_FAILED', `The Bitcoin node (pid ${process.pid}) cannot be stopped`);
  };
  // The lock covers the start only. A later start finds the processes that use the folder and ends them.
  await withLock(join(dir, 'start.lock'), { waitMs: START_TIMEOUT_MS, signal }, async () => {
    await endProcessesIn(dir, 'bitcoind', 'SIGTERM', log);
    for (let attempt = 1; ; attempt++) {
      port = await freePort();
      try {
        return await launch(options.configuration ?? []);
      } catch (error) {
        await stop();
        // Another process may have taken the port between the check and the start.
        if (attempt >= PORT_ATTEMPTS || signal?.aborted || (await isPortFree(port))) throw error;
      }
    }
  });
  return {
    url: `http://127.0.0.1:${port}`,
    user: RPC_USER,
    password,
    logFile,
    get pid() {
      return process.pid;
    },
    async kill() {
      await endProcess(process, [{ signal: 'SIGKILL', waitMs: 10_000 }]);
    },
    async restart(more = options.configuration ?? []) {
      await stop();
      await launch(more);
    },
    [Symbol.asyncDispose]: stop,
  };
}

interface Configuration extends BitcoindOptions {
  readonly password: string;
  readonly port: number;
  readonly more: readonly string[];
}

/** The configuration file. It holds the password, so that no command line shows it. */
function configuration({ chain, password, port, more }: Configuration): string {
  return [
    '# Written at every start.',
    `chain=${chain}`,
    `[${chain}]`,
    'server=1',
    `rpcuser=${RPC_USER}`,
    `rpcpassword=${password}`,
    // offline: no peers
    'listen=0',
    'connect=0',
    'dnsseed=0',
    'fixedseeds=0',
    'listenonion=0',
    'natpmp=0',
    'disablewallet=1',
    'printtoconsole=1',
    'nodebuglogfile=1',
    // blocks that it checks at every start, and its memory in MiB
    'checkblocks=6',
    'dbcache=64',
    'rpcworkqueue=64',
    `rpcport=${port}`,
    'rpcbind=127.0.0.1',
    ...more,
    '',
  ].join('\n');
}

async function untilReady(
  process: ProcessRef,
  at: { port: number; password: string; logFile: string; signal: AbortSignal | undefined },
): Promise<void> {
  const started = performance.now();
  for (let fault = await faultOf(at); fault !== undefined; fault = await faultOf(at)) {
    at.signal?.throwIfAborted();
    const waitedMs = performance.now() - started;
    if (!isAlive(process) || waitedMs > START_TIMEOUT_MS) {
      throw new TidemarkError(
        'STACK_START_FAILED',
        `The Bitcoin node did not start (${fault}); the end of ${at.logFile}:\n${tailOf(at.logFile, 6)}`,
        { details: { logFile: at.logFile, port: at.port } },
      );
    }
    await sleep(waitedMs < 2_000 ? 10 : 200);
  }
}

/** Why the node cannot be used yet, or undefined. */
async function faultOf({ port, password }: { port: number; password: string }): Promise<string | undefined> {
  const authorization = `Basic ${Buffer.from(`${RPC_USER}:${password}`).toString('base64')}`;
  try {
    const answer = await fetch(`http://127.0.0.1:${port}/`, {
      method: 'POST',
      headers: { authorization },
      body: JSON.stringify({ id: 'start', method: 'getblockcount', params: [] }),
      signal: AbortSignal.timeout(5_000),
    });
    const text = await answer.text();
    if (answer.ok) return undefined;
    return (JSON.parse(text) as { error?: { message?: string } }).error?.message ?? `HTTP ${answer.status}`;
  } catch (error) {
    return faultText(error);
  }
}
