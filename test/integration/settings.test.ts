import { spawnSync } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type LoadOptions, loadSettings } from '../../shared/config/load.ts';
import { SETTINGS, type Setting, type SettingName } from '../../shared/config/settings.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { runCommand } from '../support/command.ts';

const NAMES = Object.keys(SETTINGS) as SettingName[];
const settingOf = (name: SettingName): Setting => SETTINGS[name];
const ROOT = join(import.meta.dirname, '../..');

let cwd: string;
beforeAll(async () => {
  cwd = await mkdtemp(join(tmpdir(), 'settings-'));
});
afterAll(() => rm(cwd, { recursive: true }));

const load = (env: NodeJS.ProcessEnv = {}, more: LoadOptions = {}) => loadSettings({ env, cwd, ...more });
async function withDotEnv<T>(text: string, work: () => T): Promise<T> {
  await writeFile(join(cwd, '.env'), text);
  try {
    return work();
  } finally {
    await rm(join(cwd, '.env'));
  }
}

/** Lines of the fault, without its headline. */
function faultsOf(work: () => unknown): string[] {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(TidemarkError);
    expect((error as TidemarkError).code).toBe('CONFIGURATION_INVALID');
    return (error as Error).message
      .split('\n')
      .slice(1)
      .map((line) => line.trim());
  }
  throw new Error('the settings were accepted');
}

/** A text that every setting refuses but those that take any. */
const WRONG = 'too many';

const takes = (name: SettingName) => settingOf(name).schema.description;

/** Of a whole number. */
const boundsOf = (name: SettingName) => {
  const { minimum, maximum } = z.toJSONSchema(settingOf(name).schema, { io: 'output', unrepresentable: 'any' });
  return minimum === undefined || maximum === undefined ? undefined : ([minimum, maximum] as const);
};

describe('the table of settings', () => {
  test('has a default that its own rules accept, and an explanation, for each', () => {
    expect(() => load()).not.toThrow();
    const settings = load();
    for (const name of NAMES) {
      const { default: text, doc, group, secret } = settingOf(name);
      expect(name).toMatch(/^SVC_[A-Z0-9]+(_[A-Z0-9]+)*$/);
      expect([name, doc.length > 20, group.length > 0, takes(name) !== undefined]).toEqual([name, true, true, true]);
      if (text === undefined) expect([name, settings[name]]).toEqual([name, undefined]);
      else if (boundsOf(name)) expect([name, settings[name]]).toEqual([name, Number(text)]);
      else expect([name, settings[name] === undefined]).toEqual([name, false]);
      // A secret with a default is no secret.
      if (secret) expect([name, text]).toEqual([name, undefined]);
      if (/PASSWORD|_KEY|TOKEN|DATABASE_URL|NATS_URL/.test(name)) expect([name, secret]).toEqual([name, true]);
    }
  });
});

