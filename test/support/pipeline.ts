/**
 * A whole system for tests: a database and a log of its own, a folder that plays the vendor, and the operator's real
 * command run against them.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, readdir, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { jetstreamManager } from '@nats-io/jetstream';
import type { ExchangeADay } from '../../pipelines/sources/exchange_a/sample.ts';
import { generateDay } from '../../pipelines/sources/exchange_a/sample.ts';
import type { Settings } from '../../shared/config/settings.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { decodeMessage, type Header } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { messageAt, streamInfo } from '../../shared/nats/stream.ts';
import { buildZip, type MemberSpec } from './broken-zip.ts';
import { type Answer, type Begun, beginCommand, type Json, type Running, runCommand, startCommand } from './command.ts';
import { PATIENCE_MS } from './patience.ts';
import { createMigratedEnv, createTestEnv, type EnvOptions, natsSettings, type TestEnv } from './stack.ts';

export const DATASET = 'exchange_a_spot_trades';
export const SYMBOL = 'BTCUSDT';
export const DAY_MS = 86_400_000;

// ---- the vendor ----------------------------------------------------------------------------------------------------

/** Path of a document below the vendor's base: a day's or, for `YYYY-MM`, a month's. */
export const documentPath = (period: string) =>
  `spot/${period.length === 7 ? 'monthly' : 'daily'}/trades/${SYMBOL}/${SYMBOL}-trades-${period}.zip`;
export const memberName = (period: string) => `${SYMBOL}-trades-${period}.csv`;

export interface DocumentSpec {
  readonly member?: Partial<MemberSpec>;
  /** Bytes of the whole archive instead of a right one. */
  readonly zip?: Buffer;
  /** Text of the checksum file; null: there is none. */
  readonly checksum?: string | null;
}

/** Writes a document and its checksum. @returns the archive's sha256. */
export async function writeDocument(base: string, period: string, csv: string | Buffer, spec: DocumentSpec = {}) {
  const path = join(base, documentPath(period));
  const zip =
    spec.zip ?? buildZip({ members: [{ name: memberName(period), content: Buffer.from(csv), ...spec.member }] });
  const sha256 = createHash('sha256').update(zip).digest('hex');
  await mkdir(dirname(path), { recursive: true });
  const { checksum = `${sha256}  ${SYMBOL}-trades-${period}.zip\n` } = spec;
  // Each is there at once, and the archive last: somebody may be asking for them meanwhile.
  for (const [file, content] of [
    [`${path}.CHECKSUM`, checksum],
    [path, zip],
  ] as const) {
    if (content === null) continue;
    await writeFile(`${file}.part`, content);
    await rename(`${file}.part`, file);
  }
  return sha256;
}

/** A generated day as text. */
export function csvOf(day: ExchangeADay): string {
  return Buffer.concat([...generateDay(day)]).toString('latin1');
}

/** The days from..to, ids running on; `rows` each. */
export function dayNames(from: string, count: number): string[] {
  return Array.from({ length: count }, (_, index) =>
    new Date(Date.parse(`${from}T00:00:00Z`) + index * DAY_MS).toISOString().slice(0, 10),
  );
}

// ---- a system ------------------------------------------------------------------------------------------------------

export interface LogMessage {
  readonly sequence: number;
  readonly subject: string;
  readonly data: Uint8Array;
  readonly header: Header;
  readonly raw: Buffer;
  readonly manifest: Manifest | undefined;
}

export class System implements AsyncDisposable {
  readonly env: TestEnv;
  /** The vendor's base folder. */
  readonly vendor: string;
  /** To look at the database with. */
  readonly client: Client;

  readonly #isEmpty: boolean;

  private constructor(env: TestEnv, client: Client, isEmpty: boolean) {
    this.env = env;
    this.#isEmpty = isEmpty;
    this.vendor = join(env.dir, 'vendor');
    this.client = client;
  }

  /** @param database `empty`: one that the first command migrates. */
  static async create(database: 'migrated' | 'empty' = 'migrated', options?: EnvOptions): Promise<System> {
    const env = await (database === 'empty' ? createTestEnv(options) : createMigratedEnv(options));
    await mkdir(join(env.dir, 'vendor'));
    return new System(env, await connect({ url: env.databaseUrl, name: 'test' }), database === 'empty');
  }

  /** Each role by its own URL; an empty database has none yet, and is used through one. */
  get #database(): Record<string, string> {
    const { databaseUrl, databaseUrls: urls } = this.env;
    if (this.#isEmpty) return { SVC_DATABASE_URL: databaseUrl };
    return {
      SVC_DATABASE_URL: urls.ingest,
      SVC_DATABASE_OWNER_URL: urls.owner,
      SVC_DATABASE_SERVE_URL: urls.serve,
      SVC_DATABASE_EXPORT_URL: urls.export,
      SVC_DATABASE_MONITOR_URL: urls.monitor,
    };
  }

