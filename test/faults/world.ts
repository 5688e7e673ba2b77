/**
 * The system under faults: servers and state in a folder of the seed's own, every process of the product as the operator
 * starts it, and a proxy on each way between them.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { chmod, cp, mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { jetstreamManager } from '@nats-io/jetstream';
import { type Client, connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { DATABASE_ROLES, type DatabaseRole, provisionRoles, roleName } from '../../shared/db/roles.ts';
import { createLogger } from '../../shared/logger.ts';
import { urlOfAccount } from '../../shared/nats/accounts.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { endProcess, isAlive, type ProcessRef, processRef, withLock } from '../../shared/stack/processes.ts';
import type { ServerName } from '../../shared/stack/server.ts';
import { acquireStack, type Stack } from '../../shared/stack/stack.ts';
import { isPortFree, readState } from '../../shared/stack/state.ts';
import { Archives, dayOf, documentOf } from '../support/etf.ts';
import { OWN_MATRIX } from '../support/rights.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { closeTemplate, execute, type LogUrls, natsSettings, urlsOf, withDatabase } from '../support/stack.ts';
import { startVendorServer, type VendorServer } from '../support/vendor-server.ts';
import { VENDORS } from '../support/vendors.ts';
import { type LinkProxy, startProxy } from './proxy.ts';
import type { LinkName } from './schedule.ts';

export const API_KEY = 'campaign-key';
const MIB = 1024 * 1024;
/** Room of the disk of a campaign: several epochs of stores, and what the servers reserve. */
const DISK_MIB = 6144;
/** Funds whose pages a folder archives by day. */
const FUNDS = ['IBIT', 'BITB', 'ARKB'];
const TEMPLATE = 'campaign_template';

/** Where a seed's campaign keeps everything. A link of the temporary folder would not do: servers run as another user. */
export const folderOf = (seed: number): string => join('/tmp', 'tidemark-faults', `seed-${seed}`);

/** Processes that carry the mark of a campaign in their environment. */
export function markedProcesses(mark: string): number[] {
  const words = `TIDEMARK_TEST_RUN=${mark}`;
  return readdirSync('/proc').flatMap((name) => {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) return [];
    try {
      return readFileSync(`/proc/${name}/environ`, 'utf8').split('\0').includes(words) ? [Number(name)] : [];
    } catch {
      return []; // Gone, or somebody else's.
    }
  });
}

const signal = (pid: number, name: NodeJS.Signals): boolean => {
  try {
    return process.kill(pid, name);
  } catch {
    return false; // It ended meanwhile.
  }
};

/** Ends what an earlier campaign of the seed left behind, if it was killed. @throws while one is running */
async function clear(folder: string, mark: string): Promise<void> {
  const owner = join(folder, 'owner.json');
  if (existsSync(owner) && isAlive(JSON.parse(readFileSync(owner, 'utf8')) as ProcessRef)) {
    throw new Error(`a campaign of this seed is running already (${folder})`);
  }
  for (const pid of markedProcesses(mark)) signal(pid, 'SIGKILL');
  const state = await readState(join(folder, 'disk', 'stack')).catch(() => undefined);
  for (const record of Object.values(state?.servers ?? {})) if (isAlive(record)) signal(record.pid, 'SIGKILL');
  unmount(join(folder, 'disk'));
  await rm(folder, { recursive: true, force: true });
}

