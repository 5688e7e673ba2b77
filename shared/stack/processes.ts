/**
 * Processes of the operating system: the account that servers run as, the identity and the end of processes, commands,
 * and locks between processes.
 */

import { spawn, spawnSync } from 'node:child_process';
import {
  accessSync,
  closeSync,
  constants,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  statSync,
} from 'node:fs';
import { chmod, mkdir } from 'node:fs/promises';
import { basename, delimiter, join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { outageCode, TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';

/** The account that servers run as; without a `uid` it is that of this process. */
export interface ServerUser {
  readonly name: string;
  readonly uid?: number;
  readonly gid?: number;
}

/** A process, distinguished from a later one with the same pid. */
export interface ProcessRef {
  readonly pid: number;
  /** Boot and start time of the process; empty where the platform does not report them. */
  readonly identity: string;
}

/**
 * The account for the servers. PostgreSQL refuses to run as root, so a start by root drops to `runAs`, to the owner of the files
 * of an earlier start, so that the folder of a user stays that user's, or to `nobody`.
 * @throws TidemarkError CONFIGURATION_INVALID where `runAs` cannot be the account
 */
export function serverUser(ownerOf: string, runAs?: string): ServerUser {
  const ours = process.getuid?.();
  const named = runAs === undefined ? undefined : accountOf(runAs);
  if (runAs !== undefined && !named)
    throw runAsFault(`${runAs}, but this machine has no such account: make it, as with useradd --system ${runAs}`);
  if (ours !== 0) {
    if (named && named.uid !== ours)
      throw runAsFault(`${runAs}, but only root can start servers as another account, and this is user ${ours}`);
    return { name: String(ours ?? 'self') };
  }
  if (named?.uid === 0) throw runAsFault('root, as which PostgreSQL refuses to run');
  let owner: ServerUser | undefined;
  try {
    const { uid, gid } = statSync(ownerOf);
    if (uid !== 0) owner = { name: String(uid), uid, gid };
  } catch {
    // the path does not exist yet
  }
  if (named && owner && owner.uid !== named.uid) {
    const chown = `chown -R ${runAs}: ${ownerOf}/`;
    throw runAsFault(`${runAs}, but ${ownerOf} is of user ${owner.name}: stop what runs, then ${chown}`);
  }
  return named ?? owner ?? nobody();
}

const runAsFault = (what: string) => new TidemarkError('CONFIGURATION_INVALID', `SVC_RUN_AS is ${what}`);

/** The account of that name or number; undefined if there is none. */
function accountOf(name: string): Required<ServerUser> | undefined {
  const id = (flag: string) => spawnSync('id', [flag, '--', name], { encoding: 'utf8' }).stdout;
  const [uid, gid] = [id('-u'), id('-g')];
  return /^\d+\n$/.test(uid) && /^\d+\n$/.test(gid) ? { name, uid: Number(uid), gid: Number(gid) } : undefined;
}

/** 65534 is `nobody` by convention wherever the name is not in the account table. */
export const nobody = (): Required<ServerUser> => accountOf('nobody') ?? { name: 'nobody', uid: 65534, gid: 65534 };

/** Options of child_process calls that drop to the user and to its group alone. */
export function asUser(user: ServerUser): { uid?: number; gid?: number } {
  return user.uid === undefined ? {} : { uid: user.uid, gid: user.gid };
}

/** Whether the user can enter the folder. A shell of that user tries it, since every parent folder and ACLs count. */
export function canEnter(user: ServerUser, dir: string): boolean {
  return (
    spawnSync('/bin/sh', ['-c', 'cd "$1"', 'sh', dir], { ...asUser(user), cwd: '/', stdio: 'ignore' }).status === 0
  );
}

/**
 * Makes a folder that the servers' account may enter, with the folders above it as the user's umask has them. Of what exists it
 * sets the mode too: an earlier start may have made it under a umask that shuts the account out.
 */
export async function openFolder(path: string): Promise<void> {
  await mkdir(path, { recursive: true });
  await chmod(path, 0o755);
}

let bootId: string | undefined;

function identityOf(pid: number): string | undefined {
  if (process.platform !== 'linux') {
    const result = spawnSync('ps', ['-o', 'lstart=', '-p', String(pid)], { encoding: 'utf8' });
    return result.status === 0 ? result.stdout.trim() : undefined;
  }
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return undefined;
  }
  // The command name, in parentheses, may hold spaces, so fields are counted after it: 1 = state, 20 = start time.
  const fields = stat.slice(stat.lastIndexOf(')') + 1).split(' ');
  // A zombie whose parent does not reap it (a container without init) answers kill(0), but the process has ended.
  if (fields[1] === 'Z' || fields[1] === 'X') return undefined;
  bootId ??= readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim().slice(0, 8);
  return `${bootId}-${fields[20]}`;
}

export function processRef(pid: number): ProcessRef | undefined {
  const identity = identityOf(pid);
  return identity === undefined ? undefined : { pid, identity };
}

export function isAlive(ref: ProcessRef): boolean {
  return ref.pid > 0 && identityOf(ref.pid) === ref.identity;
}

/**
 * The processes of `program` (the name of its file) whose working directory is `dir`: a PostgreSQL postmaster and all its
 * backends. Other programs may work there too, such as an operator's shell; they are left alone.
 */
export function processesIn(dir: string, program: string): number[] {
  if (process.platform !== 'linux') return [];
  const found: number[] = [];
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    try {
      if (readlinkSync(`/proc/${entry}/cwd`) !== dir) continue;
      const file = programOf(entry);
      if ((file === undefined || file === program) && processRef(Number(entry))) found.push(Number(entry));
    } catch {
      // the process has ended, or belongs to another user
    }
  }
  return found;
}