  get settings(): Record<string, string> {
    return {
      ...this.#database,
      ...natsSettings(this.env),
      SVC_STATE_DIR: join(this.env.dir, 'state'),
      SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${this.vendor}/`).href,
      SVC_STREAM_MAX_BYTES: String(1 << 30),
    };
  }

  /** The command as a process: to be killed, told to stop, or run beside others. */
  start(args: readonly string[], env: Readonly<Record<string, string>> = {}): Running {
    return startCommand(args, { ...this.settings, ...env });
  }

  /** The command in this process. */
  run(args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Answer> {
    return runCommand(args, { ...this.settings, ...env });
  }

  /** The same, to be told to stop. */
  begin(args: readonly string[], env: Readonly<Record<string, string>> = {}, settings?: Partial<Settings>): Begun {
    return beginCommand(args, { ...this.settings, ...env }, settings);
  }

  backfill(from: string, to: string, env: Readonly<Record<string, string>> = {}, more: readonly string[] = []) {
    return this.run(['backfill', DATASET, '--from', from, '--to', to, ...more], env);
  }

  reingest(from: string, to: string, reason: string, env: Readonly<Record<string, string>> = {}) {
    return this.run(['reingest', DATASET, '--from', from, '--to', to, '--reason', reason], env);
  }

  /** What `status` says of the dataset. */
  async status(): Promise<Json> {
    const { json } = await this.run(['status', DATASET]);
    return json.datasets[0];
  }

  async rows<R extends object = Record<string, Json>>(sql: string, values: unknown[] = []): Promise<R[]> {
    return (await this.client.query<R>(sql, values)).rows;
  }

  /** Everything that is known and stored of one partition: all empty where it was never heard of. */
  async traces(partition: string) {
    const from = Date.parse(`${partition}T00:00:00Z`);
    const one = async (sql: string, values: unknown[]) => Number((await this.rows<{ n: string }>(sql, values))[0].n);
    const window = [from, from + DAY_MS];
    return {
      native: await one(`select count(*) n from ${DATASET} where "timestamp" >= $1 and "timestamp" < $2`, window),
      aligned: await one(
        `select count(*) n from canonical_aligned_1s_aggregates
         where aligned_at_utc >= to_timestamp($1 / 1000.0) and aligned_at_utc < to_timestamp($2 / 1000.0)`,
        window,
      ),
      frames: await one('select count(*) n from frames where partition_key = $1', [partition]),
      covered: await one('select count(*) n from coverage where proved && int8multirange(int8range($1, $2))', window),
      state: (await this.rows('select state from partitions where partition_key = $1', [partition]))[0]?.state ?? null,
      manifests: (await this.log()).filter(
        ({ manifest, header }) => manifest !== undefined && header.partition === partition,
      ).length,
    };
  }

  /** Every message of the log, decoded, in order. */
  async log(dataset = DATASET): Promise<LogMessage[]> {
    return await readLog(this.env.natsUrl, dataset);
  }

  digests(): Promise<Record<string, Json>> {
    return digestsOf(this.client);
  }

  leftovers() {
    return leftoversOf(this.client);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client[Symbol.asyncDispose]();
    await this.env[Symbol.asyncDispose]();
  }
}

/** What a command says of one partition. */
export const unitOf = (json: Json, partition: string): Json =>
  json.units.find((each: Json) => each.partition === partition);

/** What does not depend on when and how a partition came in, by partition. */
export async function digestsOf(client: Client): Promise<Record<string, Json>> {
  const { rows } = await client.query(
    `select partition_key, revision, rows, aligned_rows, aligned_hash, klines_sha256, offsets::text, manifest, recount from partitions
     where state = 'proved' order by 1`,
  );
  return Object.fromEntries(
    rows.map(({ partition_key, manifest, recount, ...row }) => {
      const { rows_hash, events_sha256, totals, first_offset, last_offset, first_ms, last_ms, gaps } = manifest;
      const facts = { rows_hash, events_sha256, totals, first_offset, last_offset, first_ms, last_ms, gaps };
      return [partition_key, { ...row, ...facts, recount }];
    }),
  );
}

/**
 * Advisory locks and open transactions that are left; none in a system at rest. The server's side of a connection ends a
 * moment after the process whose it was, so that is waited for; what the server does by itself (autovacuum) is nobody's.
 */
export async function leftoversOf(client: Client): Promise<Json[]> {
  for (const deadline = Date.now() + PATIENCE_MS; ; await sleep(50)) {
    const { rows } = await client.query(
      `select a.application_name, a.state, l.locktype from pg_stat_activity a
       left join pg_locks l on l.pid = a.pid and l.locktype = 'advisory'
       where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
         and (l.locktype is not null or a.state like 'idle in transaction%' or a.state = 'active')`,
    );
    if (rows.length === 0 || Date.now() > deadline) return rows;
  }
}

export async function readLog(natsUrl: string, dataset = DATASET): Promise<LogMessage[]> {
  // The server may have been killed a moment ago.
  await using connection = await connectNats(natsUrl, 'test', {});
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const info = await streamInfo(manager, dataset);
  const read = async (sequence: number): Promise<LogMessage | undefined> => {
    const stored = await messageAt(manager, dataset, sequence);
    if (!stored) return undefined;
    const { header, raw } = await decodeMessage(stored.data, `sequence ${sequence}`);
    const manifest = header.kind === 'manifest' ? (JSON.parse(raw.toString()) as Manifest) : undefined;
    return { sequence, ...stored, header, raw, manifest };
  };
  const messages: LogMessage[] = [];
  for (let first = 1, last = info?.state.last_seq ?? 0; first <= last; first += 32) {
    const batch = Array.from({ length: Math.min(32, last - first + 1) }, (_, index) => read(first + index));
    messages.push(...(await Promise.all(batch)).filter((message) => message !== undefined));
  }
  return messages;
}

/** Unpacks with Python's zipfile: not the code under test. */
export async function unzip(archive: string, name: string, dir: string): Promise<string> {
  execFileSync('python3', ['-m', 'zipfile', '-e', archive, dir]);
  return join(dir, name);
}

/** Names of everything below a folder. */
export async function filesBelow(dir: string): Promise<string[]> {
  return (await readdir(dir, { recursive: true }).catch(() => [] as string[])).sort();
}
