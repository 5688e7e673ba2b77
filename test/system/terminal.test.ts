/** What an operator sees of `./tidemark up`: through a pipe, when the reader goes away, and on a terminal. Embedded servers. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, symlink } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { TerminalLog } from '../../pipelines/cli/terminal-log.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { endProcess, isAlive, type ProcessRef, processRef } from '../../shared/stack/processes.ts';
import { ROOT } from '../support/command.ts';
import { given } from '../support/given.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { remember, temporaryDir } from '../support/stack.ts';

/** One after the other uses its state folder: the first makes the cluster and its tables. */
let home: string;
let forget: () => Promise<void>;
let dir: string;
let child: ChildProcess | undefined;

beforeAll(async () => {
  home = await temporaryDir();
  forget = await remember(home);
});
afterAll(async () => {
  await rm(home, { recursive: true, force: true });
  await forget();
});

beforeEach(async () => {
  dir = await temporaryDir();
});
afterEach(async () => {
  if (child && child.exitCode === null && child.signalCode === null) {
    child.kill('SIGTERM');
    await once(child, 'exit');
  }
  for (const server of await servers()) await endProcess(server, [{ signal: 'SIGKILL', waitMs: 60_000 }]);
  await rm(dir, { recursive: true, force: true });
});

const stateDir = () => join(home, 'stack');

const settings = (more: Readonly<Record<string, string>> = {}) => ({
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('SVC_'))),
  SVC_STATE_DIR: stateDir(),
  SVC_HTTP_PORT: '0',
  SVC_SAMPLE: 'false',
  ...more,
});

async function servers(): Promise<ProcessRef[]> {
  const text = await readFile(join(stateDir(), 'stack.json'), 'utf8').catch(() => '{"servers":{}}');
  return Object.values(JSON.parse(text).servers as Record<string, ProcessRef>).filter(({ pid }) => pid > 0);
}

function start(more: Readonly<Record<string, string>> = {}, args: readonly string[] = ['up']) {
  const up = spawn(join(ROOT, 'tidemark'), args, { env: settings(more), stdio: ['ignore', 'pipe', 'pipe'] });
  child = up;
  const said = { out: '', err: '' };
  up.stdout.setEncoding('utf8').on('data', (text) => {
    said.out += text;
  });
  up.stderr.setEncoding('utf8').on('data', (text) => {
    said.err += text;
  });
  const until = (look: () => boolean) =>
    vi.waitUntil(() => up.exitCode !== null || up.signalCode !== null || look(), {
      timeout: PATIENCE_MS,
      interval: 20,
    });
  return { up, said, until };
}

describe('without a terminal', () => {
  test('the generated key is not written: the banner says what prints it', { tags: ['nightly'] }, async () => {
    const { said, until } = start();
    await until(() => said.out.includes('Ctrl-C'));
    const { apiKey } = JSON.parse(await readFile(join(stateDir(), 'secrets.json'), 'utf8'));
    expect(said.out + said.err).not.toContain(apiKey);
    // The lines to paste work as they stand.
    const pasted = said.out.slice(said.out.indexOf('eval'), said.out.indexOf('Ctrl-C')).replace('curl -s', 'curl -sf');
    const shell = spawnSync('sh', ['-c', pasted], { cwd: ROOT, env: settings(), encoding: 'utf8' });
    expect([shell.status, shell.stderr]).toEqual([22, '']); // no sample is loaded: 404
    expect(said.out).toContain('Ctrl-C stops everything.');
    expect(said.out).not.toContain('sign-in');
    expect(said.out.split('\n').filter((line) => line.length > 100 && !line.includes(stateDir()))).toEqual([]);
  });

  // Each loaded its sample into that of the other.
  test('of two starts at the same moment one runs, and the other says where and ends with 0', async () => {
    const run = (...args: string[]) =>
      spawnSync(join(ROOT, 'tidemark'), args, { env: settings({ SVC_LOG_LEVEL: 'warn' }), encoding: 'utf8' });
    const before = run('env');
    expect([before.status, before.stdout, before.stderr]).toEqual([1, '', expect.stringContaining('No service runs')]);
    const starts = [start(), start()];
    await vi.waitUntil(() => starts.some(({ up }) => up.exitCode !== null), { timeout: PATIENCE_MS, interval: 20 });
    const [second, first] = starts.sort((a, b) => (b.up.exitCode ?? -1) - (a.up.exitCode ?? -1));
    child = first.up;
    await first.until(() => first.said.out.includes('Ctrl-C'));
    const [, url] = / {2}url {4}(\S+)/.exec(first.said.out)!;
    expect([second.up.exitCode, second.said.out]).toEqual([0, expect.stringContaining(`already runs at ${url} `)]);
    const { apiKey } = JSON.parse(await readFile(join(stateDir(), 'secrets.json'), 'utf8'));
    const { status, stdout, stderr } = run('env');
    expect([status, stdout, stderr]).toEqual([
      0,
      `export TIDEMARK_URL='${url}'\nexport TIDEMARK_KEY='${apiKey}'\n`,
      '',
    ]);
    first.up.kill('SIGINT');
    await once(first.up, 'exit');
    expect([first.up.exitCode, first.said.err.trimEnd().split('\n').at(-1)]).toEqual([0, 'tidemark: stopped']);
    expect(run('env').status).toBe(1);
  });

  test('a command that ends by itself has no JSON among its words; its log is in the file', async () => {
    const { up, said } = start({ SVC_LOG_LEVEL: 'info' }, ['status']);
    await once(up, 'close');
    expect([up.exitCode, said.err]).toEqual([0, '']);
    expect(said.out).toContain('exchange_a_spot_trades');
    expect(await readFile(join(stateDir(), 'log/tidemark.log'), 'utf8')).toContain('"process":"status"');
  });

  test('a port that another program has is told before a sample is made', async () => {
    const other = createServer();
    await once(other.listen(0, '127.0.0.1'), 'listening');
    const { port } = other.address() as AddressInfo;
    const { up, said } = start({ SVC_HTTP_PORT: String(port), SVC_SAMPLE: 'true' });
    await once(up, 'close');
    other.close();
    expect([up.exitCode, said.out]).toEqual([2, '']);
    expect(said.err).toContain(`port ${port}; another program does: choose another SVC_HTTP_PORT`);
    expect(said.err).not.toContain('sample');
  });

  test('a reader that goes away neither ends the service nor leaves its servers behind', {
    tags: ['nightly'],
  }, async () => {
    const { up, said, until } = start({ SVC_LOG_LEVEL: 'info' });
    // Before there is anything to read, as `| head -0` does, and later, as `2>&1 | head` does.
    up.stdout.destroy();
    await until(() => said.err.includes('"msg":"serving"'));
    up.stderr.destroy();
    const [first] = httpProcesses(up);
    process.kill(first, 'SIGKILL');
    await until(() => httpProcesses(up).some((pid) => pid !== first));
    expect([up.exitCode, up.signalCode]).toEqual([null, null]);
    const running = await servers();
    expect(running.filter(isAlive).length).toBe(2);
    // A terminal that is closed says so, too.
    up.kill('SIGHUP');
    expect(await once(up, 'exit')).toEqual([0, null]);
    expect(running.filter(isAlive)).toEqual([]);
  });
});

