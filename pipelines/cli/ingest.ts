/** A feed brought into the log and proved: what backfill, reingest, follow and the sample have in common. */

import { join } from 'node:path';
import { connect } from '../../shared/db/connect.ts';
import { recordCheck } from '../../shared/db/coverage.ts';
import { type RunCounts, RunRecorder } from '../../shared/db/runs.ts';
import { explain, TidemarkError } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { retractSpan } from '../projector/retract.ts';
import { ProofWaiter } from '../publisher/await-proof.ts';
import { backfill, type UnitResult } from '../publisher/backfill.ts';
import { type Lease, openLease } from '../publisher/lease.ts';
import { type Plan, planOf } from '../publisher/publish-plan.ts';
import { Publisher, type PublishProgress } from '../publisher/publisher.ts';
import { cleanSpool } from '../sources/documents/fetch.ts';
import { feeds, projectionOf } from '../sources/index.ts';
import type {
  DocumentRequest,
  Feed,
  FeedNeeds,
  OpenedDocument,
  OpenedFeed,
  Selection,
  Source,
} from '../sources/types.ts';
import { startProjector } from './child.ts';
import { type Context, retryThroughOutage } from './context.ts';
import { drainBacklog } from './drain-backlog.ts';
import { bar } from './output.ts';
import { isNotYet, notingFailures, publishRetraction } from './source-failures.ts';
import { makeStreams } from './streams.ts';

/* A source whose next documents are on their way while the one at hand is published: so many at once, and no more. */

export class PrefetchingSource implements Source, AsyncDisposable {
  readonly #source: Source;
  readonly #depth: number;
  readonly #opening = new Map<DocumentRequest, Promise<OpenedDocument>>();

  /** `depth` documents beside the one at hand; 0: none. */
  constructor(source: Source, depth: number) {
    this.#source = source;
    this.#depth = depth;
  }

  get datasets(): Source['datasets'] {
    return this.#source.datasets;
  }

  publishedSha256(request: DocumentRequest): Promise<string | undefined> {
    return this.#source.publishedSha256(request);
  }

