/** Options of the command line: values that no command can use are refused before anything is done. */
import { expect, test } from 'vitest';
import { type CommandSpec, parseCommand } from '../../pipelines/cli/options.ts';
import * as specs from '../../pipelines/cli/specs.ts';
import { faultOf } from '../support/faults.ts';

const refused = async (spec: CommandSpec, ...argv: readonly string[]) =>
  (await faultOf((async () => parseCommand(spec, argv))(), 'USAGE')).message;

// `reparse etf --reason ""` replaced what was proved, and the ledger kept an empty reason.
test('a blank reason replaced proved partitions', async () => {
  for (const blank of ['', ' ', '\t\n']) {
    for (const [spec, name] of [
      [specs.reparse, 'etf'],
      [specs.recover, 'all'],
    ] as const) {
      expect(await refused(spec, name, '--reason', blank)).toContain('--reason is blank: give it a value');
    }
    expect(await refused(specs.replay, 'all', `--partition=${blank}`)).toContain('--partition is blank');
  }
  expect(parseCommand(specs.reparse, ['etf', '--reason', 'why']).values.reason).toBe('why');
  expect(parseCommand(specs.reparse, ['etf']).values.reason).toBeUndefined();
});

// A timer of more than 2^31 - 1 ms does not wait, and no date is as far away as some intervals.
test('an interval beyond what a timer or a date can take was taken: watch-log never paused, verify never began', async () => {
  const most = { 'watch-log': 2_000_000, verify: 31_622_400 };
  for (const spec of [specs.watchLog, specs.verify]) {
    const limit = most[spec.name as keyof typeof most];
    for (const wrong of ['0', `${limit + 1}`, '99999999999999']) {
      const said = await refused(spec, 'x', '--every', wrong);
      expect(said).toContain(`--every must be a whole number from 1 to ${limit}, got "${wrong}"`);
    }
    expect(parseCommand(spec, ['x', '--every', `${limit}`]).values.every).toBe(`${limit}`);
  }
});
