/**
 * Makes a fresh clone runnable: installs the dependencies when they are missing or older than package-lock.json, and checks
 * that a Node that runs TypeScript exists. It runs on Node 20 with nothing installed, before every npm script of
 * package.json and from `./tidemark`; when there is nothing to do it only compares one digest.
 *
 * Two sets of packages can be installed: `run`, half as large, serves `npm start` and `./tidemark`; `all`, which `--dev` asks
 * for, has the tools of tests, checks and benches too, and serves everything.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
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
function withInstallLock(section) {
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
    return section(isInterrupted);
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
function install(isInterrupted) {
  if (stamped()) return true;
  const isForTests = set === 'all' || hasTools();
  if (isInterrupted) rmSync(modules, { recursive: true, force: true });
  const found = ['all', 'run'].find((name) => (name === 'all' || name === set) && isInstalled(name));
  // A start never removes what tests need: where tools are installed, all packages are brought up to date.
  const chosen = found ?? (isForTests ? 'all' : 'run');
  if (!found && !runNpm(chosen)) return false;
  writeFileSync(stampPath, stampOf(chosen));
  return true;
}

function hasTools() {
  const { locked, installed } = packages();
  const stamp = existsSync(stampPath) ? readFileSync(stampPath, 'utf8') : '';
  return stamp.endsWith(' all\n') || Object.keys(installed).some((path) => locked[path]?.dev);
}

/** @returns whether npm installed the packages; when it fails, it restores those that it found. */
function runNpm(chosen) {
  const more = chosen === 'all' && isInstalled('run') ? ' of tests, checks and benches' : '';
  process.stderr.write(`tidemark: installing dependencies${more} (once) ...\n`);
  const started = Date.now();
  // Installs what is locked, as `npm ci` does. `npm ci` itself refuses a lock file without the optional packages of other
  // platforms, which is what npm writes from a registry that lacks them.
  const args = ['install', '--no-save', '--no-audit', '--no-fund', '--loglevel=error'];
  // Stated both ways: NODE_ENV and npm's own settings have defaults of their own.
  args.push(chosen === 'all' ? '--include=dev' : '--omit=dev');
  // npm gives its scripts its own path and that of its Node; those on the PATH may be other ones, or about to be replaced.
  const { npm_execpath: npm, npm_node_execpath: node = process.execPath } = process.env;
  const result = npm?.endsWith('.js')
    ? spawnSync(node, [npm, ...args], { cwd: root, encoding: 'utf8' })
    : spawnSync('npm', args, { cwd: root, encoding: 'utf8' });
  if (result.status !== 0) {
    process.stderr.write(`${result.stdout ?? ''}${result.stderr ?? ''}${result.error ? `${result.error}\n` : ''}`);
    // The lock of an npm that was killed stays, so that the next installer removes what is half unpacked. A script reports the
    // signal as 128 and its number. Higher ones are npm's own, for errors of the system: 228 for a full disk.
    if (result.signal || (result.status > 128 && result.status < 160)) fail(NPM_FAILED);
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

function fail(message) {
  process.stderr.write(`tidemark: ${message}\n`);
  process.exit(1);
}

// It fails after the lock is gone: one that stays means that its owner died, and the next installer removes all packages.
if (stamped()) renewStamp();
else if (!withInstallLock(install)) fail(NPM_FAILED);
checkNode();
