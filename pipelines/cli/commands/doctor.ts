/** `doctor`: finds faults and names their fixes, as a table for people and as a JSON object for programs. */

import { once } from 'node:events';
import { statfs } from 'node:fs/promises';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { type GivenSettings, readSettings } from '../../../shared/config/load.ts';
import type { SettingName, Settings } from '../../../shared/config/settings.ts';
import { type Client, connect, describeUrl } from '../../../shared/db/connect.ts';
import { registeredInstruments } from '../../../shared/db/instruments.ts';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import { createLogger } from '../../../shared/logger.ts';
import { connectNats } from '../../../shared/nats/connect.ts';
import { acquireStack, type Stack } from '../../../shared/stack/stack.ts';
import { readState, type State } from '../../../shared/status/state.ts';
import { fedDatasets } from '../../sources/index.ts';

import { DATABASE_CHECKS } from '../doctor/database-checks.ts';
import { LOG_CHECKS } from '../doctor/log-checks.ts';
import { type Account, type Check, type CheckContext, type Finding, fault } from '../doctor/types.ts';
import { RIGHTS_CHECKS, WORK_CHECKS } from '../doctor/work-checks.ts';
import { EXIT, PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput, table } from '../output.ts';

export const CHECKS: readonly Check[] = [...DATABASE_CHECKS, ...LOG_CHECKS, ...WORK_CHECKS, ...RIGHTS_CHECKS];

export interface CheckReport {
  readonly check: string;
  readonly doc: string;
  readonly state: 'ok' | 'warning' | 'fault' | 'skipped';
  readonly findings: readonly Finding[];
}

const report = (check: string, doc: string, findings: readonly Finding[]): CheckReport => {
  const severities = findings.map(({ severity }) => severity);
  const state = severities.includes('fault') ? 'fault' : severities.length > 0 ? 'warning' : 'ok';
  return { check, doc, state, findings };
};

const SETTINGS_DOC = 'all settings are valid';
const CONNECTIONS_DOC = 'database and log answer and accept the credentials';

/** Checks that others need, so that each run has them. */
const ALWAYS: readonly string[] = ['settings', 'connections'];

/**
 * Runs the checks on whatever can be reached. A check that throws becomes a finding and does not stop the others.
 * `only`: the name of a single check.
 */
export async function examine(command: ParsedCommand, cwd: string, only?: string): Promise<CheckReport[]> {
  const wanted = CHECKS.filter(({ name }) => only === undefined || name === only);
  if (only !== undefined && wanted.length === 0 && !ALWAYS.includes(only)) {
    const known = [...ALWAYS, ...CHECKS.map(({ name }) => name)].join(', ');
    throw new TidemarkError('USAGE', `There is no check ${JSON.stringify(only)}; known: ${known}`);
  }
  const read = readSettings({ env: command.io.env, flags: command.settings, cwd });
  const faults = read.faults.map((text) => {
    const [subject, ...what] = text.split(': ');
    return fault(subject, what.join(': '), 'correct it; .env.example documents each setting');
  });
  const reports = [report('settings', SETTINGS_DOC, faults)];
  if (faults.length > 0) return [...reports, ...skipped(wanted)];
  const settings = read.settings as Settings;
  await using cleanup = new AsyncDisposableStack();
  const stopping = new AbortController();
  // Without a listener of its own the process would end at once, and leave the servers that it has started running.
  cleanup.defer(command.io.onStop(() => stopping.abort(new Error('interrupted'))));
  // A check may wait for a lock of the database. What it waits for ends with the connections.
  const stopped = once(stopping.signal, 'abort').then(() => Promise.reject(stopping.signal.reason));
  stopped.catch(() => {}); // awaited below
  const reached = await reach({ settings, given: read.given }, cleanup, stopping.signal, stopped);
  reports.push(report('connections', CONNECTIONS_DOC, reached.findings));
  for (const check of wanted) {
    stopping.signal.throwIfAborted();
    const lacks = check.needs.some((need) => reached.context[need] === undefined);
    if (lacks) reports.push(...skipped([check]));
    else {
      const found = await Promise.race([ask(check, reached.context as CheckContext), stopped]);
      reports.push(report(check.name, check.doc, found));
    }
  }
  return reports;
}

export async function ask(check: Check, context: CheckContext): Promise<readonly Finding[]> {
  try {
    return await check.run(context);
  } catch (error) {
    return [fault(check.name, `could not be checked: ${explain(error)}`, 'fix the findings above first')];
  }
}

const skipped = (checks: readonly Check[]): CheckReport[] =>
  checks.map(({ name, doc }) => ({ check: name, doc, state: 'skipped', findings: [] }));

const OTHER_ROLES = [
  'SVC_DATABASE_OWNER_URL',
  'SVC_DATABASE_SERVE_URL',
  'SVC_DATABASE_EXPORT_URL',
  'SVC_DATABASE_MONITOR_URL',
] as const;

const otherRoleUrls = (settings: Settings): Record<string, string> =>
  Object.fromEntries(
    OTHER_ROLES.flatMap((name) => (settings[name] === undefined ? [] : [[name, settings[name].href]])),
  );

