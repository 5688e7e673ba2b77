/** Brings a feed into the log and has it proved: the part that `backfill`, `reingest`, `follow` and samples share. */

import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { Settings } from '../../shared/config/settings.ts';
import { connect } from '../../shared/db/connect.ts';
import { recordCheck } from '../../shared/db/partition-changes.ts';
import { type PinnedValues, selectedValues } from '../../shared/db/pinned-settings.ts';
import { failedUnit, RunRecorder } from '../../shared/db/runs.ts';
import { explain, TidemarkError } from '../../shared/errors.ts';
import type { NatsConnection } from '../../shared/nats/connect.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { ProofWaiter } from '../publisher/await-proof.ts';
import { backfill, planBackfill, type UnitResult } from '../publisher/backfill.ts';
import { changedRows } from '../publisher/changed-rows.ts';
import { type Lease, openLease } from '../publisher/lease.ts';
import type { Plan } from '../publisher/publish-plan.ts';
import { Publisher, type WaitForProof } from '../publisher/publisher.ts';
import { documentArchiveOf } from '../sources/documents/document-archive.ts';
import { cleanSpool } from '../sources/documents/fetch.ts';
import type {
  DocumentRequest,
  Feed,
  FeedNeeds,
  OpenedDocument,
  OpenedFeed,
  Selection,
  Source,
} from '../sources/feed-types.ts';
import { feeds } from '../sources/index.ts';
import { type Context, retryThroughOutage } from './context.ts';
import { IngestProgress } from './output.ts';
import { pinCheck, settingsFor } from './pinned.ts';
import { startProjector, type WaitingProjector } from './projector.ts';
import { documentsOf, type Retract, Retractions } from './retraction.ts';
import { isNotYet, notingFailures } from './source-failures.ts';
import { drainBacklog, makeStreams } from './streams.ts';

/** A source whose next documents are fetched while one is published. */
export class PrefetchingSource implements Source, AsyncDisposable {
  readonly #source: Source;
  readonly #depth: number;
  readonly #check: () => Promise<void>;
  readonly #opening = new Map<DocumentRequest, Promise<OpenedDocument>>();

  /** At most `depth` documents are fetched beforehand; 0: none. `check` throws where the source must not be asked. */
  constructor(source: Source, depth: number, check: () => Promise<void>) {
    this.#source = source;
    this.#depth = depth;
    this.#check = check;
  }

  get datasets(): Source['datasets'] {
    return this.#source.datasets;
  }

  async publishedSha256(request: DocumentRequest): Promise<string | undefined> {
    await this.#check();
    return await this.#source.publishedSha256(request);
  }

  get openUnlessKnown(): Source['openUnlessKnown'] {
    const source = this.#source;
    return (
      source.openUnlessKnown &&
      (async (request, known) => {
        await this.#check();
        return await source.openUnlessKnown!(request, known);
      })
    );
  }

