/**
 * Small sources of datasets that are no file days, and the pipeline around them in this process: real servers, the real
 * publisher and projector, documents made up here.
 */

import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { keepProjected, type RestartPauses } from '../../pipelines/projector/run.ts';
import { ProofWaiter } from '../../pipelines/publisher/await-proof.ts';
import { backfill, type UnitResult } from '../../pipelines/publisher/backfill.ts';
import { openLease } from '../../pipelines/publisher/lease.ts';
import { Publisher, type WaitForProof } from '../../pipelines/publisher/publisher.ts';
import type { Projection, SharedSeconds } from '../../pipelines/rows/binary-copy.ts';
import { RecordRows } from '../../pipelines/rows/record-rows.ts';
import { HEADER_SECONDS, MEMPOOL_SECONDS, TRANSACTION_SECONDS } from '../../pipelines/sources/bitcoin/rows/seconds.ts';
import type { DecodedItem, DocumentRequest, Source, SourceCheck } from '../../pipelines/sources/feed-types.ts';
import { type RecordedEvent, RecordFrames } from '../../pipelines/sources/record-frames.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { Settings } from '../../shared/config/settings.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { type Client, connect, createPool } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { recordCheck } from '../../shared/db/partition-changes.ts';
import type { DocumentFacts, SourceFacts } from '../../shared/frame/manifest.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { ensureStream, streamOptions } from '../../shared/nats/stream.ts';
import type { StoredValue } from '../../shared/proof/row-facts.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { PATIENCE_MS } from './patience.ts';
import { createMigratedEnv, type TestEnv, testLogger } from './stack.ts';

/** The auxiliary data of these events holds their rows; the projector fills in the key of the partition. */
function projectionFor(dataset: DatasetDefinition, seconds: SharedSeconds): Projection {
  const { scope } = dataset.native;
  const at = dataset.native.columns.findIndex(
    ({ name }) => scope.kind === 'column' && scope.pg === 'text' && name === scope.column,
  );
  return {
    seconds,
    createRows: ({ key }) =>
      new RecordRows(dataset.native, ({ auxiliary }) => {
        const row = JSON.parse(auxiliary.toString()) as StoredValue[];
        return at < 0 ? row : row.with(at, key);
      }),
  };
}

/** The newest partition's value of each series and second. */
const METRIC_SECONDS: SharedSeconds = {
  columns: [
    'metric_id',
    'source_id',
    'metric_name',
    'metric_unit',
    'metric_value_string',
    'metric_value_float',
    'dimensions_json',
    'provenance_json',
    'records_in_bucket',
    'latest_ingested_at_utc',
  ],
  select: (rows) => `select distinct on (t.second, t.source_id, t.metric_name, t.dimensions_json) t.second, t.metric_id,
      t.source_id, t.metric_name, t.metric_unit, t.value_text as metric_value_string, t.value_text::float8 as metric_value_float,
      t.dimensions_json, t.provenance_json, count(*) over same as records_in_bucket,
      t.ingested_at as latest_ingested_at_utc
    from ${rows} t window same as (partition by t.second, t.source_id, t.metric_name, t.dimensions_json)
    order by t.second, t.source_id, t.metric_name, t.dimensions_json, t.ingested_at desc, t.metric_id desc`,
};

export const HEADERS = datasetOf('bitcoin_block_headers');
export const TRANSACTIONS = datasetOf('bitcoin_block_transactions');
export const MEMPOOL = datasetOf('bitcoin_mempool_state');
export const ETF = datasetOf('etf_daily_metrics');

const PROJECTIONS = new Map<DatasetDefinition, Projection>([
  [HEADERS, projectionFor(HEADERS, HEADER_SECONDS)],
  [TRANSACTIONS, projectionFor(TRANSACTIONS, TRANSACTION_SECONDS)],
  [MEMPOOL, projectionFor(MEMPOOL, MEMPOOL_SECONDS)],
  [ETF, projectionFor(ETF, METRIC_SECONDS)],
]);

export const projectionOf = (dataset: DatasetDefinition): Projection => PROJECTIONS.get(dataset)!;

const sha256 = (bytes: Uint8Array | string) => createHash('sha256').update(bytes).digest('hex');

/** One partition of a document made up here. */
export interface MadePartition {
  readonly dataset: DatasetDefinition;
  readonly key: string;
  readonly events: readonly RecordedEvent[];
  /** What the manifest counts, where a faulty publisher writes more events than that. */
  readonly stated?: readonly RecordedEvent[];
  readonly source?: SourceFacts;
}

export interface MadeDocument extends DocumentRequest {
  readonly made: readonly MadePartition[];
  readonly checks?: readonly SourceCheck[];
  /** Called before each partition is decoded, counted from 0: it may wait, or throw. */
  readonly before?: (index: number) => Promise<void>;
  /** Ends before the end of its last partition. */
  readonly isCut?: boolean;
}

export const documentOf = (...made: MadePartition[]): MadeDocument => ({
  period: made.map(({ key }) => key).join(' '),
  partitions: made.map(({ dataset, key }) => ({ dataset, key })),
  made,
});

