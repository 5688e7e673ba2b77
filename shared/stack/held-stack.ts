/** A stack as one of its holders has it: addresses, supervision, leaving. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { DatabaseRole } from '../db/roles.ts';
import { explain } from '../errors.ts';
import type { NatsRole } from '../nats/accounts.ts';
import type { AcquireOptions, Stack, StackProcess } from './contract.ts';
import { ensureServers } from './ensure.ts';
import type { Runtime } from './install.ts';
import { natsUrl } from './nats.ts';
import type { Place } from './place.ts';
import { everyRole, postgresUrl, roleUrls } from './postgres.ts';
import { databasePasswords, natsPasswords, type Secrets } from './secrets.ts';
import { SERVER_NAMES, type Server, type ServerName, type ServerRecord } from './server.ts';
import { countHolders, forgetProcesses, type Records, readState, removeHolder, writeState } from './state.ts';

const RESTART_BACKOFF_MS = [0, 200, 500, 1_000, 2_000, 5_000];

export interface HeldStackOptions extends AcquireOptions {
  readonly secrets: Secrets;
  /** Those not given by URL. */
  readonly needed: readonly Server[];
  /** Also what another holder, without URLs, may have started: the last one stops that too. */
  readonly all: readonly Server[];
  readonly records: Records;
  readonly holder: string;
  readonly locked: <T>(section: () => Promise<T>) => Promise<T>;
  readonly owned: boolean;
  readonly place: Place;
}

export class HeldStack implements Stack {
  readonly stateDir: string;
  readonly owned: boolean;
  readonly runtime: Runtime | undefined;
  readonly databaseSocketDir: string | undefined;
  readonly #options: HeldStackOptions;
  #records: Records;
  #disposal: Promise<void> | undefined;
  #supervision: Promise<void> | undefined;
  readonly #ending = new AbortController();

  constructor(options: HeldStackOptions) {
    this.#options = options;
    this.#records = options.records;
    this.stateDir = options.stateDir;
    this.owned = options.owned;
    this.runtime = options.place.runtime;
    this.databaseSocketDir = options.databaseUrl === undefined ? options.place.socketDir : undefined;
  }

  get databaseUrls(): Readonly<Record<DatabaseRole, string>> {
    const { databaseUrl, secrets } = this.#options;
    if (databaseUrl !== undefined) return everyRole(databaseUrl);
    return roleUrls(this.#records.postgres as ServerRecord, databasePasswords(secrets));
  }

  get databaseUrl(): string {
    const { databaseUrl, secrets } = this.#options;
    return databaseUrl ?? postgresUrl(this.#records.postgres as ServerRecord, secrets.databasePassword);
  }

  get natsUrl(): string {
    return this.#natsUrlOf('publisher');
  }

  get natsProjectorUrl(): string {
    return this.#natsUrlOf('projector');
  }

  get natsReaderUrl(): string {
    return this.#natsUrlOf('reader');
  }

  get natsExportUrl(): string {
    return this.#natsUrlOf('export');
  }

  get natsOperatorUrl(): string {
    return this.#natsUrlOf('operator');
  }

  #natsUrlOf(role: NatsRole): string {
    const { natsUrl: given, secrets } = this.#options;
    return given ?? natsUrl(this.#records.nats as ServerRecord, role, natsPasswords(secrets));
  }

  get apiKey(): string | undefined {
    return this.#options.databaseUrl === undefined ? this.#options.secrets.apiKey : undefined;
  }

  get processes(): StackProcess[] {
    const { databaseUrl, natsUrl: brokerUrl } = this.#options;
    const given: Record<ServerName, string | undefined> = { postgres: databaseUrl, nats: brokerUrl };
    return SERVER_NAMES.map((name) => {
      const pid = given[name] === undefined ? (this.#records[name]?.pid ?? 0) : 0;
      return { name, pid, external: pid === 0 };
    });
  }

  supervise(onRestart: (name: ServerName) => void = () => {}): void {
    this.#supervision ??= this.#superviseUntil(this.#ending.signal, onRestart);
  }

  async #superviseUntil(ending: AbortSignal, onRestart: (name: ServerName) => void): Promise<void> {
    const { needed, locked, stateDir, place, log } = this.#options;
    const dead = async () => {
      const alive = await Promise.all(
        needed.map((server) => server.isAlive(this.#records[server.name] as ServerRecord)),
      );
      return needed.filter((_, index) => !alive[index]);
    };
    const intervalMs = Math.max(...needed.map((server) => server.checkIntervalMs));
    for (let failures = 0; !ending.aborted; ) {
      try {
        await sleep(intervalMs + RESTART_BACKOFF_MS[Math.min(failures, RESTART_BACKOFF_MS.length - 1)], null, {
          signal: ending,
          ref: false,
        });
      } catch {
        return;
      }
      const missing = await dead();
      if (missing.length === 0) {
        failures = 0;
        continue;
      }
      try {
        await locked(async () => {
          if (ending.aborted) return;
          // Another holder may have been quicker; then its server is adopted.
          this.#records = (await ensureServers(stateDir, { ...place, servers: needed, inUse: true, log })).records;
        });
        failures++;
        for (const server of missing) onRestart(server.name);
      } catch (error) {
        failures++;
        log.error({ fault: explain(error) }, 'a server of the stack could not be started again; trying further');
      }
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#disposal ??= this.#leave();
    return this.#disposal;
  }

  async #leave(): Promise<void> {
    const { stateDir, holder, locked, place } = this.#options;
    this.#ending.abort();
    await this.#supervision;
    if (!existsSync(join(stateDir, 'stack.json'))) {
      // The folder was removed under us: nobody else can find these servers any more.
      await this.#stop(this.#records);
      return;
    }
    await locked(async () => {
      await removeHolder(stateDir, holder);
      if ((await countHolders(stateDir)) > 0) return;
      const servers = (await readState(stateDir))?.servers ?? this.#records;
      await this.#stop(servers);
      await writeState(stateDir, place.kind, forgetProcesses(servers));
    });
  }

  async #stop(running: Records): Promise<void> {
    await Promise.all(
      this.#options.all.map(async (server) => {
        const record = running[server.name];
        if (record && (await server.isAlive(record))) await server.stop(record);
      }),
    );
  }
}
