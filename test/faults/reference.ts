/**
 * The undisturbed run: the same documents, brought in by the same commands in this process before any fault begins, and what
 * it answers. Its stores are a database and an account of the log of its own.
 */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createApp } from '../../serving/app.ts';
import { listen } from '../../serving/server.ts';
import { loadSettings } from '../../shared/config/load.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { runCommand } from '../support/command.ts';
import { OWN_MATRIX } from '../support/rights.ts';
import { testLogger } from '../support/stack.ts';
import { VENDORS, type Vendor } from '../support/vendors.ts';
import { ask, digestOf, questionsOf } from './answers.ts';
import type { Exchange, Version } from './schedule.ts';
import { API_KEY, type World } from './world.ts';

export interface FileDay {
  readonly vendor: Vendor;
  readonly exchange: Exchange;
  readonly index: number;
  readonly day: string;
  /** The archives that the vendor has published for it, the first one first. */
  readonly archives: Buffer[];
  /** By question: the digest of the right answer of each version, in their order. */
  readonly expected: Map<string, string[]>;
  /** Rows of each version, as texts. */
  readonly rows: string[][];
  /** Versions that the disturbed system may know of. */
  published: number;
  /** The latest version that an answer was seen of; answers that are asked for later have no earlier one. */
  seen: number;
}

const vendorOf = (exchange: Exchange): Vendor => VENDORS.find(({ dataset }) => dataset === `${exchange}_spot_trades`)!;

/** File days of an epoch lie within the last thirty, which `follow` looks at. */
const OLDEST_DAYS = 24;
const startOfToday = () => Math.floor(Date.now() / DAY_MS) * DAY_MS;

export class Reference {
  readonly #world: World;
  readonly days: FileDay[] = [];
  /** Midnight of the campaign's start: days keep their dates when it is midnight. */
  readonly #today = startOfToday();

  constructor(world: World) {
    this.#world = world;
  }

  get #documents(): string {
    return join(this.#world.folder, 'reference-vendor');
  }

  /** Forgets what an earlier epoch had. */
  async begin(): Promise<void> {
    this.days.length = 0;
    await rm(this.#documents, { recursive: true, force: true });
    await mkdir(this.#documents);
  }

  dayOf({ exchange, index }: Pick<Version, 'exchange' | 'index'>): FileDay {
    const found = this.days.find((each) => each.exchange === exchange && each.index === index);
    if (found) return found;
    const day = new Date(this.#today - (OLDEST_DAYS - index) * DAY_MS).toISOString().slice(0, 10);
    const made: FileDay = {
      ...{ vendor: vendorOf(exchange), exchange, index, day, archives: [], expected: new Map(), rows: [] },
      ...{ published: 0, seen: 0 },
    };
    this.days.push(made);
    return made;
  }

  /** Brings versions in, in their order, and asks every question about them. */
  async bring(versions: readonly Version[], kind: 'first' | 'revision'): Promise<FileDay[]> {
    const touched: FileDay[] = [];
    for (const version of versions) {
      const file = this.dayOf(version);
      const { vendor, day, archives, index } = file;
      const text = vendor.plainDay({ day, firstId: 1 + index * 1_000_000, rows: version.rows, seed: version.seed });
      archives.push(vendor.pack(day, text));
      await vendor.put(this.#documents, day, archives.at(-1));
      touched.push(file);
    }
    const settings = this.#world.referenceSettings(this.#documents);
    for (const vendor of VENDORS) {
      const of = touched.filter((each) => each.vendor === vendor).map(({ day }) => day);
      if (of.length === 0) continue;
      const command = kind === 'first' ? ['backfill'] : ['reingest', '--reason', 'the vendor republished it'];
      const days = kind === 'first' ? [[of.toSorted()[0], of.toSorted().at(-1)!]] : of.map((day) => [day, day]);
      for (const [from, to] of days) {
        const args = [command[0], vendor.dataset, '--from', from, '--to', to, ...command.slice(1)];
        const { exit, stdout, stderr } = await runCommand(args, settings);
        if (exit !== 0) throw new Error(`the undisturbed run failed (${args.join(' ')}): ${stdout} ${stderr}`);
      }
    }
    await this.#ask(touched, settings);
    return touched;
  }

  /** Brings the issuers' pages of a day in. */
  async bringPages(day: string): Promise<void> {
    const args = ['backfill', 'etf', '--from', day, '--to', day];
    const { exit, stdout, stderr } = await runCommand(args, this.#world.referenceSettings(this.#documents));
    if (exit !== 0) throw new Error(`the undisturbed run failed (${args.join(' ')}): ${stdout} ${stderr}`);
  }

  async #ask(touched: readonly FileDay[], settings: Record<string, string>): Promise<void> {
    const { SVC_DATABASE_SERVE_URL: databaseUrl, SVC_DATABASE_MONITOR_URL, SVC_STATE_DIR } = settings;
    await using app = createApp({
      settings: loadSettings({ cwd: '/nowhere', env: {}, flags: { SVC_DATABASE_MONITOR_URL, SVC_STATE_DIR } }),
      databaseUrl,
      apiKey: API_KEY,
      rightsMatrixPath: OWN_MATRIX,
      log: testLogger(),
    });
    const server = await listen(app.koa, '127.0.0.1', 0);
    try {
      for (const { vendor, day, expected, rows } of touched) {
        for (const question of questionsOf(vendor, day)) {
          const { path, body, accept, name } = question;
          const headers = { 'x-api-key': API_KEY, accept };
          const reply = await ask(server.url, path, { body, headers });
          if (reply.status !== 200)
            throw new Error(`the undisturbed run answers ${reply.status} to ${name}: ${reply.body}`);
          expected.set(name, [...(expected.get(name) ?? []), digestOf(question, reply.body)]);
          if (name === 'ndjson') rows.push(reply.body.toString().trimEnd().split('\n'));
        }
      }
    } finally {
      await server.close(1000);
    }
  }
}
