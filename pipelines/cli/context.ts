/** The context of a command: settings, the stack of the state folder, and connections, all closed at the end. */

import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Pool, PoolClient } from 'pg';
import { type LoadOptions, loadGivenSettings } from '../../shared/config/load.ts';
import type { SettingName, Settings } from '../../shared/config/settings.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { type Client, connect, createPool } from '../../shared/db/connect.ts';
import { MIGRATIONS_DIR, type MigrationReport, migrate } from '../../shared/db/migrate.ts';
import type { DatabaseRole } from '../../shared/db/roles.ts';
import { codeOf, explain, isRefusal, outageCode } from '../../shared/errors.ts';
import { createLogger, type Logger } from '../../shared/logger.ts';
import { connectNats, type NatsConnection, OUTAGE_LIMIT_MS } from '../../shared/nats/connect.ts';
import { postgresFault } from '../../shared/stack/postgres.ts';
import { acquireStack, type Stack } from '../../shared/stack/stack.ts';
import { type Io, PROJECT_ROOT } from './io.ts';
import type { ParsedCommand } from './options.ts';
import { createOutput, type Output } from './output.ts';
import { logsInWords, SHOWN_BY_PARENT, TERMINAL_VARIABLE, TerminalLog } from './terminal-log.ts';

export interface OutageRetryOptions {
  readonly signal: AbortSignal;
  /** Receives one message that names the store that the command waits for. */
  readonly note: (message: string) => void;
}

const PAUSE_MS = 500;

function isAway(error: unknown): boolean {
  if (isRefusal(error)) return false;
  const code = codeOf(error) ?? outageCode(error);
  return code === 'LOG_UNAVAILABLE' || code === 'DATABASE_UNAVAILABLE';
}

/**
 * Repeats `ask` for up to `OUTAGE_LIMIT_MS` while a store is unavailable. `ask` must be safe to repeat.
 * @throws what `ask` throws if that is not an outage or the time is over; the signal's reason.
 */
export async function retryThroughOutage<T>(ask: () => Promise<T>, { signal, note }: OutageRetryOptions): Promise<T> {
  const startedAt = performance.now();
  for (let isReported = false; ; ) {
    try {
      return await ask();
    } catch (error) {
      if (!isAway(error) || performance.now() - startedAt > OUTAGE_LIMIT_MS) throw error;
      signal.throwIfAborted();
      if (!isReported)
        note(`a store is unavailable (${explain(error)}): retrying for up to ${OUTAGE_LIMIT_MS / 1000} s`);
      isReported = true;
      await delay(PAUSE_MS, undefined, { signal });
    }
  }
}

export interface Context extends AsyncDisposable {
  readonly io: Io;
  readonly settings: Settings;
  /** The names of those that were given and do not have their defaults. */
  readonly given: ReadonlySet<SettingName>;
  /** Settings given as flags, for processes that load settings themselves. */
  readonly settingFlags: ParsedCommand['settings'];
  readonly stack: Stack;
  /** The URLs that are set, otherwise the stack's. */
  readonly databaseUrls: Readonly<Record<DatabaseRole, string>>;
  /** The same of the log. */
  readonly natsUrls: ReturnType<typeof natsUrlsOf>;
  readonly log: Logger;
  /** A logger for lines that accompany a note to the operator; the terminal does not show them again. */
  readonly reportedLog: Logger;
  /** The terminal's log file and display. */
  readonly terminalLog: TerminalLog | undefined;
  readonly output: Output;
  readonly pool: Pool;
  readonly catalog: Catalog;
  readonly migrations: MigrationReport;
  /** Aborted by SIGINT, SIGTERM or SIGHUP. */
  readonly signal: AbortSignal;
  /** The connection of an account, shared by all callers; `publisher` by default. */
  nats(role?: CommandRole): Promise<NatsConnection>;
}

/** `operator` creates and changes streams and reads the log through temporary consumers. */
export type CommandRole = 'publisher' | 'operator';

/**
 * Long-running commands: at the start they wait for an unavailable server, as they do later. The others report the
 * outage at once.
 */
const OUTLASTING: ReadonlySet<string> = new Set([
  'backfill',
  'export-worker',
  'follow',
  'lake',
  'reingest',
  'replay',
  'verify',
]);

/** The settings of a command. @throws TidemarkError CONFIGURATION_INVALID */
export function settingsOf(
  { io, settings: flags }: ParsedCommand,
  { required }: Pick<LoadOptions, 'required'> = {},
): Pick<Context, 'settings' | 'given'> {
  const { settings, given } = loadGivenSettings({ env: io.env, flags, limits: io.limits, cwd: PROJECT_ROOT, required });
  return { settings: { ...settings, ...io.settings }, given };
}

