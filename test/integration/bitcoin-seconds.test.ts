/** Aligned rows of the seven datasets, made by the database, against sums and digests made here. */
import { createHash } from 'node:crypto';
import type { ClientBase } from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SharedSeconds } from '../../pipelines/rows/binary-copy.ts';
import { CopyIn } from '../../pipelines/rows/copy-in.ts';
import { type RecordRow, RecordRows } from '../../pipelines/rows/record-rows.ts';
import { mempoolEvents } from '../../pipelines/sources/bitcoin/mempool.ts';
import { DERIVED_DATASETS, type DerivedDataset, derivedPayload } from '../../pipelines/sources/bitcoin/rows/derived.ts';
import { encodeHeaderAuxiliary, encodeTransactionAuxiliary } from '../../pipelines/sources/bitcoin/rows/prevouts.ts';
import {
  createTransactionRow,
  derivedRow,
  headerRow,
  mempoolRow,
} from '../../pipelines/sources/bitcoin/rows/project.ts';
import {
  derivedSeconds,
  HEADER_SECONDS,
  MEMPOOL_SECONDS,
  TRANSACTION_SECONDS,
} from '../../pipelines/sources/bitcoin/rows/seconds.ts';
import { encodeTransaction, input, output } from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { writeHeader } from '../../pipelines/sources/bitcoin/wire/block.ts';
import { displayHash, sha256d } from '../../pipelines/sources/bitcoin/wire/bytes.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { encodeRecord } from '../../shared/frame/records.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { createTestEnv, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let client: Client;
beforeAll(async () => {
  env = await createTestEnv();
  client = await connect({ url: env.databaseUrl, name: 'test' });
  await migrate(client);
});
afterAll(async () => {
  await client?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

interface Event {
  readonly offset: string;
  readonly payload: Buffer;
  readonly record: Buffer;
}

const INGESTED = '2026-01-02T03:04:05.678Z';

/** Loads the events' rows and asks for their seconds, in order. */
async function secondsOf(
  key: string,
  toRow: RecordRow,
  shared: SharedSeconds,
  events: readonly Event[],
): Promise<Record<string, unknown>[]> {
  const dataset: DatasetDefinition = datasetOf(key);
  const { native, offset } = dataset;
  await client.query(`truncate ${native.table}`);
  // Whatever the order of arrival.
  const shuffled = [...events].sort((a, b) => (digest(a.offset) < digest(b.offset) ? -1 : 1));
  const { copy } = new RecordRows(native, toRow).rows(
    Buffer.concat(shuffled.map(({ record }) => record)),
    shuffled.length,
  );
  const load = new CopyIn(
    client as ClientBase,
    native.table,
    native.columns.map(({ name }) => name),
  );
  await load.write(copy);
  await load.end();
  const rows = `(select t.*, floor(t."${native.time.column}" / 1000)::int8 as second, ${offset.sql} as source_offset,
    timestamptz '${INGESTED}' + t."${native.time.column}" % 7 * interval '1 s' as ingested_at from ${native.table} t)`;
  const found = await client.query(`select * from (${shared.select(rows)}) m order by second`);
  expect(found.fields.map(({ name }) => name)).toEqual(['second', ...shared.columns]);
  return found.rows;
}

const digest = (text: string) => createHash('sha256').update(text).digest('hex');
const bucket = (events: readonly Event[]) =>
  digest(
    events.map(({ offset, payload }) => `${offset}\n${createHash('sha256').update(payload).digest('hex')}\n`).join(''),
  );

describe('headers', () => {
  const header = (height: number, time: number): Event => {
    const payload = writeHeader({
      version: -height,
      prevHash: Buffer.alloc(32, height),
      merkleRoot: Buffer.alloc(32, height + 100),
      time,
      bits: 0x1d00ffff,
      nonce: 4_000_000_000 + height,
    });
    const offset = `${height}`;
    return { offset, payload, record: encodeRecord(offset, payload, encodeHeaderAuxiliary({ height, chain: 'main' })) };
  };

  test('blocks of one second are one row, in the order of their heights; time may go back', async () => {
    const [nine, ten, eleven, zero] = [header(9, 1_000), header(10, 1_000), header(11, 990), header(0, 500)];
    const rows = await secondsOf('bitcoin_block_headers', headerRow, HEADER_SECONDS, [nine, ten, eleven, zero]);
    expect(
      rows.map(({ second, records_in_bucket, latest_height }) => [second, records_in_bucket, latest_height]),
    ).toEqual([
      ['500', '1', '0'],
      ['990', '1', '11'],
      ['1000', '2', '10'],
    ]);
    expect(rows[2]).toMatchObject({
      latest_block_hash: displayHash(sha256d(ten.payload)),
      latest_prev_hash: displayHash(Buffer.alloc(32, 10)),
      latest_merkle_root: displayHash(Buffer.alloc(32, 110)),
      latest_version: '-10',
      latest_nonce: '4000000010',
      latest_difficulty: 1,
      latest_timestamp_ms: '1000000',
      latest_source_chain: 'main',
      first_source_offset_or_equivalent: '9',
      last_source_offset_or_equivalent: '10',
      bucket_sha256: bucket([nine, ten]),
    });
    expect(rows[0].latest_prev_hash).toBe('');
  });
});

describe('transactions', () => {
  const transaction = (
    height: number,
    index: number,
    time: number,
    spent: number[],
    paid: number[],
  ): Event & { spent: number[]; paid: number[] } => {
    const tx = encodeTransaction({
      version: 2,
      inputs:
        spent.length === 0
          ? [input(Buffer.alloc(32), 0xffffffff, { script: Buffer.of(1, height, index) })]
          : spent.map((_, at) => input(Buffer.alloc(32, height + 1), at)),
      outputs: paid.map((sats) => output(sats, Buffer.of(0x51, index))),
      lockTime: index,
    });
    const offset = `${height}:${index}:${displayHash(tx.txid)}`;
    const auxiliary = encodeTransactionAuxiliary({
      height,
      index,
      time,
      blockHash: Buffer.alloc(32, height),
      chain: 'main',
      spent,
    });
    return { offset, payload: tx.raw, record: encodeRecord(offset, tx.raw, auxiliary), spent, paid };
  };

  test('sums of satoshis, counts and digests; places compare as numbers', async () => {
    const events = [
      transaction(9, 0, 7, [], [5_000_000_003]),
      transaction(9, 1, 7, [2_099_999_999_999_999, 1], [3, 2_099_999_999_999_990]),
      transaction(9, 2, 7, [2_000_000_000_000_001], [1_999_999_999_999_999]),
      transaction(9, 10, 7, [10], [9]),
      transaction(10, 0, 7, [], [1]),
      transaction(11, 0, 8, [], [0]),
    ];
    const rows = await secondsOf('bitcoin_block_transactions', createTransactionRow(), TRANSACTION_SECONDS, events);
    const merged = events.slice(0, 5);
    const sum = (amounts: number[]) => amounts.reduce((total, sats) => total + BigInt(sats), 0n);
    const asBtc = (total: bigint) => Number(`${total / 100_000_000n}.${String(total % 100_000_000n).padStart(8, '0')}`);
    expect(rows).toHaveLength(2);
    expect(rows[0]).toMatchObject({
      second: '7',
      records_in_bucket: '5',
      tx_count: '5',
      coinbase_tx_count: '2',
      total_input_value_btc: asBtc(sum(merged.flatMap(({ spent }) => spent))),
      total_output_value_btc: asBtc(sum(merged.flatMap(({ paid }) => paid))),
      first_block_height: '9',
      last_block_height: '10',
      latest_block_timestamp_ms: '7000',
      latest_txid: events[4].offset.split(':')[2],
      first_source_offset_or_equivalent: events[0].offset,
      last_source_offset_or_equivalent: events[4].offset,
      bucket_sha256: bucket(merged),
    });
    expect(rows[1]).toMatchObject({ total_input_value_btc: 0, total_output_value_btc: 0, coinbase_tx_count: '1' });
  });
});

describe('mempool', () => {
  const hex = (digit: string) => digit.repeat(64);
  const snapshot = (
    takenAtMs: number,
    entries: { txid: string; feeSats: number; vsize: number; firstSeen: number; replaceable: boolean }[],
  ) =>
    [...mempoolEvents({ takenAtMs, chain: 'main', entries, document: { name: '', sha256: '', bytes: 0 } })].map(
      ({ offset, payload }) => ({ offset, payload: Buffer.from(payload), record: encodeRecord(offset, payload) }),
    );

  test('fee rates, sizes and sights; two snapshots of one second are one row', async () => {
    const first = snapshot(1_700_000_000_100, [
      { txid: hex('a'), feeSats: 1, vsize: 3, firstSeen: 50, replaceable: true },
      { txid: hex('f'), feeSats: 1_000, vsize: 141, firstSeen: 40, replaceable: false },
    ]);
    const second = snapshot(1_700_000_000_900, [
      { txid: hex('0'), feeSats: 22_500, vsize: 900, firstSeen: 60, replaceable: true },
      { txid: hex('b'), feeSats: 7, vsize: 113, firstSeen: 61, replaceable: true },
    ]);
    const rows = await secondsOf('bitcoin_mempool_state', mempoolRow, MEMPOOL_SECONDS, [...first, ...second]);
    // The mean of the exact fractions, over one denominator.
    const numerator =
      1n * 141n * 900n * 113n + 1_000n * 3n * 900n * 113n + 22_500n * 3n * 141n * 113n + 7n * 3n * 141n * 900n;
    const denominator = 4n * 3n * 141n * 900n * 113n;
    const digits = (numerator * 10n ** 40n) / denominator;
    expect(rows).toHaveLength(1);
    expect(rows[0]).toMatchObject({
      second: '1700000000',
      records_in_bucket: '4',
      tx_count: '4',
      fee_rate_sat_vb_min: 7 / 113,
      fee_rate_sat_vb_max: 25,
      fee_rate_sat_vb_avg: Number(`${digits}e-40`),
      total_vsize: String(3 + 141 + 900 + 113),
      first_seen_timestamp_min: '40',
      first_seen_timestamp_max: '61',
      rbf_true_count: '3',
      latest_snapshot_at_unix_ms: '1700000000900',
      latest_txid: hex('b'),
      first_source_offset_or_equivalent: first[0].offset,
      last_source_offset_or_equivalent: second[1].offset,
      bucket_sha256: bucket([...first, ...second]),
    });
  });
});

describe('derived', () => {
  const FACTS: Record<DerivedDataset, (height: number) => Record<string, number>> = {
    bitcoin_block_fee_totals: (height) => ({ fee_total_sats: height * 1_234_567 }),
    bitcoin_block_subsidy_schedule: () => ({ halving_interval: 1, subsidy_sats: 2_500_000_000 }),
    bitcoin_network_hashrate_estimate: (height) => ({
      bits: 0x1c2a1115,
      observed_interval_seconds: Math.max(1, height - 5),
      raw_interval_seconds: height - 5,
    }),
    bitcoin_circulating_supply: (height) => ({ circulating_supply_sats: 2_099_999_997_690_000 - height }),
  };
  const VALUES: Record<DerivedDataset, [string, string, number]> = {
    bitcoin_block_fee_totals: ['block_fee_total_btc', 'BTC', (4 * 1_234_567) / 1e8],
    bitcoin_block_subsidy_schedule: ['block_subsidy_btc', 'BTC', 25],
    bitcoin_network_hashrate_estimate: ['network_hashrate_hs', 'H/s', 6.085476906000794 * 2 ** 32],
    bitcoin_circulating_supply: ['btc_circulating_supply_btc', 'BTC', 20_999_999.97689996],
  };

  test.each(DERIVED_DATASETS)('%s: the highest block of a second gives its value', async (dataset) => {
    const event = (height: number, seconds: number): Event => {
      const block = {
        block_hash: displayHash(Buffer.alloc(32, height)),
        block_height: height,
        block_timestamp: seconds * 1000,
        source_chain: 'main',
      };
      const payload = derivedPayload(block, FACTS[dataset](height));
      return { offset: `${height}`, payload, record: encodeRecord(`${height}`, payload) };
    };
    const events = [event(2, 30), event(3, 60), event(4, 60), event(5, 45)];
    const rows = await secondsOf(dataset, derivedRow(dataset), derivedSeconds(dataset), events);
    const [metric_name, metric_unit, value] = VALUES[dataset];
    expect(rows.map(({ second, records_in_bucket }) => [second, records_in_bucket])).toEqual([
      ['30', '1'],
      ['45', '1'],
      ['60', '2'],
    ]);
    expect(rows[2]).toMatchObject({ source_id: 'bitcoin_core', metric_name, metric_unit, dimensions_json: '{}' });
    expect(rows[2].metric_value_float).toBe(value);
    const provenance = {
      block_hash: displayHash(Buffer.alloc(32, 4)),
      ...(dataset === 'bitcoin_network_hashrate_estimate' ? { raw_interval_seconds: -1 } : {}),
      source_id: 'bitcoin_core',
      source_offset_or_equivalent: '4',
      stream_id: 'bitcoin_block_headers',
    };
    expect(rows[2].provenance_json).toBe(JSON.stringify(provenance));
    const latest = Date.parse(INGESTED) + (60_000 % 7) * 1000;
    expect((rows[2].latest_ingested_at_utc as Date).getTime()).toBe(latest);
  });
});
