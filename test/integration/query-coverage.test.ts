/**
 * What a window that reaches past what is proved is told, by kind of partition: heights, snapshots, captures, vintages.
 * By hand, with the answers the contract gives.
 *
 * Faults made on purpose and caught here or in integration/query-limits, integration/lost-rows, integration/read-
 * connection, integration/turns: gaps at the end of proved heights, missing heights not named, a read without rows that
 * never times out, rows lost or made up after the proof, the start of a message lost between two reads of a socket, a
 * long read that waits for no short one or for ever.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { datasetOf } from '../../shared/registry/index.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';
import type { Cells, World, WorldAligned, WorldPartition, WorldRow, WorldRun } from '../support/worlds.ts';

const at = (text: string) => Date.parse(text);
const iso = (ms: number) => new Date(ms).toISOString();

let env: TestEnv;
let serving: Serving;
let nowMs = at('2024-03-01T00:00:00Z');

beforeAll(async () => {
  env = await createMigratedEnv();
  serving = await startServing({ databaseUrl: env.databaseUrl, now: () => nowMs });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

/** Of one run, a row at each of the times, all of one partition. */
interface RunOf {
  readonly sourceId: string;
  readonly span: readonly [number, number];
  readonly times: readonly string[];
  readonly through: string;
}

function worldOf(key: string, runs: readonly RunOf[], cellsOf: (run: RunOf, ms: number, n: number) => Cells): World {
  const dataset = datasetOf(key);
  const partitions: WorldPartition[] = runs.map(({ sourceId, span }) => ({
    key: `${sourceId}:${span[0]}`,
    state: 'proved',
    sourceId,
    span,
    ingestedMs: at('2024-02-01T00:00:00Z'),
  }));
  const rows: WorldRow[] = runs.flatMap((run, place) =>
    run.times.map((time, n) => ({ ms: at(time), partition: partitions[place], cells: cellsOf(run, at(time), n) })),
  );
  const aligned = rows.map(({ ms, partition: { sourceId } }): WorldAligned => {
    const metric = { source_id: sourceId, metric_name: 'm', metric_id: `${sourceId}${ms}`, dimensions_json: '{}' };
    const cells = { ...metric, records_in_bucket: 1, latest_ingested_at_utc: iso(ms) };
    return {
      ms,
      sourceId,
      series: dataset.aligned.seriesKey.map((name) => String(metric[name as 'source_id'])),
      cells,
    };
  });
  const worldRuns = runs.map(({ sourceId, span, times, through }): WorldRun => {
    const own = times.map(at);
    return { sourceId, span, fromMs: Math.min(...own), toMs: Math.max(...own) + 1, throughMs: at(through) };
  });
  return { dataset, partitions, rows, aligned, runs: worldRuns };
}

const NODE = 'bitcoin_core';

/** What the warning says, or undefined where there is none. */
async function gapsOf(dataset: string, more: object) {
  const answer = await serving.query({ sources: [dataset], ...more });
  expect([200, 404], answer.text).toContain(answer.status);
  // A 404 has its warnings too: they are why.
  const found = (answer.json.warnings ?? []).find(
    (warning: { code: string }) => warning.code === 'WINDOW_EXCEEDS_PROVED_COVERAGE',
  );
  expect(found?.details.gaps_total).toBe(found?.details.gaps.length);
  return { status: answer.status, gaps: found?.details.gaps, message: found?.message, details: found?.details };
}
const window = (from: string, to: string) => ({ time_range: [from, to] });

