/** Runs one read: a connection, a snapshot, a plan, its rows into a writer. The one core behind every access style. */
import type { WirePool } from '../db/pool.ts';
import { ConnectFault, Wire } from '../db/wire.ts';
import { Answer, type FreshnessRule, type ReadCall } from './answer.ts';
import { contextOf } from './context.ts';
import { ReadFault } from './faults.ts';
import { Guard } from './guard.ts';
import { GuessedRows, LastLooks } from './guess.ts';
import { planRead } from './plan.ts';
import { Look, Session } from './session.ts';
import type { ReadRequest } from './types.ts';

export interface ReaderOptions extends FreshnessRule {
  readonly pool: WirePool;
  readonly firstRowTimeoutMs: number;
  readonly byokRole: string | undefined;
}

export class Reader {
  readonly #options: ReaderOptions;
  readonly #lastLooks = new LastLooks();

  constructor(options: ReaderOptions) {
    this.#options = options;
  }

  /** @throws ReadFault, StrictRefusal, or the signal's reason. @returns the number of rows written. */
  async read(call: ReadCall): Promise<number> {
    using guard = new Guard(call.signal, this.#options.firstRowTimeoutMs);
    try {
      return (await this.#readByGuess(call, guard)) ?? (await this.#readByLook(call, guard));
    } catch (error) {
      throw guard.explain(error);
    }
  }

  /** Look, plan, read. */
  async #readByLook(call: ReadCall, guard: Guard): Promise<number> {
    const { request } = call;
    const { wire, look } = await this.#begin(call, guard);
    try {
      const session = new Session(wire);
      const context = contextOf(request, this.#note(request, look));
      const { violation } = context.snapshot;
      if (violation !== undefined) throw new ReadFault('aligned_contract', violation);
      const plan = await planRead({ ...context, session });
      const answer = new Answer(call, this.#options, guard);
      const sink = answer.start(context, plan, wire);
      for await (const statement of plan.statements) {
        await session.stream(statement, context.relation.oids, sink);
      }
      const rows = answer.finish();
      // The caller has the rows; the transaction's end is the connection's own affair.
      session.commit().then(
        () => this.#release(call, wire),
        () => this.#options.pool.discard(wire),
      );
      return rows;
    } catch (error) {
      this.#options.pool.discard(wire);
      throw error;
    }
  }

  /** The newest rows, as the last look leads to them. Undefined: nothing was written, look first. */
  async #readByGuess(call: ReadCall, guard: Guard): Promise<number | undefined> {
    const { request, token } = call;
    if (!isLatest(request) || token !== undefined) return undefined;
    const seen = this.#lastLooks.of(request);
    const guessed = this.#lastLooks.planOf(request);
    if (!seen || !guessed) return undefined;
    const { context, plan } = guessed;
    const { wire } = await this.#options.pool.acquire();
    guard.own(wire);
    const look = new Look(request.dataset, request.mode, false);
    const answer = new Answer(call, this.#options, guard);
    const rows = new GuessedRows(
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

  /** A connection with an open snapshot. One that was idle may have died unnoticed, so it gets a second try. */
  async #begin(call: ReadCall, guard: Guard): Promise<{ wire: Wire; look: Look }> {
    for (let fresh = false; ; fresh = true) {
      const { wire, reused } = await this.#connect(call, fresh);
      guard.own(wire);
      const look = lookFor(call.request);
      try {
        await new Session(wire).begin(look);
        return { wire, look };
      } catch (error) {
        this.#options.pool.discard(wire);
        if (!reused || guard.hasFired) throw error;
      }
    }
  }

  async #connect(call: ReadCall, fresh: boolean): Promise<{ wire: Wire; reused: boolean }> {
    const { pool, byokRole } = this.#options;
    if (call.token === undefined) return await pool.acquire(fresh);
    try {
      return { wire: await Wire.open({ ...pool.options, user: byokRole, password: call.token }), reused: false };
    } catch (error) {
      // SQLSTATE class 28: invalid authorization.
      if (!(error instanceof ConnectFault && error.sqlState.startsWith('28'))) throw error;
      throw new ReadFault('credentials_refused', 'the role or password was refused', { cause: error });
    }
  }

  #note(request: ReadRequest, look: Look) {
    if (isLatest(request)) this.#lastLooks.note(request, look);
    return look.snapshot();
  }

  #release(call: ReadCall, wire: Wire): void {
    if (call.token === undefined) this.#options.pool.release(wire);
    else wire.end();
  }
}

type LatestRequest = ReadRequest & { readonly window: { readonly kind: 'latest' } };

/** Reads whose extent the counts of the newest partitions tell. */
function isLatest(request: ReadRequest): request is LatestRequest {
  return request.window.kind === 'latest' && request.filters.length === 0;
}

const lookFor = (request: ReadRequest) => new Look(request.dataset, request.mode, isLatest(request));
