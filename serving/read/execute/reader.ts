/** Runs one read: connection, snapshot, plan, and rows into a writer. Every access style uses this core. */
import type { Logger } from '../../../shared/logger.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { contextOf } from '../plan/context.ts';
import { CoverageProbe, Session } from '../snapshot/session.ts';
import { LostRows, ReadFault } from '../types.ts';
import { Answer, type ReadCall } from './answer.ts';
import { OptimisticRows, ProbeCache, ReadDeadline, type TimeBudget } from './optimistic-read.ts';
import { planRead } from './plan-read.ts';
import { RecountRequests } from './recount-requests.ts';
import { type SnapshotOptions, Snapshots } from './snapshots.ts';
import { type FreshnessRule, qualityWarnings } from './warnings.ts';

interface ReaderOptions extends FreshnessRule, SnapshotOptions {
  readonly budget: TimeBudget;
  readonly log?: Logger;
}

export class Reader {
  readonly #options: ReaderOptions;
  readonly #snapshots: Snapshots;
  readonly #probes = new ProbeCache();
  readonly #recounts: RecountRequests;

  constructor(options: ReaderOptions) {
    this.#options = options;
    this.#snapshots = new Snapshots(options);
    this.#recounts = new RecountRequests(options.pool, options.log);
  }

  /** @throws ReadFault, StrictRefusal, or the signal's reason. @returns the number of rows written. */
  async read(call: ReadCall): Promise<number> {
    using deadline = new ReadDeadline(call.signal, this.#options.budget);
    try {
      return (await this.#readOptimistically(call, deadline)) ?? (await this.#readAfterProbe(call, deadline));
    } catch (error) {
      if (error instanceof LostRows) await this.#recounts.ask(call.request, error);
      throw deadline.explain(error);
    }
  }

  /** Probes coverage, plans, and reads. */
  async #readAfterProbe(call: ReadCall, deadline: ReadDeadline): Promise<number> {
    const { request } = call;
    const { connection, probe } = await this.#snapshots.begin(() => probeFor(request), call.token, deadline);
    try {
      const session = new Session(connection);
      await call.admit?.(session);
      const context = contextOf(request, this.#note(request, probe));
      const { violation } = context.snapshot;
      if (violation !== undefined) throw new ReadFault('aligned_contract', violation);
      const live = { ...context, session };
      const planned = await planRead(live);
      const plan = (await call.inspect?.(live, planned)) ?? planned;
      const quality = await qualityWarnings(live, this.#options);
      const answer = new Answer(call, this.#options, deadline);
      const sink = answer.start(context, plan, connection, quality);
      for await (const statement of plan.statements) {
        const before = answer.found;
        await session.stream(statement, context.relation.oids, sink);
        answer.check(statement.count, answer.found - before);
      }
      const rows = answer.finish();
      this.#snapshots.end(connection, call.token);
      return rows;
    } catch (error) {
      this.#snapshots.discard(connection);
      throw error;
    }
  }

  /** Reads the newest rows by the plan of the last probe. Undefined: nothing was written, and the read must probe first. */
  async #readOptimistically(call: ReadCall, deadline: ReadDeadline): Promise<number | undefined> {
    const { request, token } = call;
    if (!isLatest(request) || token !== undefined || call.inspect || call.admit) return undefined;
    const seen = this.#probes.of(request);
    const optimistic = this.#probes.planOf(request);
    if (!seen || !optimistic) return undefined;
    const { context, plan } = optimistic;
    const { connection } = await this.#options.pool.acquire();
    deadline.own(connection);
    const probe = new CoverageProbe(request);
    const answer = new Answer(call, this.#options, deadline);
    const rows = new OptimisticRows(
      () => probe.signature === seen.signature,
      () => answer.start(context, plan, connection),
    );
    try {
      await new Session(connection).all(probe, plan.statements[0], context.relation.oids, rows);
    } catch (error) {
      this.#options.pool.discard(connection);
      // The connection may have died while idle, or the storage may have changed: the full read finds out.
      if (rows.used || deadline.hasFired) throw error;
      return undefined;
    }
    try {
      return rows.used ? answer.finish() : undefined;
    } catch (error) {
      this.#probes.forget(request);
      throw error;
    } finally {
      this.#options.pool.release(connection);
    }
  }

  #note(request: ReadRequest, probe: CoverageProbe) {
    if (isLatest(request)) this.#probes.note(request, probe);
    return probe.snapshot();
  }
}

type LatestRequest = ReadRequest & { readonly window: { readonly kind: 'latest' } };

/** Whether the row counts of the newest partitions determine the extent of the read. */
function isLatest(request: ReadRequest): request is LatestRequest {
  const { window, filters, klineMs, asOfMs } = request;
  return window.kind === 'latest' && filters.length === 0 && klineMs === undefined && asOfMs === undefined;
}

const probeFor = (request: ReadRequest) => new CoverageProbe(request, isLatest(request));
