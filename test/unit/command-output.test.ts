/** What a command tells people: its lines about units, and its numbers. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { summaryOf } from '../../pipelines/cli/commands/compact.ts';
import { grouped, type Output, Summary } from '../../pipelines/cli/output.ts';
import { lineOf, textOf } from '../../pipelines/cli/over-partitions.ts';
import type { UnitResult } from '../../pipelines/publisher/backfill.ts';
import { feedOf } from '../../pipelines/sources/index.ts';
import { SEED } from '../support/seed.ts';

const FEED = feedOf('exchange_a_spot_trades');

/** The lines of a command about these units, and whether it calls them a success. */
function linesOf(command: string, units: readonly Pick<UnitResult, 'partition' | 'state' | 'code'>[]) {
  const lines: string[] = [];
  const note = (line: string) => void lines.push(line);
  const output: Output = { json: false, terminal: false, answer: () => {}, note, progress: () => {} };
  const summary = new Summary(command, [FEED], output);
  for (const unit of units) summary.add(FEED, { dataset: FEED.name, rows: 5, reason: unit.partition, ...unit });
  return { lines, ok: summary.answer(false) };
}

// A backfill without --from printed two lines for each of a thousand days that the folder did not have.
test('of units that fail alike ten are named, whatever is proved between them, and the others counted', () => {
  const missing = (day: number) => ({ partition: `day ${day}`, state: 'failed', code: 'SOURCE_NOT_FOUND' }) as const;
  const proved = { partition: 'between', state: 'proved' } as const;
  const other = { partition: 'other', state: 'failed', code: 'SOURCE_ROW_INVALID' } as const;
  const units = [...Array.from({ length: 8 }, (_, day) => missing(day)), proved, other];
  const many = [...units, ...Array.from({ length: 1200 }, (_, day) => missing(day + 8))];
  const { lines, ok } = linesOf('backfill', many);
  expect(ok).toBe(false);
  expect(lines).toHaveLength(13);
  expect(lines.at(-1)).toBe('exchange_a_spot_trades: SOURCE_NOT_FOUND: 1,198 more, the last is day 1207');
  expect(linesOf('backfill', units).lines).toHaveLength(10);
  // Whoever follows a feed sees each failure, however long ago the others were.
  expect(linesOf('follow', many).lines).toHaveLength(many.length);
});

// Lines of `verify all` did not say which dataset they were about, nor failures which code they had.
test('the line of a partition names its dataset among several, its rows and the code of its failure', () => {
  const proved = { partition: '2024-03-01', state: 'proved', rows: 1500 };
  expect(lineOf(proved)).toBe('2024-03-01  proved      1,500 rows');
  expect(lineOf(proved, 'd9')).toBe('d9  2024-03-01  proved      1,500 rows');
  const failed = { partition: '7', state: 'failed', code: 'LOG_UNREACHABLE', reason: 'no answer' };
  expect(lineOf(failed)).toBe('7  failed      LOG_UNREACHABLE: no answer');
  expect(lineOf({ partition: '7', state: 'quarantined', reason: 'rows differ' })).toBe('7  quarantined rows differ');
});

test('numbers are grouped as Intl groups them', () => {
  const number = fc.oneof(
    fc.integer(),
    fc.maxSafeInteger(),
    fc.integer({ min: -1e9, max: 1e9 }).map((n) => n / 1000),
  );
  fc.assert(
    fc.property(number, (value) => {
      expect(grouped(value)).toBe(value.toLocaleString('en-US'));
    }),
    { seed: SEED },
  );
});

// The command printed that there is nothing to do, or that the part it had done was all.
test('an interrupted replay, verification or compaction printed the summary of a finished one', () => {
  const unit = { dataset: FEED.name, partition: '2024-01-01', state: 'proved' };
  const summary = (units: readonly (typeof unit)[]) => textOf(units, { elapsedMs: 0, interrupted: true });
  for (const text of [summary([]), summary([unit]), summaryOf([], true)]) {
    expect(text).toMatch(/^Interrupted/);
    expect(text).not.toMatch(/[Nn]othing to do/);
  }
  expect(summary([unit])).toContain('1 in 0.0 s');
  expect(textOf([], { elapsedMs: 0, interrupted: false })).toMatch(/^Nothing to do/);
  expect(summaryOf([], false)).toMatch(/^Nothing to do/);
});
