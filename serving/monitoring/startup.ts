/**
 * The start of a serving process: its options and settings, and the conditions for serving reads. The process checks them at
 * its start, and /readyz on request.
 */
import { readdir } from 'node:fs/promises';
import { text as readText } from 'node:stream/consumers';
import { parseArgs } from 'node:util';
import { readSettings, settingsInvalid } from '../../shared/config/load.ts';
import type { SettingName, Settings } from '../../shared/config/settings.ts';
import { RUN_LOCK, TIMESCALE_VERSION, timescaleFault } from '../../shared/db/connect.ts';
import { MIGRATIONS_DIR } from '../../shared/db/migrate.ts';
import { faultsSql } from '../../shared/db/roles.ts';
import { explain } from '../../shared/errors.ts';
import { createLogger, type Logger } from '../../shared/logger.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { RightsStore, SAMPLE_MATRIX_PATH } from '../../shared/rights/store.ts';
import type { PgConnection } from '../db/pg-connection.ts';
import { Params, text } from '../db/pg-messages.ts';
import { PgPool, poolOptions } from '../db/pool.ts';
import { type ContractRow, contractStatement, Session, violationOf } from '../read/snapshot/session.ts';

/** Name of a check -> `ok`, or the fault in a word that anyone may see. */
export type CheckResults = Readonly<Record<string, string>>;

interface CheckDeps {
  readonly pool: PgPool;
  /** The role for callers with their own credentials, if one is set. */
  readonly byokRole: string | undefined;
  readonly rights: RightsStore;
  readonly log: Logger;
}

/** This check is reported and does not make the service unready: proved data stays right when nothing is added to it. */
export const FOLLOWING = 'following';

/** Results are cached for this long, so that probes cause no load. */
const CACHE_MS = 1000;

/** Time of the checks in the database: a table that they read can be locked for hours. */
const CHECKS_TIMEOUT_MS = 5000;

export class Checks {
  readonly #deps: CheckDeps;
  /** `untilMs` is infinite while the run is pending, so that no other begins: each would hold a connection. */
  #cached: { untilMs: number; readonly results: Promise<CheckResults> } | undefined;
  #logged = '';

  constructor(deps: CheckDeps) {
    this.#deps = deps;
  }

  run(): Promise<CheckResults> {
    if (!this.#cached || performance.now() > this.#cached.untilMs) {
      const results = this.#run().finally(() => (cached.untilMs = performance.now() + CACHE_MS));
      const cached = { untilMs: Number.POSITIVE_INFINITY, results };
      this.#cached = cached;
    }
    return this.#cached.results;
  }

  async #run(): Promise<CheckResults> {
    const { rights, pool, byokRole } = this.#deps;
    const [ofRights, ofDatabase] = [rightsFindings(rights), await databaseFindings(pool, byokRole)];
    const faults = [...ofRights.faults, ...ofDatabase.faults];
    // One log line per change of state, with every fault: probes come every few seconds.
    const text = faults.join('; ');
    if (text !== this.#logged) {
      if (faults.length > 0) this.#deps.log.error({ faults }, 'the service is not ready');
      else this.#deps.log.info('the service is ready again');
      this.#logged = text;
    }
    return { ...ofRights.results, ...ofDatabase.results };
  }
}

interface CheckFindings {
  readonly results: CheckResults;
  /** The faults in full, for the operator. */
  readonly faults: readonly string[];
}

/** The faults that can be found with the valid settings. */
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

function rightsFindings(rights: RightsStore): CheckFindings {
  const faults = rights.faults().map((fault) => `rights matrix: ${fault}`);
  return { results: { rights: faults.length === 0 ? 'ok' : 'invalid' }, faults };
}

async function databaseFindings(pool: PgPool, byokRole: string | undefined): Promise<CheckFindings> {
  let connection: PgConnection | undefined;
  let timer: NodeJS.Timeout | undefined;
  let isLate = false;
  try {
    const acquired = (await pool.acquire()).connection;
    connection = acquired;
    timer = setTimeout(() => {
      isLate = true;
      acquired.abandon();
    }, CHECKS_TIMEOUT_MS);
    const findings = await findingsOf(new Session(acquired), byokRole);
    pool.release(acquired);
    return findings;
  } catch (error) {
    if (connection) pool.discard(connection);
    return {
      results: { database: 'unavailable', migrations: 'unknown', aligned_storage: 'unknown' },
      faults: [`database: ${isLate ? `it does not answer within ${CHECKS_TIMEOUT_MS} ms` : explain(error)}`],
    };
  } finally {
    clearTimeout(timer);
  }
}