/**
 * The file name of a process's program; undefined for a process that is ending. While the kernel releases its memory, shared
 * memory included, it has no program any more, and still counts as a process.
 */
function programOf(pid: string): string | undefined {
  try {
    // Linux adds this to the path of a program whose file was replaced while it ran.
    return basename(readlinkSync(`/proc/${pid}/exe`).replace(/ \(deleted\)$/, ''));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** Sends each signal in turn and waits for the process to end. @returns whether it ended. */
export async function endProcess(
  ref: ProcessRef,
  steps: readonly { readonly signal: NodeJS.Signals; readonly waitMs: number }[],
): Promise<boolean> {
  for (const step of steps) {
    if (!isAlive(ref)) return true;
    signal(ref.pid, step.signal);
    const deadline = performance.now() + step.waitMs;
    while (isAlive(ref) && performance.now() < deadline) await sleep(10);
  }
  return !isAlive(ref);
}

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5000;
/** A process that ran for this long had started well. */
const STARTED_WELL_MS = 60_000;

/** The pauses before a process that ended is started again: each is twice as long as the last one. */
export class RestartPauses {
  #failures = 0;

  /** @param ranMs how long the process ran; after a minute the pauses are short again. */
  next(ranMs: number): number {
    if (ranMs > STARTED_WELL_MS) this.#failures = 0;
    return Math.min(FIRST_PAUSE_MS * 2 ** this.#failures++, LONGEST_PAUSE_MS);
  }
}

/** How long the processes of a dead server may take to end by themselves, and then after a signal. */
const REMNANT_GRACE_MS = 2_000;
const REMNANT_SIGNAL_MS = 8_000;

/**
 * Waits until no process of `program` works in `dir`: for `graceMs` at first, then it sends `endSignal`, then SIGKILL. Two
 * servers must never share one folder.
 */
export async function endProcessesIn(
  dir: string,
  program: string,
  endSignal: NodeJS.Signals,
  log: Logger,
  graceMs = REMNANT_GRACE_MS,
): Promise<void> {
  const waitMs = Math.min(REMNANT_GRACE_MS, graceMs);
  const started = performance.now();
  let isSignalled = false;
  for (let left = processesIn(dir, program); left.length > 0; left = processesIn(dir, program)) {
    const waitedMs = performance.now() - started;
    if (waitedMs > waitMs && !isSignalled) {
      isSignalled = true;
      log.warn({ dir, pids: left.join(' ') }, 'ending the processes that an earlier server left behind');
      for (const pid of left) signal(pid, endSignal);
    }
    if (waitedMs > waitMs + REMNANT_SIGNAL_MS) for (const pid of left) signal(pid, 'SIGKILL');
    await sleep(20);
  }
}

/** A log file that is larger is renamed before the next start. */
const MAX_LOG_BYTES = 16 * 1024 * 1024;

/** The environment of servers and what makes their data: that of the user's shell is for other servers and other programs. */
const SERVER_ENV: NodeJS.ProcessEnv = { PATH: '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' };

/**
 * Starts a server in a session of its own, so that Ctrl-C in the terminal does not reach it, with its output in a log file.
 * This process opens the log, so the server's user need not be able to reach it.
 */
export async function spawnServer(
  command: string,
  args: readonly string[],
  options: {
    readonly user: ServerUser;
    readonly cwd: string;
    readonly logFile: string;
    readonly env?: NodeJS.ProcessEnv;
  },
): Promise<ProcessRef> {
  try {
    if (statSync(options.logFile).size > MAX_LOG_BYTES) renameSync(options.logFile, `${options.logFile}.1`);
  } catch {
    // first start
  }
  const log = openSync(options.logFile, 'a', 0o640);
  try {
    const child = spawn(command, args, {
      ...asUser(options.user),
      cwd: options.cwd,
      env: { ...SERVER_ENV, ...options.env },
      detached: true,
      stdio: ['ignore', log, log],
    });
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve);
      child.once('error', reject);
    });
    child.unref();
    const pid = child.pid as number;
    return processRef(pid) ?? { pid, identity: '' };
  } finally {
    closeSync(log);
  }
}

