/** Strikes the system with the faults of a round, in the schedule's order, and heals it at the end. */
import { execFileSync } from 'node:child_process';
import { rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { ERROR_CODES, type ErrorCode } from '../../shared/errors.ts';
import type { Chain } from './chain.ts';
import { type Excuses, pidsOf } from './processes.ts';
import type { FileDay } from './reference.ts';
import { recover } from './repairs.ts';
import type { Exchange, LinkName, ProcessName, Step } from './schedule.ts';
import { Tally } from './tally.ts';
import type { World } from './world.ts';

const HOUR_MS = 3_600_000;

/** Damage is found where it shows first: in a row, in the archive, in the checksum. */
const OF_SOURCES = (Object.keys(ERROR_CODES) as ErrorCode[]).filter((code) => code.startsWith('SOURCE_'));
/** How work ends whose frames the log has lost. */
const LOST = ['LOG_REWOUND', 'LOG_DAMAGED', 'LOG_CONFLICT', 'PARTITION_PROOF_FAILED'] as const;

/** How work ends that finds no room, in the log, the lake, the spool or, five times in a row, for the projector's reader of the log. */
const DISK_FULL = ['LOG_FULL', 'LOG_MISCONFIGURED', 'DISK_UNUSABLE', 'PROJECTOR_FAILED'] as const;

export interface InjectorDeps {
  readonly world: World;
  readonly tally: Tally;
  readonly excuses: Excuses;
  readonly chain: Chain | undefined;
  /** File days that the vendor has published. */
  readonly days: () => readonly FileDay[];
  readonly say: (line: string) => void;
}

type Struck = boolean | Promise<boolean>;

export class Injector {
  readonly #deps: InjectorDeps;
  /** Faults that last a while, each with its end. */
  readonly #lasting = new Set<Promise<void>>();
  readonly #stopped = new Set<number>();
  readonly #clocks = new Set<object>();
  readonly #ending = new AbortController();
  /** Kills of the node, one after the other. */
  #killed: Promise<void> = Promise.resolve();

  constructor(deps: InjectorDeps) {
    this.#deps = deps;
  }

  async run(steps: readonly Step[], isOver: () => boolean): Promise<void> {
    const { tally, say } = this.#deps;
    for (const [at, step] of steps.entries()) {
      await delay(step.afterMs);
      if (isOver()) break;
      say(`step ${at + 1}: ${step.kind} ${step.target} ${step.forMs}`);
      const struck = await this.#strikes[step.kind](step);
      Tally.count(struck ? tally.faults : tally.misses, `${step.kind} ${step.target}`);
    }
    await this.heal();
  }

  /** Ends what lasts, and waits until it has ended. */
  async heal(): Promise<void> {
    this.#ending.abort();
    await Promise.all(this.#lasting);
    for (const pid of this.#stopped) send(pid, 'SIGCONT');
    await this.#killed;
    for (const proxy of Object.values(this.#deps.world.proxies)) proxy.heal();
    this.#deps.world.setClock(0);
    this.#deps.world.vendor.reset();
  }

  #last(forMs: number, end: () => void): void {
    const lasting = delay(forMs, undefined, { signal: this.#ending.signal })
      .catch(() => {})
      .then(end);
    this.#lasting.add(lasting);
    void lasting.finally(() => this.#lasting.delete(lasting));
  }

  readonly #strikes: Readonly<Record<Step['kind'], (step: Step) => Struck>> = {
    kill: ({ target, draw }) => this.#signal(target as ProcessName, 'SIGKILL', draw) !== undefined,
    // SIGTERM asks PostgreSQL to wait until every client is gone; an operator's restart is SIGINT.
    restart: ({ target, draw }) =>
      this.#signal(target as ProcessName, target === 'postgres' ? 'SIGINT' : 'SIGTERM', draw) !== undefined,
    stop: ({ target, draw, forMs }) => {
      const pid = this.#signal(target as ProcessName, 'SIGSTOP', draw);
      if (pid === undefined) return false;
      this.#stopped.add(pid);
      this.#last(forMs, () => {
        send(pid, 'SIGCONT');
        this.#stopped.delete(pid);
      });
      return true;
    },
    cut: ({ target }) => {
      const proxy = this.#deps.world.proxies[target as LinkName];
      const had = proxy.connections() > 0;
      proxy.cut();
      return had;
    },
    delay: (step) => this.#link(step, (proxy) => proxy.delay(10 + (step.draw % 150))),
    'half-open': (step) => this.#link(step, (proxy) => proxy.silence(step.draw % 2 === 0 ? 'client' : 'server')),
    refuse: (step) => this.#link(step, (proxy) => proxy.refuse()),
    duplicate: (step) => this.#link(step, (proxy) => proxy.duplicate()),
    clock: ({ target, forMs }) => {
      const { world } = this.#deps;
      const own = {};
      this.#clocks.add(own);
      world.setClock(target === 'forward' ? HOUR_MS : -HOUR_MS);
      this.#last(forMs, () => {
        this.#clocks.delete(own);
        if (this.#clocks.size === 0) world.setClock(0);
      });
      return true;
    },
    corrupt: (step) => this.#corrupt(step),
    'full-disk': (step) => this.#fillDisk(step),
    'lost-tail': (step) => this.#loseTail(step),
  };

  #link({ target, forMs }: Step, strike: (proxy: World['proxies'][LinkName]) => void): boolean {
    const proxy = this.#deps.world.proxies[target as LinkName];
    if (target === 'bitcoind' && !this.#deps.chain) return false;
    strike(proxy);
    this.#last(forMs, () => proxy.heal());
    return true;
  }

  #signal(name: ProcessName, what: NodeJS.Signals, draw: number): number | undefined {
    const { world, chain, tally } = this.#deps;
    const pids = name === 'bitcoind' ? (chain ? [chain.node.pid] : []) : pidsOf(world, name);
    if (pids.length === 0) return undefined;
    const pid = pids[draw % pids.length];
    if (name === 'bitcoind' && what === 'SIGKILL') {
      this.#killed = this.#killed
        .then(() => chain!.kill())
        .catch((error) => tally.fail(`the node does not start: ${error}`));
      return pid;
    }
    return send(pid, what) ? pid : undefined;
  }

  /** The vendor sends damaged bytes for some of the exchange's days, or for all that it is asked for. */
  #corrupt({ target, draw, forMs }: Step): boolean {
    const { world, days, excuses } = this.#deps;
    const of = days().filter(({ exchange, published }) => exchange === (target as Exchange) && published > 0);
    if (of.length === 0) return false;
    for (const code of OF_SOURCES) excuses.add(code);
    for (const { vendor, day, archives, published } of of) {
      const bytes = Buffer.from(archives[published - 1]);
      // Not in the head, which names nothing that is checked.
      bytes[Math.floor(bytes.length / 3) + (draw % Math.floor(bytes.length / 3))] ^= 1 + (draw % 255);
      world.vendor.fail(vendor.path(day), { kind: 'body', body: bytes });
    }
    this.#last(forMs, () => world.vendor.reset());
    return true;
  }

  /** No byte more fits on the disk; then there is room again, and the log is restarted, as the documentation asks. */
  async #fillDisk({ forMs }: Step): Promise<boolean> {
    const { world, excuses } = this.#deps;
    if (!world.hasDisk) return false;
    for (const code of DISK_FULL) excuses.add(code);
    const { blocks, bsize } = await statfs(world.disk);
    const resize = (to: number) =>
      execFileSync('mount', ['-o', `remount,size=${to * bsize}`, world.disk], { stdio: 'pipe' });
    // What is written between the look and the change makes the new size too small, which the kernel refuses.
    for (let tries = 100; ; tries--) {
      const { bfree } = await statfs(world.disk);
      try {
        resize(blocks - bfree);
        break;
      } catch (error) {
        if (tries === 0) throw error;
      }
    }
    await delay(Math.min(forMs, 2000));
    resize(blocks);
    send(world.pidOf('nats'), 'SIGKILL');
    return true;
  }

  /** The log comes back as it was a moment ago. The operator recovers it, and brings in again what it lost. */
  async #loseTail({ forMs }: Step): Promise<boolean> {
    const { world, excuses, tally } = this.#deps;
    const copy = join(world.folder, 'log-copy');
    await rm(copy, { recursive: true, force: true });
    for (const code of LOST) excuses.add(code);
    await world.withoutLog((folder) => world.copyFolder(folder, copy));
    await delay(forMs);
    await world.withoutLog(async (folder) => {
      await rm(folder, { recursive: true });
      await world.copyFolder(copy, folder);
    });
    for (const { partition } of await recover(this.#deps)) world.lostSnapshots.add(partition);
    tally.operation('recovered a log');
    return true;
  }
}

function send(pid: number, name: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}