  /** What will be asked for next, in that order. A fault surfaces when its turn comes, and only then. */
  prepare(requests: readonly DocumentRequest[]): void {
    for (const request of requests.slice(0, this.#depth)) {
      if (this.#opening.size >= this.#depth || this.#opening.has(request)) continue;
      const opening = this.#source.open(request);
      opening.catch(() => {});
      this.#opening.set(request, opening);
    }
  }

  async open(request: DocumentRequest): Promise<OpenedDocument> {
    const opening = this.#opening.get(request);
    this.#opening.delete(request);
    return await (opening ?? this.#source.open(request));
  }

  /** What was fetched and is not wanted any more. */
  async [Symbol.asyncDispose](): Promise<void> {
    const left = [...this.#opening.values()];
    this.#opening.clear();
    await Promise.allSettled(left.map(async (opening) => await (await opening)[Symbol.asyncDispose]()));
  }
}

/** Nothing moving for this long means no projector is at work. */
const PATIENCE_MS = 300_000;
/** Upper bound of SVC_BACKFILL_FETCH_AHEAD. */
const MAX_FETCH_AHEAD = 16;

export interface IngestRequest {
  readonly kind: 'backfill' | 'reingest' | 'reparse' | 'follow';
  /** As an operator would type it; others see it. */
  readonly line: string;
  /** What is wanted; undefined: whatever comes, until the signal. */
  readonly selection: Selection | undefined;
  readonly synthetic: boolean;
  /** Replaces what is proved, for this reason. */
  readonly reason?: string;
  /** Asks the sources of what is proved, too. */
  readonly compare?: boolean;
  /** Where documents are, instead of where the settings say. */
  readonly location?: URL;
  /** From documents that were fetched before. */
  readonly fromKept?: boolean;
  /** False where a projector is at work already. */
  readonly ownProjector?: boolean;
  /** Where others see how far it is; one of its own, if not given. */
  readonly run?: RunRecorder;
  /** Told what there is to do, before anything is done. */
  readonly onPlan?: (plan: Plan) => void;
}

/** Results in the order they come to their end. */
export const ingest = (context: Context, feed: Feed, request: IngestRequest): AsyncGenerator<UnitResult> =>
  notingFailures(context, feed, { results: bring(context, feed, request), isFollowed: request.kind === 'follow' });

async function* bring(context: Context, feed: Feed, request: IngestRequest): AsyncGenerator<UnitResult> {
  const { settings, log, signal, catalog, stack, databaseUrls } = context;
  stack.supervise();
  await cleanSpool(join(settings.SVC_STATE_DIR, 'spool'));
  await using cleanup = new AsyncDisposableStack();
  const opener = request.fromKept ? keptOf(feed) : feed;
  const withheld = new Withheld();
  const opened = cleanup.use(await opener.open(needsOf(context, request.location, withheld, request.run)));
  const note = (message: string) => {
    context.toldLog.warn({ feed: feed.name }, message);
    context.output.note(message);
  };
  /** A store that dies before the first document is waited for, as one that dies later. */
  const surely = <T>(ask: () => Promise<T>) => retryThroughOutage(ask, { signal, note });
  const run = request.run ?? cleanup.use(await surely(() => openRun(context, feed, request)));
  const lease = cleanup.use(
    openLease({
      databaseUrl: databaseUrls.ingest,
      datasets: feed.datasets,
      patient: request.kind === 'follow' ? signal : undefined,
      onHeld: (backend) => void run.write({ lease_backend: backend }),
    }),
  );
  // Whoever is at it already is named before the source is asked for anything.
  if (request.selection !== undefined) {
    await surely(() => lease.ensure()).catch(async (error) => {
      await run.end('failed', { fault: explain(error) });
      throw error;
    });
  }
  const connection = await surely(() => context.nats());
  const keys = feed.datasets.map(({ key }) => key);
  let projecting = request.ownProjector === false;
  const project = () => {
    if (!projecting) cleanup.use(startProjector(context, keys));
    projecting = true;
  };
  const waits = { databaseUrl: databaseUrls.ingest, catalog, signal, patienceMs: PATIENCE_MS, onStill: note };
  const outcomes = cleanup.use(await surely(() => ProofWaiter.open(waits)));
  const faultOf = (dataset: DatasetDefinition) => outcomes.faultOf(dataset);
  for (const dataset of feed.datasets) {
    await surely(() => makeStreams(context, [dataset.key]));
    // Nothing is published to a log that cannot be projected; and what it holds already is not fetched again.
    await drainBacklog(
      { connection, catalog, signal, project, faultOf, patienceMs: PATIENCE_MS, note, surely },
      dataset,
    );
  }
  // An issuer's site and a node are asked for one thing after the other.
  const isFiles = feed.datasets[0].partition.kind === 'file_day';
  const source = cleanup.use(new PrefetchingSource(opened.source, isFiles ? settings.SVC_BACKFILL_FETCH_AHEAD : 0));
  const wanted = { name: feed.name, options: opener.options };
  const work = await surely(() => workOf(context, opened, wanted, request));
  if (work.plan) request.onPlan?.(work.plan);
  const planned = work.plan && sum(work.plan.partitions);
  await run.write({ planned: planned ?? null });
  const progress = new Progress(context, feed.name, planned);
  const counted = (result: UnitResult): UnitResult => {
    progress.ended();
    // Followed, what is not there yet has not failed.
    if (request.kind !== 'follow' || !isNotYet(feed, result.code)) run.note(progress.count(result));
    return result;
  };
  for (const { dataset, partition, rows } of work.plan?.skipped ?? []) {
    yield counted({ dataset, partition, state: 'unchanged', rows });
  }
  if (work.plan && work.plan.skipped.length === planned) {
    for (const unit of withheld.rest()) yield counted(unit);
    if (!request.run) await run.end('done', progress.counts);
    return;
  }
  project();
  const publisher = new Publisher({
    source,
    connection,
    catalog,
    log,
    checkLease: () => lease.check(),
    options: {
      frameRawBytes: settings.SVC_FRAME_RAW_BYTES,
      window: settings.SVC_PUBLISH_WINDOW,
      synthetic: request.synthetic,
      reingestReason: request.reason,
      fromKept: request.fromKept,
    },
  });
  const requests = work.plan ? preparing(work.plan, source) : resting(work.requests, lease);
  const results = backfill(requests, {
    source,
    publisher,
    lease,
    wait: (dataset, partition, attempt) => outcomes.of(dataset, partition, attempt),
    recordCheck: ({ sourceId, throughMs }) => check(context, source.datasets[0], sourceId, throughMs),
    log,
    signal,
    onProgress: (at) => {
      progress.show(at);
      run.note({ at_partition: at.partition });
    },
  });
  for await (const result of results) {
    withheld.reported(result);
    yield counted(result);
    // What is followed has no end at which to say it.
    if (request.selection === undefined) for (const unit of withheld.rest()) yield counted(unit);
  }
  if (!signal.aborted) await opened.after?.();
  for (const unit of withheld.rest()) yield counted(unit);
  if (request.run) return;
  const { failed, quarantined, refused } = progress.counts;
  const state = signal.aborted ? 'interrupted' : failed + quarantined + refused > 0 ? 'failed' : 'done';
  await run.end(state, progress.counts);
}

export const openRun = (
  { databaseUrls }: Context,
  feed: Feed,
  { kind, line }: Pick<IngestRequest, 'kind' | 'line'>,
): Promise<RunRecorder> =>
  RunRecorder.open({
    databaseUrl: databaseUrls.ingest,
    kind,
    subject: feed.name,
    datasets: feed.datasets,
    command: line,
  });

const sum = (counts: Readonly<Record<string, number>>) => Object.values(counts).reduce((all, one) => all + one, 0);

type Work =
  | { readonly plan: Plan; readonly requests?: undefined }
  /** What there is is told by the source as it comes. */
  | { readonly plan?: undefined; readonly requests: AsyncIterable<DocumentRequest> };

async function workOf(
  context: Context,
  opened: OpenedFeed,
  feed: Pick<Feed, 'name' | 'options'>,
  request: IngestRequest,
): Promise<Work> {
  const requests = await requestsOf(opened, feed, request.selection);
  if (!Array.isArray(requests)) return { requests: requests as AsyncIterable<DocumentRequest> };
  const { catalog } = context;
  const { synthetic, reason, compare = false } = request;
  const options = { source: opened.source, catalog, synthetic, reingest: reason !== undefined, compare };
  return { plan: await planOf(requests, options) };
}

/** What `ingest` would do; undefined where its source tells only while it is asked. Changes nothing. */
export async function planned(context: Context, feed: Feed, request: IngestRequest): Promise<Plan | undefined> {
  const needs = { ...needsOf(context, request.location, new Withheld()), withhold: async () => [] };
  await using opened = await feed.open(needs);
  return (await workOf(context, opened, feed, request)).plan;
}

/** Documents in their order; the ones that follow are on their way already. */
function* preparing({ documents }: Plan, source: PrefetchingSource): Generator<DocumentRequest> {
  const wanted = documents.filter(({ action }) => action !== 'skip');
  for (let index = 0; index < wanted.length; index++) {
    const following = wanted.slice(index + 1, index + 1 + MAX_FETCH_AHEAD);
    // One that may turn out to be held, or unchanged by a digest, is not fetched before its turn.
    source.prepare(following.filter(({ action }) => action === 'fetch' || action === 'replace').map(requestOf));
    yield wanted[index].request;
  }
}

const requestOf = ({ request }: { readonly request: DocumentRequest }) => request;

/** How long a lease is kept for a document that may follow at once. */
const REST_AFTER_MS = 500;

/** Documents as they come; others may publish while none does. */
async function* resting(requests: AsyncIterable<DocumentRequest>, lease: Lease): AsyncGenerator<DocumentRequest> {
  const all = requests[Symbol.asyncIterator]();
  try {
    for (;;) {
      const timer = setTimeout(() => lease.rest(), REST_AFTER_MS);
      const next = await all.next().finally(() => clearTimeout(timer));
      if (next.done) return;
      yield next.value;
    }
  } finally {
    await all.return?.(undefined);
  }
}

/** Proved partitions that the feed took out of service: results of the command, whatever it was asked for. */
class Withheld {
  readonly #units = new Map<string, UnitResult>();

  add(dataset: DatasetDefinition, partitions: readonly string[], reason: string): void {
    const { code, remedy } = new TidemarkError('CHAIN_REORGANISED', reason);
    for (const partition of partitions) {
      const unit: UnitResult = { dataset: dataset.key, partition, state: 'quarantined', rows: 0, code, reason, remedy };
      this.#units.set(`${dataset.key} ${partition}`, unit);
    }
  }

  /** One that was asked for is told once. */
  reported({ dataset, partition }: UnitResult): void {
    this.#units.delete(`${dataset} ${partition}`);
  }

  rest(): UnitResult[] {
    const units = [...this.#units.values()];
    this.#units.clear();
    return units;
  }
}

function needsOf(context: Context, location: URL | undefined, withheld: Withheld, run?: RunRecorder): FeedNeeds {
  const { settings, catalog, log, signal, databaseUrls } = context;
  return {
    settings,
    location,
    catalog,
    log,
    signal,
    onAway: (failures, fault) => run?.note({ failures, fault }),
    withhold: async (dataset, span, reason) => {
      await using client = await connect({ url: databaseUrls.ingest, name: 'tidemark withhold' });
      const { seconds } = projectionOf(dataset);
      const [sourceId] = dataset.sources;
      if (!seconds) throw new TidemarkError('USAGE', `${dataset.key} is withheld by the day, not by a span`);
      // In the log first: what leaves service here must not come back where a database is built again from it.
      const connection = await context.nats();
      await makeStreams(context, [dataset.key]);
      const marked: string[] = [];
      for (const row of await catalog.overlapping(dataset, sourceId, span)) {
        if (row.state !== 'proved') continue;
        await publishRetraction(connection, dataset, row, { reason });
        marked.push(row.partitionKey);
      }
      const spanned = await retractSpan(client, dataset, seconds, { sourceId, span }, { reason, by: 'source' });
      // Some were proved in between; of others a projector has read the mark already.
      const late = spanned.filter((key) => !marked.includes(key));
      for (const row of await catalog.partitionsOf(dataset, late)) {
        await publishRetraction(connection, dataset, row, { reason });
      }
      const keys = [...marked, ...late];
      withheld.add(dataset, keys, reason);
      return keys;
    },
  };
}

/** @throws TidemarkError USAGE where a feed's documents can be fetched again, and are not kept. */
export function keptOf(feed: Feed): NonNullable<Feed['kept']> {
  if (feed.kept) return feed.kept;
  const known = feeds().flatMap(({ name, kept }) => (kept ? [name] : []));
  throw new TidemarkError('USAGE', `Documents of ${feed.name} are not kept; those of ${known.join(' and ')} are`);
}

async function requestsOf(
  opened: OpenedFeed,
  feed: Pick<Feed, 'name' | 'options'>,
  selection: Selection | undefined,
): Promise<readonly DocumentRequest[] | AsyncIterable<DocumentRequest>> {
  if (selection === undefined) {
    if (!opened.follow) throw new TidemarkError('USAGE', `${feed.name} has nothing to be followed`);
    return opened.follow();
  }
  checkSelection(feed, selection);
  return await opened.requests(selection);
}

/** @throws TidemarkError USAGE naming what is missing or too much. */
export function checkSelection(feed: Pick<Feed, 'name' | 'options'>, { options }: Selection): void {
  const { required, optional = [] } = feed.options;
  const missing = required.find((name) => options[name] === undefined);
  if (missing) throw new TidemarkError('USAGE', `--${missing} is missing: ${feed.name} takes ${taken(feed)}`);
  const known = new Set([...required, ...optional]);
  const unknown = Object.keys(options).find((name) => options[name] !== undefined && !known.has(name));
  for (const [first, last] of [
    ['from', 'to'],
    ['from-height', 'to-height'],
  ]) {
    const [from, to] = [options[first], options[last]];
    if (from !== undefined && to !== undefined && isAfter(from, to)) {
      throw new TidemarkError('USAGE', `--${first} ${from} is after --${last} ${to}`);
    }
  }
  if (unknown) throw new TidemarkError('USAGE', `${feed.name} does not take --${unknown}, but ${taken(feed)}`);
}

/** Days compare as texts, heights as numbers. */
const isAfter = (a: string, b: string) => (/^\d+$/.test(a + b) ? Number(a) > Number(b) : a > b);

const taken = ({ options: { required, optional = [] } }: Pick<Feed, 'options'>) =>
  [...required.map((name) => `--${name}`), ...optional.map((name) => `[--${name}]`)].join(' ');

async function check(context: Context, dataset: DatasetDefinition, sourceId: string, throughMs: number): Promise<void> {
  await using client = await connect({ url: context.databaseUrls.ingest, name: 'tidemark check' });
  await client.query('begin');
  await recordCheck(client, dataset, sourceId, throughMs);
  await client.query('commit');
}

/** The line on the terminal, and what has come to its end. */
class Progress {
  readonly #context: Context;
  readonly #feed: string;
  readonly #total: number | undefined;
  readonly #startedAt = performance.now();
  readonly #counts = { proved: 0, unchanged: 0, refused: 0, quarantined: 0, failed: 0, rows: 0 };
  #done = 0;
  #at: PublishProgress | undefined;
  /** Rows of the partitions before the one that is published now. */
  #before = 0;

  constructor(context: Context, feed: string, total: number | undefined) {
    this.#context = context;
    this.#feed = feed;
    this.#total = total;
  }

  get counts(): RunCounts {
    return { ...this.#counts };
  }

  count({ state, rows }: UnitResult): RunCounts {
    this.#counts[state]++;
    if (state === 'proved') this.#counts.rows += rows;
    return this.counts;
  }

  /** A partition has come to its end. */
  ended(): void {
    this.#done++;
    this.#draw();
  }

  show(at: PublishProgress): void {
    if (this.#at && at.partition !== this.#at.partition) this.#before += this.#at.rows;
    this.#at = at;
    this.#draw();
  }

  #draw(): void {
    const [done, total] = [this.#done, this.#total];
    const share = total === undefined ? `${done}` : `${bar(done, total)} ${done}/${total}`;
    this.#context.output.progress([this.#feed, share, ...(this.#at ? this.#publishing(this.#at) : [])].join('  '));
  }

  #publishing({ partition, rows, bytes }: PublishProgress): string[] {
    const perSecond = (this.#before + rows) / Math.max((performance.now() - this.#startedAt) / 1000, 0.001);
    return [
      partition,
      `${rows.toLocaleString('en-US')} rows`,
      `${(bytes / 1e6).toFixed(1)} MB`,
      `${Math.round(perSecond).toLocaleString('en-US')} rows/s`,
    ];
  }
}
