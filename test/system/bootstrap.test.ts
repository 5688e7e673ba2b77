/** What runs before anything is installed: the bootstrap and the launcher, in a small project of their own. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { chmod, cp, mkdir, readFile, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { PATIENCE_MS } from '../support/patience.ts';
import { temporaryDir } from '../support/stack.ts';

const PROJECT = join(import.meta.dirname, '../..');

let dir: string;
let root: string;

beforeEach(async () => {
  dir = await temporaryDir();
  root = join(dir, 'a project');
  await mkdir(join(root, 'shared'), { recursive: true });
  await cp(join(PROJECT, 'shared/bootstrap.mjs'), join(root, 'shared/bootstrap.mjs'));
  await cp(join(PROJECT, 'tidemark'), join(root, 'tidemark'));
  await writeLock('1.0.0');
  // Whatever a folder above says of modules.
  await writeFile(join(dir, 'package.json'), '{}');
  // Stands in for npm: counts its runs, leaves what npm leaves.
  await writeFile(
    join(dir, 'npm.js'),
    `const fs = require('node:fs');
     if (process.argv[2] === 'ping') {
       if (process.env.NPM_PINGS === 'silent') setInterval(() => {}, 1000);
       else if (process.env.NPM_PINGS) { console.error(process.env.NPM_PINGS); process.exitCode = 1; }
       return;
     }
     if (process.env.NPM_HANGS) { console.error('begun'); fs.writeFileSync(process.env.NPM_HANGS, ''); setInterval(() => {}, 1000); return; }
     const omits = process.argv.includes('--omit=dev');
     fs.appendFileSync(${JSON.stringify(join(dir, 'runs'))}, process.argv[2] + (omits ? ' run' : ' all') + '\\n');
     if (process.env.NPM_FAILS) { console.error('registry is down'); process.exit(Number(process.env.NPM_FAILS)); }
     if (process.env.NPM_IS_KILLED) process.kill(process.pid, 'SIGKILL');
     fs.writeFileSync(${JSON.stringify(join(dir, 'env'))}, JSON.stringify(process.env));
     fs.mkdirSync('node_modules', { recursive: true });
     const { packages, ...lock } = JSON.parse(fs.readFileSync('package-lock.json', 'utf8'));
     const installed = Object.entries(packages).filter(([, { dev }]) => !(dev && omits));
     fs.writeFileSync('node_modules/.package-lock.json', JSON.stringify({ ...lock, packages: Object.fromEntries(installed) }));
     if (process.env.NPM_DIES) process.kill(process.ppid, 'SIGKILL');`,
  );
});

afterEach(() => rm(dir, { recursive: true, force: true }));

const writeLock = (version: string) =>
  writeFile(
    join(root, 'package-lock.json'),
    JSON.stringify({
      lockfileVersion: 3,
      packages: { '': {}, 'node_modules/x': { version }, 'node_modules/tool': { version, dev: true } },
    }),
  );

/** An install by hand: what npm recorded of it, and no stamp. */
async function installByHand(isWanted: (entry: { readonly dev?: boolean }) => boolean) {
  const { packages } = JSON.parse(await readFile(join(root, 'package-lock.json'), 'utf8'));
  const installed = Object.entries<{ readonly dev?: boolean }>(packages).filter(([, entry]) => isWanted(entry));
  await mkdir(join(root, 'node_modules'), { recursive: true });
  const recorded = JSON.stringify({ packages: Object.fromEntries(installed) });
  await writeFile(join(root, 'node_modules/.package-lock.json'), recorded);
}

const runs = async () => (await readFile(join(dir, 'runs'), 'utf8').catch(() => '')).split('\n').filter(Boolean);

function bootstrap(env: NodeJS.ProcessEnv = {}, ...args: string[]) {
  return spawnSync(process.execPath, [join(root, 'shared/bootstrap.mjs'), ...args], {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, npm_execpath: join(dir, 'npm.js'), ...env },
  });
}

const bootstrapAll = (env: NodeJS.ProcessEnv = {}) => bootstrap(env, '--dev');

