/**
 * More than one of each, as far as one machine allows: three nats-servers of which one is killed during a backfill, two
 * projectors of which one works, two processes that serve.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { jetstreamManager } from '@nats-io/jetstream';
import { expect, test } from 'vitest';
import { PROJECTOR_LOCK } from '../../shared/db/connect.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { freePort } from '../../shared/stack/state.ts';
import { type Json, ROOT } from '../support/command.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { csvOf, DATASET, dayNames, documentPath, readLog, System, writeDocument } from '../support/pipeline.ts';
import { OWN_MATRIX } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { oneNatsAccount } from '../support/stack.ts';
import { startVendorServer } from '../support/vendor-server.ts';

const DAYS = dayNames('2024-06-01', 6);
const ROWS = 5000;
const STREAM_BYTES = 1 << 28;
const KEY = 'key-of-the-scale-test';

test('a node of the cluster is killed in a backfill: nothing is lost; a projector takes over from one that dies', async () => {
  await using system = await System.create();
  const program = system.env.natsServer;
  if (program === undefined) return; // Servers in Docker: no program to run three of.
  await using cluster = await startCluster(program, join(system.env.dir, 'cluster'));
  for (const [index, day] of DAYS.entries()) {
    const content = { day, rows: ROWS, seed: index + 1, firstId: 1 + index * ROWS, timeUnit: 'ms' } as const;
    await writeDocument(system.vendor, day, csvOf(content));
  }
  // The third day is slow to come: the node is killed between two days.
  await using vendor = await startVendorServer(system.vendor);
  vendor.fail(documentPath(DAYS[2]), { kind: 'stall', times: 1 });
  const env = {
    SVC_EXCHANGE_A_BASE_URL: vendor.url.href,
    ...limitsEnv({ sourceTimeoutMs: 4000 }),
    ...oneNatsAccount(cluster.url),
    SVC_STREAM_REPLICAS: '3',
    SVC_STREAM_MAX_BYTES: String(STREAM_BYTES),
  };
  const args = ['backfill', DATASET, '--from', DAYS[0], '--to', DAYS[4]];
  const running = system.start(args, env);
  let early: string | undefined;
  void running.done.then(({ stderr }) => {
    early = stderr;
  });
  const proved = async () =>
    (await system.rows<{ n: string }>(`select count(*) n from partitions where state = 'proved'`))[0].n;
  await expect.poll(async () => early ?? Number(await proved().catch(() => 0))).toBe(2);
  const { leader, replicas } = await streamOf(cluster.url);
  expect(replicas).toBe(3);
  await cluster.kill(leader);
  const { exit, json, stderr } = await running.done;
  expect([exit, json?.proved], stderr).toEqual([0, 5]);

  cluster.start(leader);

  // Two of each: the second projector starts when the first one projects.
  await using first = startProjector(system, cluster.url);
  const holder = async () => (await projectors(system))[DATASET];
  await expect.poll(holder).toBeDefined();
  const active = await holder();
  await using _second = startProjector(system, cluster.url);
  await using one = await startServing(system);
  await using two = await startServing(system);
  expect(await Promise.all([rowsOf(one.url), rowsOf(two.url)])).toEqual([5 * ROWS, 5 * ROWS]);
  expect(await holder()).toBe(active);
  first.child.kill('SIGKILL');
  await expect.poll(async () => (await holder()) ?? active).not.toBe(active);
  const last = await system.run(['backfill', DATASET, '--from', DAYS[5], '--to', DAYS[5]], env);
  expect([last.json?.error ?? last.json?.units[0].reason, last.exit], last.stderr).toEqual([undefined, 0]);
  expect(await Promise.all([rowsOf(one.url), rowsOf(two.url)])).toEqual([6 * ROWS, 6 * ROWS]);
  // Every message once, every row what the log says, the node that came back included.
  const log = await readLog(cluster.url);
  expect(new Set(log.map(({ subject }) => subject)).size).toBe(log.length);
  expect(log.filter(({ manifest }) => manifest)).toHaveLength(6);
  const deep = await system.run(['verify', DATASET, '--deep'], env);
  const faults = deep.json.units.filter(({ state }: Json) => state !== 'proved');
  expect([faults, deep.exit, deep.json.units.length]).toEqual([[], 0, 6]);
});

async function streamOf(url: string): Promise<{ leader: string; replicas: number }> {
  await using connection = await connectNats(url, 'test', {});
  const info = await (await jetstreamManager(connection)).streams.info(DATASET);
  return { leader: info.cluster!.leader!, replicas: info.config.num_replicas };
}

/** Server processes of the connections that hold the projectors' locks, by dataset. */
async function projectors(system: System): Promise<Record<string, number>> {
  const rows = await system.rows<Json>(
    `select d.key, l.pid from pg_locks l join datasets d on d.dataset_id = l.objid::int4
     where l.locktype = 'advisory' and l.classid = $1 and l.granted
       and l.database = (select oid from pg_database where datname = current_database()) order by 1`,
    [PROJECTOR_LOCK],
  );
  return Object.fromEntries(rows.map(({ key, pid }) => [key, pid]));
}

