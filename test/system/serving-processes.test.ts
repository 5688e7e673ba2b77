/** SVC_HTTP_PROCESSES: several serving processes on one port, when one of them or their supervisor is killed or stands still. */
import { type ChildProcess, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { request as httpRequest } from 'node:http';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { isAlive, type ProcessRef, processRef } from '../../shared/stack/processes.ts';
import { freePort } from '../../shared/stack/state.ts';
import { givenTool } from '../support/given.ts';
import { parseMetrics, type Sample, sampleOf } from '../support/metrics.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { API_KEY, eventually, OWN_MATRIX } from '../support/serving.ts';
import { said, startServingProcess } from '../support/serving-process.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';
import { promtool } from '../support/tools.ts';

const PROMTOOL = await promtool();

let env: TestEnv;
beforeAll(async () => {
  env = await createMigratedEnv();
});
afterAll(() => env[Symbol.asyncDispose]());

interface Answer {
  readonly status: number;
  readonly text: string;
}

/** Each on a connection of its own. */
function get(url: string, path: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const outgoing = httpRequest(
      `${url}${path}`,
      { agent: false, headers: { 'X-API-Key': API_KEY }, timeout: PATIENCE_MS },
      async (answer) => {
        resolve({ status: answer.statusCode!, text: await text(answer) });
      },
    );
    outgoing.on('error', reject).on('timeout', () => outgoing.destroy(new Error('no answer')));
    outgoing.end();
  });
}

interface Service {
  readonly url: string;
  readonly child: ChildProcess;
  readonly settings: Record<string, string>;
  processes(): ProcessRef[];
  scrape(): Promise<Sample[]>;
  /** The numbers of the processes that a scrape shows. */
  shown(): Promise<string[]>;
}

async function startService(given: Record<string, string> = {}): Promise<Service> {
  const port = given.SVC_HTTP_PORT ?? String(await freePort());
  const settings = {
    SVC_DATABASE_URL: env.databaseUrl,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    SVC_STATE_DIR: env.dir,
    SVC_HTTP_PORT: port,
    SVC_HTTP_PROCESSES: '2',
    SVC_LOG_LEVEL: 'warn',
    ...given,
  };
  // As `up` gives them, since some are secret.
  const child = startServingProcess(env.dir, {}, { settings });
  child.stderr!.resume();
  onTestFinished(async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill();
    await once(child, 'exit');
  });
  const { url, pid } = await said(child);
  expect(pid).toBe(child.pid);
  const scrape = async () => {
    const answer = await get(url, '/metrics');
    expect(answer.status).toBe(200);
    return parseMetrics(answer.text);
  };
  const shown = async () => {
    const limits = (await scrape()).filter(
      ({ name, labels }) => name === 'tidemark_change_listeners_limit' && labels.process !== undefined,
    );
    return limits.map(({ labels }) => labels.process).sort();
  };
  await eventually(async () => (await shown()).join(' ') === '1 2', 'both processes serve');
  return {
    ...{ url, child, settings, scrape, shown },
    processes: () => childrenOf(pid).flatMap((one) => processRef(one) ?? []),
  };
}

/** Sends requests, each on a new connection, until the work is done. @returns the number of answers. */
async function asking(url: string, work: () => Promise<unknown>): Promise<number> {
  let isDone = false;
  const working = work().finally(() => {
    isDone = true;
  });
  let answers = 0;
  while (!isDone) {
    for (const { status } of await Promise.all([1, 2, 3].map(() => get(url, '/healthz')))) {
      expect(status).toBe(200);
      answers++;
    }
  }
  await working;
  return answers;
}

