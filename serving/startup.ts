/** What must hold before reads can be served, asked at the start and by /readyz. */
import { readdir } from 'node:fs/promises';
import { RUN_LOCK, TIMESCALE_VERSION, timescaleFault } from '../shared/db/connect.ts';
import { MIGRATIONS_DIR } from '../shared/db/migrate.ts';
import { faultsSql } from '../shared/db/roles.ts';
import { explain } from '../shared/errors.ts';
import { createLogger, type Logger } from '../shared/logger.ts';
import { DATASETS } from '../shared/registry/index.ts';
import { RightsStore } from '../shared/rights/store.ts';
import { Params, text } from './db/params.ts';
import type { PgConnection } from './db/pg-connection.ts';
import { PgPool, poolOptions } from './db/pool.ts';
import { type ContractRow, contractStatement, Session, violationOf } from './read/snapshot/session.ts';

/** Name of a check -> `ok`, or what is wrong in a word that may be shown to anyone. */
export type CheckResults = Readonly<Record<string, string>>;

export interface CheckDeps {
  readonly pool: PgPool;
  /** For callers with their own credentials, where one is set. */
  readonly byokRole: string | undefined;
  readonly rights: RightsStore;
  readonly log: Logger;
}

/** Told, and no reason not to serve: what is proved stays right when nothing is added to it. */
export const FOLLOWING = 'following';

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
    const { rights, pool, byokRole } = this.#deps;
    const [ofRights, ofDatabase] = [rightsFindings(rights), await databaseFindings(pool, byokRole)];
    const faults = [...ofRights.faults, ...ofDatabase.faults];
    // Once for each new state, with everything that is wrong: probes come every few seconds.
    const text = faults.join('; ');
    if (text !== this.#logged) {
      if (faults.length > 0) this.#deps.log.error({ faults }, 'not ready');
      else this.#deps.log.info('ready again');
      this.#logged = text;
    }
    return { ...ofRights.results, ...ofDatabase.results };
  }
}

interface Findings {
  readonly results: CheckResults;
  /** For the operator, in full. */
  readonly faults: readonly string[];
}

/** What would be wrong, as far as it can be told from the settings that can be used. */
export async function findFaults(means: {
  readonly databaseUrl: string | undefined;
  readonly rightsMatrixPath: string | undefined;
  readonly byokRole: string | undefined;
}): Promise<readonly string[]> {
  const faults: string[] = [];
  if (means.rightsMatrixPath !== undefined) {
    const log = createLogger('silent', 'startup');
    faults.push(...rightsFindings(new RightsStore(means.rightsMatrixPath, { byokRole: means.byokRole, log })).faults);
  }
  if (means.databaseUrl !== undefined) {
    await using pool = new PgPool(poolOptions(means.databaseUrl));
    faults.push(...(await databaseFindings(pool, means.byokRole)).faults);
  }
  return faults;
}

function rightsFindings(rights: RightsStore): Findings {
  const faults = rights.faults().map((fault) => `rights matrix: ${fault}`);
  return { results: { rights: faults.length === 0 ? 'ok' : 'invalid' }, faults };
}

async function databaseFindings(pool: PgPool, byokRole: string | undefined): Promise<Findings> {
  let wire: PgConnection | undefined;
  try {
    wire = (await pool.acquire()).wire;
    const session = new Session(wire);
    const [[version]] = await session.rows(TIMESCALE_VERSION);
    const unsupported = timescaleFault(version);
    const missing = await missingMigrations(session);
    const violations = await storageViolations(session);
    const unfit = missing.length > 0 || byokRole === undefined ? [] : await roleFaults(session, byokRole);
    const failing = missing.length > 0 ? [] : await failingFollowers(session);
    pool.release(wire);
    return {
      results: {
        database: unsupported === undefined ? 'ok' : 'unsupported',
        migrations: missing.length === 0 ? 'ok' : 'missing',
        aligned_storage: violations.length === 0 ? 'ok' : 'violated',
        [FOLLOWING]: failing.length === 0 ? 'ok' : `failing: ${failing.join(', ')}`,
        ...(byokRole !== undefined && { byok_role: unfit.length === 0 ? 'ok' : 'unfit' }),
      },
      faults: [
        ...(unsupported === undefined ? [] : [`database: ${unsupported}`]),
        ...(missing.length === 0 ? [] : [`migrations not applied: ${missing.join(', ')}`]),
        ...violations,
        ...unfit.map((fault) => `role ${byokRole}: it ${fault}`),
      ],
    };
  } catch (error) {
    if (wire) pool.discard(wire);
    return {
      results: { database: 'unavailable', migrations: 'unknown', aligned_storage: 'unknown' },
      faults: [`database: ${explain(error)}`],
    };
  }
}

/** Feeds that are followed and fail, or whose follower was killed and has no successor. */
async function failingFollowers(session: Session): Promise<string[]> {
  const rows = await session.rows(
    `select subject from (
       select distinct on (subject) subject, failures, exists (select from pg_locks l where l.locktype = 'advisory'
         and l.classid = ${RUN_LOCK} and l.objid = r.run_id::oid and l.objsubid = 2 and l.granted) as alive, ended_at
       from runs r where kind = 'follow' order by subject, run_id desc) newest
     where ended_at is null and (failures > 0 or not alive) order by subject`,
  );
  return rows.map(([subject]) => subject!);
}

async function missingMigrations(session: Session): Promise<string[]> {
  const [[bookkeeping]] = await session.rows(`select to_regclass('schema_migrations')::text`);
  const known = bookkeeping === null ? [] : await session.rows(`select name from schema_migrations`);
  const names = (await readdir(MIGRATIONS_DIR)).filter((name) => /^\d{4}_\w+\.sql$/.test(name)).sort();
  return names.filter((name) => !known.some(([applied]) => applied === name));
}

async function storageViolations(session: Session): Promise<string[]> {
  const violations: string[] = [];
  for (const dataset of DATASETS.values()) {
    const violation = violationOf((await session.rows(contractStatement(dataset).text)) as readonly ContractRow[]);
    if (violation !== undefined) violations.push(`aligned storage, ${dataset.key}: ${violation}`);
  }
  return violations;
}

async function roleFaults(session: Session, role: string): Promise<string[]> {
  const params = new Params();
  params.add(text(role));
  return (await session.rows(faultsSql(), params)).map(([fault]) => fault!);
}
