/**
 * Makes a fresh clone runnable: installs the dependencies when they are missing or older than package-lock.json, and checks
 * that a Node that runs TypeScript exists. It runs on Node 20 with nothing installed, before every npm script of
 * package.json and from `./tidemark`; when there is nothing to do it only compares one digest.
 *
 * Two sets of packages can be installed: `run`, half as large, serves `npm start` and `./tidemark`; `all`, which `--dev` asks
 * for, has the tools of tests, checks and benches too, and serves everything.
 */
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const NEEDED_MAJOR = 24;
const root = dirname(dirname(fileURLToPath(import.meta.url)));
const modules = join(root, 'node_modules');
const stampPath = join(modules, '.tidemark-stamp');
const bundledNode = join(modules, '.bin', 'node');

const set = process.argv.includes('--dev') ? 'all' : 'run';

const stampOf = (name) => {
  const lock = createHash('sha256')
    .update(readFileSync(join(root, 'package-lock.json')))
    .digest('hex');
  return `${lock} ${process.platform} ${process.arch} ${name}\n`;
};

function stamped() {
  if (!existsSync(stampPath)) return false;
  const stamp = readFileSync(stampPath, 'utf8');
  return stamp === stampOf('all') || (set === 'run' && stamp === stampOf('run'));
}

/**
 * A checkout can make the lock file newer and leave its bytes as they were. Until the stamp is newer again, `./tidemark` runs
 * this script before every command, which takes 35 ms.
 */
function renewStamp() {
  const now = new Date();
  try {
    utimesSync(stampPath, now, now);
  } catch {} // another user's folder
}

/** The packages of the lock file, and those that npm recorded of its last run in this folder; by path. */
function packages() {
  const read = (path) => {
    try {
      return JSON.parse(readFileSync(path, 'utf8')).packages;
    } catch {
      return {};
    }
  };
  return { locked: read(join(root, 'package-lock.json')), installed: read(join(modules, '.package-lock.json')) };
}

/** Whether the packages of a set are installed as locked; an install by hand counts too. */
function isInstalled(name) {
  const { locked, installed } = packages();
  for (const [path, entry] of Object.entries(locked)) {
    if (path === '' || entry.link || (entry.dev && name === 'run')) continue;
    if (installed[path]?.version === entry.version) continue;
    if (!(entry.optional && installed[path] === undefined)) return false;
  }
  const paths = Object.keys(installed);
  return paths.length > 0 && paths.every((path) => locked[path] !== undefined);
}

/** The lock is in the project's own folder: anybody could create one below the temporary directory. */
const installLock = join(root, '.tidemark-installing');
/** An installer takes minutes at most. A lock that is older belongs to a dead one, whose pid another process has now. */
const INSTALL_LIMIT_MS = 30 * 60_000;

const NPM_FAILED = 'npm could not install the dependencies; its output is above.';

/** Allows one installer at a time per checkout: `npm start` and `npm test` may be started together. */
async function withInstallLock(section) {
  const path = installLock;
  let isInterrupted = false;
  for (let isReported = false; ; ) {
    try {
      mkdirSync(path);
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') {
        fail(`cannot install the dependencies in ${modules} (${error.message}). Check its permissions and free space.`);
      }
      let owner = 0;
      try {
        owner = Number(readFileSync(join(path, 'pid'), 'utf8'));
      } catch {}
      if (isDead(owner, path)) {
        isInterrupted = true;
        removeLock(path);
        continue;
      }
      if (!isReported && owner > 0) {
        isReported = true;
        process.stderr.write(
          `tidemark: waiting for process ${owner}, which installs the dependencies (if it does not, remove ${path})\n`,
        );
      }
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
    }
  }
  try {
    writeFileSync(join(path, 'identity'), identityOf(process.pid));
    writeFileSync(join(path, 'pid'), String(process.pid));
    return await section(isInterrupted);
  } finally {
    rmSync(path, { recursive: true, force: true });
  }
}

function removeLock(path) {
  try {
    rmSync(path, { recursive: true, force: true });
  } catch (error) {
    fail(`cannot remove ${path}, the lock of an installer that has died (${error.message}). Remove it by hand.`);
  }
}

function isDead(pid, lockPath) {
  if (pid > 0) {
    // In a restarted container pids start at 1 again, so the dead installer's may be this process's, or another one's.
    if (pid === process.pid || isAnother(pid, lockPath)) return true;
    try {
      process.kill(pid, 0);
    } catch (error) {
      if (error.code === 'ESRCH') return true;
    }
    if (isZombie(pid)) return true;
    return ageOf(lockPath) > INSTALL_LIMIT_MS;
  }
  // The lock exists without a pid. If that lasts, its owner died in between.
  return ageOf(lockPath) > 10_000;
}

