/** A state folder of an earlier release, opened with today's: migrated, served with the same digests, verified, replayed. */
import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { FORMER_NAMES, MIGRATIONS_DIR, pendingMigrations } from '../../shared/db/migrate.ts';
import { roleState } from '../../shared/db/roles.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import type { Answer } from '../support/command.ts';
import { type KeptState, keptAnswers, openKeptState } from '../support/kept-state.ts';
import { type Serving, startServing } from '../support/serving.ts';

/** Of the release that left the folder. */
const APPLIED_THEN = 19;
const QUARANTINED = 'exchange_b_spot_trades';

const statesOf = ({ json }: Answer) => new Set(json.units.map(({ state }: { state: string }) => state));

let kept: KeptState;
let serving: Serving;

beforeAll(async () => {
  kept = await openKeptState();
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await kept[Symbol.asyncDispose]();
});

describe('a state folder of an earlier release', () => {
  test('has its migrations recognised under their former names; only later ones are applied', async () => {
    const files = (await readdir(MIGRATIONS_DIR)).filter((name) => name.endsWith('.sql')).sort();
    {
      await using client = await connect({ url: kept.stack.databaseUrl, name: 'test' });
      const { rows } = await client.query('select name from schema_migrations where name = any ($1)', [
        Object.keys(FORMER_NAMES),
      ]);
      expect(rows).toHaveLength(5);
      const later = files.slice(APPLIED_THEN);
      expect(await pendingMigrations(client)).toEqual({ missing: later, changed: [], unknown: [] });
    }
    const { json } = await kept.run(['migrate']);
    expect(json).toMatchObject({ ok: true, applied: files.slice(APPLIED_THEN), present: files.slice(0, APPLIED_THEN) });
    // Of what was published, and not of the samples.
    await using client = await connect({ url: kept.stack.databaseUrl, name: 'test' });
    const { rows } = await client.query('select setting, value, partition_key from pinned_settings');
    expect(rows).toEqual([{ setting: 'SVC_EXCHANGE_A_SYMBOL', value: 'BTCUSDT', partition_key: '2024-03-01' }]);
  });

  test('belongs to roles from then on: nothing connects as its superuser any more', async () => {
    await using client = await connect({ url: kept.stack.databaseUrls.owner, name: 'test' });
    expect((await roleState(client)).changes).toEqual([]);
    const { json } = await kept.run(['doctor', '--check', 'roles']);
    expect(json.checks).toContainEqual(expect.objectContaining({ check: 'roles', state: 'ok', findings: [] }));
    const names = Object.values(kept.stack.databaseUrls).map((url) => new URL(url).username);
    expect(names.toSorted()).toEqual(
      ['export', 'ingest', 'monitor', 'owner', 'serve'].map((role) => `tidemark_${role}`),
    );
    // A role for callers that was made then is still theirs, and the owner may give it another password.
    const rotated = await kept.run(['read-role', 'market_reader', '--rotate']);
    expect(rotated.json).toMatchObject({ ok: true, created: false, password: expect.stringMatching(/^[0-9a-f]{48}$/) });
  });

  test('serves what it served, byte for byte', async () => {
    const urls = kept.stack.databaseUrls;
    const settings = { SVC_DATABASE_MONITOR_URL: urls.monitor };
    serving = await startServing({ databaseUrl: urls.serve, settings });
    const answers = await keptAnswers();
    expect(Object.keys(answers).sort()).toEqual([...DATASETS.keys()].sort());
    for (const [dataset, modes] of Object.entries(answers)) {
      for (const [mode, { rows, sha256, fields }] of Object.entries(modes)) {
        const { status, text } = await serving.query(
          { sources: [dataset], mode, fields },
          { Accept: 'application/x-ndjson' },
        );
        const found = { rows: text.split('\n').length - 1, sha256: createHash('sha256').update(text).digest('hex') };
        expect([dataset, mode, status, found]).toEqual([dataset, mode, 200, { rows, sha256 }]);
      }
    }
  });

  test('`up` runs the export that was queued then, and none of its processes is a superuser', async () => {
    await using admin = await connect({ url: kept.stack.databaseUrl, name: 'test' });
    const { child, done } = kept.start(['up'], { SVC_HTTP_PORT: '0' });
    const exported = async () =>
      (await admin.query('select state from exports order by number')).rows.map(({ state }) => state);
    expect(await exported()).toContain('queued');
    await expect.poll(exported).toEqual(['succeeded', 'succeeded']);
    const users = async () =>
      (
        await admin.query(
          `select distinct usename from pg_stat_activity where application_name like 'tidemark %'
             and application_name not in ('tidemark roles', 'tidemark stack') order by 1`,
        )
      ).rows.map(({ usename }) => usename);
    await expect.poll(users).toEqual(['tidemark_ingest', 'tidemark_monitor', 'tidemark_serve']);
    child.kill('SIGINT');
    expect((await done).exit).toBe(0);
  });

  test('gets kept klines from its stored rows, which answer as the rows did', async () => {
    const days = await kept.run(['status', 'exchange_a_spot_trades']);
    const [{ from, to }] = days.json.datasets[0].proved_ranges;
    const klines = async (window: object): Promise<Record<string, unknown>> => {
      const body = JSON.stringify({ start_date: from, end_date: to, ...window });
      return (await serving.send({ path: '/v1/historical/exchange_a/spot/klines', body })).json;
    };
    const bodies = [{ kline_size: '1m' }, { kline_size: '1h' }, { kline_size: '3h', mode: 'aligned_1s' }];
    const before = await Promise.all(bodies.map(klines));
    const made = await kept.run(['klines', 'all']);
    expect([made.exit, statesOf(made)]).toEqual([0, new Set(['made'])]);
    const after = await Promise.all(bodies.map(klines));
    expect(after.map(({ rows }) => rows)).toEqual(before.map(({ rows }) => rows));
    expect(before.every(({ row_count }) => Number(row_count) > 0)).toBe(true);
  });

  test('gets leaves of the proof log by a command that recounts, and goes on where it stopped', async () => {
    const made = await kept.run(['leaves', 'exchange_a_spot_trades', 'etf_daily_metrics', 'macro_series_metrics']);
    expect([made.exit, statesOf(made)]).toEqual([0, new Set(['made'])]);
    const again = await kept.run(['leaves', 'all']);
    expect([again.exit, statesOf(again)]).toEqual([0, new Set(['there', 'made'])]);
    await using client = await connect({ url: kept.stack.databaseUrl, name: 'test' });
    const { rows } = await client.query(
      `select count(*)::int as leaves, count(*) filter (where convert_from(body, 'UTF8')::jsonb ->> 'backfilled' = 'true')::int as backfilled,
         (select count(*)::int from partitions where state = 'proved') as proved from proof_leaves`,
    );
    expect([rows[0].leaves, rows[0].backfilled]).toEqual([rows[0].proved, rows[0].proved]);
    const { json } = await kept.run(['doctor', '--check', 'proof_log']);
    expect(json.checks.find(({ check }: { check: string }) => check === 'proof_log').findings).toEqual([]);
  });

  test('is verified from row to row, what comes block by block apart; the day that was quarantined stays so', async () => {
    // Each height is a partition of six datasets: `bitcoin-*` tests verify them. It would take minutes here.
    const datasets = [...DATASETS.values()].filter(({ partition }) => partition.kind !== 'height');
    const verified = await kept.run(['verify', ...datasets.map(({ key }) => key), '--deep']);
    expect([verified.exit, statesOf(verified)]).toEqual([0, new Set(['proved'])]);
    const { json } = await kept.run(['quarantine']);
    expect(json.partitions).toMatchObject([{ dataset: QUARANTINED, by: 'verify', stored_rows: 120 }]);
  });

  test('is built again from its log: identical, and the quarantined day is served again', async () => {
    const replayed = await kept.run(['replay', 'exchange_a_spot_trades', 'macro_series_metrics']);
    expect([replayed.exit, statesOf(replayed)]).toEqual([0, new Set(['identical'])]);
    const again = await kept.run(['replay', QUARANTINED]);
    expect([again.exit, statesOf(again)]).toEqual([0, new Set(['identical', 'replaced'])]);
    const { json } = await serving.query({ sources: [QUARANTINED], mode: 'native' });
    expect(json.row_count).toBe(360);
  });
});