describe('faults', () => {
  test('are listed all at once, each by its name', () => {
    const wrong = NAMES.filter((name) => !['string', 'path'].includes(takes(name)!));
    const env = Object.fromEntries(wrong.map((name) => [name, WRONG]));
    const faults = faultsOf(() => load({ ...env, SVC_HTTP_PROT: '1', SVC_NOTHING_LIKE_IT: '2' }));
    for (const name of [...wrong, 'SVC_HTTP_PROT', 'SVC_NOTHING_LIKE_IT']) {
      expect([name, faults.filter((line) => line.startsWith(`${name}: `)).length]).toEqual([name, 1]);
    }
    expect(faults).toHaveLength(wrong.length + 2);
  });

  test.each([
    ['../BTCUSDT', '"../BTCUSDT" is no symbol'],
    ["ETH';drop table partitions--", 'is no symbol'],
    ['ETHUSDT,,SOLUSDT', '"" is no symbol'],
    ['ETHUSDT,ETHUSDT', 'ETHUSDT stands twice'],
    ['LUNAUSDT:2022-05-13..2020-08-21', 'the interval of LUNAUSDT must be FROM..TO'],
    ['LUNAUSDT:2022-02-30..', 'the interval of LUNAUSDT must be FROM..TO'],
    ['LUNAUSDT:..', 'the interval of LUNAUSDT must be FROM..TO'],
    ['LUNAUSDT:2020-08-21..2022-05-13,LUNAUSDT:2022-05-13..', 'LUNAUSDT stands twice'],
    ['BTCUSDT', 'names BTCUSDT, which SVC_EXCHANGE_A_SYMBOL names as the default'],
    [Array.from({ length: 65 }, (_, index) => `S${index}USDT`).join(), 'must name at most 64 symbols, names 65'],
    ['C35385USDT,C36089USDT', 'events of C36089USDT and C35385USDT would have the same ids'],
  ])('of the other instruments %s are found', (text, fault) => {
    expect(faultsOf(() => load({ SVC_EXCHANGE_A_ALSO: text })).join('\n')).toContain(fault);
  });

  test('other instruments have the intervals that the operator knows', () => {
    const { SVC_EXCHANGE_A_ALSO: also } = load({
      SVC_EXCHANGE_A_ALSO: '1000SATSUSDT, LUNAUSDT:2020-08-21..2022-05-13,LUNAUSDT:2022-05-31.., ETHUSDT:..2024-01-01',
    });
    expect(also).toEqual([
      { symbol: '1000SATSUSDT', intervals: [] },
      {
        symbol: 'LUNAUSDT',
        intervals: [
          { from: '2020-08-21', to: '2022-05-13' },
          { from: '2022-05-31', to: undefined },
        ],
      },
      { symbol: 'ETHUSDT', intervals: [{ from: undefined, to: '2024-01-01' }] },
    ]);
  });

  // They were found by the feed that was opened with them, or by the database.
  test('between settings are found with all others', () => {
    const env = {
      SVC_HTTP_PORT: 'x',
      SVC_BITCOIN_HEADERS_START_HEIGHT: '100',
      SVC_BITCOIN_HEADERS_END_HEIGHT: '50',
      SVC_EXCHANGE_B_BASE_URL: 'https://b.example.org/',
      SVC_EXCHANGE_B_LINK_URL: 'https://b.example.org/link',
    };
    expect(faultsOf(() => load(env)).map((line) => line.split(':')[0])).toEqual([
      'SVC_HTTP_PORT',
      'SVC_BITCOIN_HEADERS_START_HEIGHT',
      'SVC_EXCHANGE_B_BASE_URL',
    ]);
    expect(
      load({
        ...env,
        SVC_HTTP_PORT: '1',
        SVC_BITCOIN_HEADERS_END_HEIGHT: '100',
        SVC_EXCHANGE_B_LINK_URL: '',
      }),
    ).toMatchObject({ SVC_BITCOIN_HEADERS_END_HEIGHT: 100 });
  });

  test.each(NAMES.filter((name) => boundsOf(name) !== undefined))('%s keeps to its bounds', (name) => {
    const [min, max] = boundsOf(name)!;
    for (const bound of [min, max]) {
      expect(load({ [name]: String(bound) })[name]).toBe(bound);
    }
    for (const text of [String(min - 1), String(max + 1), '1.5', '1e3', '0x10', '1 2', 'NaN', `${'9'.repeat(30)}`]) {
      const faults = faultsOf(() => load({ [name]: text }));
      expect(faults).toEqual([expect.stringMatching(new RegExp(`^${name}: `))]);
      if (!settingOf(name).secret) expect(faults[0]).toContain(JSON.stringify(text));
    }
  });

  test('are found in origins that no browser would send', () => {
    const load = (text: string) => () => loadSettings({ env: { SVC_HTTP_CORS_ORIGINS: text }, cwd });
    for (const text of [
      'app.example.org',
      'https://app.example.org/',
      'https://app.example.org/app',
      'https://App.example.org',
      'https://app.example.org:443',
      'ftp://app.example.org',
      'null',
      'https://*.example.org',
    ]) {
      expect(faultsOf(load(text)), text).toEqual([expect.stringContaining('SVC_HTTP_CORS_ORIGINS: must be origins')]);
    }
    expect(load('https://a.example.org,http://localhost:5173 , *')().SVC_HTTP_CORS_ORIGINS).toEqual([
      'https://a.example.org',
      'http://localhost:5173',
      '*',
    ]);
    expect(load('')().SVC_HTTP_CORS_ORIGINS).toEqual([]);
  });

  test('are blank texts given as flags: a blank key would let in whoever sends none', () => {
    for (const name of NAMES.filter((each) => ['string', 'path'].includes(takes(each)!))) {
      expect(faultsOf(() => load({}, { flags: { [name]: ' ' } }))).toEqual(
        [`${name}: must not be blank`].map((line) => expect.stringContaining(line)),
      );
    }
  });

  test('are paths of folders where a URL is due: the message has the URL, unless it may hold a password', () => {
    const faultOf = (text: string) => faultsOf(() => load({ SVC_EXCHANGE_A_BASE_URL: text }))[0];
    expect(faultOf('/data/a b')).toBe(
      'SVC_EXCHANGE_A_BASE_URL: must be a URL, such as file:///data/a%20b, got "/data/a b"',
    );
    expect(faultOf('/data/me@home')).toBe('SVC_EXCHANGE_A_BASE_URL: must be a URL');
    expect(faultsOf(() => load({ SVC_DATABASE_URL: '/data' }))[0]).toBe('SVC_DATABASE_URL: must be a URL');
  });

  // A Compose file and a shell put nothing in the place of a variable that is not set; the server then refused the password.
  test('are users of a URL whose password is empty', () => {
    const faultOf = (text: string) => faultsOf(() => load({ SVC_DATABASE_URL: text }))[0];
    expect(faultOf('postgres://tidemark_ingest:@postgres:5432/tidemark')).toBe(
      'SVC_DATABASE_URL: has no password between `tidemark_ingest:` and `@`; set the variable that it is made of',
    );
    for (const url of ['postgres://me@host/db', 'postgres://me:x@host/db', 'postgres://host:5432/db?a=b:@'])
      expect(load({ SVC_DATABASE_URL: url }).SVC_DATABASE_URL?.href).toBe(url);
  });

  test('are listed together with what is required and not there', () => {
    const required = () => ['SVC_DATABASE_URL', 'SVC_INTERNAL_API_KEY', 'SVC_HTTP_PORT'] as const;
    const faults = faultsOf(() => load({ SVC_HTTP_PORT: 'x', SVC_INTERNAL_API_KEY: 'k' }, { required }));
    expect(faults).toEqual([expect.stringContaining('SVC_HTTP_PORT: must be'), 'SVC_DATABASE_URL: is required']);
  });

  test('of unknown names come with the name that was probably meant', () => {
    for (const [name, meant] of [
      ['SVC_HTTP_PROT', 'SVC_HTTP_PORT'],
      ['SVC_EXCHANGE_A_BASEURL', 'SVC_EXCHANGE_A_BASE_URL'],
      ['SVC_INTERNAL_API_KEYS', 'SVC_INTERNAL_API_KEY'],
      ['SVC_DATABSE_URL', 'SVC_DATABASE_URL'],
    ]) {
      const [line] = faultsOf(() => load({ [name]: '1' }));
      expect(line).toBe(`${name}: no such setting (did you mean ${meant}?)`);
    }
    expect(faultsOf(() => load({ SVC_NOTHING_LIKE_THAT: '1' }))).toEqual(['SVC_NOTHING_LIKE_THAT: no such setting']);
    for (const name of NAMES) {
      expect(faultsOf(() => load({ [`${name}S`]: '1' }))[0]).toContain(`(did you mean ${name}?)`);
    }
  });

  test('in the .env file count like those of the environment', async () => {
    const faults = await withDotEnv('SVC_HTTP_PORT=abc\nSVC_HTTP_PROT=1\n# SVC_COMMENT=1\n', () =>
      faultsOf(() => load()),
    );
    expect(faults).toHaveLength(2);
  });

  // Such lines were passed over, and the defaults taken.
  test.each([
    ['SVC_HTTP_PORT: 9000', 1],
    ['SVC_HTTP_PORT=9000\n\nSVC_LOG_LEVEL debug\n', 3],
    ['SVC_INTERNAL_API_KEY="a\nb"\nexport\n', 3],
    // What comes after a closing quote was dropped, a second setting too.
    ['SVC_HTTP_PORT=9000\nSVC_INTERNAL_API_KEY="abc"def\n', 2],
    ['SVC_INTERNAL_API_KEY="abc" SVC_HTTP_PORT=9000', 1],
    ["SVC_INTERNAL_API_KEY='a\r\n# b' SVC_HTTP_PORT=9000\r\nSVC_LOG_LEVEL=debug", 2],
    ['SVC_INTERNAL_API_KEY="a\\"b"', 1],
  ])('that have no = in the .env file are named by their line: %j', async (text, line) => {
    const loading = () => withDotEnv(text, () => load());
    await expect(loading).rejects.toThrow(`.env, line ${line}: a line must be NAME=value or a # comment`);
  });

  test('in the .env file may be quoted over lines, exported and commented', async () => {
    const text = `# a = "b\n\nexport SVC_HTTP_PORT = 9000 # = it's\r\nSVC_INTERNAL_API_KEY='two\nlines: of it'\nOTHER=\`x\ny\`\n`;
    const settings = await withDotEnv(text, () => load());
    expect([settings.SVC_HTTP_PORT, settings.SVC_INTERNAL_API_KEY]).toEqual([9000, 'two\nlines: of it']);
  });

  // An editor on Windows writes a byte order mark, and the first name began with it: the setting had its default.
  test('in the .env file are not overlooked after a byte order mark, nor found in what may follow a quoted value', async () => {
    const first = await withDotEnv('\uFEFFSVC_HTTP_PORT=9000\n', () => load());
    expect(first.SVC_HTTP_PORT).toBe(9000);
    const text = `SVC_INTERNAL_API_KEY="a # b" # c "d"\r\nOTHER='x\n# y"'#z\nURL=http://h/?a="b"&c=d\nSVC_HTTP_PORT=9000`;
    const settings = await withDotEnv(text, () => load());
    expect([settings.SVC_INTERNAL_API_KEY, settings.SVC_HTTP_PORT]).toEqual(['a # b', 9000]);
  });

  // The next line was taken for the value, and its own setting had its default.
  test('in the .env file are not overlooked after a setting with nothing but blanks behind its =', async () => {
    const text = `SVC_LOG_LEVEL= \nSVC_HTTP_PORT=9000\nOTHER=\t\r\n\r\nSVC_INTERNAL_API_KEY='a= \nb'\nLAST= `;
    const settings = await withDotEnv(text, () => load());
    const { SVC_LOG_LEVEL: level, SVC_HTTP_PORT: port, SVC_INTERNAL_API_KEY: key } = settings;
    expect([level, port, key]).toEqual([SETTINGS.SVC_LOG_LEVEL.default, 9000, 'a= \nb']);
  });

  test('with two slashes name a host, which no file has', () => {
    const [fault] = faultsOf(() => load({ SVC_EXCHANGE_A_BASE_URL: 'file://tmp/exchange_a' }));
    expect(fault).toContain('SVC_EXCHANGE_A_BASE_URL: must have three slashes');
  });

  // They passed, and the connection threw URIError: a crash without the name of the setting.
  test('are found in credentials that cannot be decoded', () => {
    for (const [name, text] of [
      ['SVC_NATS_URL', 'nats://u:50%@host'],
      ['SVC_NATS_READER_URL', 'nats://to%ken@host'],
      ['SVC_DATABASE_URL', 'postgres://u:a%b1c@h/db'],
    ]) {
      expect(faultsOf(() => load({ [name]: text }))).toEqual([
        `${name}: must percent-encode special characters of the user name and the password: % is %25`,
      ]);
    }
    expect(load({ SVC_NATS_URL: 'nats://u:50%25@host' }).SVC_NATS_URL?.password).toBe('50%25');
  });

  test('never show what a secret holds, nor the credentials of an address', () => {
    const secrets = NAMES.filter((name) => settingOf(name).secret);
    expect(secrets.length).toBeGreaterThan(2);
    for (const name of NAMES.filter((each) => takes(each)!.startsWith('URL'))) {
      for (const text of [
        'gopher://someone:verysecret@example.test/x',
        'postgres//someone:verysecret@example.test/x',
        'someone:verysecret@example.test',
        'http://someone:verysecret%@example.test/x',
        'nats://someone:verysecret%@example.test',
        'http://someone:verysecret@:99999/x',
      ]) {
        let message = '';
        try {
          load({ [name]: text, SVC_LOG_LEVEL: 'loud' });
        } catch (error) {
          message = (error as Error).message;
        }
        expect([name, message.includes('SVC_LOG_LEVEL')]).toEqual([name, true]);
        expect([name, message.includes('verysecret')]).toEqual([name, false]);
      }
    }
  });
});

