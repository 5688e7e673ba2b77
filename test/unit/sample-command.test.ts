/** `./tidemark sample`: documents that the sources themselves read, in folders that hold nothing else. */
import { mkdir, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { feeds } from '../../pipelines/sources/index.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import { assert } from '../../shared/errors.ts';
import { createLogger } from '../../shared/logger.ts';
import { beginCommand, type Json, runCommand } from '../support/command.ts';
import { eventually } from '../support/serving.ts';

const FEEDS = feeds().filter(({ sample }) => sample?.write);
const A = 'exchange_a_spot_trades';
/** Tuesday to Thursday. */
const [FROM, TO] = ['2024-01-02', '2024-01-04'];

let root: string;
let folders = 0;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'sample-'));
});
afterAll(() => rm(root, { recursive: true }));

/** Of a folder that is not there yet. */
const newFolder = () => join(root, `out-${++folders}`);
const sample = (...args: readonly string[]) => runCommand(['sample', ...args], {});

async function written(...args: readonly string[]): Promise<Json> {
  const { exit, json, stdout, stderr } = await sample(...args);
  expect(exit, stdout + stderr).toBe(0);
  return json;
}

async function refused(...args: readonly string[]): Promise<string> {
  const { exit, json } = await sample(...args);
  expect([exit, json?.error.code]).toEqual([2, 'USAGE']);
  return json.error.message;
}

const days = (from: string, to = from) => ['--from', from, '--to', to];
const isTrades = (name: string) => name.endsWith('_spot_trades');
const rowsOf = (name: string) => (isTrades(name) ? ['--rows', '40'] : []);

describe.for(FEEDS)('$name', (feed) => {
  test('its source reads what is written, where the settings of the answer say it is', async () => {
    const out = newFolder();
    const answer = await written(feed.name, ...days(FROM, TO), '--out', out, ...rowsOf(feed.name));
    expect(answer).toMatchObject({ command: 'sample', ok: true, feed: feed.name, from: FROM, to: TO, folder: out });
    const env = Object.fromEntries(answer.settings.map(({ name, url }: Json) => [name, url]));
    const settings = loadSettings({ env: { ...env, SVC_STATE_DIR: join(root, 'state') }, cwd: root });
    const needs = { settings, log: createLogger('silent', 'test'), signal: new AbortController().signal };
    await using opened = await feed.open({ ...needs, catalog: {} as Catalog });
    const counts: number[] = [];
    for await (const event of opened.select({ options: { from: FROM, to: TO }, reingest: false })) {
      assert(event.kind === 'document', 'nothing is proved yet that could be retracted');
      await using document = await opened.source.open(event.request);
      for await (const item of document.decode({ frameRawBytes: 65_536 })) {
        if (item.kind === 'end') counts.push(Number(item.facts.rows));
      }
    }
    if (isTrades(feed.name)) expect(counts).toEqual([40, 40, 40]);
    else expect(counts.length).toBe(3 * feed.datasets[0].sources.length);
    expect(Math.min(...counts)).toBeGreaterThan(0);
  });

  test('the same days are the same bytes, and a second run changes nothing', async () => {
    const [one, other] = [newFolder(), newFolder()];
    const order = [feed.name, ...days(FROM, TO), ...rowsOf(feed.name), '--out'];
    const { documents } = await written(...order, one);
    expect((await written(...order, other)).documents).toEqual(documents);
    const times = () => Promise.all(documents.map(async ({ path }: Json) => (await stat(join(one, path))).mtimeMs));
    const before = await times();
    expect((await written(...order, one)).documents).toEqual(documents);
    expect(await times()).toEqual(before);
  });
});

describe('the folder', () => {
  const of = (to: string, out: string) => [A, ...days(FROM, to), '--rows', '5', '--out', out];

  test('takes later days of the same sample, and not fewer', async () => {
    const out = newFolder();
    await written(...of(FROM, out));
    await written(...of(TO, out));
    expect(await refused(...of(FROM, out))).toMatch(/holds spot\/.*2024-01-03.zip, which is not part of this sample/);
  });

  test('is refused when it is a file, or holds something else, and stays as it is', async () => {
    const out = newFolder();
    await mkdir(out);
    await writeFile(join(out, 'thesis.txt'), 'mine');
    expect(await refused(...of(TO, out))).toMatch(
      /holds thesis.txt, which is not part of this sample; nothing was written/,
    );
    expect(await readdir(out)).toEqual(['thesis.txt']);
    expect(await refused(...of(TO, join(out, 'thesis.txt')))).toMatch(/is not a folder/);
    // It is named at the first level, and not gone through.
    await rm(join(out, 'thesis.txt'));
    await mkdir(join(out, 'drafts'));
    expect(await refused(...of(TO, out))).toMatch(/holds drafts, which is not part of this sample/);
  });

  test('is refused when a document of it has other bytes', async () => {
    const out = newFolder();
    const { documents } = await written(...of(TO, out));
    await writeFile(join(out, documents[2].path), 'edited');
    expect(await refused(...of(TO, out))).toContain(`${documents[2].path}, which has other bytes`);
    expect(await refused(A, ...days(FROM, TO), '--rows', '6', '--out', out)).toMatch(/has other bytes/);
  });

  test('is not left behind by a run that is stopped', async () => {
    const out = newFolder();
    const running = beginCommand(['sample', A, ...days(FROM, '2024-02-29'), '--out', out], {});
    await eventually(async () => (await readdir(out).catch(() => [])).length === 1, 'the command writes');
    running.stop();
    const { exit, json } = await running.done;
    expect([exit, json.error.code]).toEqual([130, 'INTERRUPTED']);
    await expect(readdir(out)).rejects.toThrow('ENOENT');
  });
});

