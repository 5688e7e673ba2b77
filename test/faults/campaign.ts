/** A campaign: rounds of work under faults, each followed by every oracle, until its time is over or something fails. */
import { appendFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Client } from '../../shared/db/connect.ts';
import { type Json, runCommand, startCommand } from '../support/command.ts';
import { marketDays } from '../support/etf.ts';
import { faultsOf } from '../support/lake.ts';
import { tablesPython } from '../support/tools.ts';
import { VENDORS } from '../support/vendors.ts';
import { CHAIN_KEYS, Chain } from './chain.ts';
import { Injector } from './injector.ts';
import { LakeReader } from './lake-reader.ts';
import * as oracles from './oracles.ts';
import { Excuses, Keeper, outcomeOf, type ProcessDeps } from './processes.ts';
import { type FileDay, Reference } from './reference.ts';
import { mendQuarantined } from './repairs.ts';
import { type Round, roundsOf } from './schedule.ts';
import { Tally } from './tally.ts';
import { Workload } from './workload.ts';
import { World } from './world.ts';

export interface CampaignOptions {
  readonly seed: number;
  readonly minutes: number;
  /** Receives progress, a line at a time. */
  readonly progress: (line: string) => void;
}

export interface CampaignEnd {
  readonly tally: Tally;
  readonly seconds: number;
  /** Kept where something failed. */
  readonly folder: string;
}

export async function runCampaign({ seed, minutes, progress }: CampaignOptions): Promise<CampaignEnd> {
  const startedAt = performance.now();
  const elapsed = () => (performance.now() - startedAt) / 1000;
  const tally = new Tally();
  const world = await World.open(seed);
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.once(name, () => {
      world.abandon();
      process.exit(130);
    });
  }
  const campaign = new Campaign(world, tally, seed);
  await campaign.startNode();
  try {
    for (const round of roundsOf(seed)) {
      tally.rounds = round.number;
      await campaign.round(round);
      progress(
        `seed ${seed}, round ${round.number}: ${tally.faultCount} faults, ${tally.answers} answers, ${Math.round(elapsed())} s`,
      );
      if (tally.failures.length > 0 || elapsed() >= minutes * 60) break;
    }
  } catch (error) {
    tally.fail(`the campaign broke: ${(error as Error).stack ?? error}`);
  } finally {
    await campaign.end().catch((error) => tally.fail(`the end: ${error}`));
    await campaign.endNode();
    await world[Symbol.asyncDispose]();
  }
  if (tally.failures.length === 0) await world.remove();
  else await world.keep();
  return { tally, seconds: elapsed(), folder: world.folder };
}

/** Each round has the issuers' pages of a market day, from this one on. */
const FIRST_PAGE = '2024-02-01';
const FOLLOWED = VENDORS.map(({ dataset }) => dataset);

class Campaign {
  readonly #world: World;
  readonly #tally: Tally;
  readonly #seed: number;
  readonly #reference: Reference;
  readonly #excuses = new Excuses();
  #keepers: Keeper[] = [];
  /** It takes a snapshot of the mempool every few seconds: while everything is compared it is not there. */
  #follow: Keeper | undefined;
  #workload: Workload | undefined;
  #chain: Chain | undefined;
  /** Where Python has the engines. */
  #reader: LakeReader | undefined;

  constructor(world: World, tally: Tally, seed: number) {
    this.#world = world;
    this.#tally = tally;
    this.#seed = seed;
    this.#reference = new Reference(world);
  }

  get #deps(): ProcessDeps {
    return { world: this.#world, tally: this.#tally, excuses: this.#excuses };
  }