/** What a source says of the document. */
export const factsOf = ({ period, made }: MadeDocument): DocumentFacts => ({
  name: period,
  sha256: sha256(made.map(({ events }) => events.map((event) => Buffer.from(event.payload).toString('hex'))).join()),
  bytes: 1,
  granularity: 'made',
});

function madeSource(datasets: readonly DatasetDefinition[]): Source<MadeDocument> {
  return {
    datasets: datasets as Source['datasets'],
    publishedSha256: async () => undefined,
    open: async (document) => ({
      facts: factsOf(document),
      checks: document.checks,
      async *decode({ frameRawBytes }): AsyncGenerator<DecodedItem> {
        const { made, before, isCut } = document;
        for (const [index, { dataset, key, events, stated, source }] of made.entries()) {
          await before?.(index);
          const frames = new RecordFrames(dataset, key, frameRawBytes);
          for (const event of events) yield* frames.add(event);
          if (stated) yield* [...frames.end(source)].filter(({ kind }) => kind === 'events');
          const counted = stated ? new RecordFrames(dataset, key, frameRawBytes) : frames;
          for (const event of stated ?? []) for (const _ of counted.add(event));
          for (const item of counted.end(source)) {
            if (stated && item.kind === 'events') continue;
            if (item.kind === 'events' || !isCut || index < made.length - 1) yield item;
          }
        }
      },
      [Symbol.asyncDispose]: async () => {},
    }),
  };
}

const event = (offset: string, payload: Uint8Array, row: StoredValue[]): RecordedEvent => ({
  offset,
  payload,
  auxiliary: Buffer.from(JSON.stringify(row)),
  row,
});

/** 80 bytes of a header, whatever they are. */
export function header(height: number, ms: number, salt = ''): RecordedEvent {
  const payload = Buffer.alloc(80, createHash('sha256').update(`${height} ${salt}`).digest());
  const hash = sha256(payload);
  const row = [
    ms,
    height,
    1,
    height * 7,
    1.5,
    hash,
    sha256(`${height - 1}`),
    sha256('root'),
    'regtest',
    sha256(payload),
  ];
  return event(String(height), payload, row);
}

export function transaction(height: number, index: number, ms: number, payload: Uint8Array): RecordedEvent {
  const txid = sha256(payload);
  const texts = ['block', txid, '[]', '[]', '{}', '{}', '[]', 'regtest', txid];
  return event(`${height}:${index}:${txid}`, payload, [ms, height, index, 5, 4, index === 0, ...texts]);
}

/** Facts of a fund's day: by name. */
export function capture(sourceId: string, day: string, values: Readonly<Record<string, string>>): RecordedEvent[] {
  const ms = Date.parse(`${day}T00:00:00Z`);
  const record = sha256(JSON.stringify([sourceId, day, values]));
  return Object.entries(values)
    .map(([name, value]) => {
      const id = sha256(`${record} ${name}`);
      const row = [ms, id, sourceId, name, null, 'float', value, '{}', null, ''];
      return event(id, Buffer.from(JSON.stringify({ name, value })), row);
    })
    .sort((a, b) => (a.offset < b.offset ? -1 : 1));
}

export interface IngestOptions {
  readonly reason?: string;
  readonly synthetic?: boolean;
  readonly frameRawBytes?: number;
  /** How long the command waits for a proof. */
  readonly timeoutMs?: number;
  /** Longest time without a sign of life of the projector before the log is checked. */
  readonly stillMs?: number;
  readonly stop?: AbortController;
}

export class KindSystem implements AsyncDisposable {
  readonly env: TestEnv;
  readonly settings: Settings;
  /** The publisher's. */
  readonly connection: NatsConnection & AsyncDisposable;
  /** What reads frames back for proofs, and makes streams. */
  readonly operator: NatsConnection & AsyncDisposable;
  readonly databaseUrl: string;
  readonly client: Client;
  readonly catalog: Catalog;
  readonly #pool: ReturnType<typeof createPool>;
  #projecting: { readonly stop: AbortController; readonly done: Promise<unknown> } | undefined;
  /** The clock of ingest times: a second a partition. */
  #now = Date.parse('2026-06-01T00:00:00Z');

  /** Makes its own servers; false: another one's. */
  readonly #owns: boolean;