describe('two processes on one port', () => {
  test('share connections, divide limits, and a scrape of any of them shows both', async () => {
    const { url, child, scrape } = await startService({ SVC_QUERY_MAX_CONCURRENCY: '7' });
    const counted = 'tidemark_http_request_duration_seconds_count';
    let samples: Sample[] = [];
    await eventually(async () => {
      await Promise.all(Array.from({ length: 4 }, () => get(url, '/healthz')));
      samples = await scrape();
      const answers = samples.filter(({ name, labels }) => name === counted && labels.route === '/healthz');
      return answers.length === 2;
    }, 'both processes have answered requests');
    for (const process of ['1', '2']) {
      const of = (name: string, labels = {}) => sampleOf(samples, name, { process, ...labels });
      // Half of 7, rounded up: the shares are at least the whole.
      expect(of('tidemark_read_slots_limit', { queue: 'native', state: 'running' })).toBe(4);
      expect(of('tidemark_change_listeners_limit')).toBe(5000);
      expect(of('process_start_time_seconds')).toBeGreaterThan(1e9);
      expect(of('process_resident_memory_bytes')).toBeGreaterThan(1e6);
    }
    // Of the whole system, and so once.
    for (const name of ['tidemark_build_info', 'tidemark_database_up']) expect(sampleOf(samples, name), name).toBe(1);
    // One process alone runs exports.
    await using client = await connect({ url: env.databaseUrl, name: 'test' });
    const workers = `select 1 from pg_stat_activity
      where datname = current_database() and application_name = 'tidemark export worker'`;
    await eventually(async () => (await client.query(workers)).rows.length === 1, 'the worker of one process');
    child.kill();
    expect(await once(child, 'exit')).toEqual([0, null]);
  });

  givenTool(PROMTOOL).test('promtool accepts a scrape of both', async () => {
    const { url } = await startService();
    const { text: metrics } = await get(url, '/metrics');
    const { status, stdout, stderr } = spawnSync(PROMTOOL.path, ['check', 'metrics'], {
      input: metrics,
      encoding: 'utf8',
    });
    expect([stdout, stderr, status]).toEqual(['', '', 0]);
  });

  test('one is killed: no request after it fails, and another takes its place', async () => {
    const { url, child, processes, shown } = await startService();
    const before = processes();
    expect(before).toHaveLength(2);
    for (const { pid } of before) {
      const open = await Promise.all(['environ', 'cmdline'].map((name) => readFile(`/proc/${pid}/${name}`, 'utf8')));
      expect(open.join(' ')).toContain('serving/main.ts');
      expect(open.join(' ')).not.toContain(API_KEY);
    }
    process.kill(before[0].pid, 'SIGKILL');
    await eventually(() => processes().some(({ pid }) => before.every((one) => one.pid !== pid)), 'its end is noticed');
    const answers = await asking(url, async () => {
      await eventually(async () => (await shown()).length === 2, 'two processes serve again');
    });
    expect(answers).toBeGreaterThan(0);
    const after = processes();
    expect(after).toHaveLength(2);
    expect(after.filter(isAlive)).toEqual(after);
    expect(after).toContainEqual(before[1]);
    // The processes end when they are stopped in order, and none is started again.
    child.kill();
    expect(await once(child, 'exit')).toEqual([0, null]);
    expect(after.filter(isAlive)).toEqual([]);
  });

  test('both are killed: the service is on the same port again', { tags: ['nightly'] }, async () => {
    const { processes, shown } = await startService();
    const both = processes();
    for (const { pid } of both) process.kill(pid, 'SIGKILL');
    // A connection that was handed to one of them before its end was noticed would have no answer.
    const isNew = ({ pid }: ProcessRef) => both.every((one) => one.pid !== pid);
    await eventually(() => processes().filter(isNew).length === 2, 'their end is noticed');
    await eventually(async () => (await shown().catch(() => [])).length === 2, 'two processes serve again');
  });

  test('one stands still: the other takes every connection but one, and answers scrapes without it', {
    tags: ['nightly'],
  }, async () => {
    const { url, processes, shown } = await startService();
    const [first] = processes();
    process.kill(first.pid, 'SIGSTOP');
    let answered = 0;
    const asked = Array.from({ length: 40 }, () =>
      get(url, '/healthz').then(({ status }) => status === 200 && answered++),
    );
    await eventually(() => answered >= 39, 'the other answers');
    expect(await shown()).toHaveLength(1);
    process.kill(first.pid, 'SIGCONT');
    await Promise.all(asked);
    expect(answered).toBe(40);
    await eventually(async () => (await shown()).length === 2, 'a scrape shows both again');
  });

  test('their supervisor is killed: both end, and the next start has the port, even from one that stands still', async () => {
    const { child, settings, processes } = await startService();
    const [first, second] = processes();
    process.kill(first.pid, 'SIGSTOP');
    child.kill('SIGKILL');
    await once(child, 'exit');
    await eventually(() => !isAlive(second), 'the one that runs has ended');
    const next = await startService(settings);
    expect(new URL(next.url).port).toBe(settings.SVC_HTTP_PORT);
    process.kill(first.pid, 'SIGCONT');
    await eventually(() => !isAlive(first), 'the other has ended');
  });

  test('a stop in order ends one that stands still too', { tags: ['nightly'] }, async () => {
    const { child, processes } = await startService();
    const stopped = processes();
    process.kill(stopped[1].pid, 'SIGSTOP');
    child.kill();
    expect(await once(child, 'exit')).toEqual([0, null]);
    expect(stopped.filter(isAlive)).toEqual([]);
  });
});

function childrenOf(pid: number): number[] {
  const { stdout } = spawnSync('ps', ['-o', 'pid=', '--ppid', String(pid)], { encoding: 'utf8' });
  return stdout.trim().split(/\s+/).map(Number);
}

test('a port that is taken, and settings that are wrong, end the start of several processes as that of one', {
  tags: ['nightly'],
}, async () => {
  const { settings } = await startService();
  for (const [wrong, fault] of [
    [{}, `port ${settings.SVC_HTTP_PORT}; another program does: choose another SVC_HTTP_PORT`],
    [{ SVC_QUERY_MAX_QUEUE: '-1' }, 'SVC_QUERY_MAX_QUEUE'],
  ] as const) {
    const refused = startServingProcess(env.dir, {}, { settings: { ...settings, ...wrong } });
    const stderr = text(refused.stderr!);
    expect((await once(refused, 'exit'))[0]).toBe(2);
    expect(await stderr).toContain(fault);
  }
});
