/** Each check of the doctor, against a real fault of its kind: green before, red with it, green after. */
import { existsSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { jetstream, jetstreamManager, RetentionPolicy } from '@nats-io/jetstream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ask, CHECKS } from '../../pipelines/cli/commands/doctor.ts';
import type { CheckContext, Finding } from '../../pipelines/cli/doctor/types.ts';
import { fedDatasets } from '../../pipelines/sources/index.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { SettingName } from '../../shared/config/settings.ts';
import { connect } from '../../shared/db/connect.ts';
import { RunRecorder } from '../../shared/db/runs.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { CHANGES_STREAM, ensureStream } from '../../shared/nats/stream.ts';
import { nobody, processesIn } from '../../shared/stack/processes.ts';
import { readState } from '../../shared/status/state.ts';
import { type Json, startCommand } from '../support/command.ts';
import { csvOf, DATASET, dayNames, System, writeDocument } from '../support/pipeline.ts';
import { eventually, OWN_MATRIX, SAMPLE_MATRIX } from '../support/serving.ts';
import { temporaryDir } from '../support/stack.ts';

const DAYS = dayNames('2024-05-01', 2);
const ROWS = 100;

let system: System;
let context: CheckContext;
let operator: NatsConnection;
const cleanup = new AsyncDisposableStack();

beforeAll(async () => {
  system = cleanup.use(await System.create());
  for (const [index, day] of DAYS.entries()) {
    const content = { day, rows: ROWS, seed: index + 1, firstId: 1 + index * ROWS, timeUnit: 'ms' } as const;
    await writeDocument(system.vendor, day, csvOf(content));
  }
  expect((await system.backfill(DAYS[0], DAYS[1])).exit).toBe(0);
  operator = cleanup.use(await connectNats(system.env.natsOperatorUrl, 'test'));
  const connection = cleanup.use(await connectNats(system.env.natsUrl, 'doctor'));
  const database = cleanup.use(await connect({ url: system.env.databaseUrl, name: 'doctor' }));
  const log = { connection, manager: await jetstreamManager(connection) };
  context = {
    settings: loadSettings({
      env: { ...system.settings, SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX },
      cwd: system.env.dir,
    }),
    given: new Set(),
    datasets: fedDatasets(),
    database,
    state: () => readState(database, async () => log.manager, { detailed: true }),
    roleUrls: { SVC_DATABASE_URL: system.env.databaseUrls.ingest },
    accounts: [
      { role: 'publisher', setting: 'SVC_NATS_URL', url: system.env.natsUrl },
      { role: 'projector', setting: 'SVC_NATS_PROJECTOR_URL', url: system.env.natsProjectorUrl },
      { role: 'reader', setting: 'SVC_NATS_READER_URL', url: system.env.natsReaderUrl },
    ],
    log,
    serverUid: undefined,
    logDir: system.env.dir,
    databaseDir: system.env.dir,
    freeBytes: async () => 1e15,
    now: Date.now,
  };
});
afterAll(() => cleanup.disposeAsync());

const sql = async (text: string, values: unknown[] = []) => void (await system.client.query(text, values));
/** Settings of a session that others do not see; the doctor's own. */
const session = async (text: string) => void (await context.database.query(text));
const settings = (values: Record<string, unknown>): Partial<CheckContext> => ({
  settings: { ...context.settings, ...values } as CheckContext['settings'],
});

interface Fault {
  readonly check: string;
  readonly name: string;
  readonly make?: () => Promise<Partial<CheckContext> | undefined | undefined>;
  readonly mend?: () => Promise<void>;
  /** What the finding says, and what it names as the fix. */
  readonly says: RegExp;
  readonly fix: RegExp;
  readonly severity?: Finding['severity'];
}

let chunk: { name: string; index: string; sql: string };
let killed: RunRecorder | undefined;

const FAULTS: readonly Fault[] = [
  {
    check: 'proof_log',
    name: 'a proved partition has no leaf',
    make: () => sql(`update proof_leaves set attempt = attempt + 100`),
    mend: () => sql(`update proof_leaves set attempt = attempt - 100`),
    says: /\d+ proved partitions have no leaf, from \S+ on/,
    fix: /tidemark replay/,
    severity: 'warning',
  },
  {
    check: 'proof_log',
    name: 'no process continues it',
    make: () => sql(`update proof_leaves set written_at = written_at - interval '1 hour'`),
    mend: () => sql(`update proof_leaves set written_at = written_at + interval '1 hour'`),
    says: /leaves wait for a checkpoint, the oldest for 60 minutes/,
    fix: /start a projector/,
  },
  {
    check: 'migrations',
    name: 'one is not applied',
    make: () => sql(`delete from schema_migrations where name = '0008_work.sql'`),
    mend: () => system.run(['migrate']).then(({ exit }) => expect(exit).toBe(0)),
    says: /0008_work\.sql: is not applied/,
    fix: /tidemark migrate/,
  },
  {
    check: 'migrations',
    name: 'one is of another tree',
    make: () => sql(`insert into schema_migrations (name, sha256) values ('9999_future.sql', '')`),
    mend: () => sql(`delete from schema_migrations where name = '9999_future.sql'`),
    says: /9999_future\.sql: was applied by another tree of Tidemark/,
    fix: /begin anew/,
  },
  {
    check: 'roles',
    name: 'the service is connected as a superuser',
    make: async () => ({ roleUrls: { SVC_DATABASE_SERVE_URL: system.env.databaseUrl } }),
    says: /SVC_DATABASE_SERVE_URL: connects as \w+, a superuser/,
    fix: /Roles of the database/,
    severity: 'warning',
  },
  {
    check: 'roles',
    name: 'who serves may change what is proved',
    make: () => sql('grant update on coverage to tidemark_serve'),
    mend: () => sql('revoke update on coverage from tidemark_serve'),
    says: /revoke UPDATE on "coverage" from tidemark_serve/,
    fix: /tidemark migrate/,
    severity: 'warning',
  },
  {
    check: 'roles',
    name: 'who loads may not create chunks: a right that only provisioning gives',
    make: () => sql('revoke create on schema _timescaledb_internal from tidemark_ingest'),
    mend: () => sql('grant create on schema _timescaledb_internal to tidemark_ingest'),
    says: /provisioning: has another owner .* lacks the right to create chunks/,
    fix: /tidemark migrate with SVC_DATABASE_ADMIN_URL/,
    severity: 'warning',
  },
  {
    check: 'run_as',
    name: 'servers that share their account with other daemons',
    make: async () => ({ serverUid: nobody().uid }),
    says: /SVC_RUN_AS: the servers run as nobody/,
    fix: /an account of their own/,
    severity: 'warning',
  },
  {
    check: 'changes',
    name: 'a message that another program wrote into the stream of changes',
    make: async () => {
      await ensureStream(operator, CHANGES_STREAM, { maxBytes: 1 << 26 });
      await jetstream(operator).publish(`${CHANGES_STREAM}.${DATASET}.proved`, '{"number":1}');
      return undefined;
    },
    mend: async () => void (await (await jetstreamManager(operator)).streams.delete(CHANGES_STREAM)),
    says: /holds 1 changes, and the catalog 0|its message 1 is not that change/,
    fix: /tidemark recover all/,
  },
  {
    check: 'storage',
    name: 'a column of another type',
    make: () => sql('alter table canonical_aligned_1s_aggregates alter column bucket_sha256 type varchar'),
    mend: () => sql('alter table canonical_aligned_1s_aggregates alter column bucket_sha256 type text'),
    says: /bucket_sha256: is character varying, must be text/,
    fix: /migrations/,
  },
  {
    check: 'storage',
    name: 'a table that is gone',
    make: () => sql('alter table source_checks rename to source_checks_away'),
    mend: () => sql('alter table source_checks_away rename to source_checks'),
    says: /source_checks: the table is missing/,
    fix: /migrations/,
  },
  {
    check: 'chunks',
    name: 'a chunk without its unique index',
    make: async () => {
      const [row] = await system.rows<Json>(
        `select c.oid::regclass::text as name, i.indexrelid::regclass::text as index, pg_get_indexdef(i.indexrelid) as sql
         from timescaledb_information.chunks k
         join pg_class c on c.relname = k.chunk_name join pg_index i on i.indrelid = c.oid and i.indisunique
         where k.hypertable_name = $1 limit 1`,
        [DATASET],
      );
      chunk = row;
      await sql(`drop index ${chunk.index}`);
    },
    mend: () => sql(chunk.sql),
    says: /has 0 valid unique indexes/,
    fix: /create unique index on .*"timestamp", "trade_id"/,
  },
  {
    check: 'postgres',
    name: 'a setting that costs speed',
    make: () => session('set random_page_cost = 4'),
    mend: () => session('reset random_page_cost'),
    says: /random_page_cost: is 4/,
    fix: /random_page_cost = '1\.1'/,
    severity: 'warning',
  },
  {
    check: 'postgres',
    name: 'a setting that costs commits',
    make: () => session('set synchronous_commit = off'),
    mend: () => session('reset synchronous_commit'),
    says: /synchronous_commit: is off/,
    fix: /synchronous_commit = 'on'/,
  },
  {
    check: 'clock',
    name: 'a machine that is a minute behind',
    make: async () => ({ now: () => Date.now() - 60_000 }),
    says: /the database is \d+(\.\d+)? s ahead/,
    fix: /NTP/,
  },
  {
    check: 'streams',
    name: 'one that forgets',
    make: async () => {
      const manager = await jetstreamManager(operator);
      // `migrate` made it.
      await manager.streams.delete('macro_series_metrics').catch(() => {});
      await manager.streams.add({
        name: 'macro_series_metrics',
        subjects: ['macro_series_metrics.>'],
        retention: RetentionPolicy.Limits,
        max_age: 3600e9,
      });
    },
    mend: async () => void (await (await jetstreamManager(operator)).streams.delete('macro_series_metrics')),
    says: /macro_series_metrics: .*max_age is 3600000000000, must be 0/,
    fix: /nats stream edit macro_series_metrics/,
  },
  {
    check: 'streams',
    name: 'fewer replicas than were asked for',
    make: async () => settings({ SVC_STREAM_REPLICAS: 3 }),
    says: /has 1 replicas, but SVC_STREAM_REPLICAS is 3/,
    fix: /correct the setting/,
    severity: 'warning',
  },
  {
    check: 'account',
    name: 'one that publishes and may delete, empty and forge the log',
    make: async () => ({
      accounts: [{ role: 'publisher', setting: 'SVC_NATS_URL', url: system.env.natsOperatorUrl }],
    }),
    says: /SVC_NATS_URL: .*\(publisher\) may delete streams, purge streams, delete messages, change streams, make streams, make consumers, delete consumers, receive answers meant for others$/,
    fix: /docs\/operations\.md/,
    severity: 'warning',
  },
  {
    check: 'account',
    name: 'one that reads and may write',
    make: async () => ({
      accounts: [{ role: 'reader', setting: 'SVC_NATS_READER_URL', url: system.env.natsUrl }],
    }),
    says: /SVC_NATS_READER_URL: its account \(reader\) may write events$/,
    fix: /docs\/operations\.md/,
    severity: 'warning',
  },
  {
    check: 'streams',
    name: 'a consumer that delivers into another log',
    make: async () => {
      const manager = await jetstreamManager(operator);
      await manager.consumers.add(DATASET, { durable_name: 'thief', deliver_subject: 'exchange_b_spot_trades.x.1.0' });
    },
    mend: async () => void (await (await jetstreamManager(operator)).consumers.delete(DATASET, 'thief')),
    says: /exchange_a_spot_trades: its consumer thief pushes to exchange_b_spot_trades\.x\.1\.0/,
    fix: /nats consumer rm exchange_a_spot_trades thief/,
  },
  {
    check: 'streams',
    name: 'one that copies itself elsewhere',
    make: async () => {
      const manager = await jetstreamManager(operator);
      await manager.streams.update(DATASET, { republish: { src: '>', dest: 'elsewhere.>' } });
    },
    mend: async () => {
      const manager = await jetstreamManager(operator);
      const { republish, ...config } = (await manager.streams.info(DATASET)).config;
      await operator.request(`$JS.API.STREAM.UPDATE.${DATASET}`, JSON.stringify(config));
    },
    says: /exchange_a_spot_trades: republish is set, must not be/,
    fix: /nats stream edit/,
  },
  {
    check: 'checkpoints',
    name: 'a checkpoint on another log',
    make: () => sql(`update checkpoints set message_sha256 = 'x' || message_sha256`),
    mend: () => sql('update checkpoints set message_sha256 = substr(message_sha256, 2)'),
    says: /other_messages: sequence \d+ holds another message/,
    fix: /tidemark recover exchange_a_spot_trades/,
  },
  {
    check: 'space',
    name: 'a disk smaller than what is reserved',
    make: async () => ({ freeBytes: async () => 5e8 }),
    says: /streams may still take .*, but the disk has 500\.0 MB/,
    fix: /SVC_STREAM_MAX_BYTES/,
    severity: 'warning',
  },
  {
    check: 'partitions',
    name: 'a recount that nobody does',
    make: () =>
      sql(`insert into recount_requests (dataset_id, partition_key, reason, asked_at)
        values (1, '2024-05-01', 'a read', now() - interval '1 hour')`),
    mend: () => sql('delete from recount_requests'),
    says: /exchange_a_spot_trades: reads found row counts other than proved in 1 partitions, from 2024-05-01 on/,
    fix: /tidemark verify exchange_a_spot_trades/,
  },
  {
    check: 'partitions',
    name: 'one in quarantine',
    make: async () => {
      await sql(`update ${DATASET} set price = price + 1 where trade_id = 7`);
      expect((await system.run(['verify', DATASET])).exit).toBe(1);
    },
    mend: async () => {
      expect((await system.run(['replay', DATASET])).exit).toBe(0);
    },
    says: /exchange_a_spot_trades: 1 in quarantine, from 2024-05-01 on/,
    fix: /tidemark quarantine exchange_a_spot_trades/,
  },
  {
    check: 'work',
    name: 'one that was killed',
    make: async () => {
      const needs = { databaseUrl: system.env.databaseUrl, datasets: context.datasets.slice(0, 1) };
      killed = await RunRecorder.open({
        ...needs,
        kind: 'reingest',
        subject: DATASET,
        command: './tidemark reingest x',
      });
      await sql(
        `select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tidemark run reingest%'
         and datname = current_database()`,
      );
      await expect.poll(async () => (await ask(CHECKS.find(({ name }) => name === 'work')!, context)).length).toBe(1);
    },
    mend: async () => void (await killed?.[Symbol.asyncDispose]()),
    says: /was killed after 0 of an unknown number/,
    fix: /run it again to continue: \.\/tidemark reingest x/,
    severity: 'warning',
  },
  {
    check: 'sources',
    name: 'a folder that is not there',
    make: async () => settings({ SVC_EXCHANGE_A_BASE_URL: new URL('file:///no/such/folder/') }),
    says: /SVC_EXCHANGE_A_BASE_URL: the folder \/\S+ does not exist/,
    fix: /correct the setting/,
  },
  {
    check: 'sources',
    name: 'a host that does not answer',
    make: async () => settings({ SVC_EXCHANGE_C_BASE_URL: new URL('http://127.0.0.1:9/') }),
    says: /SVC_EXCHANGE_C_BASE_URL: .*ECONNREFUSED/,
    fix: /correct the setting/,
  },
  {
    check: 'pinned',
    name: 'a setting has another value than the first proof pinned',
    make: async () => ({
      ...settings({ SVC_EXCHANGE_A_SYMBOL: 'ETHUSDT' }),
      given: new Set<SettingName>(['SVC_EXCHANGE_A_SYMBOL']),
    }),
    says: /SVC_EXCHANGE_A_SYMBOL: is ETHUSDT, but the proof of exchange_a_spot_trades 2024-05-01 pinned it to BTCUSDT/,
    fix: /set it back to BTCUSDT or leave it unset/,
  },
  {
    check: 'rights',
    name: 'rows of a source under the matrix of the sample',
    make: async () => settings({ SVC_SOURCE_RIGHTS_MATRIX_PATH: SAMPLE_MATRIX }),
    says: /exchange_a_spot_trades: published rows are refused; .* exchange_a is .*sample/,
    fix: /tidemark rights init/,
  },
  {
    check: 'rights',
    name: 'the embedded stack, whose matrix is that of the sample',
    make: async () => settings({ SVC_DATABASE_URL: undefined, SVC_SOURCE_RIGHTS_MATRIX_PATH: undefined }),
    says: /exchange_a_spot_trades: published rows are refused/,
    fix: /tidemark rights init/,
  },
  {
    check: 'rights',
    name: 'a matrix that is not there',
    make: async () => settings({ SVC_SOURCE_RIGHTS_MATRIX_PATH: '/no/such/matrix.json' }),
    says: /matrix.json: file: it does not exist/,
    fix: /correct it/,
  },
];

describe.each(FAULTS)('$check: $name', ({ check, make, mend, says, fix, severity = 'fault' }) => {
  test('green before, red with it, green after', async () => {
    const one = CHECKS.find(({ name }) => name === check)!;
    const before = await ask(one, context);
    // The servers of tests trade durability for speed: a true finding.
    expect(before.map(({ subject }) => subject)).toEqual(check === 'postgres' ? ['fsync'] : []);
    const changed = (await make?.()) ?? {};
    try {
      const findings = await ask(one, { ...context, ...changed });
      const found = findings.find(({ subject, what }) => says.test(`${subject}: ${what}`));
      expect(found, JSON.stringify(findings)).toMatchObject({ severity, fix: expect.stringMatching(fix) });
    } finally {
      await mend?.();
    }
    expect(await ask(one, context)).toEqual(before);
  });
});

test('every check has a fault it was seen to find', () => {
  expect([...new Set(FAULTS.map(({ check }) => check))].sort()).toEqual(CHECKS.map(({ name }) => name).sort());
});

describe('the command', () => {
  test('every check of a sound system is ok; one that is not makes it exit 1', async () => {
    const { exit, json } = await system.run(['doctor']);
    const states = Object.fromEntries(json.checks.map(({ check, state }: Json) => [check, state]));
    // The servers of tests do not sync, which is a fault.
    const { postgres, ...rest } = states;
    expect(new Set(Object.values(rest))).toEqual(new Set(['ok']));
    expect([exit, postgres]).toEqual([1, 'fault']);
  });

  test('settings that cannot be used: named, the rest is not asked, exit 1', async () => {
    const { exit, json } = await system.run(['doctor'], { SVC_STREAM_MAX_BYTES: 'many' });
    expect([exit, json.ok, json.checks[0].state]).toEqual([1, false, 'fault']);
    expect(json.checks[0].findings[0]).toMatchObject({ subject: 'SVC_STREAM_MAX_BYTES' });
    expect(json.checks.slice(1).every(({ state }: Json) => state === 'skipped')).toBe(true);
  });

  test('a log that is away hides nothing of the database', async () => {
    const { exit, json } = await system.run(['doctor'], { SVC_NATS_URL: 'nats://127.0.0.1:9' });
    const of = (name: string) => json.checks.find(({ check }: Json) => check === name);
    expect([exit, of('connections').state, of('storage').state, of('streams').state]).toEqual([
      1,
      'fault',
      'ok',
      'skipped',
    ]);
    expect(of('connections').findings[0].what).toContain('127.0.0.1:9');
  });
});

test('a doctor that was interrupted left the servers running that it had started', { tags: ['nightly'] }, async () => {
  const dir = await temporaryDir();
  const servers = join(dir, 'state', 'servers');
  const { child, done } = startCommand(['doctor'], { SVC_STATE_DIR: join(dir, 'state') });
  // From then on PostgreSQL runs; it does not answer yet.
  await eventually(async () => existsSync(join(servers, 'postgres', 'postmaster.pid')), 'PostgreSQL starts');
  const postmaster = processesIn(join(servers, 'postgres'), 'postgres');
  child.kill('SIGINT');
  expect((await done).exit).toBe(130);
  expect(postmaster.length).toBeGreaterThan(0);
  expect(processesIn(join(servers, 'postgres'), 'postgres')).toEqual([]);
  expect(processesIn(join(servers, 'nats'), 'nats-server')).toEqual([]);
  await rm(dir, { recursive: true });
});

test('a doctor that waited for a lock of the database ignored Ctrl-C', async () => {
  await using other = await connect({ url: system.env.databaseUrl, name: 'holds a table' });
  await other.query('begin; lock table partitions');
  const command = startCommand(['doctor'], { ...system.settings });
  let exit: number | null | undefined;
  void command.done.then((given) => {
    exit = given.exit;
  });
  const waiting = `select from pg_stat_activity where datname = current_database()
    and application_name = 'tidemark doctor' and wait_event_type = 'Lock'`;
  await eventually(async () => (await system.client.query(waiting)).rowCount === 1, 'it waits');
  command.child.kill('SIGINT');
  try {
    await eventually(async () => exit !== undefined, 'it ends');
  } finally {
    await other.query('rollback');
    await command.done;
  }
  expect(exit).toBe(130);
});
