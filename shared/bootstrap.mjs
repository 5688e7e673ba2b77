/**
 * Makes a fresh clone runnable: installs the dependencies when they are missing or older than package-lock.json, and checks
 * that a Node that runs TypeScript exists. It runs on Node 20 with nothing installed, before every npm script of
 * package.json and from `./tidemark`; when there is nothing to do it only compares one digest.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const NEEDED_MAJOR = 24;
const root = dirname(dirname(fileURLToPath(import.meta.url)));
const modules = join(root, 'node_modules');
const stampPath = join(modules, '.tidemark-stamp');
const bundledNode = join(modules, '.bin', 'node');

const wanted = () => {
  const lock = createHash('sha256')
    .update(readFileSync(join(root, 'package-lock.json')))
    .digest('hex');
  return `${lock} ${process.platform} ${process.arch}\n`;
};

const stamped = () => existsSync(stampPath) && readFileSync(stampPath, 'utf8') === wanted();

/** Whether what npm recorded of its last run in this folder matches the lock file; an install by hand counts too. */
function installedMatchesLock() {
  try {
    const read = (path) => JSON.parse(readFileSync(path, 'utf8')).packages;
    const locked = read(join(root, 'package-lock.json'));
    const installed = read(join(modules, '.package-lock.json'));
    for (const [name, entry] of Object.entries(locked)) {
      if (name === '' || entry.link) continue;
      if (installed[name]?.version === entry.version) continue;
      if (!(entry.optional && installed[name] === undefined)) return false;
    }
    return Object.keys(installed).every((name) => locked[name] !== undefined);
  } catch {
    return false;
  }
}

/** The lock is in the project's own folder: anybody could create one below the temporary directory. */
const installLock = join(root, '.tidemark-installing');
/** An installer takes minutes at most. A lock that is older belongs to a dead one, whose pid another process has now. */
const INSTALL_LIMIT_MS = 30 * 60_000;

/** Allows one installer at a time per checkout: `npm start` and `npm test` may be started together. */
function withInstallLock(section) {
  const path = installLock;
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
    writeFileSync(join(path, 'pid'), String(process.pid));
    return section();
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
    try {
      process.kill(pid, 0);
    } catch (error) {
      if (error.code === 'ESRCH') return true;
    }
    return ageOf(lockPath) > INSTALL_LIMIT_MS;
  }
  // The lock exists without a pid. If that lasts, its owner died in between.
  return ageOf(lockPath) > 10_000;
}

/** The age of a file in milliseconds; 0 when it no longer exists. */
function ageOf(path) {
  try {
    return Date.now() - statSync(path).mtimeMs;
  } catch {
    return 0;
  }
}

function install() {
  if (stamped()) return;
  if (!installedMatchesLock()) {
    process.stderr.write('tidemark: installing dependencies (once) ...\n');
    const started = Date.now();
    // npm gives its scripts its own path; `npm` on the PATH may be another one.
    const npm = process.env.npm_execpath;
    // Installs what is locked, as `npm ci` does. `npm ci` itself refuses a lock file without the optional packages of other
    // platforms, which is what npm writes from a registry that lacks them.
    const args = ['install', '--no-save', '--no-audit', '--no-fund', '--loglevel=error'];
    const result = npm?.endsWith('.js')
      ? spawnSync(process.execPath, [npm, ...args], { cwd: root, encoding: 'utf8' })
      : spawnSync('npm', args, { cwd: root, encoding: 'utf8' });
    if (result.status !== 0) {
      process.stderr.write(`${result.stdout ?? ''}${result.stderr ?? ''}${result.error ? `${result.error}\n` : ''}`);
      fail('npm could not install the dependencies; its output is above.');
    }
    process.stderr.write(`tidemark: dependencies installed (${((Date.now() - started) / 1000).toFixed(0)} s)\n`);
  }
  writeFileSync(stampPath, wanted());
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

if (!stamped()) withInstallLock(install);
checkNode();
