/** What is read is pinned by the first proof: another value is refused before anything is fetched, whoever asks, however the pin came. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import type { Answer, Json } from '../support/command.ts';
import { attemptOf, publish } from '../support/forged-attempts.ts';
import { csvOf, DATASET, dayNames, System } from '../support/pipeline.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { startVendorServer } from '../support/vendor-server.ts';
import { VENDORS } from '../support/vendors.ts';

const ROWS = 50;
const SETTING = 'SVC_EXCHANGE_A_SYMBOL';
const ETH = { [SETTING]: 'ETHUSDT' };
const DAYS = dayNames('2024-03-01', 6);

const dayOf = (index: number) => ({
  day: DAYS[index],
  rows: ROWS,
  seed: index + 1,
  firstId: 1 + index * ROWS,
  timeUnit: 'ms' as const,
});
const pins = (system: System) =>
  system.rows('select setting, value, partition_key as partition from pinned_settings order by setting');
const refusal = ({ exit, json }: Answer) => ({ exit, code: json?.error?.code });
const REFUSED = { exit: 2, code: 'CONFIGURATION_INVALID' };

/** An attempt in the log that another writer made, of a document of the symbol. */
function attemptOfSymbol(index: number, symbol: string, more: object = {}) {
  const attempt = attemptOf(DAYS[index], csvOf(dayOf(index)));
  Object.assign(attempt.facts, { pinned: { [SETTING]: symbol }, ...more });
  attempt.facts.document.name = `${symbol}-trades-${DAYS[index]}.zip`;
  return attempt;
}