test('names, days and rows that cannot be are refused before anything is written', async () => {
  const out = newFolder();
  // If the day ended during the test, the command would accept it.
  const endsInMs = 86_400_000 - (Date.now() % 86_400_000);
  if (endsInMs < 5000) await new Promise((resolve) => setTimeout(resolve, endsInMs));
  const today = new Date().toISOString().slice(0, 10);
  const cases: [readonly string[], RegExp][] = [
    [
      ['exchange_z_spot_trades', ...days(FROM)],
      /There is no feed "exchange_z_spot_trades"; did you mean exchange_a_spot_trades[?] known: /,
    ],
    [['macro', ...days(FROM)], /macro is fetched from a server.*This command writes exchange_a_spot_trades, .*\betf\b/],
    [['bitcoin_mempool_state', ...days(FROM)], /`\.\/tidemark up` loads a sample of it/],
    [[A, '--from', FROM], /required option '--to /],
    [
      [A, ...days('2024-02-30')],
      /'2024-02-30' is invalid. It must be a day, YYYY-MM-DD; the calendar has no 2024-02-30/,
    ],
    [[A, ...days(TO, FROM)], /--from 2024-01-04 is after --to 2024-01-02/],
    [[A, ...days(today)], new RegExp(`--to ${today} has not ended yet`)],
    [[A, ...days('2009-12-31', FROM)], /--from 2009-12-31 is before 2010-01-01/],
    [[A, ...days('2023-01-01', '2024-01-02')], /are 367 days; at most 366/],
    [[A, ...days(FROM), '--rows', '0'], /'0' is invalid. It must be a whole number from 1 to 2000000/],
    [[A, ...days(FROM), '--rows', '2000001'], /'2000001' is invalid. It must be a whole number from 1 to 2000000/],
    [['etf', ...days(FROM), '--rows', '5'], /--rows applies to trades only/],
    // A Saturday and a Sunday.
    [['etf', ...days('2024-01-06', '2024-01-07')], /No day of --from to --to has a document/],
  ];
  for (const [args, message] of cases) expect(await refused(...args, '--out', out), args.join(' ')).toMatch(message);
  expect(await refused(A, ...days(FROM))).toMatch(/required option '--out /);
  await expect(stat(out)).rejects.toThrow('ENOENT');
});

test('a feed may be named by its dataset', async () => {
  const answer = await written('etf_daily_metrics', ...days(FROM), '--out', newFolder());
  expect(answer.feed).toBe('etf');
});

describe('another instrument', () => {
  test.each(['exchange_a_spot_trades', 'exchange_b_spot_trades', 'exchange_c_spot_trades'])(
    'of %s has documents of its own beside those of the default',
    async (name) => {
      const write = async (...more: readonly string[]) => {
        const { documents } = await written(name, ...days(FROM), '--rows', '40', '--out', newFolder(), ...more);
        return documents.filter(({ path }: Json) => !path.endsWith('.CHECKSUM')) as Json[];
      };
      const [byDefault, other, again] = [
        await write(),
        await write('--instrument', '1000SATS-USDT'),
        await write('--instrument', '1000SATS-USDT'),
      ];
      expect([byDefault.length, other.length]).toEqual([1, 1]);
      expect(other[0].path).toContain('1000SATS-USDT');
      expect(other[0].sha256).not.toBe(byDefault[0].sha256);
      expect(again).toEqual(other);
    },
  );

  test.each(['../../ETHUSDT', 'ETH/USDT', '..', '.', '-ETH', 'ETHUSDT:2024-01-01', 'É', 'A'.repeat(33)])(
    'of a name that is none, %j, is refused',
    async (name) => {
      const out = newFolder();
      expect(await refused(A, ...days(FROM), '--out', out, `--instrument=${name}`)).toContain('is no symbol');
      await expect(stat(out)).rejects.toThrow('ENOENT');
    },
  );

  test('of a feed without instruments is refused', async () => {
    const out = newFolder();
    expect(await refused('etf', ...days(FROM), '--out', out, '--instrument', 'IBIT')).toContain('applies to trades');
  });
});