/** The last lines of a log file, for error messages. */
export function tailOf(path: string, lines: number): string {
  try {
    return readFileSync(path, 'utf8').trimEnd().split('\n').slice(-lines).join('\n');
  } catch {
    return '';
  }
}

/** The message of a connection fault. */
export function faultText(error: unknown): string {
  const first = firstOf(error);
  return first instanceof Error ? first.message || first.name : String(first);
}

/** Whether a server may answer in a moment. An unknown host name or a refused login will not pass by itself. */
export const isOutage = (error: unknown): boolean => outageCode(firstOf(error)) !== undefined;

/** A refused connection to a host name with several addresses is an AggregateError without a message of its own. */
const firstOf = (error: unknown): unknown => (error instanceof AggregateError ? error.errors[0] : error);

interface RunResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * Runs a command to its end and captures its output.
 * @throws TidemarkError STACK_INSTALL_FAILED with the end of its output, unless `check` is false.
 */
export async function run(
  command: string,
  args: readonly string[],
  options: {
    /** Variables beyond those of this process. */
    readonly env?: NodeJS.ProcessEnv;
    /** Whether it gets a server's environment in place of this process's. */
    readonly ownEnv?: boolean;
    readonly cwd?: string;
    readonly check?: boolean;
    readonly uid?: number;
    readonly gid?: number;
    readonly signal?: AbortSignal;
  } = {},
): Promise<RunResult> {
  const { check = true, env, ownEnv = false, ...rest } = options;
  const inherited = ownEnv ? SERVER_ENV : process.env;
  const child = spawn(command, args, { ...rest, env: { ...inherited, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout.on('data', (chunk: Buffer) => out.push(chunk));
  child.stderr.on('data', (chunk: Buffer) => err.push(chunk));
  const code = await new Promise<number>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (status) => resolve(status ?? 1));
  });
  const result = { code, stdout: Buffer.concat(out).toString(), stderr: Buffer.concat(err).toString() };
  if (check && code !== 0) {
    const tail = `${result.stdout}\n${result.stderr}`.trim().split('\n').slice(-8).join('\n');
    throw new TidemarkError('STACK_INSTALL_FAILED', `${command} ${args[0] ?? ''} ended with ${code}:\n${tail}`);
  }
  return result;
}

export function commandExists(name: string): boolean {
  for (const dir of (process.env.PATH ?? '/usr/bin:/bin').split(delimiter)) {
    try {
      accessSync(join(dir, name), constants.X_OK);
      return true;
    } catch {
      // try the next folder
    }
  }
  return false;
}

const RETRY_MS = 25;
const REPORT_WAIT_AFTER_MS = 2_000;

interface LockOptions {
  readonly waitMs: number;
  /** Called once, when the wait becomes noticeably long. */
  readonly onWait?: () => void;
  readonly signal?: AbortSignal;
}

/**
 * Runs `section` while it holds the lock at `path`, so that one process at a time runs it. The lock is SQLite's exclusive
 * lock on a file, which the kernel releases however its owner dies: no lock is ever stale.
 * @throws TidemarkError WORK_HELD when the lock is not free within `waitMs`.
 */
export async function withLock<T>(path: string, options: LockOptions, section: () => Promise<T>): Promise<T> {
  const { waitMs, onWait, signal } = options;
  const started = performance.now();
  let isReported = false;
  let file: DatabaseSync;
  try {
    file = new DatabaseSync(path, { timeout: 0 });
  } catch (cause) {
    throw new TidemarkError('STACK_START_FAILED', `The lock ${path} cannot be used`, { cause });
  }
  try {
    while (!begin(file, path)) {
      const waitedMs = performance.now() - started;
      if (waitedMs >= waitMs) {
        throw new TidemarkError('WORK_HELD', `The lock ${path} was held by another process for ${waitMs} ms`);
      }
      if (waitedMs >= REPORT_WAIT_AFTER_MS && !isReported) {
        isReported = true;
        onWait?.();
      }
      await sleep(RETRY_MS, undefined, { signal });
    }
    return await section();
  } finally {
    file.close();
  }
}

const SQLITE_BUSY = 5;

function begin(file: DatabaseSync, path: string): boolean {
  try {
    // The begin writes to the journal; in memory that works on a full disk too. Nothing is ever committed.
    file.exec('PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE');
    return true;
  } catch (cause) {
    if ((cause as { errcode?: number }).errcode === SQLITE_BUSY) return false;
    throw new TidemarkError('STACK_START_FAILED', `The lock ${path} cannot be used`, { cause });
  }
}
