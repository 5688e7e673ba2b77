/**
 * How many files of the product a reader opens to follow a trade, a query and a block: those with a function that is called
 * on the way, as V8 counts calls. Everything is loaded and running before the count begins.
 */
import { Session } from 'node:inspector/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, test } from 'vitest';
import { BitcoinSystem, eachOfSix } from '../support/bitcoin-system.ts';
import { ROOT } from '../support/command.ts';
import { csvOf, DATASET, DAY_MS, dayNames, System, writeDocument } from '../support/pipeline.ts';
import { startChain } from '../support/regtest.ts';
import { eventually, startServing } from '../support/serving.ts';

const LIMITS = { trade: 60, query: 35, block: 35 };

const PRODUCT = ['shared', 'pipelines', 'serving'].map((folder) => join(ROOT, folder, '/'));

/** Files of the product with a function that `journey` calls, without generators of samples, which the tests call. */
async function filesOf(journey: () => Promise<unknown>): Promise<string[]> {
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  await journey();
  const { result } = await session.post('Profiler.takePreciseCoverage');
  session.disconnect();
  const called = result
    .filter(({ functions }) => functions.some(({ functionName, ranges }) => functionName !== '' && ranges[0].count > 0))
    .map(({ url }) => (url.startsWith('file:') ? fileURLToPath(url) : url))
    .filter((path) => PRODUCT.some((folder) => path.startsWith(folder)) && !/\/sample(\/|\.ts$)/.test(path));
  return [...new Set(called)].map((path) => relative(ROOT, path)).sort();
}

/** Files that each of three ways takes: a pause, another try or a look that is due meanwhile adds a file to one of them alone. */
async function filesOfAll(journey: (turn: number) => Promise<unknown>): Promise<string[]> {
  const [files, ...others] = [
    await filesOf(() => journey(0)),
    await filesOf(() => journey(1)),
    await filesOf(() => journey(2)),
  ];
  return files.filter((file) => others.every((other) => other.includes(file)));
}

describe('the way', () => {
  const today = Math.floor(Date.now() / DAY_MS) * DAY_MS;
  const [first, second, ...others] = dayNames(new Date(today - 5 * DAY_MS).toISOString().slice(0, 10), 5);
  let ofTrade: string[];
  const ofQueries: string[][] = [];

  beforeAll(async () => {
    await using system = await System.create();
    const put = (day: string, firstId: number) =>
      writeDocument(system.vendor, day, csvOf({ day, rows: 500, seed: firstId, firstId, timeUnit: 'ms' }));
    const proved = async () => {
      const rows = await system.rows<{ day: string }>(
        `select partition_key as day from partitions where state = 'proved' order by 1`,
      );
      return rows.map(({ day }) => day);
    };
    await put(first, 1);
    expect((await system.backfill(first, first)).exit).toBe(0);
    const running = system.begin(['follow', DATASET], {}, { SVC_FOLLOW_FILES_SECONDS: 0.1 });
    const follow = async (day: string, firstId: number) => {
      await put(day, firstId);
      await eventually(async () => (await proved()).includes(day), `${day} is proved`);
    };
    // Not counted: on a busy machine the command is still starting while it publishes its first day.
    await follow(second, 501);
    ofTrade = await filesOfAll((turn) => follow(others[turn], 1001 + 500 * turn));
    running.stop();
    await running.done;

    await using serving = await startServing({ databaseUrl: system.env.databaseUrl });
    const windows = [{ n_rows: 3 }, { time_range: [`${first}T00:00:00Z`, `${second}T12:00:00Z`] }];
    for (const window of windows) {
      const query = { sources: [DATASET], ...window };
      expect((await serving.query(query)).status).toBe(200);
      ofQueries.push(await filesOfAll(() => serving.query(query)));
    }
  });

  test(`of a trade, from the vendor's file to the proved row, has at most ${LIMITS.trade} files`, () => {
    expect(ofTrade).toContain('pipelines/sources/exchange_a/decode.ts');
    expect(ofTrade).toContain('pipelines/projector/commit.ts');
    expect(ofTrade.length, ofTrade.join(' ')).toBeLessThanOrEqual(LIMITS.trade);
  });

  test.each([
    ['the latest rows', 0],
    ['a range of time', 1],
  ])(`of a query for %s, from the request to the last byte, has at most ${LIMITS.query} files`, (_, index) => {
    const files = ofQueries[index];
    expect(files).toContain('serving/contract/query.ts');
    expect(files).toContain('serving/render/json-rows.ts');

    expect(files.slice(LIMITS.query)).toEqual([]);
  });

  test(`of a block, from the node to the rows of six datasets, adds at most ${LIMITS.block} files to a trade's`, async () => {
    await using bitcoin = await BitcoinSystem.create();
    const chain = await startChain(bitcoin.rpc);
    await chain.addMany(3);
    expect((await bitcoin.backfill(0, 3)).exit).toBe(0);
    const running = bitcoin.begin(['follow', 'bitcoin'], { SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '0' });
    await chain.addMany(1);
    await expect.poll(() => bitcoin.proved()).toEqual(eachOfSix('{[0,5)}'));
    const files = await filesOfAll(async () => {
      await chain.addMany(1);
      await expect.poll(() => bitcoin.proved()).toEqual(eachOfSix(`{[0,${chain.height + 1})}`));
    });
    running.stop();
    await running.done;
    expect(files).toContain('pipelines/sources/bitcoin/wire/block.ts');
    const added = files.filter((file) => !ofTrade.includes(file));
    expect(added.slice(LIMITS.block)).toEqual([]);
  });
});
