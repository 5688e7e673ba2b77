/** What an operator sees of `./tidemark up`: through a pipe, when the reader goes away, and on a terminal. Embedded servers. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { endProcess, isAlive, type ProcessRef } from '../shared/stack/processes.ts';
import { PATIENCE_MS } from './support/patience.ts';
import { ROOT } from './support/pipeline.ts';
import { remember, temporaryDir } from './support/stack.ts';

let dir: string;
let forget: () => Promise<void>;
let child: ChildProcess | undefined;

beforeEach(async () => {
  dir = await temporaryDir();
  forget = await remember(dir);
});
afterEach(async () => {
  if (child && child.exitCode === null && child.signalCode === null) {
    child.kill('SIGTERM');
    await once(child, 'exit');
  }
  for (const server of await servers()) await endProcess(server, [{ signal: 'SIGKILL', waitMs: 60_000 }]);
  await rm(dir, { recursive: true, force: true });
  await forget();
});

const stateDir = () => join(dir, 'stack');

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

function start(more: Readonly<Record<string, string>> = {}) {
  const up = spawn(join(ROOT, 'tidemark'), ['up'], { env: settings(more), stdio: ['ignore', 'pipe', 'pipe'] });
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
  test('the generated key is not written: the banner says where it is kept', async () => {
    const { said, until } = start();
    await until(() => said.out.includes('Ctrl-C'));
    const path = join(stateDir(), 'secrets.json');
    const { apiKey } = JSON.parse(await readFile(path, 'utf8'));
    expect(said.out + said.err).not.toContain(apiKey);
    expect(said.out).toContain(path);
    // The lines to paste work in a shell that has read the key as the banner says.
    const read = /^ +(KEY=.*)$/m.exec(said.out)![1];
    const url = / {2}url {4}(\S+)/.exec(said.out)![1];
    const shell = spawn('sh', [
      '-c',
      `${read}; curl -s -o /dev/null -w '%{http_code}' ${url}/v1/datasets -H "X-API-Key: $KEY"`,
    ]);
    let status = '';
    shell.stdout.setEncoding('utf8').on('data', (text) => {
      status += text;
    });
    await once(shell, 'close');
    expect(status).toBe('200');
  });

  test('a reader that goes away neither ends the service nor leaves its servers behind', async () => {
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

/** Of this `up`: its own HTTP processes. */
function httpProcesses({ pid }: ChildProcess): number[] {
  const { stdout } = spawnSync('ps', ['-o', 'pid=,args=', '--ppid', String(pid)], { encoding: 'utf8' });
  const found = stdout.split('\n').filter((line) => line.includes('serving/main.ts'));
  return found.map((line) => Number(line.trim().split(' ')[0]));
}