/** Whether a process is another than the one that took the lock. */
function isAnother(pid, lockPath) {
  try {
    const recorded = readFileSync(join(lockPath, 'identity'), 'utf8');
    const found = identityOf(pid);
    return recorded !== '' && found !== '' && found !== recorded;
  } catch {
    return false;
  }
}

/** Boot and start time of a process, which no later one with its pid has; empty where the system does not tell them. */
function identityOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    // The command's name, in parentheses, may hold spaces, so fields are counted after it.
    const startTime = stat.slice(stat.lastIndexOf(')') + 1).split(' ')[20];
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim()}-${startTime}`;
  } catch {
    return '';
  }
}

/** Whether a process has ended and its parent does not ask for it, as in a container without init: signals still reach it. */
function isZombie(pid) {
  try {
    return /\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return false;
  }
}

/** The age of a file in milliseconds; 0 when it no longer exists. */
function ageOf(path) {
  try {
    return Date.now() - statSync(path).mtimeMs;
  } catch {
    return 0;
  }
}

/**
 * @param isInterrupted whether another installer died: npm takes the packages that it left half unpacked for whole ones.
 * @returns whether the packages are installed
 */
async function install(isInterrupted) {
  if (stamped()) return true;
  const isForTests = set === 'all' || hasTools();
  if (isInterrupted) rmSync(modules, { recursive: true, force: true });
  const found = ['all', 'run'].find((name) => (name === 'all' || name === set) && isInstalled(name));
  // A start never removes what tests need: where tools are installed, all packages are brought up to date.
  const chosen = found ?? (isForTests ? 'all' : 'run');
  if (!found && !(await runNpm(chosen))) return false;
  writeFileSync(stampPath, stampOf(chosen));
  return true;
}

function hasTools() {
  const { locked, installed } = packages();
  const stamp = existsSync(stampPath) ? readFileSync(stampPath, 'utf8') : '';
  return stamp.endsWith(' all\n') || Object.keys(installed).some((path) => locked[path]?.dev);
}

/** Longest wait for the registry's first answer: an npm that finds no network repeats each of its requests for minutes. */
const PROBE_MS = 5000;
const PROGRESS_MS = 5000;
/** npm ends in order when it is asked to; one that does not is killed after this time. */
const END_MS = 500;

/**
 * Runs npm to its end. It has the user's settings, so that its registry, proxy and certificates are those of every other npm here.
 * A signal that stops this process stops npm first.
 * @param {{ timeoutMs?: number, onProgress?: () => void }} [options]
 * @returns {Promise<{ status: number | null, signal: NodeJS.Signals | null, output: string, isLate: boolean }>}
 */
function npm(args, { timeoutMs, onProgress } = {}) {
  // npm gives its scripts its own path and that of its Node; those on the PATH may be other ones, or about to be replaced.
  const { npm_execpath: path, npm_node_execpath: node = process.execPath } = process.env;
  const [command, all] = path?.endsWith('.js') ? [node, [path, ...args]] : ['npm', args];
  const child = spawn(command, all, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => {
      output += text;
    });
  }
  let isLate = false;
  const end = () => {
    child.kill('SIGTERM');
    setTimeout(() => child.kill('SIGKILL'), END_MS).unref();
  };
  const timer =
    timeoutMs === undefined
      ? undefined
      : setTimeout(() => {
          isLate = true;
          end();
        }, timeoutMs);
  const ticks = onProgress && setInterval(onProgress, PROGRESS_MS);
  const stop = () => {
    end();
    // The lock stays, so that the next installer removes what is half unpacked.
    child.once('close', () => fail('stopped while the dependencies were installed; the next start begins anew', 130));
  };
  for (const name of STOP_SIGNALS) process.once(name, stop);
  return new Promise((resolve) => {
    const settle = (status, signal, more = '') => {
      clearTimeout(timer);
      clearInterval(ticks);
      for (const name of STOP_SIGNALS) process.off(name, stop);
      resolve({ status, signal, output: `${output}${more}`, isLate });
    };
    child.once('error', (error) => settle(1, null, `${error}\n`));
    child.once('close', (status, signal) => settle(status, signal));
  });
}

const STOP_SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'];

/** npm's codes of a registry that answered and has no such page, and of a user who asked npm to use its cache alone. */
const ANSWERED = /\bcode (?:E\d{3}|ENOTCACHED)\b/;

/** Why npm's registry cannot be reached, or undefined. */
async function networkFault() {
  const { status, output, isLate } = await npm(['ping', '--fetch-retries=0', '--loglevel=error'], {
    timeoutMs: PROBE_MS,
  });
  if (isLate) return `npm's registry did not answer within ${PROBE_MS / 1000} s`;
  if (status === 0 || ANSWERED.test(output)) return undefined;
  const [, reason] = /^npm (?:error|ERR!) (request to .*|network .*)$/m.exec(output) ?? [];
  return `npm's registry cannot be reached: ${reason ?? output.trim().split('\n')[0]}`;
}

