/** How the system stands, told in three ways that must agree: `tidemark status --json`, /metrics, /v1/ops/status. */
import { setTimeout } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { historyAnswer, statusAnswer } from '../../serving/monitoring/ops-answer.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { connect, PROJECTOR_LOCK } from '../../shared/db/connect.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { readState } from '../../shared/status/state.ts';
import type { Json } from '../support/command.ts';
import { parseMetrics, type Sample, sampleOf } from '../support/metrics.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { API_KEY, eventually, type Serving, startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { createMigratedEnv, execute } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';

const DAYS = ['2024-01-01', '2024-01-02', '2024-01-03', '2024-01-04'];
const ROWS = 300;
const METRICS_KEY = 'scrape';

let system: System;
beforeAll(async () => {
  system = await System.create();
  for (const [index, day] of DAYS.entries()) {
    // The third takes ids of the first: it will be quarantined.
    const firstId = index === 2 ? 1 : 1 + index * ROWS;
    await writeDocument(system.vendor, day, csvOf({ day, rows: ROWS, firstId, seed: index, timeUnit: 'ms' }));
  }
  expect((await system.backfill(DAYS[0], DAYS[0])).exit).toBe(0);
  expect((await system.backfill(DAYS[2], DAYS[2])).exit).toBe(1);
});
afterAll(() => system[Symbol.asyncDispose]());

/** A process of its own each time: it looks for itself, and keeps nothing from before. */
const serve = (settings = {}, databaseUrl = system.env.databaseUrl): Promise<Serving> =>
  startServing({
    databaseUrl,
    settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl, SVC_METRICS_KEY: METRICS_KEY, ...settings },
  });

const metricsOf = async (serving: Serving): Promise<Sample[]> => {
  const answer = await serving.send({ method: 'GET', path: '/metrics' });
  expect(answer.status, answer.text).toBe(200);
  return parseMetrics(answer.text);
};

async function told(): Promise<{ status: Json; ops: Json; metrics: Sample[] }> {
  await using serving = await serve();
  // At once, so that both show what one look found.
  const [{ json: ops }, metrics] = await Promise.all([
    serving.send({ method: 'GET', path: '/v1/ops/status' }),
    metricsOf(serving),
  ]);
  statusAnswer.parse(ops);
  const status = (await system.run(['status'])).json;
  return { status, ops, metrics };
}

/** Nobody holds a lock any more: the last command's projector has let go of its own. */
const atRest = () => eventually(async () => (await system.leftovers()).length === 0, 'the system is at rest');

/** A moment passes between one teller and the next: how long something waits is the only number that moves. */
const WAITING = 'tidemark_consumer_ack_floor_age_seconds';

function agree({ status, ops, metrics }: Awaited<ReturnType<typeof told>>): void {
  expect(ops.datasets).toHaveLength(DATASETS.size);
  for (const one of ops.datasets) {
    const { dataset, log, ...numbers } = one;
    const ofStatus = status.datasets.find((other: Json) => other.dataset === dataset);
    expect(ofStatus, dataset).toMatchObject(numbers);
    if (log) {
      const { oldest_seconds, ...lag } = log.lag;
      expect(ofStatus.log, dataset).toMatchObject({ ...log, lag });
      expect(ofStatus.log.lag.oldest_seconds).toBeGreaterThanOrEqual(oldest_seconds);
    } else expect(ofStatus.log).toBeNull();
    const of = (name: string, labels = {}) => sampleOf(metrics, name, { dataset, ...labels });
    const through = numbers.proved_through_utc;
    expect({
      rows: of('tidemark_proved_rows'),
      through: of('tidemark_proved_through_timestamp_seconds'),
      late: of('tidemark_late_arrivals_total'),
      projector: of('tidemark_projector_active'),
      partitions: Object.fromEntries(
        Object.keys(numbers.partitions).map((state) => [state, of('tidemark_partitions', { state })]),
      ),
      lag: [
        of('tidemark_consumer_lag_messages'),
        of('tidemark_consumer_lag_events'),
        of('tidemark_consumer_lag_event_time_seconds'),
      ],
      log: [of('tidemark_stream_bytes'), of('tidemark_stream_messages'), of('tidemark_stream_last_sequence')],
      waiting: of(WAITING),
    }).toEqual({
      rows: numbers.rows,
      through: through === null ? undefined : Date.parse(through) / 1000,
      late: numbers.late_arrivals_total,
      projector: numbers.projector === null ? 0 : 1,
      partitions: numbers.partitions,
      lag: [log?.lag.frames, log?.lag.events, log?.lag.event_time_seconds],
      log: [log?.bytes, log?.messages, log?.last_sequence],
      waiting: log?.lag.oldest_seconds,
    });
  }
}

