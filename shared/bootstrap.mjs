/**
 * Makes a fresh clone runnable: installs the dependencies when they are missing or older than package-lock.json, and
 * sees to it that a Node that runs TypeScript is there. Runs on Node 20 with nothing installed, before every npm script
 * of package.json and from `./tidemark`; with nothing to do it only compares one digest.
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

/** What npm wrote down of its last run in this folder, against the lock file: an install made by hand counts too. */
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

/** In the project's own folder, unlike one below the temporary directory, which anybody can make. */
const installLock = join(root, '.tidemark-installing');
/** An installer takes minutes at most. One that is older is gone, and its number another process's. */
const INSTALL_LIMIT_MS = 30 * 60_000;

/** One installer at a time per checkout: `npm start` and `npm test` may be started together. */
function withInstallLock(section) {
  const path = installLock;
  for (let told = false; ; ) {
    try {
      mkdirSync(path);
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') fail(`the dependencies cannot be installed in ${modules} (${error.message}).`);
      let owner = 0;
      try {
        owner = Number(readFileSync(join(path, 'pid'), 'utf8'));
      } catch {}
      if (isDead(owner, path)) {
        removeLock(path);
        continue;
      }
      if (!told && owner > 0) {
        told = true;
        process.stderr.write(
          `tidemark: waiting for process ${owner}, which installs the dependencies (remove ${path} if it does not)\n`,
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
    fail(`the lock of an installer that is gone cannot be removed: ${path} (${error.message}).`);
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
  // Made but not yet signed; its owner died in between when that lasts.
  return ageOf(lockPath) > 10_000;
}

/** Of what is gone meanwhile: none. */
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
    // npm tells its scripts where it is; `npm` on the PATH may be another one.
    const npm = process.env.npm_execpath;
    // As locked, like `npm ci`, which however refuses a lock file that lacks optional packages of other platforms, as
    // one written from a registry without them does.
    const args = ['install', '--no-save', '--no-audit', '--no-fund', '--loglevel=error'];
    const result = npm?.endsWith('.js')
      ? spawnSync(process.execPath, [npm, ...args], { cwd: root, encoding: 'utf8' })
      : spawnSync('npm', args, { cwd: root, encoding: 'utf8' });
    if (result.status !== 0) {
      process.stderr.write(`${result.stdout ?? ''}${result.stderr ?? ''}${result.error ? `${result.error}\n` : ''}`);
      fail('the dependencies could not be installed; the output of npm is above.');
    }
    process.stderr.write(`tidemark: dependencies installed (${((Date.now() - started) / 1000).toFixed(0)} s)\n`);
  }
  writeFileSync(stampPath, wanted());
}

/** Ends with a message unless a Node that runs TypeScript is there and works. */
function checkNode() {
  if (Number(process.versions.node.split('.')[0]) >= NEEDED_MAJOR) return;
  if (existsSync(bundledNode)) {
    const probe = spawnSync(bundledNode, ['--version'], { encoding: 'utf8' });
    const major = Number(/^v(\d+)\./.exec(probe.stdout ?? '')?.[1]);
    if (probe.status === 0 && major >= NEEDED_MAJOR) return;
    fail(
      `the Node ${NEEDED_MAJOR} among the dependencies does not run here` +
        ` (${(probe.stderr || String(probe.error ?? probe.stdout)).trim().split('\n')[0]}).` +
        ` Install Node ${NEEDED_MAJOR} or newer and start again.`,
    );
  }
  fail(
    `Node ${NEEDED_MAJOR} or newer is needed; this is ${process.version}, and for ${process.platform}/${process.arch}` +
      ' none comes with the dependencies. Install it and start again.',
  );
}

function fail(message) {
  process.stderr.write(`tidemark: ${message}\n`);
  process.exit(1);
}

if (!stamped()) withInstallLock(install);
checkNode();