async function findingsOf(session: Session, byokRole: string | undefined): Promise<CheckFindings> {
  const [[version]] = await session.rows(TIMESCALE_VERSION);
  const unsupported = timescaleFault(version);
  const missing = await missingMigrations(session);
  const violations = await storageViolations(session);
  const unfit = missing.length > 0 || byokRole === undefined ? [] : await roleFaults(session, byokRole);
  const failing = missing.length > 0 ? [] : await failingFollowers(session);
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
}

/** Feeds whose follower fails, or was killed and has no successor. */
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

/** The input of a process of ours on standard input; settings also come from the environment and `.env`. */
export interface ProcessOptions {
  readonly cwd?: string;
  /** Id of the process that gave the options. It may have ended by the time this process checks. */
  readonly parent?: number;
  readonly settings?: Partial<Record<SettingName, string>>;
  /** Use the sample rights matrix when no other is set. Only the embedded stack sets it. */
  readonly sample_rights?: boolean;
  /** Make a token that signs in once, and tell it the parent process beside the address. */
  readonly sign_in?: boolean;
  /** What this service proves itself with to commands of its state folder. */
  readonly identity?: string;
  /** Of several serving processes on one port: which of them, from 1. */
  readonly number?: number;
  /** Of a lake: whether the process goes on with what is proved later. */
  readonly follow?: boolean;
  /** Of a lake: whether it holds synthetic rows. */
  readonly synthetic?: boolean;
}

/** @returns the options and the parent process: this process stops when its parent ends. */
export async function readProcessOptions(): Promise<{
  readonly options: ProcessOptions;
  readonly parent: number | undefined;
}> {
  const { values } = parseArgs({ options: { stdin: { type: 'boolean', default: false } } });
  if (!values.stdin) return { options: {}, parent: undefined };
  const options = JSON.parse(await readText(process.stdin)) as ProcessOptions;
  return { options, parent: options.parent ?? process.ppid };
}

const REQUIRED = ['SVC_DATABASE_URL', 'SVC_INTERNAL_API_KEY'] as const satisfies readonly SettingName[];

/**
 * Returns the settings if all of them are valid.
 * @throws TidemarkError CONFIGURATION_INVALID with every invalid setting and every other fault that would prevent reads, so
 * that an operator learns everything from one start.
 */
export async function usableSettings(options: ProcessOptions) {
  const { settings, faults } = readSettings({
    cwd: options.cwd,
    flags: options.settings,
    required: () => (options.sample_rights ? REQUIRED : [...REQUIRED, 'SVC_SOURCE_RIGHTS_MATRIX_PATH']),
  });
  const databaseUrl = settings.SVC_DATABASE_URL?.href;
  const rightsMatrixPath =
    settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? (options.sample_rights ? SAMPLE_MATRIX_PATH : undefined);
  if (faults.length > 0) {
    const byokRole = settings.SVC_BYOK_DATABASE_ROLE;
    throw settingsInvalid([...faults, ...(await findFaults({ databaseUrl, rightsMatrixPath, byokRole }))]);
  }
  return {
    settings: settings as Settings,
    databaseUrl: databaseUrl!,
    apiKey: settings.SVC_INTERNAL_API_KEY!,
    rightsMatrixPath: rightsMatrixPath!,
    identity: options.identity,
  };
}

/** Often enough that a start that follows at once finds the port free. */
const PARENT_MS = 100;

/** Resolves on a signal, or when the parent process ends. */
export function untilStopped(parent: number | undefined): Promise<void> {
  return new Promise((resolve) => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => resolve());
    if (parent === undefined) return;
    setInterval(() => {
      if (process.ppid !== parent) resolve();
    }, PARENT_MS).unref();
  });
}