test('installs once, and again when the lock file changes', async () => {
  expect(bootstrap().stderr).toMatch(/installing dependencies/);
  const warm = bootstrap();
  expect([warm.status, warm.stderr]).toEqual([0, '']);
  expect(await runs()).toEqual(['install run']);
  await writeLock('1.0.1');
  expect(bootstrap().status).toBe(0);
  expect(await runs()).toEqual(['install run', 'install run']);
});

test('who waits for another installer is told of it; a lock that nobody can hold any more is taken over', async () => {
  const lock = join(root, '.tidemark-installing');
  await mkdir(lock, { recursive: true });
  await writeFile(join(lock, 'pid'), String(process.pid));
  const waiting = spawn(process.execPath, [join(root, 'shared/bootstrap.mjs')], {
    env: { ...process.env, npm_execpath: join(dir, 'npm.js') },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const [said] = await once(waiting.stderr!, 'data');
  expect(String(said)).toContain(`waiting for process ${process.pid}, which installs the dependencies`);
  expect(String(said)).toContain(lock);
  expect(await runs()).toEqual([]);
  const ended = once(waiting, 'exit');
  // An install takes minutes at most: the number has become another process's.
  await utimes(lock, 1, 1);
  expect((await ended)[0]).toBe(0);
  expect(await runs()).toEqual(['install run']);
});

test('a start installs what runs, tests add their tools, and a start is served by both', async () => {
  expect(bootstrap().stderr).toMatch(/installing dependencies \(once\)/);
  expect(bootstrapAll().stderr).toMatch(/installing dependencies of tests, checks and benches \(once\)/);
  for (const again of [bootstrap(), bootstrapAll()]) expect([again.status, again.stderr]).toEqual([0, '']);
  expect(await runs()).toEqual(['install run', 'install all']);
  // A start would remove the tools with the old packages, and the next test would install them again.
  await writeLock('1.0.1');
  expect(bootstrap().stderr).toMatch(/installing dependencies/);
  expect(bootstrapAll().stderr).toBe('');
  expect(await runs()).toEqual(['install run', 'install all', 'install all']);
});

test('accepts what was installed by hand, with the tools of tests or without', async () => {
  await installByHand(() => true);
  for (const { status } of [bootstrap(), bootstrapAll()]) expect(status).toBe(0);
  expect(await runs()).toEqual([]);
  await rm(join(root, 'node_modules'), { recursive: true });
  await installByHand(({ dev }) => !dev);
  expect(bootstrap().status).toBe(0);
  expect(await runs()).toEqual([]);
  expect(bootstrapAll().status).toBe(0);
  expect(await runs()).toEqual(['install all']);
});

// In a container without init the killed installer stayed as a zombie, and the next one waited half an hour for it.
test('an installer that has ended, and that its parent does not ask for, is not waited for', {
  tags: ['nightly'],
}, async () => {
  const parent = spawn('sh', ['-c', 'sleep 0.1 & echo $!; exec sleep 600'], { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    const pid = String((await once(parent.stdout, 'data'))[0]).trim();
    await expect.poll(() => readFile(`/proc/${pid}/stat`, 'latin1'), { timeout: PATIENCE_MS }).toMatch(/\) Z /);
    const lock = join(root, '.tidemark-installing');
    await mkdir(lock);
    await writeFile(join(lock, 'pid'), pid);
    expect(bootstrap().stderr).toMatch(/dependencies installed/);
  } finally {
    parent.kill('SIGKILL');
  }
});

// The new installer waited half an hour for itself.
test('in a restarted container the installer has the pid of the one that was killed, and waited for itself', {
  tags: ['nightly'],
}, async () => {
  const lock = join(root, '.tidemark-installing');
  await mkdir(lock);
  const started = spawnSync(
    'sh',
    ['-c', 'echo $$ > "$1/pid"; exec "$2" "$3"', 'sh', lock, process.execPath, join(root, 'shared/bootstrap.mjs')],
    {
      encoding: 'utf8',
      timeout: 60_000,
      env: { ...process.env, npm_execpath: join(dir, 'npm.js') },
    },
  );
  expect([started.status, started.stderr]).toEqual([0, expect.stringMatching(/dependencies installed/)]);
});

test('another process has the pid of an installer that was killed, and was waited for', {
  tags: ['nightly'],
}, async () => {
  expect(bootstrap({ NPM_DIES: '1' }).signal).toBe('SIGKILL');
  // This process has it now.
  await writeFile(join(root, '.tidemark-installing', 'pid'), String(process.pid));
  expect(bootstrap().stderr).toMatch(/dependencies installed/);
});

// npm takes a package for installed once its package.json is there.
test('after an installer was killed, nothing of its half-unpacked packages stays', { tags: ['nightly'] }, async () => {
  const half = join(root, 'node_modules', 'x');
  await mkdir(half, { recursive: true });
  await writeFile(join(half, 'package.json'), '{ "name": "x", "version": "1.0.0" }');
  expect(bootstrap({ NPM_DIES: '1' }).signal).toBe('SIGKILL');
  const again = bootstrap();
  expect([again.status, again.stderr]).toEqual([0, expect.stringMatching(/dependencies installed/)]);
  expect(await runs()).toEqual(['install run', 'install run']);
  await expect(readFile(join(half, 'package.json'))).rejects.toMatchObject({ code: 'ENOENT' });
});

test('npm has the proxies, certificates and registry of the user', async () => {
  const given = {
    HTTPS_PROXY: 'http://proxy.example:3128',
    NO_PROXY: 'localhost',
    NODE_EXTRA_CA_CERTS: join(dir, 'npm.js'),
    npm_config_registry: 'https://registry.example/',
    npm_config_cafile: '/ca.pem',
  };
  expect(bootstrap(given).status).toBe(0);
  expect(JSON.parse(await readFile(join(dir, 'env'), 'utf8'))).toMatchObject(given);
});

const NO_NETWORK = `npm error code EAI_AGAIN
npm error request to https://registry.example/-/ping failed, reason: getaddrinfo EAI_AGAIN registry.example`;

// npm repeated its requests for 18 minutes, without a word.
test('without a network it ends at once, and says what to copy', async () => {
  const { status, stderr } = bootstrap({ NPM_PINGS: NO_NETWORK, XDG_CACHE_HOME: '/caches' });
  expect([status, stderr]).toEqual([1, expect.stringContaining('getaddrinfo EAI_AGAIN registry.example')]);
  for (const copied of [join(root, 'node_modules'), '/caches/tidemark']) expect(stderr).toContain(copied);
  expect(stderr.split('\n').filter((line) => line.length > 160)).toEqual([]);
  expect(await runs()).toEqual([]);
  expect(existsSync(join(root, '.tidemark-installing'))).toBe(false);
});

test.each(['npm error code E404', 'npm error code E401', 'npm error code ENOTCACHED'])(
  'a registry that answers "%s" is reached',
  async (answer) => {
    expect(bootstrap({ NPM_PINGS: answer }).status).toBe(0);
    expect(await runs()).toEqual(['install run']);
  },
);

test('a registry that does not answer is not awaited; a long install is told of every 5 s', {
  tags: ['nightly'],
}, async () => {
  const silent = bootstrap({ NPM_PINGS: 'silent' });
  expect([silent.status, silent.stderr]).toEqual([1, expect.stringContaining('did not answer within 5 s')]);
  const child = spawn(process.execPath, [join(root, 'shared/bootstrap.mjs')], {
    env: { ...process.env, npm_execpath: join(dir, 'npm.js'), NPM_HANGS: join(dir, 'begun') },
  });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text) => {
    said += text;
  });
  await vi.waitUntil(() => said.includes('packages'), { timeout: PATIENCE_MS });
  expect(said).toMatch(/installing dependencies, \d+ s: 0 of 1 packages/);
  child.kill('SIGKILL');
  await once(child, 'close');
});