describe.each(VENDORS.map((vendor) => [vendor.dataset, vendor] as const))('%s', (dataset, vendor) => {
  const [, setting, proved, other] = {
    exchange_a_spot_trades: ['', SETTING, 'BTCUSDT', 'ETHUSDT'],
    exchange_b_spot_trades: ['', 'SVC_EXCHANGE_B_INSTRUMENT', 'BTC-USDT', 'ETH-USDT'],
    exchange_c_spot_trades: ['', 'SVC_EXCHANGE_C_SYMBOL', 'BTCUSDT', 'ETHUSDT'],
  }[dataset]!;
  let system: System;
  beforeAll(async () => {
    system = await System.create();
    const base = join(system.env.dir, dataset);
    await vendor.put(base, DAYS[0], vendor.pack(DAYS[0], vendor.plainDay(dayOf(0))));
    const { exit } = await system.run(['backfill', dataset, '--from', DAYS[0], '--to', DAYS[0]], vendor.settings(base));
    expect(exit).toBe(0);
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('what the first proof pinned is refused otherwise, by every command, before its source is asked', async () => {
    const archive = { setting: 'SVC_EXCHANGE_C_ARCHIVE', value: 'spot', partition: DAYS[0] };
    const isC = dataset === 'exchange_c_spot_trades';
    const pinned = [...(isC ? [archive] : []), { setting, value: proved, partition: DAYS[0] }];
    expect(await pins(system)).toEqual(pinned);
    await using server = await startVendorServer(join(system.env.dir, dataset));
    const [location] = Object.keys(vendor.settings('/'));
    // Another address is no other thing to read.
    const settings = { [location]: server.url.href };
    const days = ['--from', DAYS[0], '--to', DAYS[1]];
    const commands = [
      ['backfill', dataset, ...days],
      ['backfill', dataset, ...days, '--dry-run'],
      ['backfill', dataset, ...days, '--compare'],
      ['backfill', 'all', ...days],
      ['reingest', dataset, ...days, '--reason', 'x'],
      ['reingest', dataset, ...days, '--reason', 'x', '--dry-run'],
      ['follow', dataset],
      ['follow'],
    ];
    for (const command of commands) {
      const answer = await system.run(command, { ...settings, [setting]: other });
      expect([command, refusal(answer)]).toEqual([command, REFUSED]);
      for (const value of [setting, proved, other]) expect(answer.json.error.message).toContain(value);
    }
    expect(server.requests()).toEqual([]);
    expect((await system.run(['status', dataset], { [setting]: other })).json.datasets[0].pinned).toEqual([
      ...(isC ? [{ setting: archive.setting, value: archive.value, given: null }] : []),
      { setting, value: proved, given: other },
    ]);
    // The same value is no other, and one that is not given is the pinned one.
    for (const env of [{ ...settings, [setting]: proved }, settings]) {
      const { exit, json } = await system.run(
        ['backfill', dataset, '--from', DAYS[0], '--to', DAYS[0], '--compare'],
        env,
      );
      expect([exit, json.unchanged]).toEqual([0, 1]);
    }
    expect(server.requests().length).toBeGreaterThan(0);
    expect((await system.run(['status', dataset])).json.datasets[0].pinned).toEqual([
      ...(isC ? [{ setting: archive.setting, value: archive.value, given: null }] : []),
      { setting, value: proved, given: null },
    ]);
  });
});

describe('a pin', () => {
  let system: System;
  beforeAll(async () => {
    system = await System.create();
    for (const symbol of ['BTCUSDT', 'ETHUSDT']) {
      for (const index of [1, 4, 5]) await writeDay({ directory: system.vendor, symbol, ...dayOf(index) });
    }
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('is not made by a sample', async () => {
    const synthetic = attemptOfSymbol(0, 'SOLUSDT', { synthetic: true });
    for (const { header } of [...synthetic.frames, synthetic.manifest]) header.synthetic = true;
    await publish(system.env, synthetic);
    // The plan asks for nothing; the next command has the sample projected, and then a day of another symbol beside it.
    const { json } = await system.backfill(DAYS[1], DAYS[1], ETH);
    expect(json.units).toEqual([{ dataset: DATASET, partition: DAYS[1], state: 'proved', rows: ROWS }]);
    expect((await system.rows('select sum(rows)::int4 as rows from partitions where synthetic'))[0].rows).toBeNull();
    expect(await pins(system)).toEqual([{ setting: SETTING, value: 'ETHUSDT', partition: DAYS[1] }]);
  });

  test('that differs from the default holds where the setting is not given', async () => {
    expect((await system.backfill(DAYS[4], DAYS[4])).exit).toBe(0);
    const names = await system.rows(`select manifest->'document'->>'name' as name, manifest->'pinned' as pinned
      from partitions where partition_key = '${DAYS[4]}'`);
    expect(names).toEqual([{ name: `ETHUSDT-trades-${DAYS[4]}.zip`, pinned: ETH }]);
    expect(refusal(await system.backfill(DAYS[5], DAYS[5], { [SETTING]: 'BTCUSDT' }))).toEqual(REFUSED);
  });

  test('keeps what waits in the log from being proved, whoever wrote it', async () => {
    await publish(system.env, attemptOfSymbol(2, 'BTCUSDT'));
    await publish(system.env, attemptOfSymbol(3, 'BTCUSDT'));
    expect((await system.backfill(DAYS[5], DAYS[5])).exit).toBe(0);
    const states = await system.rows('select partition_key as day, state, reason from partitions order by 1');
    expect(Object.fromEntries(states.map(({ day, state }) => [day, state]))).toEqual({
      [DAYS[1]]: 'proved',
      [DAYS[2]]: 'quarantined',
      [DAYS[3]]: 'quarantined',
      [DAYS[4]]: 'proved',
      [DAYS[5]]: 'proved',
    });
    for (const { reason } of states.filter(({ state }) => state === 'quarantined')) {
      expect(reason).toContain(`is of ${SETTING} BTCUSDT`);
      expect(reason).toContain('pinned it to ETHUSDT');
    }
  });
});

describe('what nobody has proved yet', () => {
  test.each<[string, Record<string, string>, ReturnType<typeof refusal>]>([
    ['given another value is refused once it is', ETH, REFUSED],
    ['not given takes that of the log', {}, { exit: 0, code: undefined }],
  ])('and waits in the log, as after a kill or with a new database: a setting that is %s', async (_, env, expected) => {
    await using system = await System.create();
    // The default is BTCUSDT.
    const symbol = 'SOLUSDT';
    for (const read of [symbol, 'ETHUSDT', 'BTCUSDT'])
      await writeDay({ directory: system.vendor, symbol: read, ...dayOf(1) });
    await publish(system.env, attemptOfSymbol(0, symbol));
    await using server = await startVendorServer(system.vendor);
    const answer = await system.backfill(DAYS[1], DAYS[1], { ...env, SVC_EXCHANGE_A_BASE_URL: server.url.href });
    expect(refusal(answer)).toEqual(expected);
    expect(await pins(system)).toEqual([{ setting: SETTING, value: symbol, partition: DAYS[0] }]);
    const asked = server.requests().map(({ path }: Json) => String(path).includes(symbol));
    expect(asked.length > 0).toBe(expected.exit === 0);
    expect(asked).not.toContain(false);
    // The operator's settings are no fault of the source.
    expect(await system.rows('select * from source_failures')).toEqual([]);
  });
});

test('a follow that began before the first proof of another process asks for nothing more', async () => {
  await using system = await System.create();
  await using server = await startVendorServer(system.vendor);
  const settings = { ...ETH, SVC_EXCHANGE_A_BASE_URL: server.url.href };
  const running = system.begin(['follow', DATASET], settings, { SVC_FOLLOW_FILES_SECONDS: 0.05 });
  await expect.poll(() => server.requests().length).toBeGreaterThan(1);
  await system.client.query(
    `insert into pinned_settings (setting, value, dataset_id, partition_key, attempt) values ($1, 'BTCUSDT', 1, $2, 1)`,
    [SETTING, DAYS[0]],
  );
  const run = async () => (await system.rows('select state, fault from runs order by run_id desc limit 1'))[0];
  await expect.poll(async () => (await run()).state).toBe('waiting');
  expect((await run()).fault).toContain('CONFIGURATION_INVALID');
  const asked = server.requests().length;
  await expect.poll(async () => (await run()).fault).toMatch(/^SVC_EXCHANGE_A_SYMBOL is ETHUSDT/);
  running.stop();
  await running.done;
  expect(server.requests().length).toBe(asked);
});

test('the chain of a node is pinned for all its datasets: no node is asked', async () => {
  await using system = await System.create();
  await system.client.query(
    `insert into pinned_settings (setting, value, dataset_id, partition_key, attempt)
     values ('SVC_BITCOIN_NETWORK', 'regtest', 8, '1735689600000', 1)`,
  );
  const settings = { SVC_BITCOIN_RPC_URL: 'http://127.0.0.1:9', ...limitsEnv({ sourceAttempts: 1 }) };
  for (const command of [
    ['backfill', 'bitcoin', '--from-height', '0', '--to-height', '1'],
    ['backfill', 'bitcoin_mempool_state'],
    ['follow', 'bitcoin'],
  ]) {
    const answer = await system.run(command, { ...settings, SVC_BITCOIN_NETWORK: 'main' });
    expect([command, refusal(answer)]).toEqual([command, REFUSED]);
  }
  const { json } = await system.run(['backfill', 'bitcoin_mempool_state'], settings);
  expect(json.error.code).toBe('NODE_UNREACHABLE');
});
