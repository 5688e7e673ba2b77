/**
 * Two services over one database for tests of the contract: one that may serve everything, and one under whose matrix
 * each dataset has another right than its neighbour. All twelve have rows; those of one are known one by one, with a day
 * missing in between.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { connect } from '../../../shared/db/connect.ts';
import { makeReadRole } from '../../../shared/db/roles.ts';
import { DATASET } from '../load-rows.ts';
import { type Serving, startServing } from '../serving.ts';
import { execute, type TestEnv } from '../stack.ts';
import { createWorldsEnv, TRADE_DAYS } from '../worlds-env.ts';
import { DATASETS, type Dataset } from './fields.ts';
import type { World as RequestWorld } from './requests.ts';
import { storedTrades, type Verdict, type World } from './world.ts';

export const STORED = storedTrades(TRADE_DAYS);

const ETF_SOURCES = [
  'etf_ishares_ibit_daily',
  'etf_invesco_btco_daily',
  'etf_bitwise_bitb_daily',
  'etf_ark_arkb_daily',
  'etf_vaneck_hodl_daily',
  'etf_franklin_ezbc_daily',
  'etf_grayscale_gbtc_daily',
  'etf_fidelity_fbtc_daily',
  'etf_coinshares_brrr_daily',
  'etf_hashdex_defi_daily',
];

const SERVED: Verdict = { kind: 'served' };
const refused = (code: string): Verdict => ({ kind: 'refused', code });

/** Each dataset under another right than its neighbour. */
const mixed = (password: string): Partial<Record<Dataset, Verdict>> => ({
  exchange_b_spot_trades: { kind: 'byok', password },
  exchange_c_spot_trades: refused('QUERY_RIGHTS_INGEST_ONLY'),
  etf_daily_metrics: refused('QUERY_RIGHTS_INGEST_ONLY'),
  macro_series_metrics: refused('QUERY_SERVING_SHADOW_MODE'),
  bitcoin_block_headers: refused('QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING'),
  bitcoin_circulating_supply: refused('QUERY_RIGHTS_MISSING_STATE'),
});

export interface Setup {
  readonly serving: Serving;
  readonly world: World;
}

export interface Setups extends AsyncDisposable {
  readonly env: TestEnv;
  /** Of the role for callers of datasets that are BYOK Required. */
  readonly password: string;
  /** The open one, then the mixed one. */
  readonly both: readonly [Setup, Setup];
  readonly requests: RequestWorld;
}

export async function createSetups(): Promise<Setups> {
  const role = `contract_${Math.random().toString(36).slice(2, 10)}`;
  const env = await createWorldsEnv();
  await using client = await connect({ url: env.databaseUrl, name: 'test' });
  const password = (await makeReadRole(client, role, false)).password!;
  await writeFile(join(env.dir, 'signed.md'), 'signed');
  const both = [await setUp(env, role, 'open', {}), await setUp(env, role, 'mixed', mixed(password))] as const;
  return {
    env,
    password,
    both,
    requests: await requestWorld(both[0].serving, password),
    async [Symbol.asyncDispose]() {
      for (const { serving } of both) await serving[Symbol.asyncDispose]();
      await execute(env.databaseUrl, `drop owned by ${role}; drop role ${role}`);
      await env[Symbol.asyncDispose]();
    },
  };
}

/** A service whose matrix says what the verdicts expect. */
async function setUp(
  env: TestEnv,
  role: string,
  name: string,
  verdicts: Partial<Record<Dataset, Verdict>>,
): Promise<Setup> {
  const isMixed = name === 'mixed';
  const source = (state: string, datasets: readonly string[], artifact: string | undefined = 'signed.md') => ({
    rights_state: state,
    rights_provisional: false,
    datasets,
    ...(artifact && { legal_signoff_artifact: artifact }),
  });
  const bitcoin = DATASETS.filter(
    (key) => key.startsWith('bitcoin_') && !(isMixed && key === 'bitcoin_circulating_supply'),
  );
  const sources = {
    exchange_a: source('Hosted Allowed', [DATASET]),
    exchange_b: source(isMixed ? 'BYOK Required' : 'Hosted Allowed', ['exchange_b_spot_trades']),
    exchange_c: source(isMixed ? 'Ingest Only' : 'Hosted Allowed', ['exchange_c_spot_trades']),
    macro: source('Hosted Allowed', ['macro_series_metrics']),
    ...Object.fromEntries(
      ETF_SOURCES.map((key, index) => [
        key,
        source(isMixed && index === 7 ? 'Ingest Only' : 'Hosted Allowed', ['etf_daily_metrics']),
      ]),
    ),
    bitcoin_core: source('Hosted Allowed', bitcoin, isMixed ? 'nowhere.md' : undefined),
  };
  const rightsMatrixPath = join(env.dir, `${name}.json`);
  await writeFile(rightsMatrixPath, JSON.stringify({ version: '1', sources }));
  const serving = await startServing({
    databaseUrl: env.databaseUrl,
    rightsMatrixPath,
    settings: { SVC_BYOK_DATABASE_ROLE: role, ...(isMixed && { SVC_MACRO_QUERY_SERVING_STATE: 'shadow' }) },
  });
  const all = isMixed
    ? { ...Object.fromEntries(bitcoin.map((key) => [key, verdicts.bitcoin_block_headers!])), ...verdicts }
    : verdicts;
  const world: World = {
    stored: new Map([[DATASET as Dataset, STORED]]),
    verdict: (dataset) => (all as Partial<Record<Dataset, Verdict>>)[dataset] ?? SERVED,
    isStale: () => true,
  };
  return { serving, world };
}

/** What of each dataset is worth asking for: what some of its rows hold. */
async function requestWorld(serving: Serving, password: string): Promise<RequestWorld> {
  const seen = new Map<string, Record<string, number | string | null>[]>();
  for (const dataset of DATASETS) {
    for (const mode of ['native', 'aligned_1s']) {
      const { json } = await serving.query({ sources: [dataset], mode, n_random: 30, random_seed: 1 });
      seen.set(`${dataset} ${mode}`, json.rows);
    }
  }
  return {
    span(dataset) {
      const times = seen.get(`${dataset} aligned_1s`)!.map((row) => Date.parse(String(row.aligned_at_utc)));
      return { fromMs: Math.min(...times), toMs: Math.max(...times) };
    },
    values: (dataset, mode, column) => seen.get(`${dataset} ${mode}`)!.flatMap((row) => row[column] ?? []),
    tokens: [password, 'wrong', ' ', "' or 1=1"],
  };
}