export async function openContext(
  command: ParsedCommand,
  name: string,
  { required }: Pick<LoadOptions, 'required'> = {},
): Promise<Context> {
  const { io } = command;
  const { settings, given } = settingsOf(command, { required });
  const output = createOutput(command);
  const terminalLog = logsInWords(command, name)
    ? new TerminalLog({ path: join(settings.SVC_STATE_DIR, 'log', 'tidemark.log'), show: (line) => output.note(line) })
    : undefined;
  const log = createLogger(settings.SVC_LOG_LEVEL, name, terminalLog ?? io.log);
  const isShown = terminalLog !== undefined || io.env[TERMINAL_VARIABLE] !== undefined;
  const reportedLog = isShown ? log.child(SHOWN_BY_PARENT) : log;
  const stopping = new AbortController();
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(io.onStop(() => stopping.abort(new Error('interrupted'))));
  const stack = cleanup.use(
    await acquireStack({
      stateDir: settings.SVC_STATE_DIR,
      runAs: settings.SVC_RUN_AS,
      databaseUrl: settings.SVC_DATABASE_URL?.href,
      natsUrl: settings.SVC_NATS_URL?.href,
      log,
      progress: (line) => output.note(line),
      waitMs: OUTLASTING.has(name) ? OUTAGE_LIMIT_MS : 0,
      signal: stopping.signal,
    }),
  );
  const databaseUrls = databaseUrlsOf(settings, stack);
  const natsUrls = natsUrlsOf(settings, stack);
  const pool = createPool({ url: databaseUrls.ingest, name: `tidemark ${name}`, max: 4 });
  cleanup.defer(() => pool.end());
  cleanup.defer(
    cutWhenStopped(pool, { url: databaseUrls.ingest, signal: stopping.signal, onlyReads: READING.has(name) }),
  );
  // From here on, a server that dies is restarted and awaited.
  stack.supervise();
  const note = (message: string) => output.note(message);
  const onWait = (message: string) => {
    reportedLog.warn(message);
    output.note(message);
  };
  const migrations = await retryThroughOutage(() => migrateDatabase(databaseUrls.owner, stopping.signal, onWait), {
    signal: stopping.signal,
    note,
  });
  const connections = cleanup.use(
    new SharedConnections((url) => connectNats(url, `tidemark ${name}`, { signal: stopping.signal, onWait })),
  );
  const kept = cleanup.move();
  return {
    io,
    settings,
    given,
    settingFlags: command.settings,
    stack,
    databaseUrls,
    natsUrls,
    log,
    reportedLog,
    terminalLog,
    output,
    pool,
    catalog: new Catalog(pool),
    migrations,
    signal: stopping.signal,
    nats: (role = 'publisher') => connections.to(role === 'operator' ? natsUrls.operator : stack.natsUrl),
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

/** Commands that only read: a stop need not wait for what they asked. */
const READING: ReadonlySet<string> = new Set(['status', 'event', 'quarantine', 'ledger']);

/** A database that does not answer in this time after a stop is not waited for. */
const LAST_ANSWER_MS = 500;

/**
 * After a stop, ends the connections of the pool where nothing but an answer is awaited, or none will come: a command that writes
 * ends its work in order, which takes a database that answers. @returns what undoes it
 */
function cutWhenStopped(
  pool: Pool,
  { url, signal, onlyReads }: { readonly url: string; readonly signal: AbortSignal; readonly onlyReads: boolean },
): () => void {
  const lent = new Set<PoolClient>();
  pool.on('acquire', (client) => lent.add(client)).on('release', (_, client) => lent.delete(client));
  const cut = async () => {
    const isAway = !onlyReads && (await postgresFault(url, LAST_ANSWER_MS)) !== undefined;
    if (onlyReads || isAway) for (const client of lent) streamOf(client).destroy();
  };
  const onAbort = () => void cut();
  signal.addEventListener('abort', onAbort);
  return () => signal.removeEventListener('abort', onAbort);
}

const streamOf = (client: PoolClient) => (client as unknown as Client).connection.stream;

type OpenNats = (url: string) => Promise<NatsConnection & AsyncDisposable>;

/** One shared connection per URL. A failed connection is dropped, so that the next caller tries again. */
class SharedConnections implements AsyncDisposable {
  readonly #open: OpenNats;
  readonly #byUrl = new Map<string, ReturnType<OpenNats>>();

  constructor(open: OpenNats) {
    this.#open = open;
  }

  to(url: string): Promise<NatsConnection> {
    const connection = this.#byUrl.get(url) ?? this.#open(url);
    this.#byUrl.set(url, connection);
    connection.catch(() => this.#byUrl.delete(url));
    return connection;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const opened of await Promise.allSettled(this.#byUrl.values())) {
      if (opened.status === 'fulfilled') await opened.value[Symbol.asyncDispose]();
    }
  }
}

/** Each process's role: its own URL if one is set. */
const databaseUrlsOf = (settings: Settings, { databaseUrls }: Stack): Record<DatabaseRole, string> => ({
  owner: settings.SVC_DATABASE_OWNER_URL?.href ?? databaseUrls.owner,
  ingest: databaseUrls.ingest,
  serve: settings.SVC_DATABASE_SERVE_URL?.href ?? databaseUrls.serve,
  export: settings.SVC_DATABASE_EXPORT_URL?.href ?? databaseUrls.export,
  monitor: settings.SVC_DATABASE_MONITOR_URL?.href ?? databaseUrls.monitor,
});

const natsUrlsOf = (settings: Settings, stack: Stack) => ({
  projector: settings.SVC_NATS_PROJECTOR_URL?.href ?? stack.natsProjectorUrl,
  reader: settings.SVC_NATS_READER_URL?.href ?? stack.natsReaderUrl,
  operator: settings.SVC_NATS_OPERATOR_URL?.href ?? stack.natsOperatorUrl,
});

async function migrateDatabase(
  url: string,
  signal: AbortSignal,
  onWait: (message: string) => void,
): Promise<MigrationReport> {
  await using client = await connect({ url, name: 'tidemark migrate', signal });
  // Ends a query that runs or waits. Each migration is one transaction, so none is left half done.
  const stop = () => client.connection.stream.destroy();
  signal.addEventListener('abort', stop);
  try {
    signal.throwIfAborted();
    return await migrate(client, MIGRATIONS_DIR, () =>
      onWait('waiting for another process that migrates the database'),
    );
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
