/** Options of the command line: values that no command can use are refused before anything is done. */
import { expect, test } from 'vitest';
import { flagOf, parse } from '../../pipelines/cli/commands/program.ts';
import { PROCESS_IO } from '../../pipelines/cli/io.ts';
import { SETTINGS, type SettingName } from '../../shared/config/settings.ts';
import { faultOf } from '../support/faults.ts';

const parsed = (...argv: readonly string[]) => {
  const found = parse(argv, PROCESS_IO);
  if (typeof found === 'number') throw new Error(`exit ${found}`);
  return found.parsed;
};
const refused = async (...argv: readonly string[]) => (await faultOf((async () => parsed(...argv))(), 'USAGE')).message;

const KEY = 'exchange_a_spot_trades';
const DAY = ['--from', '2024-01-01', '--to', '2024-01-01'];

test.each([
  [['backfill'], "missing required argument 'feed'"],
  [['backfill', KEY, '--from-height', '-1'], "'-1' is invalid. It must be a whole number"],
  [['backfill', KEY, '--from-height', '1e3'], "'1e3' is invalid. It must be a whole number"],
  [['backfill', KEY, '--from', '2024-02-30'], 'It must be a day, YYYY-MM-DD; the calendar has no 2024-02-30'],
  [['backfill', KEY, '--to', '20240101'], 'It must be a day, YYYY-MM-DD.'],
  [['backfill', KEY, ...DAY, '--granularity', 'hourly'], 'Allowed choices are daily, monthly'],
  [['backfill', KEY, ...DAY, '--reason', 'x'], "unknown option '--reason'"],
  [['event', KEY, '1', 'more'], 'Expected 2 arguments but got 3'],
  [['event', KEY], "missing required argument 'offset'"],
  [['verify', KEY, '--deep=1'], "unknown option '--deep=1'"],
  [['status', '--runs', '--limit', '0'], "'0' is invalid. It must be a whole number from 1 on"],
  [['status', '--limit'], "'--limit <n>' argument missing"],
  [['quarantine', 'release', KEY, '2024-01-01'], "required option '--reason <text>' not specified"],
  [['keys', 'frobnicate'], "unknown command 'frobnicate'"],
  [['keys', 'add', 'x', '--scopes', 'read', '--requests-per-minute', '1000001'], 'from 1 to 1000000'],
  [['keys', 'add', 'x', '--scopes', 'read', '--grace', '5'], "unknown option '--grace'"],
])('refuses %j with the reason and its usage', async (argv, reason) => {
  const said = await refused(...argv);
  expect(said).toContain(reason);
  expect(said).toContain(`\nUsage: ./tidemark ${argv[0]}`);
});

test('takes what it documents', () => {
  const { values, json, progress, line } = parsed('backfill', KEY, ...DAY, '--json', '--no-progress');
  expect([values.from, values.granularity, json, progress]).toEqual(['2024-01-01', undefined, true, false]);
  expect(line).toBe(`./tidemark backfill ${KEY} --from 2024-01-01 --to 2024-01-01`);
  expect(parsed('quarantine', KEY).positionals).toEqual([KEY]);
  expect(parsed('quarantine', 'release', KEY, 'p', '--reason', 'a word').line).toBe(
    `./tidemark quarantine release ${KEY} p --reason "a word"`,
  );
});

test('an option without its value takes no other option for it', async () => {
  expect(await refused('recover', 'all', '--reason', '--dry-run')).toContain("'--dry-run' is invalid");
});

test('every setting is a flag of every command, and no part of its recorded line', () => {
  for (const name of Object.keys(SETTINGS) as SettingName[]) {
    for (const argv of [[`--${flagOf(name)}`, 'a value'], [`--${flagOf(name)}=a value`]]) {
      for (const command of [['status'], ['keys', 'list']]) {
        const { settings, line } = parsed(...command, ...argv);
        expect([settings, line]).toEqual([{ [name]: 'a value' }, `./tidemark ${command.join(' ')}`]);
      }
    }
  }
  // An option of the command's own goes before a setting of its name.
  expect(parsed('lake', '--to', 'x', '--follow')).toMatchObject({ values: { follow: true }, settings: {} });
});

// `reingest etf --kept --reason ""` replaced what was proved, and the ledger kept an empty reason.
test('a blank reason replaced proved partitions', async () => {
  for (const blank of ['', ' ', '\t\n']) {
    expect(await refused('reingest', 'etf', '--kept', '--reason', blank)).toContain('It is blank: give it a value');
    expect(await refused('verify', 'all', `--partition=${blank}`)).toContain('It is blank');
  }
  expect(parsed('reingest', 'etf', '--reason', 'why').values.reason).toBe('why');
  expect(parsed('reingest', 'etf').values.reason).toBeUndefined();
});

// A timer of more than 2^31 - 1 ms does not wait, and no date is as far away as some intervals.
test('an interval beyond what a timer or a date can take was taken: watch-log never paused, verify never began', async () => {
  for (const [name, limit] of [
    ['watch-log', 2_000_000],
    ['verify', 31_622_400],
  ] as const) {
    for (const wrong of ['0', `${limit + 1}`, '99999999999999']) {
      const said = await refused(name, 'x', '--every', wrong);
      expect(said).toContain(`'${wrong}' is invalid. It must be a whole number from 1 to ${limit}`);
    }
    expect(parsed(name, 'x', '--every', `${limit}`).values.every).toBe(`${limit}`);
  }
});