describe('status --json, /metrics and /v1/ops/status', () => {
  test('agree on a system at rest, on what is proved, missing and quarantined', async () => {
    await atRest();
    const all = await told();
    agree(all);
    expect(all.ops.log_fault).toBeNull();
    expect(all.ops.datasets[0]).toMatchObject({
      dataset: DATASET,
      rows: ROWS,
      partitions: { proved: 1, quarantined: 1, missing: 0 },
      log: { lag: { frames: 0, events: 0, event_time_seconds: 0, oldest_seconds: 0 } },
    });
    expect(sampleOf(all.metrics, 'tidemark_log_up')).toBe(1);
    expect(sampleOf(all.metrics, 'tidemark_database_up')).toBe(1);
    expect(sampleOf(all.metrics, 'tidemark_database_size_bytes')).toBeGreaterThan(1e6);
  });

  test('count a quarantined block or capture once: it was missing as well, and backfill was said to fill the hole', async () => {
    await using env = await createMigratedEnv();
    const [headers, etf] = [DATASETS.get('bitcoin_block_headers')!, DATASETS.get('etf_daily_metrics')!];
    const day = (name: string) => Date.parse(`${name}T00:00:00Z`);
    const run = (number: number, source: string, from: number, to: number) =>
      `insert into coverage_spans values (${number}, '${source}', '[${from},${to})', ${from}, ${to}, ${to}, 1, 1);`;
    const unproved = (number: number, source: string, [key, from, to]: readonly [string, number, number]) =>
      `insert into partitions (dataset_id, partition_key, source_id, span, state, attempt, revision, synthetic)
       values (${number}, '${key}', '${source}', '[${from},${to})', 'quarantined', 1, 1, false);`;
    const source = 'etf_ishares_ibit_daily';
    // The gap is 10 to 14. Of it 10, 11 and 12 are quarantined, 11 in two partitions; 9 is proved.
    const blocks = [
      ['9-10', 9, 11],
      ['11', 11, 12],
      ['11-12', 11, 13],
    ] as const;
    await execute(
      env.databaseUrl,
      run(headers.number, 'bitcoin_core', 0, 10) +
        run(headers.number, 'bitcoin_core', 15, 20) +
        blocks.map((block) => unproved(headers.number, 'bitcoin_core', block)).join('') +
        // Two funds lack the same day, and one of the two is known.
        [source, 'etf_bitwise_bitb_daily']
          .map((fund) =>
            [day('2026-03-03'), day('2026-03-05')].map((from) => run(etf.number, fund, from, from + DAY_MS)).join(''),
          )
          .join('') +
        unproved(etf.number, source, [`${source}:2026-03-04`, day('2026-03-04'), day('2026-03-05')]),
    );
    await using client = await connect({ url: env.databaseUrl, name: 'test' });
    const { statuses } = await readState(client, () => Promise.reject(new Error('no log')));
    const missing = (of: object) => statuses.find(({ dataset }) => dataset === of)?.overview.partitions.missing;
    expect([missing(headers), missing(etf)]).toEqual([2, 1]);
  });

  test('agree on a projector that stands still: the lag is there, exact, and grows', async () => {
    // Who has the lock projects: this one does not.
    await using still = await connect({ url: system.env.databaseUrl, name: 'a projector that does nothing' });
    await still.query('select pg_advisory_lock($1, $2)', [PROJECTOR_LOCK, DATASETS.get(DATASET)!.number]);
    const before = await told();
    agree(before);
    const running = system.begin(['backfill', DATASET, '--from', DAYS[1], '--to', DAYS[3]]);
    const waiting = async () => (await system.rows(`select 1 from attempts where state = 'published'`)).length;
    await eventually(async () => (await waiting()) === 2, 'both days are in the log');
    running.stop();
    await running.done;

    const first = await told();
    agree(first);
    const lagOf = ({ ops }: typeof first) => ops.datasets[0].log.lag;
    const [{ last_ms }] = await system.rows(
      `select (manifest->>'last_ms')::float8 as last_ms from attempts where partition_key = $1`,
      [DAYS[3]],
    );
    expect(lagOf(before)).toMatchObject({ frames: 0, events: 0 });
    expect(lagOf(first)).toMatchObject({ frames: 4, events: 2 * ROWS });
    // They follow the proved day: the way from its end to their last event.
    expect(lagOf(first).event_time_seconds).toBe((last_ms + 1 - Date.parse(DAYS[1])) / 1000);
    expect(first.ops.datasets[0].projector).toBe('a projector that does nothing');
    expect(first.ops.datasets[0].partitions).toMatchObject({ proved: 1, published: 2 });

    const second = await told();
    agree(second);
    expect(lagOf(second)).toMatchObject({ frames: 4, events: 2 * ROWS });
    expect(lagOf(second).oldest_seconds).toBeGreaterThan(lagOf(first).oldest_seconds);

    // It is gone, and the next one catches up.
    await still[Symbol.asyncDispose]();
    expect((await system.backfill(DAYS[1], DAYS[1])).exit).toBe(0);
    expect((await system.backfill(DAYS[3], DAYS[3])).exit).toBe(0);
    await atRest();
    const third = await told();
    agree(third);
    expect(lagOf(third)).toEqual({ frames: 0, events: 0, event_time_seconds: 0, oldest_seconds: 0 });
    expect(third.ops.datasets[0].partitions).toMatchObject({ proved: 3, quarantined: 1, missing: 0 });
  });

  test('count an attempt whose publisher died by the frames it left', async () => {
    await using still = await connect({ url: system.env.databaseUrl, name: 'a projector that does nothing' });
    await still.query('select pg_advisory_lock($1, $2)', [PROJECTOR_LOCK, DATASETS.get(DATASET)!.number]);
    const day = '2024-01-05';
    await writeDocument(system.vendor, day, csvOf({ day, rows: 20_000, firstId: 5000, seed: 5, timeUnit: 'ms' }));
    const env = limitsEnv({ frameRawBytes: 4096, publishWindow: 1 });
    const running = system.start(['backfill', DATASET, '--from', day, '--to', day], env);
    const framesLeft = async () => (await system.log()).filter(({ header }) => header.partition === day).length;
    await eventually(async () => (await framesLeft()) > 20, 'some frames are in the log');
    running.child.kill('SIGKILL');
    await running.done;
    // One that was on its way when it died may still arrive.
    let left: number;
    let all: Awaited<ReturnType<typeof told>>;
    do {
      left = await framesLeft();
      all = await told();
    } while ((await framesLeft()) !== left);
    agree(all);
    const frames = (await system.log()).filter(({ header }) => header.partition === day);
    const { lag } = all.ops.datasets[0].log;
    expect(lag.frames).toBe(frames.length);
    const rows = frames.reduce((sum, { header }) => sum + (header.kind === 'frame' ? header.rows : 0), 0);
    // Frames are cut by bytes: their numbers of rows differ by a few.
    expect(lag.events / rows).toBeCloseTo(1, 1);
  });
});