function mounted(path: string): boolean {
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${DISK_MIB}m,mode=0755`, 'tmpfs', path], { stdio: 'ignore' });
    return true;
  } catch {
    return false; // Only root can, and not in every container.
  }
}

function unmount(path: string): void {
  if (!readFileSync('/proc/mounts', 'utf8').includes(` ${path} `)) return;
  execFileSync('umount', ['-l', path]);
}

async function freePortOf(seed: number): Promise<number> {
  // Below the ports that outgoing connections take, so that nobody has it while the service is down.
  for (let at = 0; ; at++) {
    const port = 12_000 + ((seed * 37 + at) % 18_000);
    if (await isPortFree(port)) return port;
  }
}

type Parts = Pick<World, 'folder' | 'disk' | 'hasDisk' | 'mark' | 'stack' | 'vendor' | 'httpPort' | 'proxies'>;

export class World implements AsyncDisposable {
  readonly folder: string;
  /** The disk of servers, state and lake: one that can be filled, where one can be mounted. */
  readonly disk: string;
  readonly hasDisk: boolean;
  readonly mark: string;
  readonly stack: Stack;
  readonly vendor: VendorServer;
  readonly httpPort: number;
  readonly proxies: Readonly<Record<LinkName, LinkProxy>>;
  epoch = 0;
  /** Mempool snapshots of this epoch that the log has lost. */
  readonly lostSnapshots = new Set<string>();
  /** Of the node, where one can be started. */
  bitcoin: Record<string, string> = {};

  private constructor(of: Parts) {
    this.folder = of.folder;
    this.disk = of.disk;
    this.hasDisk = of.hasDisk;
    this.mark = of.mark;
    this.stack = of.stack;
    this.vendor = of.vendor;
    this.httpPort = of.httpPort;
    this.proxies = of.proxies;
  }

  static async open(seed: number): Promise<World> {
    const folder = folderOf(seed);
    const mark = `faults-${seed}`;
    await mkdir(join('/tmp', 'tidemark-faults'), { recursive: true });
    await clear(folder, mark);
    const disk = join(folder, 'disk');
    await mkdir(disk, { recursive: true });
    writeFileSync(join(folder, 'owner.json'), JSON.stringify(processRef(process.pid)));
    process.env.TIDEMARK_TEST_RUN = mark;
    const hasDisk = mounted(disk);
    for (const name of ['vendor', 'clock']) await mkdir(join(folder, name));
    await chmod(folder, 0o755);
    writeFileSync(join(folder, 'clock', 'offset'), '0');
    const stack = await acquireStack({
      stateDir: join(disk, 'stack'),
      log: createLogger(process.env.TIDEMARK_TEST_LOG ?? 'silent', 'campaign'),
      profile: { sharedBuffersBytes: 64 * MIB, durable: false, responseTimeoutMs: 20_000, logAccounts: 3 },
    });
    stack.supervise();
    await makeTemplate(stack);
    const vendor = await startVendorServer(join(folder, 'vendor'));
    const httpPort = await freePortOf(seed);
    const portOf = (url: string | URL) => ({ host: '127.0.0.1', port: Number(new URL(url).port) });
    const log = portOf(stack.natsUrl);
    const proxies = {
      postgres: await startProxy('postgres', portOf(stack.databaseUrl)),
      nats: await startProxy('nats', log),
      projector: await startProxy('projector', log, { isLog: true }),
      vendor: await startProxy('vendor', portOf(vendor.url)),
      http: await startProxy('http', { host: '127.0.0.1', port: httpPort }),
      bitcoind: await startProxy('bitcoind', { host: '127.0.0.1', port: 1 }),
    };
    return new World({ folder, disk, hasDisk, mark, stack, vendor, httpPort, proxies });
  }

  /** Empty stores for the next epoch. */
  async begin(): Promise<void> {
    const admin = withDatabase(this.stack.databaseUrl, 'postgres');
    if (this.epoch > 0) {
      for (const name of [this.database, this.referenceDatabase, this.chainDatabase]) {
        await execute(admin, `drop database if exists ${name} with (force)`);
      }
    }
    await rm(this.state, { recursive: true, force: true });
    for (const name of ['vendor', 'issuers', `mirror-${this.epoch}`])
      await rm(join(this.folder, name), { recursive: true, force: true });
    this.epoch++;
    this.lostSnapshots.clear();
    await mkdir(join(this.folder, 'vendor'), { recursive: true });
    for (const name of [this.database, this.referenceDatabase]) {
      await copyTemplate(admin, name);
    }
    for (const account of [1, 2]) await this.#removeStreams(account);
  }

  /** Empty stores for an undisturbed run over the chain as it is now. */
  async beginChain(): Promise<void> {
    const admin = withDatabase(this.stack.databaseUrl, 'postgres');
    await execute(admin, `drop database if exists ${this.chainDatabase} with (force)`);
    await copyTemplate(admin, this.chainDatabase);
    await this.#removeStreams(3);
  }

  async #removeStreams(account: number): Promise<void> {
    await using connection = await connectNats(this.logUrls(account).natsOperatorUrl, 'campaign', {});
    const { streams } = await jetstreamManager(connection, { checkAPI: false });
    for await (const { config } of streams.list()) await streams.delete(config.name);
  }

  get database(): string {
    return `campaign_${this.epoch}`;
  }

  get referenceDatabase(): string {
    return `reference_${this.epoch}`;
  }

  get chainDatabase(): string {
    return `chain_${this.epoch}`;
  }

  /** State folder of the product's processes. */
  get state(): string {
    return join(this.disk, 'state');
  }

  get lake(): string {
    return join(this.disk, 'state', 'lake');
  }

  /** The database as its superuser, past every proxy. */
  get databaseUrl(): string {
    return withDatabase(this.stack.databaseUrl, this.database);
  }

  connect(database = this.database): Promise<Client> {
    return connect({ url: withDatabase(this.stack.databaseUrl, database), name: 'campaign' });
  }

  /** The log past every proxy: the product's account is 1, that of the undisturbed run 2. */
  logUrls(account: number): LogUrls {
    const urls = Object.entries(urlsOf(this.stack)).map(([user, url]) => [user, urlOfAccount(url, account)]);
    return Object.fromEntries(urls) as unknown as LogUrls;
  }

  #databaseUrls(database: string, port: number | undefined): Record<DatabaseRole, string> {
    return Object.fromEntries(
      DATABASE_ROLES.map((role) => {
        const url = new URL(withDatabase(this.stack.databaseUrls[role], database));
        if (port !== undefined) url.port = String(port);
        return [role, url.href];
      }),
    ) as Record<DatabaseRole, string>;
  }

  #stores(database: string, account: number, isDirect: boolean): Record<string, string> {
    const urls = this.#databaseUrls(database, isDirect ? undefined : this.proxies.postgres.port);
    const by = (url: string, proxy: LinkProxy) => {
      const result = new URL(url);
      if (!isDirect) result.port = String(proxy.port);
      return result.href;
    };
    const log = this.logUrls(account);
    const { nats, projector } = this.proxies;
    return {
      SVC_DATABASE_URL: urls.ingest,
      SVC_DATABASE_OWNER_URL: urls.owner,
      SVC_DATABASE_SERVE_URL: urls.serve,
      SVC_DATABASE_EXPORT_URL: urls.export,
      SVC_DATABASE_MONITOR_URL: urls.monitor,
      ...natsSettings({
        natsUrl: by(log.natsUrl, nats),
        natsProjectorUrl: by(log.natsProjectorUrl, projector),
        natsReaderUrl: by(log.natsReaderUrl, nats),
        natsOperatorUrl: by(log.natsOperatorUrl, nats),
      }),
    };
  }

  get #issuers(): Archives {
    return new Archives(join(this.folder, 'issuers'));
  }

  /** Each fund's page of a day. */
  async showPages(day: string): Promise<void> {
    for (const ticker of FUNDS) await this.#issuers.write(ticker, day, documentOf(ticker, dayOf(ticker, day)));
  }

  /** What every process of the product finds in its environment. */
  get settings(): Record<string, string> {
    const vendor = `http://127.0.0.1:${this.proxies.vendor.port}/`;
    const bases = VENDORS.flatMap((each) => Object.keys(each.settings(this.folder)));
    return {
      ...this.#stores(this.database, 1, false),
      ...SMALL,
      ...this.bitcoin,
      ...this.#issuers.settings(...FUNDS),
      ...Object.fromEntries(bases.map((name) => [name, vendor])),
      SVC_STATE_DIR: this.state,
      SVC_HTTP_PORT: String(this.httpPort),
      SVC_INTERNAL_API_KEY: API_KEY,
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
      SVC_LAKE_FOLDER: this.lake,
      ...limitsEnv(LIMITS, join(import.meta.dirname, '..', 'support', 'shifted-clock.mjs')),
      TIDEMARK_TEST_CLOCK_FILE: join(this.folder, 'clock', 'offset'),
    };
  }

  /** The same of the undisturbed run, which reads the vendor's documents from this folder. */
  referenceSettings(documents: string): Record<string, string> {
    return {
      ...this.#stores(this.referenceDatabase, 2, true),
      ...SMALL,
      ...this.#issuers.settings(...FUNDS),
      ...Object.assign({}, ...VENDORS.map((each) => each.settings(documents))),
      SVC_STATE_DIR: join(this.folder, `reference-${this.epoch}`),
      SVC_INTERNAL_API_KEY: API_KEY,
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    };
  }

  /** The same of the undisturbed run over the chain. */
  chainSettings(node: Readonly<Record<string, string>>): Record<string, string> {
    return {
      ...this.#stores(this.chainDatabase, 3, true),
      ...SMALL,
      ...node,
      SVC_STATE_DIR: join(this.folder, `chain-${this.epoch}`),
    };
  }

  setClock(offsetMs: number): void {
    writeFileSync(join(this.folder, 'clock', 'offset'), String(offsetMs));
  }

  pidOf(name: ServerName): number {
    return this.stack.processes.find((each) => each.name === name)!.pid;
  }

  /** Runs `work` while nats-server is down; its supervisor starts it again afterwards. */
  async withoutLog<T>(work: (accountFolder: string) => Promise<T>): Promise<T> {
    return await withLock(join(this.stack.stateDir, 'stack.lock'), { waitMs: 600_000 }, async () => {
      const ref = processRef(this.pidOf('nats'));
      if (ref) await endProcess(ref, [{ signal: 'SIGKILL', waitMs: 30_000 }]);
      const accounts = join(this.stack.stateDir, 'servers', 'nats', 'jetstream');
      const [first] = readdirSync(accounts).sort();
      return await work(join(accounts, first));
    });
  }

  copyFolder(from: string, to: string): Promise<void> {
    // With owners: the server runs as another user.
    execFileSync('cp', ['-a', from, to]);
    return Promise.resolve();
  }

  /** Ends everything at once, without waiting: the campaign itself was told to end. */
  abandon(): void {
    for (const pid of markedProcesses(this.mark)) signal(pid, 'SIGKILL');
    for (const { pid } of this.stack.processes) if (pid > 0) signal(pid, 'SIGKILL');
    unmount(this.disk);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const pid of markedProcesses(this.mark)) {
      signal(pid, 'SIGCONT');
      signal(pid, 'SIGKILL');
    }
    for (const proxy of Object.values(this.proxies)) await proxy[Symbol.asyncDispose]();
    await this.vendor[Symbol.asyncDispose]();
    await this.stack[Symbol.asyncDispose]();
  }

  /** Removes everything; a campaign that failed keeps its folder. */
  async remove(): Promise<void> {
    unmount(this.disk);
    await rm(this.folder, { recursive: true, force: true });
  }

  /** What is worth keeping of a disk that lives in memory. */
  async keep(): Promise<void> {
    if (!this.hasDisk) return;
    await cp(this.disk, join(this.folder, 'kept-disk'), { recursive: true }).catch(() => {});
    await delay(0);
    unmount(this.disk);
  }
}