describe('heights', () => {
  const KEY = 'bitcoin_block_fee_totals';
  const chain = (from: number) =>
    worldOf(
      KEY,
      [
        // Its last block is dated an hour past what is proved through.
        {
          sourceId: NODE,
          span: [from, from + 2],
          times: ['2020-01-01T10:00:00Z', '2020-01-01T12:00:00Z'],
          through: '2020-01-01T11:00:00Z',
        },
        {
          sourceId: NODE,
          span: [from + 5, from + 7],
          times: ['2020-01-02T10:00:00Z', '2020-01-02T11:00:00Z'],
          through: '2020-01-02T10:30:00Z',
        },
      ],
      ({ span }, ms, n) => ({
        block_timestamp: ms,
        block_height: span[0] + n,
        fee_total_sats: n,
        block_hash: 'h',
        source_chain: 'main',
      }),
    );

  test('missing heights are named, with the time between', async () => {
    await loadWorld(env.databaseUrl, chain(0));
    const between = {
      start: '2020-01-01T11:00:00.000Z',
      end: '2020-01-02T10:00:00.000Z',
      first_height: 2,
      last_height: 4,
    };
    expect((await gapsOf(KEY, {})).gaps).toEqual([between]);
    expect((await gapsOf(KEY, { n_rows: 2 })).gaps).toBeUndefined();
    expect((await gapsOf(KEY, { n_rows: 3 })).gaps).toEqual([{ ...between }]);
    expect((await gapsOf(KEY, { n_random: 1, random_seed: 1 })).gaps).toEqual([between]);
    const inside = await gapsOf(KEY, window('2020-01-01T11:30:00Z', '2020-01-01T12:30:00Z'));
    expect(inside.gaps).toEqual([{ ...between, start: '2020-01-01T11:30:00.000Z', end: '2020-01-01T12:30:00.000Z' }]);
    expect(inside.status).toBe(200);
    expect(inside.message).toContain('heights 2 to 4');
    expect((await gapsOf(KEY, window('2020-01-01T10:00:00Z', '2020-01-01T11:00:00Z'))).gaps).toBeUndefined();
  });

  test('the end is that of the proved time, whatever the times of its blocks', async () => {
    const { gaps, details, status } = await gapsOf(KEY, window('2020-01-02T10:00:00Z', '2020-01-03T00:00:00Z'));
    expect(gaps).toEqual([
      { start: '2020-01-02T10:30:00.000Z', end: '2020-01-03T00:00:00.000Z', first_height: 7, last_height: null },
    ]);
    expect([details.proved_from, details.proved_through]).toEqual([
      '2020-01-01T10:00:00.000Z',
      '2020-01-02T10:30:00.000Z',
    ]);
    expect(status).toBe(200);
    const { json } = await serving.query({ sources: [KEY], ...window('2020-01-02T10:00:00Z', '2020-01-03T00:00:00Z') });
    expect(json.rows.map((row: { block_height: number }) => row.block_height)).toEqual([5, 6]);
  });

  test('before the first block there is none to be missing; before the first proved one there are', async () => {
    const early = window('2008-01-01T00:00:00Z', '2020-01-01T10:30:00Z');
    expect((await gapsOf(KEY, early)).gaps).toBeUndefined();
    await loadWorld(env.databaseUrl, chain(100));
    expect((await gapsOf(KEY, early)).gaps).toEqual([
      { start: '2008-01-01T00:00:00.000Z', end: '2020-01-01T10:00:00.000Z', first_height: 0, last_height: 99 },
    ]);
  });

  test('outside of everything: 404 that says why; strict is refused for it', async () => {
    for (const mode of ['native', 'aligned_1s']) {
      const late = { mode, ...window('2021-01-01T00:00:00Z', '2021-01-02T00:00:00Z') };
      const { status, gaps } = await gapsOf(KEY, late);
      expect([status, gaps.length]).toEqual([404, 1]);
      const strict = await serving.query({ sources: [KEY], ...late, strict: true });
      expect([strict.status, strict.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
      expect(strict.json.detail).toContain('Without `strict`, warnings refuse nothing.');
    }
    // No strict request with such a window succeeds, and the answer did not say so.
    const latest = await serving.query({ sources: [KEY], n_rows: 1, strict: true });
    expect([latest.status, latest.json.detail]).toEqual([409, expect.stringContaining('give a window of time')]);
  });
});

describe('snapshots', () => {
  const KEY = 'bitcoin_mempool_state';
  const first = '2024-02-01T00:00:10.250Z';
  const second = '2024-02-20T00:00:00.000Z';

  test('nothing is missing between two; what is before the first and after the last is', async () => {
    const ms = [first, second].map(at);
    const world = worldOf(
      KEY,
      [{ sourceId: NODE, span: [ms[0], ms[1] + 1], times: [first, second], through: '2024-02-20T00:00:01Z' }],
      (_, time, n) => ({
        snapshot_at_unix_ms: time,
        fee_sats: 5,
        vsize: 2,
        first_seen_timestamp: 1,
        rbf_flag: false,
        txid: `t${n}`,
        source_chain: 'main',
        payload_sha256: 'p',
      }),
    );
    const partitions = ms.map((one) => ({ ...world.partitions[0], key: String(one), span: [one, one + 1] as const }));
    await loadWorld(env.databaseUrl, {
      ...world,
      partitions,
      rows: world.rows.map((row, index) => ({ ...row, partition: partitions[index] })),
      aligned: world.aligned.map((row) => ({
        ...row,
        ms: Math.floor(row.ms / 1000) * 1000,
        cells: { records_in_bucket: 1 },
      })),
    });
    expect((await gapsOf(KEY, {})).gaps).toBeUndefined();
    expect((await gapsOf(KEY, window(first, second))).gaps).toBeUndefined();
    const early = await gapsOf(KEY, window('2024-01-01T00:00:00Z', second));
    expect(early.gaps).toEqual([{ start: '2024-01-01T00:00:00.000Z', end: first }]);
    expect(early.message).toContain(`the first snapshot is of ${first}`);
    expect(early.status).toBe(200);
    const none = await gapsOf(KEY, window('2024-01-01T00:00:00Z', '2024-01-02T00:00:00Z'));
    expect([none.status, none.gaps]).toEqual([
      404,
      [{ start: '2024-01-01T00:00:00.000Z', end: '2024-01-02T00:00:00.000Z' }],
    ]);
    expect(none.message).toContain(`the first snapshot is of ${first}`);
    expect((await gapsOf(KEY, window(second, '2024-02-21T00:00:00Z'))).gaps).toEqual([
      { start: '2024-02-20T00:00:01.000Z', end: '2024-02-21T00:00:00.000Z' },
    ]);
    // The first second begins before its snapshot, and is there.
    const aligned = await serving.query({
      sources: [KEY],
      mode: 'aligned_1s',
      fields: ['aligned_at_utc', 'valid_to_utc_exclusive'],
    });
    expect(aligned.json.rows).toEqual([
      { aligned_at_utc: '2024-02-01T00:00:10.000Z', valid_to_utc_exclusive: second },
      { aligned_at_utc: second, valid_to_utc_exclusive: '2024-02-20T00:00:01.000Z' },
    ]);
    expect(aligned.json.freshness.as_of_utc).toBe('2024-02-20T00:00:01.000Z');
  });
});

describe('sources', () => {
  const KEY = 'etf_daily_metrics';
  const [ONE, TWO] = datasetOf(KEY).sources;
  const metric = ({ sourceId, span }: RunOf, ms: number): Cells => ({
    observed_at_ms: ms,
    metric_id: `${sourceId}${ms}`,
    source_id: sourceId,
    metric_name: 'm',
    metric_unit: null,
    value_kind: 'int',
    value_text: '1',
    dimensions_json: '{}',
    provenance_json: null,
    partition_key: `${sourceId}:${span[0]}`,
  });

  beforeAll(async () => {
    await loadWorld(
      env.databaseUrl,
      worldOf(
        KEY,
        [
          { sourceId: ONE, span: [1, 2], times: ['2024-02-01T00:00:00Z'], through: '2024-02-03T00:00:00Z' },
          { sourceId: ONE, span: [3, 4], times: ['2024-02-06T00:00:00Z'], through: '2024-02-07T00:00:00Z' },
          {
            sourceId: TWO,
            span: [1, 9],
            times: ['2024-02-05T00:00:00Z', '2024-02-08T00:00:00Z'],
            through: '2024-02-10T00:00:00Z',
          },
        ],
        metric,
      ),
    );
  });
  const only = (source: string) => ({ filters: [{ field: 'source_id', op: 'eq', value: source }] });
  const inner = { start: '2024-02-03T00:00:00.000Z', end: '2024-02-06T00:00:00.000Z', source_id: ONE };

  test('each has gaps of its own; filters on source_id leave those of the others out', async () => {
    expect((await gapsOf(KEY, {})).gaps).toEqual([inner]);
    expect((await gapsOf(KEY, only(TWO))).gaps).toBeUndefined();
    const { source_id: _, ...alone } = inner;
    expect((await gapsOf(KEY, only(ONE))).gaps).toEqual([alone]);
    const both = window('2024-02-01T00:00:00Z', '2024-02-09T00:00:00Z');
    expect((await gapsOf(KEY, both)).gaps).toEqual([
      { start: '2024-02-01T00:00:00.000Z', end: '2024-02-05T00:00:00.000Z', source_id: TWO },
      inner,
      { start: '2024-02-07T00:00:00.000Z', end: '2024-02-09T00:00:00.000Z', source_id: ONE },
    ]);
    expect(
      (await gapsOf(KEY, { ...window('2024-02-05T00:00:00Z', '2024-02-09T00:00:00Z'), ...only(TWO) })).gaps,
    ).toBeUndefined();
    const unknown = await gapsOf(KEY, { ...both, ...only('etf_hashdex_defi_daily') });
    expect([unknown.status, unknown.gaps]).toEqual([
      404,
      [{ start: '2024-02-01T00:00:00.000Z', end: '2024-02-09T00:00:00.000Z' }],
    ]);
  });

  test('as_of is of the source furthest behind, among those asked for', async () => {
    nowMs = at('2024-02-10T00:00:00Z');
    const freshness = async (more: object) => {
      const { json } = await serving.query({ sources: [KEY], mode: 'aligned_1s', ...more });
      return {
        ...json.freshness,
        stale: json.warnings.some(({ code }: { code: string }) => code === 'ALIGNED_FRESHNESS_STALE'),
      };
    };
    expect(await freshness({})).toEqual({ as_of_utc: '2024-02-07T00:00:00.000Z', lag_seconds: 259_200, stale: true });
    expect(await freshness(only(TWO))).toEqual({ as_of_utc: '2024-02-10T00:00:00.000Z', lag_seconds: 0, stale: false });
    const { json } = await serving.query({ sources: [KEY] });
    expect(json.freshness).toBeNull();
  });

  test('the days after the last market day are expected as little as those between two', async () => {
    const friday = '2024-02-09T00:00:00Z';
    const [saturday, sunday, monday] = ['2024-02-10', '2024-02-11', '2024-02-12'].map((day) => `${day}T00:00:00.000Z`);
    // What is kept of a Friday's capture: it covers the time until Monday, the next day that is expected.
    const days = [7, 8, 9].map((day) => `2024-02-0${day}T00:00:00Z`);
    const run = { sourceId: ONE, span: [at(days[0]), at(monday)] as const, times: days, through: saturday };
    await using own = await createMigratedEnv();
    await loadWorld(own.databaseUrl, worldOf(KEY, [run], metric));
    await using fresh = await startServing({ databaseUrl: own.databaseUrl, now: () => at('2024-02-11T12:00:00Z') });
    const ask = (mode: string, from: string, to: string) =>
      fresh.query({ sources: [KEY], mode, ...window(from, to), ...only(ONE) });
    const codes = (answer: { json: { warnings: { code: string }[] } }) => answer.json.warnings.map(({ code }) => code);
    for (const mode of ['native', 'aligned_1s']) {
      expect(codes(await ask(mode, days[0], sunday))).not.toContain('WINDOW_EXCEEDS_PROVED_COVERAGE');
      const past = await ask(mode, days[0], '2024-02-13T00:00:00Z');
      const warning = past.json.warnings.find(
        ({ code }: { code: string }) => code === 'WINDOW_EXCEEDS_PROVED_COVERAGE',
      );
      expect(warning.details).toMatchObject({
        gaps: [{ start: monday, end: '2024-02-13T00:00:00.000Z' }],
        proved_through: saturday,
      });
    }
    const alone = await ask('aligned_1s', saturday, sunday);
    expect(alone.json.rows).toMatchObject([
      { aligned_at_utc: '2024-02-09T00:00:00.000Z', valid_from_utc: saturday, valid_to_utc_exclusive: sunday },
    ]);
    expect(alone.json.freshness.as_of_utc).toBe(saturday);
    const open = await fresh.query({ sources: [KEY], mode: 'aligned_1s', filters: only(ONE).filters });
    expect(open.json.rows.at(-1).valid_to_utc_exclusive).toBe(monday);
    expect((await ask('aligned_1s', monday, '2024-02-13T00:00:00Z')).status).toBe(404);
    expect((await ask('native', friday, saturday)).json.row_count).toBe(1);
  });

  test('a state holds until the next, until a gap, or until what is known', async () => {
    const { json } = await serving.query({
      sources: [KEY],
      mode: 'aligned_1s',
      fields: ['source_id', 'aligned_at_utc', 'valid_from_utc', 'valid_to_utc_exclusive'],
      ...window('2024-02-02T12:00:00Z', '2024-02-08T12:00:00Z'),
    });
    const row = (source_id: string, aligned: string, from: string, to: string) => ({
      source_id,
      aligned_at_utc: `2024-02-${aligned}:00:00.000Z`,
      valid_from_utc: `2024-02-${from}:00:00.000Z`,
      valid_to_utc_exclusive: `2024-02-${to}:00:00.000Z`,
    });
    expect(json.rows).toEqual([
      row(ONE, '01T00', '02T12', '03T00'),
      row(TWO, '05T00', '05T00', '08T00'),
      row(ONE, '06T00', '06T00', '07T00'),
      row(TWO, '08T00', '08T00', '08T12'),
    ]);
    // In the gap of the one source, and before the other: nothing holds.
    const none = await gapsOf(KEY, { mode: 'aligned_1s', ...window('2024-02-03T00:00:00Z', '2024-02-04T00:00:00Z') });
    expect([none.status, none.gaps.length]).toEqual([404, 2]);
    // Known for longer than it was observed, and no longer.
    const late = async (from: string, to: string) =>
      (await serving.query({ sources: [KEY], mode: 'aligned_1s', ...window(from, to) })).json.rows?.length;
    expect(await late('2024-02-09T00:00:00Z', '2024-02-09T01:00:00Z')).toBe(1);
    expect(await late('2024-02-10T00:00:00Z', '2024-02-10T01:00:00Z')).toBeUndefined();
  });
});
