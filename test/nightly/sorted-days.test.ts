/** A day of exchange C is sorted in bounded memory, whatever the order of its file. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { ROOT } from '../support/command.ts';

const ROWS = 3_500_000;
/** The rows alone have 360 MiB. */
const MOST_MIB = 300;

const sorted = async (order: string) => {
  const script = join(ROOT, 'test/support/sort-day.ts');
  const { stdout } = await promisify(execFile)(process.execPath, [script, order]);
  return JSON.parse(stdout);
};

test('a day in the order of ids, newest first and scattered has the same facts, in bounded memory', async () => {
  const ascending = await sorted('ids');
  expect(ascending.facts).toMatchObject({ rows: ROWS, gaps: 0, last_offset: String(ROWS - 1), repeats_dropped: 0 });
  expect(ascending.peakMib).toBeLessThan(MOST_MIB);
  for (const order of ['newest_first', 'scattered']) {
    const { facts, peakMib } = await sorted(order);
    expect(facts).toEqual(ascending.facts);
    expect(peakMib).toBeLessThan(MOST_MIB);
  }
});