describe('precedence', () => {
  test('is flag, environment, .env, default', async () => {
    await withDotEnv('SVC_QUERY_MAX_CONCURRENCY=7\nSVC_QUERY_MAX_QUEUE=70\n', () => {
      const flags = { SVC_QUERY_MAX_CONCURRENCY: '9' };
      const env = { SVC_QUERY_MAX_CONCURRENCY: '8' };
      expect(load(env, { flags }).SVC_QUERY_MAX_CONCURRENCY).toBe(9);
      expect(load(env).SVC_QUERY_MAX_CONCURRENCY).toBe(8);
      expect(load().SVC_QUERY_MAX_CONCURRENCY).toBe(7);
      expect(load(env, { flags }).SVC_QUERY_MAX_QUEUE).toBe(70);
    });
    expect(load().SVC_QUERY_MAX_CONCURRENCY).toBe(Number(SETTINGS.SVC_QUERY_MAX_CONCURRENCY.default));
  });

  test('takes a blank value for none', async () => {
    await withDotEnv('SVC_QUERY_MAX_CONCURRENCY=7\nSVC_HTTP_PORT=\n', () => {
      expect(load({ SVC_QUERY_MAX_CONCURRENCY: ' ' }).SVC_QUERY_MAX_CONCURRENCY).toBe(7);
      expect(load().SVC_HTTP_PORT).toBeUndefined();
    });
  });

  test('a faulty value that is overruled does no harm', () => {
    expect(load({ SVC_HTTP_PORT: 'abc' }, { flags: { SVC_HTTP_PORT: '80' } }).SVC_HTTP_PORT).toBe(80);
  });

  test('relative paths start at the project, not where the command is called', () => {
    expect(load({ SVC_STATE_DIR: 'some/where' }).SVC_STATE_DIR).toBe(join(cwd, 'some/where'));
    expect(load({ SVC_STATE_DIR: '/some/where' }).SVC_STATE_DIR).toBe('/some/where');
    expect(load().SVC_STATE_DIR).toBe(join(cwd, SETTINGS.SVC_STATE_DIR.default));
  });
});

