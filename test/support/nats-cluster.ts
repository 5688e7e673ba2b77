/** Three nats-servers on this machine that are one cluster, to kill. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { jetstreamManager } from '@nats-io/jetstream';
import { connectNats } from '../../shared/nats/connect.ts';
import { freePort } from '../../shared/stack/state.ts';
import { PATIENCE_MS } from './patience.ts';

const NODES = ['one', 'two', 'three'] as const;

export interface Cluster extends AsyncDisposable {
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
export async function startCluster(program: string, dir: string): Promise<Cluster> {
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
