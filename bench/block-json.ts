/**
 * Reading a node's answer to `getblock` with prevouts: the product's cursor, which returns the block with the columns of its
 * transactions, beside `JSON.parse` with the source text of numbers, which returns a tree that nobody has checked or
 * converted yet. `JSON.parse` alone, which rounds numbers, is the lower bound of any tree. Each side has processes of its
 * own, so that the peak of memory is its own.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { startBitcoind } from '../shared/stack/bitcoind.ts';
import { blockAnswer, makeBlocks } from './bitcoin.ts';
import { type Harness, ROOT } from './harness.ts';
import { median, rounded } from './measure.ts';

const SIDES = ['cursor', 'source', 'plain'] as const;
type Side = (typeof SIDES)[number];
/** Answers that a process reads before and while it is measured. */
const [WARM_UP, READS] = [3, 10];

/** Printed by block-json-reader.ts. */
interface Sample {
  /** Median of one answer, ms. */
  readonly ms: number;
  /** Processor time of one answer, threads of the garbage collector included, ms. */
  readonly cpuMs: number;
  /** Peak of resident memory beyond that of the process that holds the answer. */
  readonly peakMib: number;
}

interface Figures {
  readonly ms: number;
  readonly cpu_ms: number;
  readonly peak_mib: number;
}

export interface BlockJsonFigures {
  readonly answer_mib: number;
  readonly transactions: number;
  readonly rounds: number;
  readonly sides: Readonly<Record<Side, Figures>>;
  /** `JSON.parse` with source text relative to the cursor: medians of the rounds' ratios. */
  readonly ratio: number;
  readonly cpu_ratio: number;
  readonly peak_ratio: number;
  /** The slowest round of the cursor relative to its fastest. */
  readonly spread: number;
}

export async function measureBlockJson(
  { directory, log, note }: Pick<Harness, 'directory' | 'log' | 'note'>,
  transactions: number,
  rounds: number,
): Promise<BlockJsonFigures> {
  const file = join(directory, 'block.json');
  let answer: Buffer;
  {
    await using node = await startBitcoind({ dir: join(directory, 'node'), chain: 'regtest', log, progress: note });
    note(`making a block of ${transactions} transactions`);
    answer = await blockAnswer(node, await makeBlocks(node, 1, transactions));
  }
  await writeFile(file, answer);
  const samples = new Map<Side, Sample[]>(SIDES.map((side) => [side, []]));
  for (let round = 0; round < rounds; round++) {
    // Each side begins in turn.
    for (const [index] of SIDES.entries()) {
      const side = SIDES[(index + round) % SIDES.length];
      const sample = await read(side, file);
      samples.get(side)!.push(sample);
      note(`round ${round + 1} ${side.padEnd(7)} ${sample.ms} ms  cpu ${sample.cpuMs} ms  peak ${sample.peakMib} MiB`);
    }
  }
  return figuresOf(samples, { bytes: answer.length, transactions, rounds });
}

async function read(side: Side, file: string): Promise<Sample> {
  const script = join(ROOT, 'bench/block-json-reader.ts');
  const child = spawn(process.execPath, [script, side, file, `${WARM_UP}`, `${READS}`], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [text, [code]] = await Promise.all([buffer(child.stdout), once(child, 'close')]);
  if (code !== 0) throw new Error(`the reader ${side} ended with ${code}`);
  return JSON.parse(text.toString());
}

function figuresOf(
  samples: ReadonlyMap<Side, readonly Sample[]>,
  { bytes, transactions, rounds }: { bytes: number; transactions: number; rounds: number },
): BlockJsonFigures {
  const of = (side: Side, member: keyof Sample) => samples.get(side)!.map((sample) => sample[member]);
  const ratio = (member: keyof Sample) => {
    const cursor = of('cursor', member);
    return rounded(median(of('source', member).map((value, round) => value / cursor[round])));
  };
  const figures = SIDES.map((side) => [
    side,
    { ms: median(of(side, 'ms')), cpu_ms: median(of(side, 'cpuMs')), peak_mib: median(of(side, 'peakMib')) },
  ]);
  return {
    answer_mib: rounded(bytes / 2 ** 20),
    transactions,
    rounds,
    sides: Object.fromEntries(figures),
    ratio: ratio('ms'),
    cpu_ratio: ratio('cpuMs'),
    peak_ratio: ratio('peakMib'),
    spread: rounded(Math.max(...of('cursor', 'ms')) / Math.min(...of('cursor', 'ms'))),
  };
}
