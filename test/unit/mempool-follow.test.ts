/** Which stored snapshots of the mempool `follow` requests, and when it requests them again. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { snapshotDir } from '../../pipelines/sources/bitcoin/mempool.ts';
import { MempoolFeed } from '../../pipelines/sources/bitcoin/mempool-feed.ts';
import type { OpenedNode } from '../../pipelines/sources/bitcoin/open-node.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { createLogger } from '../../shared/logger.ts';
import { temporaryDir } from '../support/stack.ts';

type State = PartitionRow['state'];

/**
 * Follows these stored snapshots for a number of looks; the node is never asked.
 * @param publish what becomes of a snapshot that is requested: its state, or undefined if it failed
 * @returns the times of the requested snapshots, in order
 */
async function followed(
  states: Readonly<Record<string, State | undefined>>,
  looks: number,
  publish: (taken: string, time: number) => State | undefined,
): Promise<string[]> {
  const keepIn = await temporaryDir();
  const dir = snapshotDir(keepIn, 'regtest');
  await mkdir(dir, { recursive: true });
  for (const taken of Object.keys(states)) await writeFile(join(dir, `${taken}.json.zst`), '');
  const current = new Map(Object.entries(states));
  const stopping = new AbortController();
  let looked = 0;
  const partitionsOf = async (_dataset: unknown, keys: readonly string[]) => {
    if (++looked === looks) stopping.abort();
    return keys.flatMap((partitionKey) => {
      const state = current.get(partitionKey);
      return state ? [{ partitionKey, state }] : [];
    });
  };
  const env = { SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '0', SVC_STATE_DIR: keepIn };
  const settings = loadSettings({ env, cwd: keepIn, limits: { nodePollMs: 1 } });
  const log = createLogger('silent', 'test');
  const catalog = { partitionsOf } as unknown as Catalog;
  const opened = { network: 'regtest', keepIn } as OpenedNode;
  const requested: string[] = [];
  for await (const event of new MempoolFeed({ settings, catalog, log, signal: stopping.signal }, opened).follow()) {
    if (event.kind !== 'document') continue;
    const [{ key }] = event.request.partitions;
    requested.push(key);
    current.set(key, publish(key, requested.filter((one) => one === key).length));
  }
  return requested;
}

test('a snapshot that failed in an outage was not requested again before the next start', async () => {
  const requested = await followed({ 1700000000000: undefined, 1700000001000: undefined }, 200, (taken, time) =>
    taken === '1700000000000' || time === 3 ? 'published' : undefined,
  );
  expect(requested.filter((taken) => taken === '1700000000000')).toHaveLength(1);
  expect(requested.filter((taken) => taken === '1700000001000')).toHaveLength(3);
});

test('a snapshot that an earlier process published is requested once, a proved or quarantined one never', async () => {
  const states = { 1700000000000: 'published', 1700000001000: 'proved', 1700000002000: 'quarantined' } as const;
  expect(await followed(states, 20, () => 'published')).toEqual(['1700000000000']);
});

test('the pauses before a snapshot that fails every time grow', async () => {
  const requested = await followed({ 1700000000000: undefined }, 200, () => undefined);
  expect(requested.length).toBeGreaterThan(2);
  // After 1, 2, 4 ms and so on: the 40th would come after an age.
  expect(requested.length).toBeLessThan(40);
});
