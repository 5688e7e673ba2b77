/**
 * One set of loaded worlds for all files of a run that only read them: a world of each dataset whose partitions are no
 * stretches of time, and three days of each exchange. It is loaded once a run; a file gets a copy of its own.
 *
 * Rows, aligned rows, partitions, coverage and runs are as the pipeline leaves them. No log stands behind them: proofs and
 * lineage of these rows refer to events that no stream holds.
 */
import { DATASETS, type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import { claimOther, DATASET, loadDays, randomDay, type Trade } from './load-rows.ts';
import { loadFileDays } from './load-trades.ts';
import { loadWorld } from './load-worlds.ts';
import { createLoadedEnv, type TestEnv } from './stack.ts';
import { chainWorlds, etfWorld, macroWorld, mempoolWorld, type World } from './worlds.ts';

/** All days of each exchange; one is missing in between. */
export const TRADE_DAYS = [
  randomDay('2024-03-01', 60, 1000, 1),
  randomDay('2024-03-02', 40, 1060, 2),
  randomDay('2024-03-04', 50, 1100, 3),
];

/** Another instrument of each exchange: the same days and ids, other trades. */
export const OTHERS: Readonly<Record<string, string>> = {
  exchange_a_spot_trades: '1000SATSUSDT',
  exchange_b_spot_trades: 'BTC-USDC',
  exchange_c_spot_trades: 'ETHUSDT',
};
export const OTHER_DAYS = TRADE_DAYS.map(({ day, trades }, index) =>
  randomDay(day, trades.length, trades[0].trade_id, 11 + index),
);

/** A world of each dataset whose partitions are no stretches of time. */
export const worldsOf = (seed: number): World[] => [
  ...chainWorlds(seed),
  mempoolWorld(seed),
  etfWorld(seed),
  macroWorld(seed),
];

/** Those of `createWorldsEnv`. */
export const WORLDS: readonly World[] = worldsOf(1);

/** Use as `createTestEnv`; with the worlds and the days above. */
export const createWorldsEnv = (): Promise<TestEnv> => createLoadedEnv(load);

async function load(databaseUrl: string): Promise<void> {
  await loadDays(databaseUrl, TRADE_DAYS);
  for (const world of WORLDS) await loadWorld(databaseUrl, world);
  for (const dataset of DATASETS.values()) {
    if (!dataset.trades || dataset.key === DATASET) continue;
    await loadFileDays(databaseUrl, dataset, fileDays(TRADE_DAYS).map(within(dataset)));
  }
}

/** Adds the other instruments to a copy of the worlds. */
export async function loadOthers(databaseUrl: string): Promise<void> {
  for (const [key, symbol] of Object.entries(OTHERS)) {
    const dataset = await claimOther(databaseUrl, key, symbol);
    await loadFileDays(databaseUrl, dataset, fileDays(OTHER_DAYS).map(within(datasetOf(key))));
    // A third one, which nobody asks for, has the default's trades in the same table.
    const third = await claimOther(databaseUrl, key, 'THIRD');
    await loadFileDays(databaseUrl, third, fileDays(TRADE_DAYS).map(within(datasetOf(key))));
  }
}

const fileDays = (days: typeof TRADE_DAYS) => days.map(({ day, trades }) => ({ key: day, trades }));

/** Trades of a file day of another exchange, which may begin at another hour. */
const within =
  (dataset: DatasetDefinition) =>
  ({ key, trades }: { key: string; trades: readonly Trade[] }) => {
    const shiftMs = windowOf(dataset, key).fromMs - Date.parse(`${key}T00:00:00Z`);
    return { key, trades: trades.map((trade) => ({ ...trade, timestamp: trade.timestamp + shiftMs })) };
  };
