/** A thread that ends the process when one document is read for too long, and keeps that document. */
import { mkdirSync, writeFileSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { isMainThread, Worker, workerData } from 'node:worker_threads';

/** Number of the document, its size, the index of its target. */
const WORDS = 3;
const ROOM = 1 << 20;

interface Shared {
  readonly memory: SharedArrayBuffer;
  readonly limitMs: number;
  readonly names: readonly string[];
  /** Path of the document that is kept, without its number. */
  readonly prefix: string;
}

export class Watchdog implements AsyncDisposable {
  readonly #words: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #worker: Worker;

  constructor(options: Omit<Shared, 'memory'>) {
    const memory = new SharedArrayBuffer(4 * WORDS + ROOM);
    this.#words = new Int32Array(memory, 0, WORDS);
    this.#bytes = new Uint8Array(memory, 4 * WORDS);
    this.#worker = new Worker(new URL(import.meta.url), { workerData: { ...options, memory } satisfies Shared });
    this.#worker.unref();
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
    await this.#worker.terminate();
  }
}

function watch({ memory, limitMs, names, prefix }: Shared): void {
  const words = new Int32Array(memory, 0, WORDS);
  let last = 0;
  setInterval(() => {
    const number = Atomics.load(words, 0);
    if (number === last && number !== 0) {
      const name = names[words[2]];
      const path = `${prefix}${name.replaceAll(' ', '_')}-${number}.bin`;
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path, new Uint8Array(memory, 4 * WORDS, words[1]).slice());
      writeSync(2, `HANG  document ${number}, ${name}: not read within ${limitMs} ms; kept as ${path}\n`);
      process.kill(process.pid, 'SIGKILL');
    }
    last = number;
  }, limitMs);
}

if (!isMainThread && workerData?.memory) watch(workerData as Shared);
