/** Keeps the document that is being read when the process crashes, or when it is read for too long: then a thread ends the process. */
import { mkdirSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { isMainThread, Worker, workerData } from 'node:worker_threads';

/** Number of the document, its size, the index of its target. */
const WORDS = 3;
const ROOM = 1 << 20;

interface Shared {
  readonly memory: SharedArrayBuffer;
  readonly limitMs: number;
  readonly names: readonly string[];
  /** Where the document is kept. */
  readonly folder: string;
  readonly seed: number;
}

export class Watchdog implements AsyncDisposable {
  readonly #words: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #worker: Worker;
  readonly #crashed: (error: unknown) => void;

  constructor(options: Omit<Shared, 'memory'>) {
    const memory = new SharedArrayBuffer(4 * WORDS + ROOM);
    this.#words = new Int32Array(memory, 0, WORDS);
    this.#bytes = new Uint8Array(memory, 4 * WORDS);
    const shared: Shared = { ...options, memory };
    this.#worker = new Worker(new URL(import.meta.url), { workerData: shared });
    this.#worker.unref();
    this.#crashed = (error) => keep(shared, 'CRASH', String(error));
    process.on('uncaughtExceptionMonitor', this.#crashed);
  }

  /** A document is about to be read; those that are not changed yet have numbers below 0. */
  begin(number: number, target: number, bytes: Buffer): void {
    const size = Math.min(bytes.length, ROOM);
    this.#bytes.set(bytes.subarray(0, size));
    this.#words[1] = size;
    this.#words[2] = target;
    Atomics.store(this.#words, 0, number);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    process.off('uncaughtExceptionMonitor', this.#crashed);
    await this.#worker.terminate();
  }
}

function keep({ memory, names, folder, seed }: Shared, what: 'HANG' | 'CRASH', why: string): void {
  const [number, size, target] = new Int32Array(memory, 0, WORDS);
  const name = names[target];
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${what.toLowerCase()}-${seed}-${name.replaceAll(' ', '_')}-${number}.bin`);
  writeFileSync(path, new Uint8Array(memory, 4 * WORDS, size).slice());
  writeSync(2, `${what}  document ${number}, ${name}: ${why}; kept as ${path}\n`);
}

function watch(shared: Shared): void {
  const { memory, limitMs } = shared;
  const words = new Int32Array(memory, 0, WORDS);
  let last = 0;
  setInterval(() => {
    const number = Atomics.load(words, 0);
    if (number === last && number !== 0) {
      keep(shared, 'HANG', `not read within ${limitMs} ms`);
      process.kill(process.pid, 'SIGKILL');
    }
    last = number;
  }, limitMs);
}

if (!isMainThread && workerData?.memory) watch(workerData as Shared);
