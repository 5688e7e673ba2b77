/** What runs before anything is installed: the bootstrap and the launcher, in a small project of their own. */
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { chmod, cp, mkdir, readFile, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
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
     fs.appendFileSync(${JSON.stringify(join(dir, 'runs'))}, process.argv.slice(2, 3) + '\\n');
     if (process.env.NPM_FAILS) { console.error('registry is down'); process.exit(1); }
     fs.mkdirSync('node_modules', { recursive: true });
     fs.copyFileSync('package-lock.json', 'node_modules/.package-lock.json');`,
  );
});

afterEach(() => rm(dir, { recursive: true, force: true }));

const writeLock = (version: string) =>
  writeFile(
    join(root, 'package-lock.json'),
    JSON.stringify({ lockfileVersion: 3, packages: { '': {}, 'node_modules/x': { version } } }),
  );

const runs = async () => (await readFile(join(dir, 'runs'), 'utf8').catch(() => '')).split('\n').filter(Boolean);

function bootstrap(env: NodeJS.ProcessEnv = {}) {
  return spawnSync(process.execPath, [join(root, 'shared/bootstrap.mjs')], {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, npm_execpath: join(dir, 'npm.js'), ...env },
  });
}

test('installs once, and again when the lock file changes', async () => {
  expect(bootstrap().stderr).toMatch(/installing dependencies/);
  const warm = bootstrap();
  expect([warm.status, warm.stderr]).toEqual([0, '']);
  expect(await runs()).toEqual(['install']);
  await writeLock('1.0.1');
  expect(bootstrap().status).toBe(0);
  expect(await runs()).toEqual(['install', 'install']);
});

// Anybody may make a folder below the temporary directory; one that named a living process was waited for for ever.
test('a folder that another made below the temporary directory holds nobody up', async () => {
  const hash = createHash('sha256').update(root).digest('hex').slice(0, 12);
  const foreign = join(dir, 'tmp', `tidemark-npm-${hash}`);
  await mkdir(foreign, { recursive: true });
  await writeFile(join(foreign, 'pid'), '1');
  expect(bootstrap({ TMPDIR: join(dir, 'tmp') }).status).toBe(0);
  expect(await runs()).toEqual(['install']);
  expect(await readFile(join(foreign, 'pid'), 'utf8')).toBe('1');
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
  expect(await runs()).toEqual(['install']);
});

test('accepts what was installed by hand', async () => {
  await mkdir(join(root, 'node_modules'));
  await cp(join(root, 'package-lock.json'), join(root, 'node_modules/.package-lock.json'));
  expect(bootstrap().status).toBe(0);
  expect(await runs()).toEqual([]);
});

test('shows what npm said when it fails, and tries again next time', async () => {
  const failed = bootstrap({ NPM_FAILS: '1' });
  expect(failed.status).toBe(1);
  expect(failed.stderr).toMatch(/registry is down[\s\S]*could not install the dependencies/);
  expect(bootstrap().status).toBe(0);
  expect(await runs()).toEqual(['install', 'install']);
});

test('with nothing to do it is little more than the start of Node', () => {
  bootstrap();
  // Work, not time: a busy machine makes nobody work more.
  const tell = `import { writeSync } from 'node:fs';
    process.on('exit', () => { const { user, system } = process.cpuUsage(); writeSync(1, 'worked ' + (user + system)); });`;
  const env = { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(tell)}` };
  const worked = ({ stdout }: { readonly stdout: string }) => Number(/worked (\d+)$/.exec(stdout)![1]);
  const works = Array.from({ length: 5 }, () => [
    worked(bootstrap(env)),
    worked(spawnSync(process.execPath, ['--eval', '0'], { encoding: 'utf8', env: { ...process.env, ...env } })),
  ]);
  const [ours, bare] = [0, 1].map((index) => Math.min(...works.map((pair) => pair[index])));
  expect(ours).toBeLessThan(4 * bare);
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
    expect(Object.fromEntries(own.map((name) => [name, all[`pre${name}`]]))).toEqual(
      Object.fromEntries(own.map((name) => [name, 'node shared/bootstrap.mjs'])),
    );
  });

  test('docs and bench run in it, and a mistake in an option of a bench is told in a sentence', async () => {
    const clone = join(dir, 'a clone');
    const left = new Set(['node_modules', '.git', '.tidemark', '.env', 'coverage'].map((name) => join(PROJECT, name)));
    await cp(PROJECT, clone, { recursive: true, filter: (path) => !left.has(path) });
    // Installs as npm does, without a registry: what is installed here.
    const installer = join(dir, 'install.js');
    const copy = `require('node:child_process').execFileSync('cp', ['-al', ${JSON.stringify(join(PROJECT, 'node_modules'))}, 'node_modules']);`;
    await writeFile(installer, `${copy} require('node:fs').rmSync('node_modules/.tidemark-stamp', { force: true });`);
    const all = await scripts();
    // As npm runs a script: the one before it first, and the programs of the dependencies on the PATH.
    const run = (name: string, more = '') =>
      spawnSync('sh', ['-c', `${all[`pre${name}`]} && ${all[name]} ${more}`], {
        cwd: clone,
        encoding: 'utf8',
        env: {
          PATH: [join(clone, 'node_modules/.bin'), dirname(process.execPath), '/usr/bin', '/bin'].join(delimiter),
          npm_execpath: installer,
          // As ./tidemark has it: a bench starts nine times here.
          NODE_COMPILE_CACHE: join(dir, 'compiled'),
        },
      });
    const docs = run('docs');
    expect([docs.status, docs.stdout], docs.stderr).toEqual([0, '']);
    expect(docs.stderr).toContain('dependencies installed');
    for (const [wrong, message] of [
      ['', 'Usage: npm run bench -- bitcoin|'],
      ['nothing', 'Usage: npm run bench -- bitcoin|'],
      ['ingest --nothing', "Unknown option '--nothing'"],
      ['ingest --rows many', '--rows must be a whole number from 1 on, got "many"'],
      ['ingest --rounds 0', '--rounds must be a whole number from 1 on, got "0"'],
      ['ingest --dataset x', '--dataset must be one of exchange_a_spot_trades,'],
      ['query --only x', '--only must be one of rows, latest,'],
      ['load extra', "Unexpected argument 'extra'"],
    ]) {
      const { status, stdout, stderr } = run('bench', wrong);
      expect({ wrong, status, stdout }, stderr).toEqual({ wrong, status: 2, stdout: '' });
      expect(stderr).toContain(message);
      expect(stderr).not.toMatch(/^\s+at /m);
    }
  });
});
