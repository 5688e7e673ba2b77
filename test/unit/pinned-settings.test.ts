/** Settings that select what is read: which they are, what a manifest says of them, and which value is in force. */
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { loadGivenSettings } from '../../shared/config/load.ts';
import { SETTINGS } from '../../shared/config/settings.ts';
import { conflictsWith, type Pin, selectedValues, statedValues, withPins } from '../../shared/db/pinned-settings.ts';
import { codeOf } from '../../shared/errors.ts';
import { type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import { DATASETS, datasetOf } from '../../shared/registry/index.ts';

const cwd = mkdtempSync(join(tmpdir(), 'tidemark-pins-'));
const load = (env: Record<string, string> = {}) => loadGivenSettings({ env, cwd });
const PIN: Pin = {
  setting: 'SVC_EXCHANGE_A_SYMBOL',
  value: 'ETHUSDT',
  dataset: 'exchange_a_spot_trades',
  partition: '2024-01-01',
};

describe('the settings', () => {
  test('that are pinned select what is read of a source, and none says where it lies', () => {
    const pinned = [...DATASETS.values()].map(({ key, pinned = [] }) => [key, pinned] as const);
    const expected: Record<string, string[]> = {
      exchange_a_spot_trades: ['SVC_EXCHANGE_A_SYMBOL'],
      exchange_b_spot_trades: ['SVC_EXCHANGE_B_INSTRUMENT'],
      exchange_c_spot_trades: ['SVC_EXCHANGE_C_SYMBOL', 'SVC_EXCHANGE_C_ARCHIVE'],
    };
    for (const [key, names] of pinned) {
      const of = key.startsWith('bitcoin_') ? ['SVC_BITCOIN_NETWORK'] : (expected[key] ?? []);
      expect([key, names]).toEqual([key, of]);
    }
    const locations = new Set([...DATASETS.values()].flatMap((dataset) => Object.values(dataset.locations).flat()));
    for (const name of pinned.flatMap(([, names]) => names)) {
      expect(Object.keys(SETTINGS)).toContain(name);
      expect(locations).not.toContain(name);
    }
  });

  test('that were given are told from those with a default: by flag, environment or file, not by a blank', () => {
    writeFileSync(join(cwd, '.env'), 'SVC_EXCHANGE_B_INSTRUMENT=BTC-USDT\nSVC_EXCHANGE_C_SYMBOL=\n');
    const flags = { SVC_BITCOIN_NETWORK: 'main' };
    const { given, settings } = loadGivenSettings({ cwd, flags, env: { SVC_EXCHANGE_A_SYMBOL: ' ' } });
    expect([...given].sort()).toEqual(['SVC_BITCOIN_NETWORK', 'SVC_EXCHANGE_B_INSTRUMENT']);
    expect(settings.SVC_EXCHANGE_A_SYMBOL).toBe('BTCUSDT');
  });
});

describe('the value in force', () => {
  test('is the pinned one of a setting that was not given, whatever its default', () => {
    const { settings, given } = load();
    expect(withPins([PIN], settings, given).SVC_EXCHANGE_A_SYMBOL).toBe('ETHUSDT');
    expect(withPins([], settings, given)).toEqual(settings);
  });

  test.each(['BTCUSDT', 'ethusdt'])(
    'is refused where it was given as %s, naming both values and what to do',
    (value) => {
      const { settings, given } = load({ SVC_EXCHANGE_A_SYMBOL: value });
      let refusal: unknown;
      try {
        withPins([PIN], settings, given);
      } catch (error) {
        refusal = error;
      }
      expect(codeOf(refusal)).toBe('CONFIGURATION_INVALID');
      const { message } = refusal as Error;
      for (const part of [
        'SVC_EXCHANGE_A_SYMBOL',
        value,
        'ETHUSDT',
        '2024-01-01',
        'set it back',
        'unset',
        'state folder',
      ]) {
        expect(message).toContain(part);
      }
      expect(conflictsWith([PIN], settings, given)).toEqual([{ pin: PIN, given: value }]);
    },
  );

  test('may be given as it is pinned, and another address with it', () => {
    const { settings, given } = load({
      SVC_EXCHANGE_A_SYMBOL: 'ETHUSDT',
      SVC_EXCHANGE_A_BASE_URL: 'http://mirror.example/',
    });
    expect(withPins([PIN], settings, given)).toEqual(settings);
  });
});

describe('a manifest', () => {
  test('states the settings of its dataset, and none where no setting selects', () => {
    const stated = (key: string, pinned: Manifest['pinned']) => statedValues(datasetOf(key), { pinned } as Manifest);
    const pinned = { SVC_EXCHANGE_A_SYMBOL: 'X', SVC_EXCHANGE_C_SYMBOL: 'Y' };
    expect(stated('exchange_a_spot_trades', pinned)).toEqual({ SVC_EXCHANGE_A_SYMBOL: 'X' });
    expect(stated('exchange_a_spot_trades', undefined)).toEqual({});
    expect(stated('etf_daily_metrics', pinned)).toEqual({});
    expect(selectedValues(load().settings, [datasetOf('macro_series_metrics')])).toEqual({});
    expect(
      selectedValues(load().settings, [datasetOf('bitcoin_block_headers'), datasetOf('bitcoin_mempool_state')]),
    ).toEqual({ SVC_BITCOIN_NETWORK: 'main' });
  });

  test.each([[null], [['BTCUSDT']], ['BTCUSDT'], [{ SVC_EXCHANGE_A_SYMBOL: 1 }]])(
    'whose pinned values are %j is damaged',
    (pinned) => {
      const bytes = Buffer.from(JSON.stringify({ format: 1, pinned }));
      expect(() => parseManifest(bytes, 'sequence 1')).toThrow(/out of range: .*pinned/);
      const right = Buffer.from(JSON.stringify({ format: 1, pinned: { SVC_EXCHANGE_A_SYMBOL: 'BTCUSDT' } }));
      expect(() => parseManifest(right, 'sequence 1')).not.toThrow(/pinned/);
    },
  );
});
