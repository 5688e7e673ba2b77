/**
 * Which blocks of the product's code a batch of documents reached for the first time, by V8's own block coverage. A poll after
 * each batch tells it; one after each document would cost more than the documents.
 */
import { type Profiler, Session } from 'node:inspector/promises';

type Taken = Profiler.TakePreciseCoverageReturnType;

const PRODUCT = /\/(?:shared|pipelines|serving)\/[^?]*\.ts$/;

export class BlockCoverage implements AsyncDisposable {
  readonly #session = new Session();
  /** By function: which of its characters were run. */
  readonly #run = new Map<string, Uint8Array>();
  #blocks = 0;

  static async start(): Promise<BlockCoverage> {
    const coverage = new BlockCoverage();
    coverage.#session.connect();
    await coverage.#session.post('Profiler.enable');
    await coverage.#session.post('Profiler.startPreciseCoverage', { callCount: false, detailed: true });
    return coverage;
  }

  /** Blocks of the product that were reached so far: runs of characters that were first run together. */
  get blocks(): number {
    return this.#blocks;
  }

  /** @returns how many blocks were reached since the last poll that never were before */
  async poll(): Promise<number> {
    const before = this.#blocks;
    const { result } = (await this.#session.post('Profiler.takePreciseCoverage')) as Taken;
    for (const { scriptId, url, functions } of result) {
      if (PRODUCT.test(url)) for (const one of functions) this.#add(scriptId, one);
    }
    return this.#blocks - before;
  }

  #add(scriptId: string, { ranges }: Profiler.FunctionCoverage): void {
    const [{ startOffset: from, endOffset: to }] = ranges;
    const name = `${scriptId} ${from} ${to}`;
    const known = this.#run.get(name) ?? new Uint8Array(to - from);
    this.#run.set(name, known);
    // A range inside another comes after it, and says more.
    const now = new Uint8Array(to - from);
    for (const { startOffset, endOffset, count } of ranges)
      now.fill(count > 0 ? 1 : 0, startOffset - from, endOffset - from);
    let wasNew = false;
    for (let at = 0; at < now.length; at++) {
      const isNew = now[at] === 1 && known[at] === 0;
      if (isNew) known[at] = 1;
      if (isNew && !wasNew) this.#blocks++;
      wasNew = isNew;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#session.post('Profiler.stopPreciseCoverage');
    this.#session.disconnect();
  }
}