/** What an offline machine needs; docs/operations.md has it in full. */
function offlineHelp() {
  const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'tidemark');
  return [
    `  Behind a proxy, npm takes it from its settings, or from HTTPS_PROXY and NO_PROXY.`,
    `  For a machine without a network, run \`npm start\` once on one of ${process.platform}/${process.arch} that has it,`,
    '  with the same commit, and copy from there, to the same paths:',
    `    ${modules}`,
    `    ${cache}  (or /var/cache/tidemark, where root ran it)`,
  ].join('\n');
}

/** How many packages npm has unpacked. */
function unpacked(paths) {
  return paths.filter((path) => existsSync(join(root, path, 'package.json'))).length;
}

/** @returns whether npm installed the packages; when it fails, it restores those that it found. */
async function runNpm(chosen) {
  const more = chosen === 'all' && isInstalled('run') ? ' of tests, checks and benches' : '';
  process.stderr.write(`tidemark: installing dependencies${more} (once) ...\n`);
  const started = Date.now();
  const fault = await networkFault();
  if (fault) {
    process.stderr.write(`tidemark: ${fault}\n${offlineHelp()}\n`);
    return false;
  }
  // Installs what is locked, as `npm ci` does. `npm ci` itself refuses a lock file without the optional packages of other
  // platforms, which is what npm writes from a registry that lacks them.
  const args = ['install', '--no-save', '--no-audit', '--no-fund', '--loglevel=error'];
  // Stated both ways: NODE_ENV and npm's own settings have defaults of their own.
  args.push(chosen === 'all' ? '--include=dev' : '--omit=dev');
  const paths = Object.entries(packages().locked)
    .filter(([path, { dev, optional }]) => path !== '' && !optional && !(dev && chosen === 'run'))
    .map(([path]) => path);
  const onProgress = () => {
    const seconds = Math.round((Date.now() - started) / 1000);
    process.stderr.write(
      `tidemark: installing dependencies, ${seconds} s: ${unpacked(paths)} of ${paths.length} packages\n`,
    );
  };
  const result = await npm(args, { onProgress });
  if (result.status !== 0) {
    process.stderr.write(result.output);
    // The lock of an npm that was killed stays, so that the next installer removes what is half unpacked. A script reports the
    // signal as 128 and its number. Higher ones are npm's own, for errors of the system: 228 for a full disk.
    const isKilled = result.signal || (result.status > 128 && result.status < 160);
    if (isKilled) fail(NPM_FAILED);
    process.stderr.write(`tidemark: ${NPM_FAILED}\n`);
    return false;
  }
  process.stderr.write(`tidemark: dependencies installed (${((Date.now() - started) / 1000).toFixed(0)} s)\n`);
  return true;
}

/** Ends the process with a message unless a Node that runs TypeScript exists and works. */
function checkNode() {
  if (Number(process.versions.node.split('.')[0]) >= NEEDED_MAJOR) return;
  if (existsSync(bundledNode)) {
    const probe = spawnSync(bundledNode, ['--version'], { encoding: 'utf8' });
    const major = Number(/^v(\d+)\./.exec(probe.stdout ?? '')?.[1]);
    if (probe.status === 0 && major >= NEEDED_MAJOR) return;
    fail(
      `the Node ${NEEDED_MAJOR} of the dependencies does not run here` +
        ` (${(probe.stderr || String(probe.error ?? probe.stdout)).trim().split('\n')[0]}).` +
        ` Install Node ${NEEDED_MAJOR} or newer and start again.`,
    );
  }
  fail(
    `Node ${NEEDED_MAJOR} or newer is needed. This is ${process.version}, and the dependencies bring none for` +
      ` ${process.platform}/${process.arch}. Install it and start again.`,
  );
}

function fail(message, status = 1) {
  process.stderr.write(`tidemark: ${message}\n`);
  process.exit(status);
}

// It fails after the lock is gone: one that stays means that its owner died, and the next installer removes all packages.
if (stamped()) renewStamp();
else if (!(await withInstallLock(install))) process.exit(1);
checkNode();