const EXCHANGES = [...DATASETS.values()].filter(({ trades }) => trades);
const HAS_SCRIPT = spawnSync('script', ['--version'], { encoding: 'utf8' }).stdout?.includes('util-linux') === true;

describe('on a terminal', () => {
  given(HAS_SCRIPT, '`script` of util-linux is missing: apt-get install bsdutils').test(
    'one line a dataset, warnings in words, JSON in a file',
    async () => {
      const nowhere = pathToFileURL(`${dir}/`).href;
      const terminal = startOnTerminal({
        SVC_SAMPLE: 'true',
        // Samples of the funds and of the macro series alone.
        ...Object.fromEntries(EXCHANGES.map(({ locations }) => [Object.values(locations)[0][0], nowhere])),
        SVC_BITCOIN_RPC_URL: 'http://127.0.0.1:1',
      });
      await terminal.until(() => /#sign-in=\S+\s/.test(terminal.written()));
      const written = terminal.written();
      expect(written).not.toContain('{"level"');
      const lines = written.split('\r\n').map((line) => line.split('\r\x1b[K').at(-1)!);
      for (const dataset of ['etf_daily_metrics', 'macro_series_metrics']) {
        expect(lines.filter((line) => line.includes(dataset))).toEqual([
          expect.stringMatching(/^ {2}\w+ +\d+ partitions +\d+ rows, synthetic +[\d.]+ s$/),
        ]);
      }
      // The bar was drawn, again and again, on one line that both feeds share, and is gone.
      const drawn = written.split('\r\x1b[K').filter((line) => /^(?:etf|macro) {2}/.test(line));
      expect(drawn.length).toBeGreaterThan(1);
      expect(lines.filter((line) => /^(?:etf|macro) /.test(line))).toEqual([]);
      // On a terminal the key is there to be used.
      const { apiKey } = JSON.parse(await readFile(join(stateDir(), 'secrets.json'), 'utf8'));
      expect(lines).toContain(`  key    ${apiKey}`);
      const [, url, token] = /^ {2}(\S+)\/#sign-in=(\S+)$/m.exec(lines.join('\n'))!;
      const signIn = () => fetch(`${url}/page/sign-in`, { method: 'POST', body: JSON.stringify({ token }) });
      expect(await (await signIn()).json()).toEqual({ key: apiKey });
      expect((await signIn()).status).toBe(409);
      expect(await readFile(join(stateDir(), 'log/tidemark.log'), 'utf8')).not.toContain(token);

      const [service] = httpProcesses(terminal.up());
      process.kill(service, 'SIGKILL');
      await terminal.until(() =>
        terminal.written().includes('warning: up: process ended, restarting it (child serving'),
      );
      const logged = (await readFile(join(stateDir(), 'log/tidemark.log'), 'utf8')).trimEnd().split('\n');
      const said = logged.map((line) => JSON.parse(line));
      for (const name of ['up', 'projector', 'serving']) expect(said.map((one) => one.process)).toContain(name);

      // The window is closed.
      const { pid } = terminal.up();
      const running = await servers();
      terminal.script.kill('SIGKILL');
      await vi.waitUntil(() => processRef(pid) === undefined, { timeout: PATIENCE_MS, interval: 20 });
      expect(running.filter(isAlive)).toEqual([]);
    },
  );
});

/** `up` on a terminal of its own, 100 columns wide. */
function startOnTerminal(more: Readonly<Record<string, string>>) {
  const command = `stty cols 100; exec ${join(ROOT, 'tidemark')} up`;
  const path = join(dir, 'typescript');
  const script = spawn('script', ['--quiet', '--flush', '--command', command, path], {
    env: settings({ SHELL: '/bin/sh', ...more }),
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  child = script;
  const written = () => (existsSync(path) ? readFileSync(path, 'utf8') : '');
  return {
    script,
    written,
    up: () => ({ pid: childrenOf(script.pid!)[0] }),
    until: (look: () => boolean) =>
      vi.waitUntil(() => script.exitCode !== null || look(), { timeout: PATIENCE_MS, interval: 20 }),
  };
}

/** Of this `up`: its own HTTP processes. */
const httpProcesses = ({ pid }: { readonly pid?: number }) => childrenOf(pid!, 'serving/main.ts');

function childrenOf(parent: number, named = ''): number[] {
  const { stdout } = spawnSync('ps', ['-o', 'pid=,args=', '--ppid', String(parent)], { encoding: 'utf8' });
  const found = stdout.split('\n').filter((line) => line.trim() !== '' && line.includes(named));
  return found.map((line) => Number(line.trim().split(' ')[0]));
}

describe('the log of a terminal', () => {
  const record = (more: object) =>
    `${JSON.stringify({ level: 40, time: '2024-01-01T00:00:00.000Z', process: 'up', ...more })}\n`;

  function open(maxBytes?: number) {
    const shown: string[] = [];
    const path = join(dir, 'state/log/tidemark.log');
    return { path, shown, log: new TerminalLog({ path, show: (line) => shown.push(line), maxBytes }) };
  }

  test('shows warnings and errors in words, once; what was told in words already is only kept', async () => {
    const { path, shown, log } = open();
    log.write(record({ level: 30, msg: 'all is well' }));
    const failed = { msg: 'the feed restarts', feed: 'etf', code: 'X_Y', fault: 'the provider is away' };
    for (let n = 0; n < 3; n++) log.write(record(failed));
    log.write(record({ ...failed, reported: true, feed: 'macro' }));
    log.write(
      record({ level: 50, msg: 'not ready', faults: ['a', 'b'], err: { type: 'Error', message: 'm', stack: 's' } }),
    );
    expect(shown).toEqual([
      'warning: up: the feed restarts (feed etf, code X_Y): the provider is away',
      'error: up: not ready: a; b; m',
    ]);
    expect((await readFile(path, 'utf8')).split('\n').length).toBe(7);
  });

  test('a child that crashes is shown by its words; its trace is kept', async () => {
    const { path, shown, log } = open();
    for (const line of [
      'tidemark serving: SVC_X: is wrong',
      'Error: no',
      '    at f (file:///x.ts:1:1)',
      '',
      '{"a":1',
    ]) {
      log.writeOf('serving', line);
    }
    expect(shown).toEqual(['tidemark serving: SVC_X: is wrong', 'Error: no', '{"a":1']);
    const kept = (await readFile(path, 'utf8')).trimEnd().split('\n');
    expect(kept.map((line) => JSON.parse(line).msg)).toContain('    at f (file:///x.ts:1:1)');
  });

  test('does not grow without bound, whoever else writes to it', async () => {
    const MAX = 10_000;
    const [one, other] = [open(MAX), open(MAX)];
    for (let n = 0; n < 1000; n++) {
      one.log.write(record({ level: 30, msg: `line ${n} of one` }));
      other.log.write(record({ level: 30, msg: `line ${n} of the other` }));
    }
    const sizes = (await readdir(dirname(one.path))).map((name) => statSync(join(dirname(one.path), name)).size);
    expect(sizes.length).toBe(2);
    for (const size of sizes) expect(size).toBeLessThan(4 * MAX);
    const last = (await readFile(one.path, 'utf8')) + (await readFile(`${one.path}.1`, 'utf8'));
    for (const name of ['one', 'the other']) expect(last).toContain(`line 999 of ${name}"`);
  });

  test('a file that cannot be written keeps nobody from showing and working', async () => {
    await mkdir(join(dir, 'state/log'), { recursive: true });
    await symlink('/dev/full', join(dir, 'state/log/tidemark.log'));
    const { shown, log } = open();
    log.write(record({ msg: 'no room' }));
    expect(shown).toEqual(['warning: up: no room']);
  });
});