/**
 * The accounts that are set or come with the embedded log. If one account serves several roles, only the publisher is
 * listed.
 */
function accountsOf(settings: Settings, logUrl: string, embedded: Stack | undefined): Account[] {
  const urls: readonly (readonly [Account['role'], SettingName, string | undefined])[] = [
    ['publisher', 'SVC_NATS_URL', logUrl],
    ['projector', 'SVC_NATS_PROJECTOR_URL', embedded?.natsProjectorUrl],
    ['reader', 'SVC_NATS_READER_URL', embedded?.natsReaderUrl],
  ];
  return urls.flatMap(([role, setting, own]) => {
    const url = (settings[setting] as URL | undefined)?.href ?? own;
    return url === undefined || (role !== 'publisher' && url === logUrl) ? [] : [{ role, setting, url }];
  });
}

const stateOf = async (database: Client, manager: () => Promise<JetStreamManager>): Promise<State> =>
  readState(database, manager, { detailed: true, instruments: await registeredInstruments(database) });

/** Reaches each store separately, so that the outage of one does not hide the other's findings. */
async function reach(
  { settings, given: names }: GivenSettings,
  cleanup: AsyncDisposableStack,
  signal: AbortSignal,
  stopped: Promise<never>,
) {
  const findings: Finding[] = [];
  const attempt = async <T>(subject: string, fix: string, work: () => Promise<T>): Promise<T | undefined> => {
    try {
      return await work();
    } catch (error) {
      signal.throwIfAborted();
      findings.push(fault(subject, explain(error), error instanceof TidemarkError ? error.remedy : fix));
      return undefined;
    }
  };
  const given = { database: settings.SVC_DATABASE_URL?.href, log: settings.SVC_NATS_URL?.href };
  const embedded =
    given.database !== undefined && given.log !== undefined
      ? undefined
      : await attempt('SVC_STATE_DIR', 'see the log files in its folder log/', async () =>
          cleanup.use(
            await acquireStack({
              stateDir: settings.SVC_STATE_DIR,
              runAs: settings.SVC_RUN_AS,
              log: createLogger('error', 'doctor'),
              signal,
              // A database given by URL is probed below, so that its outage does not hide the stack's.
              ...(given.database === undefined ? {} : { databaseUrl: given.database }),
              ...(given.log === undefined ? {} : { natsUrl: given.log }),
            }),
          ),
        );
  const databaseUrl = given.database ?? embedded?.databaseUrls.ingest;
  const logUrl = given.log ?? embedded?.natsUrl;
  const database =
    databaseUrl === undefined
      ? undefined
      : await attempt(`database ${describeUrl(databaseUrl)}`, 'check SVC_DATABASE_URL', async () => {
          const client: Client = await connect({ url: databaseUrl, name: 'tidemark doctor', signal });
          return cleanup.use(client);
        });
  const log =
    logUrl === undefined
      ? undefined
      : await attempt(`log ${describeUrl(logUrl)}`, 'check SVC_NATS_URL, and that JetStream is enabled', async () => {
          const connection = cleanup.use(await Promise.race([connectNats(logUrl, 'tidemark doctor'), stopped]));
          return { connection, manager: await Promise.race([jetstreamManager(connection), stopped]) };
        });
  let state: Promise<State> | undefined;
  const managerOf = async () => {
    if (log === undefined) throw new TidemarkError('LOG_UNAVAILABLE', 'The log does not answer');
    return log.manager;
  };
  const context: Partial<CheckContext> = {
    settings,
    given: names,
    datasets: fedDatasets(),
    accounts: logUrl === undefined ? [] : accountsOf(settings, logUrl, embedded),
    database,
    // Without a database no check asks for it.
    state: () => (state ??= stateOf(database!, managerOf)),
    roleUrls: databaseUrl === undefined ? {} : { SVC_DATABASE_URL: databaseUrl, ...otherRoleUrls(settings) },
    log,
    serverUid: embedded?.serverUid,
    logDir: given.log === undefined ? embedded?.stateDir : undefined,
    databaseDir: given.database === undefined ? embedded?.stateDir : undefined,
    freeBytes: async (dir) => {
      const disk = await statfs(dir);
      return disk.bavail * disk.bsize;
    },
    now: Date.now,
  };
  return { findings, context };
}

export async function runDoctor(command: ParsedCommand): Promise<number> {
  const checks = await examine(command, PROJECT_ROOT, command.values.check as string | undefined);
  const ok = checks.every(({ state }) => state === 'ok' || state === 'warning');
  createOutput(command).answer({ command: 'doctor', ok, checks }, () => describe(checks));
  return ok ? EXIT.DONE : EXIT.FAILED;
}

function describe(checks: readonly CheckReport[]): string {
  const lines = [
    table(
      ['check', 'state', 'what should hold'],
      checks.map(({ check, state, doc }) => [check, state, doc]),
    ),
  ];
  const findings = checks.flatMap((report) => report.findings);
  for (const { severity, subject, what, fix } of findings) {
    lines.push('', `${severity}  ${subject}: ${what}`, `  fix  ${fix}`);
  }
  if (findings.length === 0) lines.push('', 'No findings.');
  return lines.join('\n');
}
