/** What must hold before reads can be served, asked at the start and by /readyz. */

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
import { Params, text } from '../db/params.ts';
import type { PgConnection } from '../db/pg-connection.ts';
import { PgPool, poolOptions } from '../db/pool.ts';
import { type ContractRow, contractStatement, Session, violationOf } from '../read/snapshot/session.ts';

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

/* How a process of ours is told what to do: on standard input, in the environment and in `.env`; and when to stop. */

export interface ProcessOptions {
  readonly cwd?: string;
  /** Process id of who gave the order: it may be gone by the time it is looked for. */
  readonly parent?: number;
  readonly settings?: Partial<Record<SettingName, string>>;
  /** Use the sample rights matrix where no other is set: for the embedded stack alone. */
  readonly sample_rights?: boolean;
}

/** @returns also the process whose end is ours, where one gave the order. */
export async function readProcessOptions(): Promise<{
  readonly order: ProcessOptions;
  readonly parent: number | undefined;
}> {
  const { values } = parseArgs({ options: { stdin: { type: 'boolean', default: false } } });
  if (!values.stdin) return { order: {}, parent: undefined };
  const order = JSON.parse(await readText(process.stdin)) as ProcessOptions;
  return { order, parent: order.parent ?? process.ppid };
}

const REQUIRED = ['SVC_DATABASE_URL', 'SVC_INTERNAL_API_KEY'] as const satisfies readonly SettingName[];

/**
 * The settings, if all of them can be used.
 * @throws TidemarkError CONFIGURATION_INVALID naming every one that cannot, and what else would keep reads from being
 * served: an operator who starts the service at night is to learn everything at once.
 */
export async function usable(order: ProcessOptions) {
  const { settings, faults } = readSettings({
    cwd: order.cwd,
    flags: order.settings,
    required: () => (order.sample_rights ? REQUIRED : [...REQUIRED, 'SVC_SOURCE_RIGHTS_MATRIX_PATH']),
  });
  const databaseUrl = settings.SVC_DATABASE_URL?.href;
  const rightsMatrixPath =
    settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? (order.sample_rights ? SAMPLE_MATRIX_PATH : undefined);
  if (faults.length > 0) {
    const byokRole = settings.SVC_BYOK_DATABASE_ROLE;
    throw settingsInvalid([...faults, ...(await findFaults({ databaseUrl, rightsMatrixPath, byokRole }))]);
  }
  return {
    settings: settings as Settings,
    databaseUrl: databaseUrl!,
    apiKey: settings.SVC_INTERNAL_API_KEY!,
    rightsMatrixPath: rightsMatrixPath!,
  };
}

/** A signal, or the end of the process that gave the work order. */
export function untilStopped(parent: number | undefined): Promise<void> {
  return new Promise((resolve) => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => resolve());
    if (parent === undefined) return;
    setInterval(() => {
      if (process.ppid !== parent) resolve();
    }, 1000).unref();
  });
}
