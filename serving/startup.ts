/** What must hold before reads can be served, asked at the start and by /readyz. */
import { readdir } from 'node:fs/promises';
import { MIGRATIONS_DIR } from '../shared/db/migrate.ts';
import { explain } from '../shared/errors.ts';
import type { Logger } from '../shared/log/logger.ts';
import { DATASETS } from '../shared/registry/index.ts';
import type { WirePool } from './db/pool.ts';
import { Session } from './read/session.ts';
import { type ContractRow, contractStatement, violationOf } from './read/storage-contract.ts';
import type { RightsStore } from './rights/store.ts';

/** Name of a check -> `ok`, or what is wrong in a word that may be shown to anyone. */
export type CheckResults = Readonly<Record<string, string>>;

export interface CheckDeps {
  readonly pool: WirePool;
  readonly rights: RightsStore;
  readonly log: Logger;
}

/** Answers are kept this long: probes must not be load. */
const KEEP_MS = 1000;

export class Checks {
  readonly #deps: CheckDeps;
  #kept: { readonly at: number; readonly results: Promise<CheckResults> } | undefined;
  #logged = '';

  constructor(deps: CheckDeps) {
    this.#deps = deps;
  }

  run(): Promise<CheckResults> {
    const now = performance.now();
    if (!this.#kept || now - this.#kept.at > KEEP_MS) this.#kept = { at: now, results: this.#run() };
    return this.#kept.results;
  }

  async #run(): Promise<CheckResults> {
    const faults: string[] = [];
    const results: Record<string, string> = { rights: 'ok', ...(await this.#database(faults)) };
    const rightsFaults = this.#deps.rights.faults();
    if (rightsFaults.length > 0) {
      results.rights = 'invalid';
      faults.push(...rightsFaults.map((fault) => `rights: ${fault}`));
    }
    // Once for each new state, with everything that is wrong: probes come every few seconds.
    const text = faults.join('; ');
    if (text !== this.#logged) {
      if (faults.length > 0) this.#deps.log.error({ faults }, 'not ready');
      else this.#deps.log.info('ready again');
      this.#logged = text;
    }
    return results;
  }

  async #database(faults: string[]): Promise<Record<string, string>> {
    try {
      const { wire } = await this.#deps.pool.acquire();
      try {
        const session = new Session(wire);
        const known = await session.rows(`select name from schema_migrations`);
        const missing = (await readdir(MIGRATIONS_DIR)).filter(
          (name) => /^\d{4}_\w+\.sql$/.test(name) && !known.some(([applied]) => applied === name),
        );
        if (missing.length > 0) faults.push(`migrations not applied: ${missing.join(', ')}`);
        const violations: string[] = [];
        for (const dataset of DATASETS.values()) {
          const rows = await session.rows(contractStatement(dataset).text);
          const violation = violationOf(rows as readonly ContractRow[]);
          if (violation !== undefined) violations.push(`aligned storage, ${dataset.key}: ${violation}`);
        }
        faults.push(...violations);
        this.#deps.pool.release(wire);
        return {
          database: 'ok',
          migrations: missing.length === 0 ? 'ok' : 'missing',
          aligned_storage: violations.length === 0 ? 'ok' : 'violated',
        };
      } catch (error) {
        this.#deps.pool.discard(wire);
        throw error;
      }
    } catch (error) {
      faults.push(`database: ${explain(error)}`);
      return { database: 'unavailable', migrations: 'unknown', aligned_storage: 'unknown' };
    }
  }
}
