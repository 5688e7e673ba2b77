/** Reads a number of mutated documents, and reports what should never come out of a decoder. */
import { mkdirSync, mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { mutated, oneOf, type Random } from './mutate.ts';
import { shapeOf, type Target } from './target.ts';
import { bitcoinTargets } from './targets/bitcoin.ts';
import { metricTargets } from './targets/metrics.ts';
import { tradeTargets } from './targets/trades.ts';
import { Watchdog } from './watchdog.ts';

export interface DocumentsOptions {
  readonly seed: number;
  readonly count: number;
  /** Of targets' names; all without. */
  readonly only?: string;
  /** Where documents that failed are kept. */
  readonly folder: string;
  readonly note?: (line: string) => void;
}

export interface Finding {
  readonly number: number;
  readonly target: string;
  readonly what: string;
  /** The smallest document that was found to do the same. */
  readonly path: string;
  readonly stack: string;
}

export interface DocumentsReport {
  readonly documents: number;
  readonly accepted: number;
  /** Different outcomes, by target. */
  readonly outcomes: Readonly<Record<string, number>>;
  /** Milliseconds, by target. */
  readonly times: Readonly<Record<string, number>>;
  readonly findings: readonly Finding[];
  readonly seconds: number;
  readonly slowestMs: number;
  readonly peakMiB: number;
}

/** No document of these sizes takes a hundredth of this. */
const LIMIT_MS = 20_000;
const MAX_RSS_BYTES = 1536 * 1024 * 1024;
const REDUCING_MS = 5000;
const BATCH = 250;
const MAX_FINDINGS = 40;

function allTargets(scratch: string): Target[] {
  return [...tradeTargets(scratch), ...metricTargets(), ...bitcoinTargets()];
}

/** A target and what came out of it. */
interface Corpus {
  readonly target: Target;
  readonly outcomes: Set<string>;
  ms: number;
}

/** Open files: threads that come and go have descriptors of other kinds. */
const openFiles = () =>
  readdirSync('/proc/self/fd').filter((name) => {
    try {
      return readlinkSync(`/proc/self/fd/${name}`).startsWith('/');
    } catch {
      // The one that read the folder.
      return false;
    }
  }).length;

export async function fuzzDocuments(options: DocumentsOptions): Promise<DocumentsReport> {
  const scratch = mkdtempSync(join(tmpdir(), 'tidemark-fuzz-'));
  try {
    const targets = allTargets(scratch).filter(({ name }) => options.only === undefined || name.includes(options.only));
    return await new Run(options, targets).run();
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** What a target throws at these bytes, without what differs from document to document; undefined: nothing. */
async function fault(
  target: Target,
  bytes: Buffer,
): Promise<{ readonly what: string; readonly stack: string } | undefined> {
  try {
    await target.run(bytes);
    return undefined;
  } catch (error) {
    const { name, message, stack } = error instanceof Error ? error : new Error(String(error));
    const place = /\/((?:shared|pipelines|serving|test)\/[\w/.-]+\.ts:\d+)/.exec(stack ?? '')?.[1];
    return { what: `${name}: ${shapeOf(message)} (${place})`, stack: stack ?? message };
  }
}

/** The smallest document that still does it, as far as some seconds of trying find one. */
async function reduced(target: Target, bytes: Buffer, what: string): Promise<Buffer> {
  let best = bytes;
  const until = performance.now() + REDUCING_MS;
  for (let size = best.length >> 1; size >= 1; size >>= 1) {
    for (let at = 0; at < best.length && performance.now() < until; ) {
      const shorter = Buffer.concat([best.subarray(0, at), best.subarray(at + size)]);
      if ((await fault(target, shorter))?.what === what) best = shorter;
      else at += size;
    }
  }
  return best;
}

class Run {
  readonly #options: DocumentsOptions;
  readonly #random: Random;
  readonly #corpora: Corpus[];
  /** Each corpus as often as its target is taken. */
  readonly #turns: readonly number[];
  readonly #findings = new Map<string, Finding>();
  #accepted = 0;
  #slowestMs = 0;
  #peak = 0;

  constructor(options: DocumentsOptions, targets: readonly Target[]) {
    this.#options = options;
    this.#random = seededRandom(options.seed);
    this.#corpora = targets.map((target) => ({ target, outcomes: new Set(), ms: 0 }));
    this.#turns = targets.flatMap(({ weight = 4 }, index) => Array.from({ length: weight }, () => index));
  }

  async run(): Promise<DocumentsReport> {
    const { seed, count, folder, note } = this.#options;
    const names = this.#corpora.map(({ target }) => target.name);
    await using watchdog = new Watchdog({ limitMs: LIMIT_MS, names, folder, seed });
    await this.#readSeeds(watchdog);
    const filesBefore = openFiles();
    const startedAt = performance.now();
    let done = 0;
    while (done < count && this.#findings.size < MAX_FINDINGS) {
      const turn = oneOf(this.#random, this.#turns);
      const corpus = this.#corpora[turn];
      const bytes = await this.#document(corpus);
      watchdog.begin(++done, turn, bytes);
      await this.#read(corpus, bytes, done);
      if (done % BATCH === 0) this.#checkMemory(done);
      if (done % 100_000 === 0) note?.(`${done} documents`);
    }
    await new Promise((resolve) => setImmediate(resolve));
    const files = openFiles();
    if (files > filesBefore + 2)
      await this.#find(this.#corpora[0].target, done, Buffer.alloc(0), {
        what: `${files - filesBefore} files are left open`,
        stack: '',
      });
    return {
      documents: done,
      accepted: this.#accepted,
      outcomes: Object.fromEntries(this.#corpora.map(({ target, outcomes }) => [target.name, outcomes.size])),
      times: Object.fromEntries(this.#corpora.map(({ target, ms }) => [target.name, Math.round(ms)])),
      findings: [...this.#findings.values()],
      seconds: (performance.now() - startedAt) / 1000,
      slowestMs: this.#slowestMs,
      peakMiB: Math.round(this.#peak / 1024 / 1024),
    };
  }

  /** What the seeds do is known, before anything is changed in them. */
  async #readSeeds(watchdog: Watchdog): Promise<void> {
    let number = 0;
    for (const [index, corpus] of this.#corpora.entries()) {
      for (const bytes of corpus.target.seeds) {
        watchdog.begin(--number, index, bytes);
        await this.#read(corpus, bytes, 0);
      }
    }
  }

  async #document({ target }: Corpus): Promise<Buffer> {
    const { form, words = [], pack, seeds } = target;
    const bytes = mutated(oneOf(this.#random, seeds), this.#random, { form, words, others: seeds });
    return pack && this.#random() < 0.9 ? await pack(bytes) : bytes;
  }

  async #read(corpus: Corpus, bytes: Buffer, number: number): Promise<void> {
    const { target, outcomes } = corpus;
    const startedAt = performance.now();
    let outcome: string;
    try {
      outcome = await target.run(bytes);
    } catch {
      const found = await fault(target, bytes);
      await this.#find(target, number, bytes, found ?? { what: 'fails once, and not again', stack: '' });
      return;
    }
    const took = performance.now() - startedAt;
    corpus.ms += took;
    if (took > this.#slowestMs) this.#slowestMs = took;
    if (outcome.includes('accepted')) this.#accepted++;
    outcomes.add(outcome);
  }

  #checkMemory(done: number): void {
    const { rss } = process.memoryUsage();
    this.#peak = Math.max(this.#peak, rss);
    if (rss > MAX_RSS_BYTES)
      throw new Error(`the process has ${Math.round(rss / 1024 / 1024)} MiB after ${done} documents`);
  }

  async #find(
    target: Target,
    number: number,
    bytes: Buffer,
    { what, stack }: { what: string; stack: string },
  ): Promise<void> {
    const key = `${target.name} ${what}`;
    if (this.#findings.has(key)) return;
    const { folder, seed } = this.#options;
    const path = join(folder, `${target.name.replaceAll(' ', '_')}-${seed}-${number}.bin`);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, await reduced(target, bytes, what));
    this.#findings.set(key, { number, target: target.name, what, path, stack });
    this.#options.note?.(`FOUND  document ${number}, ${target.name}: ${what}; kept as ${path}`);
  }
}

/** Reads one kept document again. @returns what comes out */
export async function replayDocument(bytes: Buffer, name: string): Promise<string> {
  const scratch = mkdtempSync(join(tmpdir(), 'tidemark-fuzz-'));
  try {
    const target = allTargets(scratch).find((one) => one.name.replaceAll(' ', '_') === name.replaceAll(' ', '_'));
    if (!target) throw new Error(`there is no target ${name}`);
    return await target.run(bytes);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}