describe('/metrics', () => {
  test('is opened by the key of the service and by one that opens nothing else, as a header or a bearer token', async () => {
    await using serving = await serve();
    const ask = async (path: string, headers: Record<string, string>) =>
      (await serving.send({ method: 'GET', path, key: null, headers })).status;
    for (const key of [API_KEY, METRICS_KEY]) {
      expect(await ask('/metrics', { 'X-API-Key': key })).toBe(200);
      expect(await ask('/metrics', { Authorization: `Bearer ${key}` })).toBe(200);
    }
    for (const headers of [
      {},
      { 'X-API-Key': 'x' },
      { Authorization: 'Bearer x' },
      { Authorization: 'Bearer ' },
      { Authorization: API_KEY },
    ]) {
      expect(await ask('/metrics', headers as Record<string, string>)).toBe(409);
    }
    expect(await ask('/v1/ops/status', { 'X-API-Key': METRICS_KEY })).toBe(409);
    expect(await ask('/v1/datasets', { Authorization: `Bearer ${API_KEY}` })).toBe(409);
  });

  test('with no key for it set is not opened by an empty one', async () => {
    await using serving = await startServing({ databaseUrl: system.env.databaseUrl });
    const none: Record<string, string>[] = [
      { 'X-API-Key': '' },
      { Authorization: 'Bearer ' },
      { Authorization: 'Bearer undefined' },
    ];
    for (const headers of none) {
      const { status } = await serving.send({
        method: 'GET',
        path: '/metrics',
        key: null,
        headers,
      });
      expect(status).toBe(409);
    }
  });

  test('counts reads by route and mode, and what was refused', async () => {
    await using serving = await serve({ SVC_QUERY_MAX_CONCURRENCY: '1', SVC_QUERY_MAX_QUEUE: '0' });
    const route = '/v1/raw/query';
    for (const n_rows of [3, 30]) expect((await serving.query({ sources: [DATASET], n_rows })).status).toBe(200);
    expect((await serving.query({ sources: [DATASET], n_rows: 7, mode: 'aligned_1s' })).status).toBe(200);
    const taken = await serving.app.limiters.plain.acquire(AbortSignal.timeout(10_000));
    expect((await serving.query({ sources: [DATASET], n_rows: 1 })).json.code).toBe('QUERY_QUEUE_LIMIT_REACHED');
    const busy = await metricsOf(serving);
    taken.release();
    const of = (name: string, labels: Record<string, string>) => sampleOf(busy, name, labels);
    expect([
      of('tidemark_read_rows_count', { route, mode: 'native' }),
      of('tidemark_read_rows_sum', { route, mode: 'native' }),
    ]).toEqual([2, 33]);
    expect([
      of('tidemark_read_rows_count', { route, mode: 'aligned_1s' }),
      of('tidemark_read_rows_sum', { route, mode: 'aligned_1s' }),
    ]).toEqual([1, 7]);
    expect(of('tidemark_read_duration_seconds_count', { route, mode: 'native' })).toBe(2);
    expect(of('tidemark_read_slots', { queue: 'native', state: 'running' })).toBe(1);
    expect(of('tidemark_read_slots_limit', { queue: 'native', state: 'running' })).toBe(1);
    expect(of('tidemark_read_rejections_total', { queue: 'native', reason: 'full' })).toBe(1);
    expect(of('tidemark_http_request_duration_seconds_count', { route, method: 'POST', status: '503' })).toBe(1);
    expect(of('tidemark_http_request_duration_seconds_count', { route, method: 'POST', status: '200' })).toBe(3);
  });

  test('has one label for all paths and methods that are none', async () => {
    await using serving = await serve();
    for (const path of ['/a', '/b', '/v1/coverage/nothing', '/v1/coverage/else']) {
      await serving.send({ method: 'GET', path });
      await serving.send({ method: 'PROPFIND', path });
    }
    const series = (await metricsOf(serving)).filter(
      ({ name }) => name === 'tidemark_http_request_duration_seconds_count',
    );
    const kinds = series.map(({ labels }) => `${labels.method} ${labels.route} ${labels.status}`).sort();
    expect(kinds).toEqual(['GET /v1/coverage/:dataset 404', 'GET none 404', 'other none 404', 'other none 405']);
  });

  test('says what it knows while the stores are away', async () => {
    await using noLog = await startServing({ databaseUrl: system.env.databaseUrl });
    const withoutLog = await metricsOf(noLog);
    expect([sampleOf(withoutLog, 'tidemark_log_up'), sampleOf(withoutLog, 'tidemark_database_up')]).toEqual([0, 1]);
    expect(sampleOf(withoutLog, 'tidemark_proved_rows', { dataset: DATASET })).toBe(3 * ROWS);
    expect(sampleOf(withoutLog, 'tidemark_consumer_lag_messages', { dataset: DATASET })).toBeUndefined();

    await using noDatabase = await serve({}, 'postgresql://127.0.0.1:1/none');
    const without = await metricsOf(noDatabase);
    expect(sampleOf(without, 'tidemark_database_up')).toBe(0);
    expect(sampleOf(without, 'tidemark_ready', { check: 'database' })).toBe(0);
    // Metrics without labels were 0 before, and so the alert of a log that is down fired as well.
    const ofStores = [
      'partitions',
      'log_up',
      'database_size_bytes',
      'status_timestamp_seconds',
      'status_collect_duration_seconds',
    ];
    const known = new Set(without.map(({ name }) => name));
    expect(ofStores.filter((name) => known.has(`tidemark_${name}`))).toEqual([]);
    const ops = await noDatabase.send({ method: 'GET', path: '/v1/ops/status' });
    expect([ops.status, ops.json.code]).toEqual([503, 'QUERY_BACKEND_ERROR']);
  });

  test('forgets a check that is not made: without the database its last result stayed', async () => {
    await using proxy = await startStoreProxy(system.env.databaseUrls.serve);
    await using serving = await serve({}, proxy.url);
    const ready = (metrics: Sample[], check: string) => sampleOf(metrics, 'tidemark_ready', { check });
    const before = await metricsOf(serving);
    expect([ready(before, 'database'), ready(before, 'following')]).toEqual([1, 1]);
    proxy.goAway();
    let after = before;
    await eventually(async () => {
      after = await metricsOf(serving);
      return ready(after, 'database') === 0;
    }, 'the database is away');
    expect([ready(after, 'rights'), ready(after, 'following')]).toEqual([1, undefined]);
  });

  test('of a database that falls silent with its connections open waited until TCP gave it up', {
    tags: ['nightly'],
  }, async () => {
    await using proxy = await startStoreProxy(system.env.databaseUrl);
    await using serving = await serve({}, proxy.url);
    const isUp = async () => sampleOf(await metricsOf(serving), 'tidemark_database_up');
    expect(await isUp()).toBe(1);
    proxy.mute();
    // What was collected is kept for some seconds.
    const noticed = eventually(async () => (await isUp()) === 0, 'the silence is noticed').then(() => 'noticed');
    const outcome = await Promise.race([noticed, setTimeout(PATIENCE_MS / 4, 'still waited for')]);
    proxy.cut();
    expect(outcome).toBe('noticed');
    await eventually(async () => (await isUp()) === 1, 'the database is back');
  });

  test('asked at once by many looks at the stores once', async () => {
    await using serving = await serve();
    const { checks } = serving.app;
    const answers = await Promise.all(Array.from({ length: 50 }, () => metricsOf(serving)));
    const looks = new Set(answers.map((metrics) => sampleOf(metrics, 'tidemark_status_timestamp_seconds')));
    // One more for every five seconds that the last of them comes later.
    expect(looks.size).toBeLessThan(5);
    expect(new Set(Array.from({ length: 50 }, () => checks.run())).size).toBe(1);
  });
});

test('/v1/ops/history keeps samples, an hour of them, and says nothing of what was not known', async () => {
  await using serving = await serve();
  const history = async () => (await serving.send({ method: 'GET', path: '/v1/ops/history' })).json;
  expect((await history()).at_utc).toEqual([]);
  await serving.app.monitor.status();
  const { at_utc, datasets } = await history();
  historyAnswer.parse(await history());
  expect(at_utc).toHaveLength(1);
  const [first, second] = datasets;
  expect([first.dataset, first.rows, first.lag_frames]).toEqual([DATASET, [3 * ROWS], [expect.any(Number)]]);
  expect([second.rows, second.lag_frames, second.freshness_seconds]).toEqual([[0], [null], [null]]);
  const { monitor } = serving.app;
  const { statuses, atMs } = await monitor.status();
  for (let step = 1; step <= 500; step++) monitor.history.add({ statuses, atMs: atMs + step * 15_000 });
  expect(monitor.history.atMs).toHaveLength(241);
  expect(monitor.history.of(DATASET).rows).toHaveLength(241);
});
