/**
 * Which blocks of the product's code a batch of documents reached for the first time, by V8's own block coverage: in its binary
 * form each block is reported once, so a poll after each batch is cheap.
 */
import { type Profiler, Session } from 'node:inspector/promises';

const PRODUCT = /\/(?:shared|pipelines|serving)\/[^?]*\.ts$/;

export class BlockCoverage implements AsyncDisposable {
  readonly #session = new Session();
  readonly #reached = new Set<string>();

  static async start(): Promise<BlockCoverage> {
    const coverage = new BlockCoverage();
    coverage.#session.connect();
    await coverage.#session.post('Profiler.enable');
    await coverage.#session.post('Profiler.startPreciseCoverage', { callCount: false, detailed: true });
    return coverage;
  }

  /** Blocks of the product that were reached so far. */
  get blocks(): number {
    return this.#reached.size;
  }

  /** @returns how many blocks were reached since the last poll that never were before */
  async poll(): Promise<number> {
    const before = this.#reached.size;
    const { result } = (await this.#session.post(
      'Profiler.takePreciseCoverage',
    )) as Profiler.TakePreciseCoverageReturnType;
    for (const { scriptId, url, functions } of result) {
      if (!PRODUCT.test(url)) continue;
      for (const { ranges } of functions)
        for (const { startOffset, endOffset, count } of ranges)
          if (count > 0) this.#reached.add(`${scriptId} ${startOffset} ${endOffset}`);
    }
    return this.#reached.size - before;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#session.post('Profiler.stopPreciseCoverage');
    this.#session.disconnect();
  }
}