/** A process of ours with its options on standard input, killed when it is not needed any more. */
function startOurs(module: string, args: readonly string[], order: object): { child: ChildProcess } & AsyncDisposable {
  const child = spawn(process.execPath, [join(ROOT, module), ...args], { stdio: ['pipe', 'pipe', 'inherit'] });
  child.stdin.end(JSON.stringify({ cwd: ROOT, parent: process.pid, ...order }));
  return {
    child,
    async [Symbol.asyncDispose]() {
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGKILL');
        await once(child, 'exit');
      }
    },
  };
}

const startProjector = (system: System, natsUrl: string) =>
  startOurs('pipelines/projector/main.ts', [], {
    databaseUrl: system.env.databaseUrl,
    natsUrl,
    datasets: [DATASET],
    settings: { SVC_STREAM_REPLICAS: '3', SVC_STREAM_MAX_BYTES: String(STREAM_BYTES), SVC_LOG_LEVEL: 'error' },
  });

async function startServing(system: System): Promise<{ url: string } & AsyncDisposable> {
  const ours = startOurs('serving/main.ts', ['--stdin'], {
    settings: {
      SVC_DATABASE_URL: system.env.databaseUrl,
      SVC_INTERNAL_API_KEY: KEY,
      SVC_HTTP_PORT: '0',
      SVC_LOG_LEVEL: 'error',
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    },
  });
  const [line] = await once(ours.child.stdout!, 'data');
  return Object.assign(ours, { url: JSON.parse(line.toString()).url as string });
}

async function rowsOf(url: string): Promise<number> {
  const response = await fetch(`${url}/v1/raw/query`, {
    method: 'POST',
    headers: { 'X-API-Key': KEY },
    body: JSON.stringify({
      sources: [DATASET],
      fields: ['trade_id'],
      time_range: ['2024-06-01T00:00:00Z', '2024-06-08T00:00:00Z'],
    }),
  });
  return ((await response.json()) as Json).row_count;
}

// Three nats-servers on this machine that are one cluster, to kill.

const NODES = ['one', 'two', 'three'] as const;

interface Cluster extends AsyncDisposable {
  /** Of all three. */
  readonly url: string;
  /** SIGKILL. */
  kill(name: string): Promise<void>;
  /** It comes back with what it had. */
  start(name: string): void;
}

/**
 * Another process may take a port before its server does, and three that start on a busy machine may not find each other (seen
 * once: no suitable peers for 120 s). Then three others start, on other ports and with empty stores.
 */
async function startCluster(program: string, dir: string): Promise<Cluster> {
  const deadline = Date.now() + PATIENCE_MS;
  for (let attempt = 0; ; attempt++) {
    const cluster = await tryCluster(program, join(dir, `${attempt}`));
    if (cluster) return cluster;
    if (Date.now() > deadline) throw new Error(`three nats-servers did not join within ${PATIENCE_MS / 1000} s`);
  }
}

async function tryCluster(program: string, dir: string): Promise<Cluster | undefined> {
  const ports = await Promise.all(NODES.flatMap(() => [freePort(), freePort()]));
  const routes = NODES.map((_, index) => `nats://127.0.0.1:${ports[index * 2 + 1]}`);
  const children = new Map<string, ChildProcess>();
  const start = (name: string) => {
    children.set(name, spawn(program, ['--config', join(dir, `${name}.conf`)], { stdio: 'ignore' }));
  };
  for (const [index, name] of NODES.entries()) {
    const store = join(dir, name);
    await mkdir(store, { recursive: true });
    const path = join(dir, `${name}.conf`);
    await writeFile(
      path,
      `server_name: ${name}
listen: "127.0.0.1:${ports[index * 2]}"
jetstream { store_dir: ${JSON.stringify(store)}, max_memory_store: 64MB, max_file_store: 20GB }
cluster { name: trial, listen: "127.0.0.1:${ports[index * 2 + 1]}", routes: ${JSON.stringify(routes)} }
`,
    );
    start(name);
  }
  const hosts = NODES.map((_, index) => `127.0.0.1:${ports[index * 2]}`);
  const url = `nats://${hosts[0]}?servers=${hosts.slice(1).join(',')}`;
  const isLost = () => [...children.values()].some(({ exitCode }) => exitCode !== null);
  const end = async (name: string, signal: NodeJS.Signals) => {
    const child = children.get(name);
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill(signal);
    await once(child, 'exit');
  };
  const endAll = async () => void (await Promise.all(NODES.map((name) => end(name, 'SIGKILL'))));
  if (!(await untilJoined(url, isLost))) {
    await endAll();
    return undefined;
  }
  return { url, kill: (name) => end(name, 'SIGKILL'), start, [Symbol.asyncDispose]: endAll };
}

/**
 * Waits for a stream on all three, which can be made once they have agreed on a leader and the last of them has joined.
 * @returns whether it was made; false when one of the three has ended, or they take too long.
 */
async function untilJoined(url: string, isLost: () => boolean): Promise<boolean> {
  for (const deadline = Date.now() + PATIENCE_MS / 4; ; await sleep(100)) {
    try {
      await using connection = await connectNats(url, 'test');
      const { streams } = await jetstreamManager(connection);
      await streams.add({ name: 'trial', subjects: ['trial'], num_replicas: NODES.length });
      await streams.delete('trial');
      return true;
    } catch {
      if (isLost() || Date.now() > deadline) return false;
    }
  }
}