/** Small frames, short times: each fault meets something in progress. */
const LIMITS = {
  frameRawBytes: 8192,
  publishWindow: 8,
  attemptSilenceMs: 5000,
  sourceTimeoutMs: 3000,
  nodePollMs: 1000,
  checkpointMs: 1000,
  compactEveryMs: 30_000,
  columnsQuietMs: 0,
  heartbeatMs: 1000,
  exportLeaseMs: 3000,
  exportCrashes: 1000,
  lakeCommitMs: 1000,
};
const SMALL = {
  ...limitsEnv(LIMITS),
  SVC_SAMPLE: 'false',
  SVC_STREAM_MAX_BYTES: String(16 * MIB),
  SVC_EXPORT_MAX_QUEUE: '100',
  SVC_FOLLOW_FILES_SECONDS: '2',
  SVC_FOLLOW_JITTER_SECONDS: '0',
  SVC_VERIFY_INTERVAL_SECONDS: '30',
};

/**
 * A copy by files. One by way of the write-ahead log holds sequences that PostgreSQL counts as logged ahead, which they are not
 * in the copy: after a crash they give TimescaleDB's catalog the same numbers again.
 */
const copyTemplate = (admin: string, name: string) =>
  execute(admin, `create database ${name} owner ${roleName('owner')} template ${TEMPLATE} strategy file_copy`);

async function makeTemplate(stack: Stack): Promise<void> {
  const admin = withDatabase(stack.databaseUrl, 'postgres');
  await execute(admin, `create database ${TEMPLATE}`);
  {
    await using client = await connect({ url: withDatabase(admin, TEMPLATE), name: 'campaign' });
    await provisionRoles(client, {});
    await migrate(client);
  }
  await using client = await connect({ url: admin, name: 'campaign' });
  await closeTemplate(client, TEMPLATE);
}
