/** What a command tells people: its lines about units, and its numbers. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ConnectionError, ServiceError } from '../../client/errors.ts';
import type { Io } from '../../pipelines/cli/io.ts';
import { createOutput, grouped, type Output, Summary } from '../../pipelines/cli/output.ts';
import { lineOf, textOf } from '../../pipelines/cli/over-partitions.ts';
import { run } from '../../pipelines/cli/run.ts';
import type { UnitResult } from '../../pipelines/publisher/backfill.ts';
import { feedOf } from '../../pipelines/sources/index.ts';
import { MirrorFault } from '../../shared/mirror/lake-manifest.ts';
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
  const other = { partition: 'other', state: 'failed', code: 'SOURCE_DOCUMENT_INVALID' } as const;
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
test('an interrupted replay or verification printed the summary of a finished one', () => {
  const unit = { dataset: FEED.name, partition: '2024-01-01', state: 'proved' };
  const summary = (units: readonly (typeof unit)[]) => textOf(units, { elapsedMs: 0, interrupted: true });
  for (const text of [summary([]), summary([unit])]) {
    expect(text).toMatch(/^Interrupted/);
    expect(text).not.toMatch(/[Nn]othing to do/);
  }
  expect(summary([unit])).toContain('1 in 0.0 s');
  expect(textOf([], { elapsedMs: 0, interrupted: false })).toMatch(/^Nothing to do/);
});

const controlsIn = (text: string) => text.match(/(?!\n)[\p{Cc}\p{Cf}]/gu) ?? [];

// What a vendor, a manifest or a log says could clear the terminal, or print a line that looks like the command's own.
test('whatever a command prints, control characters of others are escaped', async () => {
  const written: string[] = [];
  const stream = { write: (text: string) => written.push(text), isTTY: false };
  const io = { stdout: stream, stderr: stream } as unknown as Io;
  const hostile = 'a\u001b[2J\u009b31m\u202e\u{e0041}\r';
  const people = createOutput({ json: false, progress: false, io });
  people.answer({}, () => `one ${hostile}\ntwo`);
  people.note(hostile);
  createOutput({ json: true, progress: false, io }).answer({ said: hostile }, () => '');
  const shown = 'a\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{e0041}\\u{d}';
  expect(written.slice(0, 2)).toEqual([`one ${shown}\ntwo\n`, `${shown}\n`]);
  expect(controlsIn(written[2])).toEqual([]);
  expect(JSON.parse(written[2])).toEqual({ said: hostile });
  written.length = 0;
  expect(await run([hostile], { ...io, onStop: () => () => {}, env: {} } as unknown as Io)).toBe(2);
  expect(await run(['check', `/${hostile}`], { ...io, onStop: () => () => {}, env: {} } as unknown as Io)).toBe(2);
  const unit = { dataset: FEED.name, partition: 'p', state: 'failed', rows: 0, code: 'SOURCE_NOT_FOUND' } as const;
  new Summary('backfill', [FEED], people).add(FEED, { ...unit, reason: 'x\nall proved' } as UnitResult);
  expect(controlsIn(written.join(''))).toEqual([]);
  expect(written.at(-1)).toContain('SOURCE_NOT_FOUND: x\\u{a}all proved');
});

test('errors of the client and of a mirror have no control characters of others', () => {
  const said = { type: '', title: '', status: 400, detail: 'x\u001b[2J\nOK', code: 'Y', request_id: 'r' };
  expect(new ServiceError(said).message).toBe('Y: x\\u{1b}[2J\\u{a}OK');
  expect(new ConnectionError('x\u001b[2J\ny').message).toBe('x\\u{1b}[2J\ny');
  expect(new MirrorFault('refused', 'x\u001b\n').message).toBe('x\\u{1b}\\u{a}');
});