  private constructor(
    env: TestEnv,
    client: Client,
    connections: readonly (NatsConnection & AsyncDisposable)[],
    databaseUrl: string,
    owns: boolean,
  ) {
    this.env = env;
    this.#owns = owns;
    this.client = client;
    [this.connection, this.operator] = connections;
    this.databaseUrl = databaseUrl;
    this.settings = loadSettings({ cwd: env.dir, env: {}, flags: { SVC_STREAM_MAX_BYTES: String(1 << 28) } });
    this.#pool = createPool({ url: databaseUrl, name: 'test pool', max: 4 });
    this.catalog = new Catalog(this.#pool);
  }

  static async create(of?: { readonly env: TestEnv; readonly databaseUrl: string }): Promise<KindSystem> {
    const env = of?.env ?? (await createMigratedEnv());
    const databaseUrl = of?.databaseUrl ?? env.databaseUrl;
    const client = await connect({ url: databaseUrl, name: 'test' });
    if (of) await migrate(client);
    const urls = [env.natsUrl, env.natsOperatorUrl];
    const connections = await Promise.all(urls.map((url) => connectNats(url, 'test')));
    return new KindSystem(env, client, connections, databaseUrl, of === undefined);
  }

  /** Starts projectors of these datasets. */
  project(datasets: readonly DatasetDefinition[], natsUrl = this.env.natsProjectorUrl, pauses?: RestartPauses): void {
    const stop = new AbortController();
    const { settings, databaseUrl } = this;
    const done = Promise.all(
      datasets.map((dataset) =>
        keepProjected(dataset, {
          projection: projectionOf(dataset),
          databaseUrl,
          natsUrl,
          settings,
          log: testLogger(),
          signal: stop.signal,
          pauses,
        }),
      ),
    );
    this.#projecting = { stop, done };
  }

  async stopProjecting(): Promise<void> {
    this.#projecting?.stop.abort();
    await this.#projecting?.done;
    this.#projecting = undefined;
  }

  /** Brings documents in, and waits for their proof while a projector is at work. */
  async ingest(
    datasets: readonly DatasetDefinition[],
    documents: Iterable<MadeDocument> | AsyncIterable<MadeDocument>,
    options: IngestOptions = {},
  ): Promise<UnitResult[]> {
    const { signal } = options.stop ?? new AbortController();
    const { timeoutMs = PATIENCE_MS, stillMs } = options;
    const { catalog, connection, databaseUrl } = this;
    for (const dataset of datasets) await ensureStream(this.operator, dataset.key, streamOptions(this.settings));
    await using lease = openLease({ databaseUrl, datasets });
    await lease.ensure();
    await using outcomes = await ProofWaiter.open({ databaseUrl, catalog, connection, signal, timeoutMs, stillMs });
    const source = madeSource(datasets) as Source;
    const wait: WaitForProof = (dataset, partition, attempt) => outcomes.of(dataset, partition, attempt);
    const publisher = new Publisher({
      wait,
      source,
      connection,
      catalog,
      log: testLogger(),
      checkLease: () => lease.check(),
      options: {
        frameRawBytes: options.frameRawBytes ?? 4096,
        window: 8,
        synthetic: options.synthetic ?? false,
        reingestReason: options.reason,
        now: () => (this.#now += 1000),
      },
    });
    const results: UnitResult[] = [];
    const units = backfill(documents, {
      source,
      publisher,
      lease,
      wait,
      recordCheck: async ({ sourceId, throughMs }) => {
        await this.client.query('begin');
        await recordCheck(this.client, datasets[0], sourceId, throughMs);
        await this.client.query('commit');
      },
      log: testLogger(),
      signal,
    });
    for await (const unit of units) results.push(unit);
    return results;
  }

  // biome-ignore lint/suspicious/noExplicitAny: what tests look at
  async rows(sql: string, values: unknown[] = []): Promise<any[]> {
    return (await this.client.query(sql, values)).rows;
  }

  async spans(dataset: DatasetDefinition): Promise<string[]> {
    const rows = await this.rows(
      `select source_id, span::text, partitions, rows, from_ms, to_ms, through_ms from coverage_spans
       where dataset_id = $1 order by source_id, span`,
      [dataset.number],
    );
    return rows.map((row) => `${row.source_id} ${row.span} ${row.partitions}p ${row.rows}r through ${row.through_ms}`);
  }

  async proved(dataset: DatasetDefinition): Promise<string> {
    return (await this.rows('select proved::text from coverage where dataset_id = $1', [dataset.number]))[0].proved;
  }

  /** What does not depend on when and how partitions came in. */
  async digests(dataset: DatasetDefinition) {
    const rows = await this.rows(
      `select partition_key, revision, rows, recount, manifest->>'events_sha256' as events from partitions
       where dataset_id = $1 and state = 'proved' order by 1`,
      [dataset.number],
    );
    const aligned = await this.rows(
      `select * from canonical_aligned_1s_aggregates where dataset_id = $1 order by aligned_at_utc, series_id`,
      [dataset.number],
    );
    return { rows, aligned: aligned.map(({ series_id: _, ...row }) => row), spans: await this.spans(dataset) };
  }

  async until(holds: () => Promise<boolean>): Promise<void> {
    for (const deadline = Date.now() + PATIENCE_MS; !(await holds()); await delay(50)) {
      if (Date.now() > deadline) throw new Error(`it did not come to that within ${PATIENCE_MS / 1000} s`);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stopProjecting();
    await this.#pool.end();
    await this.connection[Symbol.asyncDispose]();
    await this.operator[Symbol.asyncDispose]();
    await this.client[Symbol.asyncDispose]();
    if (this.#owns) await this.env[Symbol.asyncDispose]();
  }
}
