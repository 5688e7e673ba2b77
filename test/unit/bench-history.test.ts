/** The history of benches: which figures of a result are ratios, and when two runs of one may be compared. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { BENCHES } from '../../bench/benches.ts';
import { appendEntry, compare, type Entry, lastLike, linesOf, ratiosOf, readHistory } from '../../bench/history.ts';
import { type Noise, noiseFault } from '../../bench/noise.ts';

const MACHINE = { cpu: 'a processor', cores: 2, memory_gib: 24, system: 'Linux 6.1 x64' };
const spread = (min_ms: number, max_ms: number) => ({ median_ms: min_ms, min_ms, max_ms });
const QUIET: Noise = { load: 0.1, busy: 0.01, cpu: spread(10, 10.5), fsync: spread(0.1, 0.2) };

const entry = (result: unknown, more: Partial<Entry> = {}): Entry => ({
  bench: 'ingest',
  arguments: '--rounds 5',
  date: '2026-01-01T00:00:00.000Z',
  commit: '0123456789abcdef',
  seconds: 60,
  machine: MACHINE,
  versions: { node: '24.0.0' },
  noise: { before: QUIET, after: QUIET },
  result,
  ...more,
});

test('every ratio of a result is found, with the spread of its rounds, by the name of its case', () => {
  const result = {
    bench: 'x',
    rows: 5,
    ratio: 1.5,
    ratio_min: 1.4,
    ratio_max: 1.7,
    ratio_bare: 2,
    ratio_bare_min: 1.8,
    ratio_bare_max: 2.5,
    cpu_ratio: 3,
    latest_100: { p99_over_bare: 3, half: { p50_ms: 4 } },
    cases: [
      { name: 'CSV', ratio: 3, spread: '2.5..3.5' },
      { name: 'all', ratio: 0.5, cpu_ratio: 0.25 },
    ],
    row: { maker_ratio: 0.5 },
    missing: undefined,
    none: null,
  };
  expect(ratiosOf(result)).toEqual([
    { name: 'ratio', ratio: 1.5, least: 1.4, most: 1.7 },
    { name: 'ratio_bare', ratio: 2, least: 1.8, most: 2.5 },
    { name: 'cpu_ratio', ratio: 3 },
    { name: 'latest_100.p99_over_bare', ratio: 3 },
    { name: 'cases.CSV.ratio', ratio: 3, least: 2.5, most: 3.5 },
    { name: 'cases.all.ratio', ratio: 0.5 },
    { name: 'cases.all.cpu_ratio', ratio: 0.25 },
  ]);
});

test('a change is outside the spread where the rounds of the two runs do not meet', () => {
  const before = entry({ ratio: 1, ratio_min: 0.9, ratio_max: 1.1, ratio_bare: 2, gone: { ratio: 1 } });
  const at = (ratio: number) =>
    compare(entry({ ratio, ratio_min: ratio - 0.1, ratio_max: ratio + 0.1, ratio_bare: 1 }), before);
  expect(at(1.2)).toEqual([
    { name: 'ratio', now: 1.2, before: 1, change: 0.2, within_spread: true },
    { name: 'ratio_bare', now: 1, before: 2, change: -0.5, within_spread: null },
  ]);
  for (const away of [1.3, 0.7]) expect(at(away)[0]).toMatchObject({ now: away, within_spread: false });
});

test('a run is compared with the last one of the same bench and sizes on the same machine', () => {
  const [first, last] = ['2026-01-01', '2026-01-02'].map((date) => entry({ ratio: 1 }, { date }));
  const others = [
    entry({ ratio: 9 }, { bench: 'export' }),
    entry({ ratio: 9 }, { arguments: '--rounds 1' }),
    entry({ ratio: 9 }, { machine: { ...MACHINE, cores: 4 } }),
  ];
  const now = entry({ ratio: 2 });
  expect(lastLike([first, last, ...others], now)).toBe(last);
  expect(lastLike(others, now)).toBeUndefined();
  expect(linesOf(now, last).join('\n')).toMatch(/beside 012345678 of 2026-01-02[\s\S]*now 2 {2}before 1 {2}\+100\.0 %/);
  expect(linesOf(now, undefined).join('\n')).toMatch(/nothing to compare with\n {2}ratio +2$/);
});

test('the history grows by lines, and a damaged line is named', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'tidemark-history-'));
  try {
    const path = join(dir, 'below', 'history.jsonl');
    expect(await readHistory(path)).toEqual([]);
    for (const ratio of [1, 2]) await appendEntry(path, entry({ ratio }));
    expect(await readHistory(path)).toEqual([entry({ ratio: 1 }), entry({ ratio: 2 })]);
    await writeFile(path, `${JSON.stringify(entry({}))}\n{"bench":\n`);
    await expect(readHistory(path)).rejects.toThrow(`${path}:2 is not a line of a bench history`);
  } finally {
    await rm(dir, { recursive: true });
  }
});

test('a machine is called noisy by what others use of it before, and by how much a fixed loop varies', () => {
  const fault = (before: Partial<Noise>, after: Partial<Noise> = {}) =>
    noiseFault({ before: { ...QUIET, ...before }, after: { ...QUIET, ...after } });
  expect(fault({})).toBeUndefined();
  // The load is that of the benchmark before, or its own.
  expect(fault({ load: 3 }, { load: 2, busy: 0.5 })).toBeUndefined();
  expect(fault({ busy: 0.3 })).toBe('others used 30 % of the cores before');
  expect(fault({}, { cpu: spread(10, 11.5) })).toBe('a fixed loop varied by 15 %');
});

test('each bench is listed once, with what it compares and sizes that it takes', () => {
  expect(new Set(BENCHES.map(({ name }) => name)).size).toBe(BENCHES.length);
  for (const { summary, whole, quick } of BENCHES) {
    expect(summary).toMatch(/\w/);
    expect(new Set(whole).size * quick.length).toBeGreaterThan(0);
    for (const sizes of [...whole, ...quick]) expect(sizes).toMatch(/^(?:--[a-z-]+ [\w.]+(?: |$))*$/);
  }
});
