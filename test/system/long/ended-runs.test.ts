/** A run of tests that is ended from outside leaves no server behind. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { expect, test } from 'vitest';
import { ROOT } from '../../support/command.ts';
import { temporaryDir } from '../../support/stack.ts';

const vitest = JSON.stringify(join(ROOT, 'node_modules/vitest/dist/index.js'));
const support = (name: string) => JSON.stringify(join(ROOT, 'test/support', name));

/** A project whose one test has the servers of the run, two of its own and a Bitcoin node, and waits for ever. */
async function projectThatWaits(): Promise<string> {
  const dir = await temporaryDir();
  await mkdir(join(dir, 'tmp'), { mode: 0o755 });
  const { scripts } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'));
  const script = scripts.test.replaceAll(/ --project \w+/g, '');
  await writeFile(join(dir, 'package.json'), JSON.stringify({ type: 'module', scripts: { test: script } }));
  await writeFile(
    join(dir, 'vitest.config.ts'),
    `export default { test: {
       include: ['waits.test.ts'], pool: 'forks', maxWorkers: 1, testTimeout: 600_000,
       globalSetup: [${support('global-setup.ts')}], server: { deps: { inline: true } },
     } };`,
  );
  await writeFile(
    join(dir, 'waits.test.ts'),
    `import { writeFileSync } from 'node:fs';
     import { test } from ${vitest};
     import { createNode } from ${support('bitcoin.ts')};
     import { createMigratedEnv, createPrivateStack } from ${support('stack.ts')};
     test('waits', async () => {
       await using env = await createMigratedEnv();
       await using own = await createPrivateStack();
       await using node = await createNode({});
       writeFileSync(${JSON.stringify(join(dir, 'ready'))}, '');
       await new Promise((resolve) => setTimeout(resolve, 600_000));
     });`,
  );
  return dir;
}

interface Running {
  readonly pid: string;
  readonly parent: string;
  readonly command: string;
}

/** Living processes whose commands name the folder: servers, workers, runners. */
async function processesOf(dir: string): Promise<Running[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const all = pids.map(async (pid): Promise<Running> => {
    const [command, status] = await Promise.all(
      ['cmdline', 'status'].map((file) => readFile(`/proc/${pid}/${file}`, 'utf8').catch(() => '')),
    );
    return { pid, parent: /^PPid:\s+(\d+)/m.exec(status)?.[1] ?? '', command: command.replaceAll('\0', ' ') };
  });
  return (await Promise.all(all)).filter(({ command }) => command.includes(dir));
}

const SERVERS = ['postgres', 'nats-server', 'bitcoind'];

/** A new backend of PostgreSQL has the command of its server until it has named itself, so children are not counted. */
function serversAmong(running: readonly Running[]): number[] {
  return SERVERS.map((name) => {
    const all = running.filter(({ command }) => command.split(' ')[0].endsWith(name));
    const pids = new Set(all.map(({ pid }) => pid));
    // One that ended while it was looked at has no parent.
    return all.filter(({ parent }) => parent !== '' && !pids.has(parent)).length;
  });
}

// PostgreSQL and nats-server run in sessions of their own and lived on.
test.each<[string, (run: number, vitest: number) => void]>([
  ['SIGTERM to npm', (run) => process.kill(run, 'SIGTERM')],
  ['SIGTERM to vitest', (_, runner) => process.kill(runner, 'SIGTERM')],
  ['a closed terminal', (run) => process.kill(-run, 'SIGHUP')],
  ['kill -9 of vitest', (_, runner) => process.kill(runner, 'SIGKILL')],
])('%s leaves no server', async (_, end) => {
  const dir = await projectThatWaits();
  try {
    const run = spawn('npm', ['test', '--', '--root', dir], {
      cwd: dir,
      detached: true,
      stdio: 'ignore',
      env: environmentOf(dir),
    });
    const ended = once(run, 'exit');
    await expect.poll(() => readdir(dir)).toContain('ready');
    expect(serversAmong(await processesOf(dir))).toEqual([2, 2, 1]);
    end(run.pid as number, await runnerOf(run.pid as number));
    await ended;
    await expect.poll(() => processesOf(dir)).toEqual([]);
    expect(await readdir(join(dir, 'tmp'))).toEqual([]);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});

// It shared the servers of the first run, and ended them when it was ended itself.
test('a second run in the same tree is refused, and the first goes on', async () => {
  const dir = await projectThatWaits();
  const options = { cwd: dir, env: environmentOf(dir) };
  const run = spawn('npm', ['test', '--', '--root', dir], { ...options, detached: true, stdio: 'ignore' });
  const ended = once(run, 'exit');
  try {
    await expect.poll(() => readdir(dir)).toContain('ready');
    const second = spawnSync('npm', ['test', '--', '--root', dir], { ...options, encoding: 'utf8' });
    expect(second.status).not.toBe(0);
    expect(second.stderr).toContain('Another run of the tests uses the servers of this tree');
    expect(serversAmong(await processesOf(dir))).toEqual([2, 2, 1]);
  } finally {
    process.kill(-(run.pid as number), 'SIGTERM');
    await ended;
    await expect.poll(() => processesOf(dir)).toEqual([]);
    await rm(dir, { recursive: true, force: true });
  }
});

const environmentOf = (dir: string) => ({
  ...process.env,
  PATH: [join(ROOT, 'node_modules/.bin'), process.env.PATH].join(delimiter),
  TMPDIR: join(dir, 'tmp'),
});

/** The process below npm and its shell that runs vitest. */
async function runnerOf(npm: number): Promise<number> {
  for (let pid = npm; ; ) {
    const [child] = (await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')).trim().split(' ');
    if (!child) throw new Error(`no vitest below process ${npm}`);
    pid = Number(child);
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8');
    if (command.includes('vitest') && !command.startsWith('sh\0')) return pid;
  }
}

// It ran the tests instead.
test('npm test -- --version says the version of vitest', () => {
  const { stdout, status } = spawnSync('npm', ['test', '--silent', '--', '--version'], { cwd: ROOT, encoding: 'utf8' });
  expect([status, stdout]).toEqual([0, expect.stringMatching(/^vitest\/\d+\.\d+\.\d+/)]);
});