test('booleans are read in their usual words', () => {
  for (const text of ['true', 'TRUE', '1', 'yes', 'on']) expect(load({ SVC_SAMPLE: text }).SVC_SAMPLE).toBe(true);
  for (const text of ['false', 'False', '0', 'no', 'off']) expect(load({ SVC_SAMPLE: text }).SVC_SAMPLE).toBe(false);
});

describe('the command', () => {
  const run = (args: string[], env: Record<string, string> = {}) => {
    const { PATH } = process.env;
    const child = spawnSync(join(ROOT, 'tidemark'), args, {
      encoding: 'utf8',
      env: { PATH, SVC_STATE_DIR: join(cwd, 'state'), ...env },
      timeout: 60_000,
    });
    return { exit: child.status, stdout: child.stdout, stderr: child.stderr };
  };

  test('ends with 2 and all faults of the settings, before it starts anything', () => {
    const env = { SVC_HTTP_PORT: 'abc', SVC_STREAM_MAX_BYTES: '1', SVC_HTTP_PROT: '1' };
    const human = run(['status', '--stream-replicas', '0'], env);
    expect(human.exit).toBe(2);
    expect(human.stdout).toBe('');
    for (const name of ['SVC_HTTP_PORT', 'SVC_STREAM_MAX_BYTES', 'SVC_HTTP_PROT', 'SVC_STREAM_REPLICAS']) {
      expect(human.stderr).toContain(`${name}: `);
    }
    expect(human.stderr).toContain('[CONFIGURATION_INVALID]');
    const { exit, stdout } = run(['status', '--json'], env);
    expect([exit, JSON.parse(stdout)]).toMatchObject([
      2,
      { command: 'status', ok: false, error: { code: 'CONFIGURATION_INVALID' } },
    ]);
    expect(JSON.parse(stdout).error.message).toContain('SVC_HTTP_PROT');
  });

  test('ends with 2 on wrong usage, and shows what there is where no command is named', async () => {
    const { exit, stdout, stderr } = run([]);
    expect([exit, stderr, stdout]).toEqual([2, '', expect.stringContaining('backfill')]);
    const wrong = run(['nosuchcommand']);
    expect([wrong.exit, wrong.stdout, wrong.stderr]).toEqual([2, '', expect.stringContaining('[USAGE]')]);
  });

  test.each([
    [['backfill', 'exchange_a_spot_trades', '--from', '2024-01-02', '--to', '2024-01-01']],
    [['replay', 'exchange_a_spot_trades', '--from', '2024-01-02', '--to', '2024-01-01']],
    [['backfill', 'nosuchdataset', '--from', '2024-01-01', '--to', '2024-01-01']],
    [['replay', 'bitcoin_block_headers', '--from-height', '5', '--to-height', '2']],
    [['verify', 'exchange_a_spot_trades', '--every', '60', '--from', '2024-01-02']],
    [['help', 'nosuchcommand']],
    [['status', 'nosuchdataset']],
    [['status', '--open']],
    [['status', 'exchange_a_spot_trades', '--runs']],
    [['reingest', 'etf']],
    [['reingest', 'etf', 'macro', '--kept']],
    [['reingest', 'etf', '--kept', '--dry-run']],
  ])('refuses %j', async (args) => {
    const { exit, json } = await runCommand(args, { SVC_STATE_DIR: join(cwd, 'state') });
    expect([exit, json?.error.code]).toEqual([2, 'USAGE']);
  });

  test.each([
    [
      ['verify', 'bitcoin_block_headers', 'exchange_a_spot_trades', '--from-height', '5'],
      'exchange_a_spot_trades has no',
    ],
    [['replay', 'all', '--to-height', '5'], 'has no heights'],
    [['verify', 'bitcoin_block_headers', '--partition', '7', '--to-height', '5'], '--partition and --to-height'],
    [
      ['replay', 'exchange_a_spot_trades', '--partition', '2024-01-02', '--from', '2024-01-01'],
      '--partition and --from',
    ],
    [['verify', 'bitcoin_block_headers', '--to', '2024-01-01', '--from-height', '5'], '--to and --from-height'],
  ])('a selection was ignored, or refused after a dataset was processed: %j', async (args, reason) => {
    // Nothing is opened before the refusal.
    const { exit, json } = await runCommand(args, { SVC_DATABASE_URL: 'postgres://127.0.0.1:1/none' });
    expect([exit, json?.error.message]).toEqual([2, expect.stringContaining(reason)]);
  });

  test('shows help and ends with 0', () => {
    for (const [args, part] of [
      [['help'], 'backfill'],
      [['backfill', '--help'], '--granularity'],
    ] as const) {
      const { exit, stdout } = run([...args]);
      expect([exit, stdout]).toEqual([0, expect.stringContaining(part)]);
    }
  });

  test('never shows a password, also when a server does not answer', () => {
    const env = {
      SVC_DATABASE_URL: 'postgres://someone:verysecret@127.0.0.1:1/none',
      SVC_NATS_URL: 'nats://someone:verysecret@127.0.0.1:1',
      SVC_LOG_LEVEL: 'trace',
    };
    for (const given of [env, { ...env, SVC_DATABASE_URL: '' }]) {
      const { exit, stdout, stderr } = run(['status', '--json'], given);
      expect(exit).toBe(1);
      expect(JSON.parse(stdout).error.code).toBe(given.SVC_DATABASE_URL ? 'DATABASE_UNAVAILABLE' : 'LOG_UNAVAILABLE');
      expect(stdout + stderr).not.toContain('verysecret');
    }
  });
});
