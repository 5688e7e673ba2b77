/** Runs one read: a connection, a snapshot, a plan, its rows into a writer. The one core behind every access style. */
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

export interface ReaderOptions extends FreshnessRule, SnapshotOptions {
  readonly budget: TimeBudget;
  readonly log?: Logger;
}

export class Reader {
  readonly #options: ReaderOptions;
  readonly #snapshots: Snapshots;
  readonly #lastLooks = new ProbeCache();
  readonly #recounts: RecountRequests;

  constructor(options: ReaderOptions) {
    this.#options = options;
    this.#snapshots = new Snapshots(options);
    this.#recounts = new RecountRequests(options.pool, options.log);
  }

  /** @throws ReadFault, StrictRefusal, or the signal's reason. @returns the number of rows written. */
  async read(call: ReadCall): Promise<number> {
    using guard = new ReadDeadline(call.signal, this.#options.budget);
    try {
      return (await this.#readByGuess(call, guard)) ?? (await this.#readByLook(call, guard));
    } catch (error) {
      if (error instanceof LostRows) await this.#recounts.ask(call.request, error);
      throw guard.explain(error);
    }
  }

  /** Look, plan, read. */
  async #readByLook(call: ReadCall, guard: ReadDeadline): Promise<number> {
    const { request } = call;
    const { wire, look } = await this.#snapshots.begin(() => lookFor(request), call.token, guard);
    try {
      const session = new Session(wire);
      await call.admit?.(session);
      const context = contextOf(request, this.#note(request, look));
      const { violation } = context.snapshot;
      if (violation !== undefined) throw new ReadFault('aligned_contract', violation);
      const live = { ...context, session };
      const planned = await planRead(live);
      const plan = (await call.inspect?.(live, planned)) ?? planned;
      const quality = await qualityWarnings(live, this.#options);
      const answer = new Answer(call, this.#options, guard);
      const sink = answer.start(context, plan, wire, quality);
      for await (const statement of plan.statements) {
        const before = answer.found;
        await session.stream(statement, context.relation.oids, sink);
        answer.check(statement.count, answer.found - before);
      }
      const rows = answer.finish();
      this.#snapshots.end(wire, call.token);
      return rows;
    } catch (error) {
      this.#snapshots.discard(wire);
      throw error;
    }
  }

  /** The newest rows, as the last look leads to them. Undefined: nothing was written, look first. */
  async #readByGuess(call: ReadCall, guard: ReadDeadline): Promise<number | undefined> {
    const { request, token } = call;
    if (!isLatest(request) || token !== undefined || call.inspect || call.admit) return undefined;
    const seen = this.#lastLooks.of(request);
    const guessed = this.#lastLooks.planOf(request);
    if (!seen || !guessed) return undefined;
    const { context, plan } = guessed;
    const { wire } = await this.#options.pool.acquire();
    guard.own(wire);
    const look = new CoverageProbe(request);
    const answer = new Answer(call, this.#options, guard);
    const rows = new OptimisticRows(
      () => look.signature === seen.signature,
      () => answer.start(context, plan, wire),
    );
    try {
      await new Session(wire).all(look, plan.statements[0], context.relation.oids, rows);
    } catch (error) {
      this.#options.pool.discard(wire);
      // The connection may have died while idle, or the storage may have changed: the long way tells.
      if (rows.used || guard.hasFired) throw error;
      return undefined;
    }
    try {
      return rows.used ? answer.finish() : undefined;
    } catch (error) {
      this.#lastLooks.forget(request);
      throw error;
    } finally {
      this.#options.pool.release(wire);
    }
  }

  #note(request: ReadRequest, look: CoverageProbe) {
    if (isLatest(request)) this.#lastLooks.note(request, look);
    return look.snapshot();
  }
}

type LatestRequest = ReadRequest & { readonly window: { readonly kind: 'latest' } };

/** Reads whose extent the counts of the newest partitions tell. */
function isLatest(request: ReadRequest): request is LatestRequest {
  const { window, filters, klineMs, asOfMs } = request;
  return window.kind === 'latest' && filters.length === 0 && klineMs === undefined && asOfMs === undefined;
}

const lookFor = (request: ReadRequest) => new CoverageProbe(request, isLatest(request));
