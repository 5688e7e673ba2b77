/**
 * Reads one answer of a node many times, a side of the block JSON benchmark:
 * `node bench/block-json-reader.ts cursor|source|plain FILE WARM-UP READS`. Prints times and the peak of memory.
 */
import { readFileSync } from 'node:fs';
import { readBlockAnswer } from '../pipelines/sources/bitcoin/node-answers.ts';
import { parseExactly } from '../pipelines/sources/bitcoin/rpc/client.ts';
import { JsonCursor, JsonMembers } from '../pipelines/sources/bitcoin/rpc/json-cursor.ts';
import { TextWriter } from '../pipelines/sources/bitcoin/text-writer.ts';
import { median, rounded } from './measure.ts';

const [side, file, warmUp, reads] = process.argv.slice(2);
const RESULT = new JsonMembers('result');

function readUnderCursor(answer: Buffer, writer: TextWriter): unknown {
  const cursor = new JsonCursor(answer);
  let block: unknown;
  cursor.object();
  while (cursor.member()) {
    if (RESULT.nameAt(cursor) === 'result') block = readBlockAnswer(cursor, writer);
    else cursor.skip();
  }
  cursor.finish();
  return block;
}

const writer = new TextWriter(0);
const READERS: Readonly<Record<string, (answer: Buffer) => unknown>> = {
  cursor: (answer) => readUnderCursor(answer, writer),
  source: parseExactly,
  plain: (answer) => JSON.parse(answer.toString()),
};

const peakMib = () => Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'latin1'))![1]) / 1024;

const answer = readFileSync(file);
const before = peakMib();
const read = READERS[side];
for (let count = 0; count < Number(warmUp); count++) read(answer);
const times: number[] = [];
const cpuBefore = process.cpuUsage();
for (let count = 0; count < Number(reads); count++) {
  const startedAt = performance.now();
  if (!read(answer)) throw new Error('nothing was read');
  times.push(performance.now() - startedAt);
}
const { user, system } = process.cpuUsage(cpuBefore);
const sample = {
  ms: rounded(median(times), 1),
  cpuMs: rounded((user + system) / 1000 / times.length, 1),
  peakMib: rounded(peakMib() - before, 1),
};
process.stdout.write(JSON.stringify(sample));