test.each(['SIGINT', 'SIGTERM', 'SIGHUP'] as const)(
  '%s ends npm and it, and the next start begins anew',
  async (signal) => {
    const begun = join(dir, 'begun');
    const child = spawn(process.execPath, [join(root, 'shared/bootstrap.mjs')], {
      env: { ...process.env, npm_execpath: join(dir, 'npm.js'), NPM_HANGS: begun },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    let said = '';
    child.stderr.setEncoding('utf8').on('data', (text) => {
      said += text;
    });
    await vi.waitUntil(() => existsSync(begun), { timeout: PATIENCE_MS, interval: 10 });
    child.kill(signal);
    const [status] = await once(child, 'close');
    expect([status, said]).toEqual([130, expect.stringContaining('stopped while the dependencies were installed')]);
    expect(existsSync(join(root, '.tidemark-installing'))).toBe(true);
  },
);

test('shows what npm said when it fails, and tries again next time', async () => {
  const failed = bootstrap({ NPM_FAILS: '1' });
  expect(failed.status).toBe(1);
  expect(failed.stderr).toMatch(/registry is down[\s\S]*could not install the dependencies/);
  expect(bootstrap().status).toBe(0);
  expect(await runs()).toEqual(['install run', 'install run']);
});

// The lock of the installer that failed stayed, and the next one removed all packages, as after a kill.
test('after npm failed, the next run keeps the packages that are installed; after npm was killed, it does not', {
  tags: ['nightly'],
}, async () => {
  expect(bootstrap().status).toBe(0);
  const kept = join(root, 'node_modules', 'x.js');
  await writeFile(kept, '');
  await writeLock('1.0.1');
  expect(bootstrap({ NPM_FAILS: '1' }).status).toBe(1);
  expect(existsSync(join(root, '.tidemark-installing'))).toBe(false);
  expect(bootstrap().status).toBe(0);
  expect(existsSync(kept)).toBe(true);
  await writeLock('1.0.2');
  expect(bootstrap({ NPM_IS_KILLED: '1' }).status).toBe(1);
  expect(bootstrap().status).toBe(0);
  expect(existsSync(kept)).toBe(false);
});

// A shell that runs npm reports the signal that killed it as 128 and its number.
test('npm that was killed behind a script counted as failed, and its half-unpacked packages as whole', {
  tags: ['nightly'],
}, async () => {
  expect(bootstrap({ NPM_FAILS: '137' }).status).toBe(1);
  expect(existsSync(join(root, '.tidemark-installing'))).toBe(true);
  expect(bootstrap().status).toBe(0);
});

test('the launcher runs from any folder, through links, and hands over its arguments', async () => {
  bootstrap();
  await mkdir(join(root, 'node_modules/.bin'), { recursive: true });
  const node = join(root, 'node_modules/.bin/node');
  await writeFile(node, '#!/bin/sh\nfor argument in "$@"; do echo "<$argument>"; done\nexit 7\n');
  await chmod(node, 0o755);
  await mkdir(join(dir, 'bin'));
  await symlink('../a project/tidemark', join(dir, 'bin', 'first'));
  await symlink(join(dir, 'bin', 'first'), join(dir, 'bin', 'second'));
  const result = spawnSync('second', ['status', '--note', 'two words', ''], {
    cwd: '/',
    encoding: 'utf8',
    env: { PATH: [join(dir, 'bin'), dirname(process.execPath), '/usr/bin', '/bin'].join(delimiter) },
  });
  expect(result.stderr).toBe('');
  expect(result.stdout).toBe(
    `<--initial-old-space-size=512>\n<${root}/pipelines/cli/main.ts>\n<status>\n<--note>\n<two words>\n<>\n`,
  );
  expect(result.status).toBe(7);
});

describe('a fresh clone', () => {
  const scripts = async () =>
    JSON.parse(await readFile(join(PROJECT, 'package.json'), 'utf8')).scripts as Record<string, string>;

  test('every npm script sets itself up first', async () => {
    const all = await scripts();
    const own = Object.keys(all).filter((name) => !name.startsWith('pre'));
    expect(own).toContain('bench');
    const needed = (name: string) => `node shared/bootstrap.mjs${name === 'start' ? '' : ' --dev'}`;
    expect(Object.fromEntries(own.map((name) => [name, all[`pre${name}`]]))).toEqual(
      Object.fromEntries(own.map((name) => [name, needed(name)])),
    );
  });

  /** @returns how npm runs a script in the clone: the one before it first, and the programs of the dependencies on the PATH. */
  async function cloned() {
    const clone = join(dir, 'a clone');
    const left = new Set(['node_modules', '.git', '.tidemark', '.env', 'coverage'].map((name) => join(PROJECT, name)));
    await cp(PROJECT, clone, { recursive: true, filter: (path) => !left.has(path) });
    // Installs as npm does, without a registry: of what is installed here, what is asked for.
    const installer = join(dir, 'install.js');
    await writeFile(
      installer,
      `if (process.argv[2] === 'ping') process.exit();
       const fs = require('node:fs');
       fs.rmSync('node_modules', { recursive: true, force: true });
       require('node:child_process').execFileSync('cp', ['-al', ${JSON.stringify(join(PROJECT, 'node_modules'))}, 'node_modules']);
       fs.rmSync('node_modules/.tidemark-stamp', { force: true });
       const recorded = 'node_modules/.package-lock.json';
       const lock = JSON.parse(fs.readFileSync(recorded, 'utf8'));
       fs.rmSync(recorded);
       for (const [path, { dev }] of Object.entries(lock.packages)) {
         if (!dev || !process.argv.includes('--omit=dev')) continue;
         fs.rmSync(path, { recursive: true, force: true });
         delete lock.packages[path];
       }
       fs.writeFileSync(recorded, JSON.stringify(lock));`,
    );
    const all = await scripts();
    const env: NodeJS.ProcessEnv = {
      PATH: [join(clone, 'node_modules/.bin'), dirname(process.execPath), '/usr/bin', '/bin'].join(delimiter),
      HOME: process.env.HOME,
      npm_execpath: installer,
      // As ./tidemark has it: a bench starts often here.
      NODE_COMPILE_CACHE: join(dir, 'compiled'),
    };
    const commandOf = (name: string, more = '') => ['-c', `${all[`pre${name}`]} && ${all[name]} ${more}`];
    return { cwd: clone, env, commandOf };
  }

  test('a start runs without what only tests, checks and benches need', { tags: ['nightly'] }, async () => {
    const { cwd, env, commandOf } = await cloned();
    const up = spawn('sh', commandOf('start'), {
      cwd,
      env: { ...env, SVC_STATE_DIR: join(dir, 'state'), SVC_HTTP_PORT: '0', SVC_SAMPLE: 'false' },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let noted = '';
    up.stderr.on('data', (text) => {
      noted += text;
    });
    try {
      const ended = once(up, 'exit');
      const [said] = await Promise.race([once(up.stdout, 'data'), ended]);
      expect(String(said), noted).toContain('Tidemark is up');
      expect(existsSync(join(cwd, 'node_modules/typescript'))).toBe(false);
      up.kill('SIGTERM');
      expect(await ended).toEqual([0, null]);
    } finally {
      up.kill('SIGTERM');
    }
  });

  test('docs and bench run in it, and a mistake in an option of a bench is told in a sentence', {
    tags: ['nightly'],
  }, async () => {
    const { cwd, env, commandOf } = await cloned();
    const run = (name: string, more = '') => spawnSync('sh', commandOf(name, more), { cwd, encoding: 'utf8', env });
    const docs = run('docs');
    expect([docs.status, docs.stdout], docs.stderr).toEqual([0, '']);
    expect(docs.stderr).toContain('dependencies installed');
    const { status, stdout, stderr } = run('bench', 'nothing');
    expect([status, stdout], stderr).toEqual([2, '']);
    expect(stderr).not.toMatch(/^\s+at /m);
  });
});