  /** The next requests, in order. A fault of a prefetched document is thrown when the document's turn comes. */
  prepare(requests: readonly DocumentRequest[]): void {
    for (const request of requests.slice(0, this.#depth)) {
      if (this.#opening.size >= this.#depth || this.#opening.has(request)) continue;
      const opening = this.#fetch(request);
      opening.catch(() => {});
      this.#opening.set(request, opening);
    }
  }

  async open(request: DocumentRequest): Promise<OpenedDocument> {
    const opening = this.#opening.get(request);
    this.#opening.delete(request);
    return await (opening ?? this.#fetch(request));
  }

  async #fetch(request: DocumentRequest): Promise<OpenedDocument> {
    await this.#check();
    return await this.#source.open(request);
  }

  /** Closes documents that were prefetched and never opened. */
  async [Symbol.asyncDispose](): Promise<void> {
    const left = [...this.#opening.values()];
    this.#opening.clear();
    await Promise.allSettled(left.map(async (opening) => await (await opening)[Symbol.asyncDispose]()));
  }
}

/** A command gives up when nothing is proved for this long, because no projector is at work. */
const PROOF_TIMEOUT_MS = 300_000;
/** They wait in the spool folder: a second one covers for a document that is fetched more slowly than one is published. */
const MAX_PREFETCHED = 2;

export interface IngestRequest {
  readonly kind: 'backfill' | 'reingest' | 'follow';
  /** The command line, as `status` shows it. */
  readonly line: string;
  /** The documents to ingest; undefined for documents as they appear, until the signal. */
  readonly selection: Selection | undefined;
  /** Of what is followed: the instruments, as `--instrument` names them. */
  readonly instruments?: string;
  readonly synthetic: boolean;
  /** Why proved partitions are replaced; undefined: they are not. */
  readonly reason?: string;
  /** Compares proved partitions with their source. */
  readonly compare?: boolean;
  /** Where documents are, instead of where the settings say. */
  readonly location?: URL;
  /** Reads archived documents instead of the source. */
  readonly fromArchive?: boolean;
  /** False where a projector is at work already. */
  readonly ownProjector?: boolean;
  /** The process that becomes its projector, unless another feed's took it. */
  readonly waiting?: WaitingProjector;
  /** The record of the run; without one `ingest` opens its own. */
  readonly run?: RunRecorder;
  /** Receives the plan before anything is published. */
  readonly onPlan?: (plan: Plan) => void;
}

/** Results in the order in which the partitions end. */
export const ingest = (context: Context, feed: Feed, request: IngestRequest): AsyncGenerator<UnitResult> =>
  notingFailures(context, feed, { results: resultsOf(context, feed, request), isFollowed: request.kind === 'follow' });

async function* resultsOf(context: Context, feed: Feed, request: IngestRequest): AsyncGenerator<UnitResult> {
  await using cleanup = new AsyncDisposableStack();
  const session = await openSession(context, feed, request, cleanup);
  try {
    yield* sessionResults(session);
  } catch (error) {
    // The next command finds these retractions carried out and reports nothing of them.
    yield* session.retractions.rest();
    throw error;
  }
}

async function* sessionResults(session: Session): AsyncGenerator<UnitResult> {
  const { context, feed, request, run, retractions } = session;
  const { signal } = context;
  const retract: Retract = (event) => retractions.carryOut(event);
  await projectBacklog(session);
  // The backlog may hold the first proof: that of a database that is made again from its log, or of a killed command.
  const { opened, settings } = await session.openFeed();
  // Only file days are prefetched: an issuer's site and a node get one request after the other.
  const isFiles = feed.datasets[0].partition.kind === 'file_day';
  const check = request.synthetic ? async () => {} : pinCheck(context, feed, settings);
  await using source = new PrefetchingSource(opened.source, isFiles ? MAX_PREFETCHED : 0, check);
  const work = await session.surely(() => workOf(context, opened, request, retract));
  if (work.plan) request.onPlan?.(work.plan);
  const planned = work.plan && sum(work.plan.partitions);
  await run.write({ planned: planned ?? null });
  const progress = new IngestProgress(context.output, feed.name, planned);
  let hasFailed = false;
  const counted = (result: UnitResult): UnitResult => {
    progress.ended();
    // A followed document that does not exist yet has not failed, and a late arrival is reported once.
    const isQuiet = request.kind === 'follow' && (isNotYet(feed, result.code) || result.repeated);
    if (isQuiet) return result;
    run.note(progress.count(result));
    // The first shows what is wrong with a command; of what is followed, the latest does.
    const isNamed = result.state === 'failed' && result.code !== 'INTERRUPTED';
    if (isNamed && (!hasFailed || request.kind === 'follow'))
      run.note({ failed_unit: failedUnit(result.dataset, result) });
    hasFailed ||= isNamed;
    return result;
  };
  for (const { dataset, partition, rows } of work.plan?.skipped ?? []) {
    yield counted({ dataset, partition, state: 'unchanged', rows });
  }
  const isDone = work.plan !== undefined && work.plan.skipped.length === planned;
  if (!isDone) {
    session.project();
    const pinned = request.synthetic ? undefined : selectedValues(settings, feed.datasets);
    for await (const result of published(session, source, work, progress, pinned)) {
      retractions.reported(result);
      yield counted(result);
      // A feed that is followed has no end at which to report them.
      if (request.selection === undefined) for (const unit of retractions.rest()) yield counted(unit);
    }
    if (!signal.aborted && opened.recheck) await Array.fromAsync(documentsOf(opened.recheck(), retract));
  }
  for (const unit of retractions.rest()) yield counted(unit);
  if (request.run) return;
  const { failed, quarantined, refused } = progress.counts;
  const hasFaults = !isDone && failed + quarantined + refused > 0;
  await run.end(!isDone && signal.aborted ? 'interrupted' : hasFaults ? 'failed' : 'done', progress.counts);
}

/** What one call of `ingest` holds until it ends. */
interface Session {
  readonly context: Context;
  readonly feed: Feed;
  readonly request: IngestRequest;
  /** The feed, opened with the settings that it is to be read with by now. */
  readonly openFeed: () => Promise<{ readonly opened: OpenedFeed; readonly settings: Settings }>;
  readonly retractions: Retractions;
  readonly run: RunRecorder;
  readonly lease: Lease;
  readonly connection: NatsConnection;
  readonly proofs: ProofWaiter;
  /** Starts a projector, unless one is at work. */
  readonly project: () => void;
  readonly note: (message: string) => void;
  /** Retries while a store is unavailable. */
  readonly surely: <T>(ask: () => Promise<T>) => Promise<T>;
}

async function openSession(
  context: Context,
  feed: Feed,
  request: IngestRequest,
  cleanup: AsyncDisposableStack,
): Promise<Session> {
  const { settings, signal, catalog, stack } = context;
  const databaseUrl = context.databaseUrls.ingest;
  stack.supervise();
  await cleanSpool(join(settings.SVC_STATE_DIR, 'spool'));
  const opener = request.fromArchive ? archivedOf(feed) : feed;
  if (request.selection) checkSelection({ name: feed.name, options: opener.options }, request.selection);
  const note = (message: string) => {
    context.reportedLog.warn({ feed: feed.name }, message);
    context.output.note(message);
  };
  const surely = <T>(ask: () => Promise<T>) => retryThroughOutage(ask, { signal, note });
  let openedWith = await surely(() => settingsOf(context, feed, request));
  let opened = cleanup.use(await opener.open(needsOf(context, request, openedWith)));
  const openFeed = async () => {
    const settings = await surely(() => settingsOf(context, feed, request));
    if (!isDeepStrictEqual(selectedValues(settings, feed.datasets), selectedValues(openedWith, feed.datasets))) {
      opened = cleanup.use(await opener.open(needsOf(context, request, settings)));
    }
    openedWith = settings;
    return { opened, settings };
  };
  // Closed beside each other: a projector that signs its last proofs takes 25 ms to end.
  const held: AsyncDisposable[] = [];
  cleanup.defer(async () => {
    const closed = await Promise.allSettled(held.map((one) => one[Symbol.asyncDispose]()));
    for (const one of closed) if (one.status === 'rejected') throw one.reason;
  });
  const hold = <T extends AsyncDisposable>(one: T): T => {
    held.push(one);
    return one;
  };
  // Beside the database, which takes longer; the streams are made by the operator's account.
  const connecting = surely(() => context.nats());
  for (const opening of [connecting, context.nats('operator')]) opening.catch(() => {}); // awaited below and by makeStreams
  const run = request.run ?? hold(await surely(() => openRun(context, feed, request)));
  const lease = hold(
    openLease({
      databaseUrl,
      datasets: feed.datasets,
      signal,
      waitsForever: request.kind === 'follow',
      onHeld: (backend) => void run.write({ lease_backend: backend }),
    }),
  );
  // Another publisher of the dataset is reported before the source is asked for anything.
  if (request.selection !== undefined) {
    await surely(() => lease.ensure()).catch(async (error) => {
      await run.end(signal.aborted ? 'interrupted' : 'failed', { fault: explain(error) });
      throw error;
    });
  }
  const connection = await connecting;
  const keys = feed.datasets.map(({ key }) => key);
  let isProjecting = request.ownProjector === false;
  const project = () => {
    if (!isProjecting) hold(startProjector(context, keys, { waiting: request.waiting }));
    isProjecting = true;
  };
  const waits = { databaseUrl, catalog, connection, signal, timeoutMs: PROOF_TIMEOUT_MS, onStill: note };
  const proofs = hold(await surely(() => ProofWaiter.open(waits)));
  const retractions = new Retractions(context);
  return { context, feed, request, openFeed, retractions, run, lease, connection, proofs, project, note, surely };
}

function needsOf(
  { catalog, log, signal }: Context,
  { location, instruments }: IngestRequest,
  settings: Settings,
): FeedNeeds {
  return { settings, location, catalog, instruments, log, signal };
}

/** A sample is read with the settings that it was made with. */
const settingsOf = async (context: Context, feed: Feed, { synthetic }: IngestRequest): Promise<Settings> =>
  synthetic ? context.settings : await settingsFor(context, [feed]);

/** Has the backlog projected first: nothing is published to a log that cannot be projected, and nothing is fetched twice. */
async function projectBacklog({ context, feed, connection, proofs, project, note, surely }: Session): Promise<void> {
  const { catalog, signal } = context;
  const faultOf = (dataset: DatasetDefinition) => proofs.faultOf(dataset);
  for (const dataset of feed.datasets) {
    await surely(() => makeStreams(context, [dataset.key]));
    const needs = { connection, catalog, signal, project, faultOf, timeoutMs: PROOF_TIMEOUT_MS, note, surely };
    await drainBacklog(needs, dataset);
  }
}

/** Publishes the work's documents. @returns the results of their partitions. */
function published(
  { context, request, run, lease, connection, proofs }: Session,
  source: PrefetchingSource,
  work: Work,
  progress: IngestProgress,
  pinned: PinnedValues | undefined,
): AsyncGenerator<UnitResult> {
  const { settings, catalog, log, signal } = context;
  const wait: WaitForProof = (dataset, partition, attempt) => proofs.of(dataset, partition, attempt);
  const publisher = new Publisher({
    source,
    connection,
    catalog,
    log,
    checkLease: () => lease.check(),
    wait,
    compareRows: (found) =>
      changedRows(
        {
          databaseUrl: context.databaseUrls.ingest,
          archive: () => documentArchiveOf(settings),
          frameRawBytes: settings.limits.frameRawBytes,
          signal,
        },
        found,
      ),
    options: {
      frameRawBytes: settings.limits.frameRawBytes,
      window: settings.limits.publishWindow,
      synthetic: request.synthetic,
      pinned,
      reingestReason: request.reason,
      fromArchive: request.fromArchive,
    },
  });
  const requests = work.plan ? preparing(work.plan, source) : resting(work.requests, lease);
  return backfill(requests, {
    source,
    publisher,
    lease,
    wait,
    recordCheck: ({ sourceId, throughMs }) => check(context, source.datasets[0], sourceId, throughMs),
    log,
    signal,
    onProgress: (at) => {
      progress.show(at);
      run.note({ at_partition: at.partition });
    },
  });
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
  /** The source names its documents while it is asked. */
  | { readonly plan?: undefined; readonly requests: AsyncGenerator<DocumentRequest> };

async function workOf(
  { catalog }: Context,
  opened: OpenedFeed,
  { selection, synthetic, reason, compare = false, run }: IngestRequest,
  retract: Retract,
): Promise<Work> {
  const events = selection === undefined ? opened.follow?.() : opened.select(selection);
  if (!events) throw new TidemarkError('USAGE', 'The feed has nothing to follow');
  const requests = documentsOf(events, retract, ({ failures, fault }) => run?.note({ failures, fault }));
  if (selection === undefined || !opened.isPlanned) return { requests };
  const options = { source: opened.source, catalog, synthetic, reingest: reason !== undefined, compare };
  return { plan: await planBackfill(await Array.fromAsync(requests), options) };
}

/** What `ingest` would do; undefined where its source names documents only while it is asked. Changes nothing. */
export async function planned(context: Context, feed: Feed, request: IngestRequest): Promise<Plan | undefined> {
  await using opened = await feed.open(needsOf(context, request, await settingsOf(context, feed, request)));
  return (await workOf(context, opened, request, async () => {})).plan;
}

/** The planned documents in order; those that follow are prefetched. */
function* preparing({ documents }: Plan, source: PrefetchingSource): Generator<DocumentRequest> {
  const wanted = documents.filter(({ action }) => action !== 'skip');
  for (let index = 0; index < wanted.length; index++) {
    const following = wanted.slice(index + 1, index + 1 + MAX_PREFETCHED);
    // A document that may turn out to be quarantined or unchanged is not fetched before its turn.
    source.prepare(following.filter(({ action }) => action === 'fetch' || action === 'replace').map(requestOf));
    yield wanted[index].request;
  }
}

const requestOf = ({ request }: { readonly request: DocumentRequest }) => request;

/** The lease is released when no document follows for this long. */
const REST_AFTER_MS = 500;

/** Documents as they come; another process may publish while none does. */
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

/** @throws TidemarkError USAGE for a feed whose documents are not archived. */
export function archivedOf(feed: Feed): NonNullable<Feed['archived']> {
  if (feed.archived) return feed.archived;
  const known = feeds().flatMap(({ name, archived }) => (archived ? [name] : []));
  throw new TidemarkError('USAGE', `Documents of ${feed.name} are not kept; those of ${known.join(' and ')} are`);
}

/** @throws TidemarkError USAGE naming an option that is missing or that the feed does not take. */
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
  await using client = await connect({
    url: context.databaseUrls.ingest,
    name: 'tidemark check',
    signal: context.signal,
  });
  await client.query('begin');
  await recordCheck(client, dataset, sourceId, throughMs);
  await client.query('commit');
}