  /** Of the service, through its proxy and past it. */
  get #url(): string {
    return `http://127.0.0.1:${this.#world.proxies.http.port}`;
  }

  get #directUrl(): string {
    return `http://127.0.0.1:${this.#world.httpPort}`;
  }

  #say(line: string): void {
    appendFileSync(join(this.#world.folder, 'campaign.log'), `${new Date().toISOString()} ${line}\n`);
  }

  async round(round: Round): Promise<void> {
    const { days } = this.#reference;
    const tally = this.#tally;
    this.#say(`round ${round.number}`);
    if (round.isFresh) await this.#beginEpoch(round);
    const first = await this.#reference.bring(round.days, 'first');
    const revised: FileDay[] = [];
    for (const revision of round.revisions) revised.push(...(await this.#reference.bring([revision], 'revision')));
    const page = marketDays(FIRST_PAGE, round.number).at(-1)!;
    await this.#world.showPages(page);
    await this.#reference.bringPages(page);
    this.#say('the undisturbed run is done');
    const workload = this.#workload!;
    workload.isQuiet = false;
    const injector = new Injector({
      ...this.#deps,
      chain: this.#chain,
      days: () => days,
      say: (line) => this.#say(line),
    });
    this.#follow = new Keeper(this.#deps, ['follow', ...FOLLOWED, ...(this.#chain ? ['bitcoin'] : [])]);
    let isDone = false;
    await this.#chain?.grow(round.blocks, round.reorganised);
    const bring = async () => {
      await workload.bringIn(first, revised);
      if (tally.failures.length === 0) await workload.bringPages(page);
      if (this.#chain && tally.failures.length === 0) await workload.bringBlocks();
    };
    const work = bring().finally(() => {
      isDone = true;
    });
    // The schedule is carried out to its end, whether or not the documents are there before.
    await injector.run(round.steps, () => this.#tally.failures.length > 0);
    this.#say(`healed; the documents are ${isDone ? '' : 'not yet '}in`);
    await work;
    if (tally.failures.length === 0) await this.#settleChain();
    await this.#follow.stop();
    await mendQuarantined(this.#deps);
    workload.isQuiet = true;
    if (this.#tally.failures.length === 0) await this.#check();
    this.#excuses.clear();
  }

  /** A node beside the world, where one can be started. */
  async startNode(): Promise<void> {
    try {
      this.#chain = await Chain.open(this.#world.folder);
    } catch (error) {
      this.#say(`no node: ${error}`);
      return;
    }
    const { bitcoind } = this.#world.proxies;
    bitcoind.target = { host: '127.0.0.1', port: Number(new URL(this.#chain.node.url).port) };
    this.#world.bitcoin = this.#chain.settings(String(bitcoind.port));
  }

  /** The blocks of the node are in, those on top of a branch that was left as well; and those of an undisturbed run. */
  async #settleChain(): Promise<void> {
    if (!this.#chain) return;
    await this.#chain.giveBack();
    await this.#workload!.bringBlocks();
    await this.#world.beginChain();
    const settings = this.#world.chainSettings(this.#chain.settings());
    const { exit, stdout, stderr } = await runCommand(['backfill', 'bitcoin'], settings);
    if (exit !== 0) this.#tally.fail(`the undisturbed run over the chain failed: ${stdout} ${stderr}`);
  }

  async #beginEpoch({ number }: Round): Promise<void> {
    await this.end();
    await this.#world.begin();
    await this.#reference.begin();
    const deps = this.#deps;
    this.#keepers = [['up'], ['up', '--only', 'exports']].map((args) => new Keeper(deps, args));
    this.#workload = new Workload({
      ...deps,
      days: () => this.#reference.days,
      url: this.#url,
      seed: this.#seed * 1000 + number,
    });
    this.#workload.start();
    const python = await tablesPython();
    if (python.missing !== undefined) Tally.count(this.#tally.misses, `reader of the lake: ${python.missing}`);
    else this.#reader = new LakeReader(python, this.#world.lake);
  }

  async endNode(): Promise<void> {
    await this.#chain?.[Symbol.asyncDispose]();
  }

  async end(): Promise<void> {
    await this.#workload?.end();
    await this.#reader?.stop();
    for (const [name, count] of Object.entries(this.#reader?.reads ?? {}))
      this.#tally.operation(`read the lake: ${name}`, count);
    this.#tally.operation('versions of the lake that were read', this.#reader?.versions ?? 0);
    this.#reader = undefined;
    await Promise.all([this.#follow, ...this.#keepers].map((keeper) => keeper?.stop()));
    this.#workload = undefined;
    this.#keepers = [];
    this.#follow = undefined;
  }

  // ---- oracles -----------------------------------------------------------------------------------------------------

  /** Every oracle; those that wait come first. */
  async #check(): Promise<void> {
    const { days } = this.#reference;
    const tally = this.#tally;
    const world = this.#world;
    await using client = await world.connect();
    await using reference = await world.connect(world.referenceDatabase);
    const steps: [string, () => Promise<string | undefined>][] = [
      ['the service is up', () => oracles.settled(() => this.#isUp())],
      ['each export ended once', () => this.#exports()],
      ['partitions equal the undisturbed run', () => oracles.samePartitions(client, reference)],
      [
        'rows equal the undisturbed run',
        () => oracles.sameTables(client, reference, (key) => !key.startsWith('bitcoin_')),
      ],
      ['blocks equal the undisturbed run', () => this.#blocks(client)],
      ['what the proof log states last is so', () => oracles.leavesHold(client)],
      ['every answer is the last version', () => oracles.answersOf(this.#directUrl, days)],
      ['each proof has its leaf', () => oracles.leavesOfProofs(client)],
      [
        'changes heard are all leaves, once and in order',
        () => oracles.settled(async () => oracles.sameChanges(this.#workload!.changes, await oracles.leavesOf(client))),
      ],
      [
        'changes in pages are all leaves, once and in order',
        () =>
          oracles.settled(async () =>
            oracles.sameChanges(await oracles.pagesOf(this.#directUrl), await oracles.leavesOf(client)),
          ),
      ],
      ['the watcher saw one history', () => this.#workload!.look()],
      ['the proof log holds', () => oracles.proofLogHolds(world.state)],
      ['the lake equals the service', () => this.#lake(client)],
      ['every version of the lake that was read is whole and proved', () => this.#versions(client)],
      ['a mirror equals the lake', () => this.#mirror()],
      ["every issuer's page is kept", () => this.#command(['reingest', 'etf', '--kept'])],
      ['the audit log verifies', () => this.#command(['audit', 'verify'])],
      ['every row verifies against the log', () => this.#verify()],
    ];
    for (const [name, check] of steps) {
      this.#say(`oracle: ${name}`);
      await tally.oracle(name, check);
      if (tally.failures.length > 0) return;
    }
  }

  async #blocks(client: Client): Promise<string | undefined> {
    if (!this.#chain) return undefined;
    await using undisturbed = await this.#world.connect(this.#world.chainDatabase);
    return await oracles.sameTables(client, undisturbed, (key) => CHAIN_KEYS.has(key));
  }

  async #versions(client: Client): Promise<string | undefined> {
    const faults = (await this.#reader?.faultsOf(client)) ?? [];
    return faults.length === 0 ? undefined : `${faults.length}: ${faults.slice(0, 5).join('; ')}`;
  }

  async #mirror(): Promise<string | undefined> {
    const folder = join(this.#world.folder, `mirror-${this.#world.epoch}`);
    await this.#workload!.mirror(folder);
    return oracles.differencesOf(await oracles.lakeFiles(folder), await oracles.lakeFiles(this.#world.lake));
  }

  async #isUp(): Promise<string | undefined> {
    const reply = await fetch(`${this.#directUrl}/readyz`).catch((error) => String(error));
    if (typeof reply === 'string') return reply;
    return reply.status === 200 ? undefined : await reply.text();
  }

  async #command(args: readonly string[]): Promise<string | undefined> {
    const answer = await startCommand([...args, '--no-progress'], this.#world.settings).done;
    const { outcome, fault } = outcomeOf(answer, new Set());
    return outcome === 'done' ? undefined : (fault ?? `${outcome} ${answer.stdout.slice(-2000)}`);
  }

  /** Snapshots that the log has lost stay served; nothing can publish them again, and `verify` says so. */
  async #verify(): Promise<string | undefined> {
    const { json, stdout, stderr } = await startCommand(['verify', 'all', '--deep'], this.#world.settings).done;
    const units: Json[] = json?.units ?? [];
    if (units.length === 0) return `nothing was verified: ${stdout} ${stderr}`;
    const { lostSnapshots } = this.#world;
    const wrong = units.filter(
      ({ state, code, partition }) => state !== 'proved' && !(code === 'LOG_DAMAGED' && lostSnapshots.has(partition)),
    );
    this.#tally.operation('verified partitions', units.length);
    return wrong.length === 0 ? undefined : JSON.stringify(wrong.slice(0, 5));
  }

  async #exports(): Promise<string | undefined> {
    const { exports } = this.#workload!;
    for (const one of exports) {
      // An answer that was lost: the same key gives the same export.
      const lost = await oracles.settled(async () => {
        const fault = await this.#workload!.submit(one);
        if (fault) return fault;
        return one.id === undefined ? 'it was not taken' : undefined;
      });
      const fault = lost ?? (await oracles.exportEnded(this.#directUrl, one, this.#excuses.has('LOG_FULL')));
      if (fault) return fault;
      this.#tally.operation('checked an export');
    }
    const lines = [
      ...(await oracles.auditLines(join(this.#world.state, 'export-audit'))),
      ...(await oracles.unwrittenLines(join(this.#world.folder, 'log'))),
    ];
    const ids = exports.map(({ id }) => id!);
    const ends = oracles.oneEndEach(lines, ids);
    if (ends) return ends;
    // Those of earlier rounds were checked then.
    exports.length = 0;
    if (ids.length === 0) return undefined;
    const folder = join(this.#world.folder, 'downloaded');
    if (!(await oracles.download(this.#directUrl, ids.at(-1)!, folder))) return undefined;
    return await this.#command(['check', folder, '--log', join(this.#world.state, 'proof-log')]);
  }

  async #lake(client: Awaited<ReturnType<World['connect']>>): Promise<string | undefined> {
    const { lake, folder } = this.#world;
    const behind = await oracles.settled(async () => {
      const leaves = await oracles.leavesOf(client);
      const change = await oracles.lakeChange(lake);
      return change === leaves.length ? undefined : `it has ${change} of ${leaves.length} changes`;
    });
    if (behind) return behind;
    const faults = await faultsOf(lake);
    if (faults.length > 0) return faults.join('; ');
    const calm = join(folder, 'calm-lake');
    await rm(calm, { recursive: true, force: true });
    const written = await this.#command(['lake', '--to', calm]);
    if (written) return written;
    return oracles.differencesOf(await oracles.lakeFiles(lake), await oracles.lakeFiles(calm));
  }
}
