/** What runs while faults strike: documents come in, are replaced and read in every way, exported, followed and watched. */
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { type Change, Changes } from '../../client/changes.ts';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { httpSource } from '../../shared/proof-log/http.ts';
import { LogUnreachable } from '../../shared/proof-log/tiles.ts';
import { lookAt, type Watched } from '../../shared/proof-log/watch.ts';
import { type Answer, type Json, startCommand } from '../support/command.ts';
import { VENDORS } from '../support/vendors.ts';
import { ask, digestOf, questionsOf, type Reply } from './answers.ts';
import { outcomeOf, type ProcessDeps, untilDone } from './processes.ts';
import type { FileDay } from './reference.ts';
import { API_KEY } from './world.ts';

/** Longest way of a round's documents to their proofs, on a machine that does much else. */
const DOCUMENTS_MS = 900_000;
/** An answer that nobody disturbs comes within this time; one that takes longer hangs. */
const ANSWER_MS = 180_000;

export interface ExportOf {
  readonly key: string;
  readonly file: FileDay;
  readonly format: 'csv' | 'parquet';
  id?: string;
}

export interface WorkloadDeps extends ProcessDeps {
  readonly days: () => readonly FileDay[];
  readonly url: string;
  readonly seed: number;
}

const ENDED: ReadonlySet<string> = new Set(['proved', 'unchanged', 'quarantined']);

/**
 * Whether a backfill has done what it can: heights whose blocks have left the chain, and attempts whose first frames a log has lost,
 * stay quarantined until the operator mends them.
 */
function isBroughtIn({ signal, json }: Answer): boolean {
  const units: Json[] = json?.units ?? [];
  return (
    signal === null &&
    units.length > 0 &&
    !json.error &&
    !json.feeds.some(({ error }: Json) => error) &&
    units.every(({ state }) => ENDED.has(state))
  );
}

/** Problems that a fault of a store or a process explains. */
const PASSING = new Set([503]);

export class Workload {
  readonly #deps: WorkloadDeps;
  readonly changes: Change[] = [];
  readonly exports: ExportOf[] = [];
  readonly #stop = new AbortController();
  /** Of the proof log, all along. */
  #watched: Partial<Watched> = {};
  readonly #loops: Promise<void>[] = [];
  #exportCount = 0;
  /** Between rounds nobody submits exports, so that those there are come to an end. */
  isQuiet = false;

  constructor(deps: WorkloadDeps) {
    this.#deps = deps;
  }

  /** Listens, reads, exports and watches until `end`. */
  start(): void {
    const { signal } = this.#stop;
    const loops = [this.#listen(), this.#watch(), this.#export(), this.#compete(), this.#read(1), this.#read(2)];
    this.#loops.push(
      ...loops.map((loop) =>
        loop.catch((error) => {
          if (!signal.aborted) this.#deps.tally.fail(`the workload broke: ${error?.stack ?? error}`);
        }),
      ),
    );
  }

  async end(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#loops);
  }

  /** Brings the documents of a round in, and then their revisions, each as the vendor publishes it. */
  async bringIn(first: readonly FileDay[], revised: readonly FileDay[]): Promise<void> {
    const { world, tally } = this.#deps;
    const publish = async (file: FileDay) => {
      await file.vendor.put(`${world.folder}/vendor`, file.day, file.archives[file.published]);
      file.published++;
    };
    for (const file of first) await publish(file);
    // Days that one exchange has and another has not would be looked for in vain.
    for (const { dataset } of VENDORS) {
      const of = first
        .filter(({ vendor }) => vendor.dataset === dataset)
        .map(({ day }) => day)
        .toSorted();
      if (of.length > 0)
        await untilDone(
          this.#deps,
          ['backfill', dataset, '--from', of[0], '--to', of.at(-1)!],
          DOCUMENTS_MS,
          isBroughtIn,
        );
    }
    for (const file of revised) {
      if (tally.failures.length > 0) return;
      await publish(file);
      const { vendor, day } = file;
      const args = ['reingest', vendor.dataset, '--from', day, '--to', day, '--reason', 'the vendor republished it'];
      await untilDone(this.#deps, args, DOCUMENTS_MS);
    }
  }

  /** Blocks up to the node's tip. */
  async bringBlocks(): Promise<void> {
    await untilDone(this.#deps, ['backfill', 'bitcoin'], DOCUMENTS_MS, isBroughtIn);
  }

  async bringPages(day: string): Promise<void> {
    await untilDone(this.#deps, ['backfill', 'etf', '--from', day, '--to', day], DOCUMENTS_MS, isBroughtIn);
  }

  async mirror(folder: string): Promise<void> {
    await untilDone(this.#deps, ['mirror', `${this.#deps.url}/v1/lake`, folder], DOCUMENTS_MS);
  }

  async #listen(): Promise<void> {
    const { url, tally } = this.#deps;
    const { signal } = this.#stop;
    const transport = {
      baseUrl: url,
      apiKey: API_KEY,
      timeoutMs: 10_000,
      stallTimeoutMs: 10_000,
      maxRetryWaitMs: 5_000,
    };
    const listener = new Changes(transport);
    for await (const change of listener.follow({ since: 0 }, { signal })) {
      const expected = (this.changes.at(-1)?.number ?? 0) + 1;
      if (change.number !== expected) tally.fail(`the listener got change ${change.number} where ${expected} was next`);
      this.changes.push(change);
    }
  }

  /** A look at the proof log, as a watcher takes it. */
  async look(): Promise<string | undefined> {
    const { url } = this.#deps;
    try {
      const { report, watched } = await lookAt(httpSource(url, AbortSignal.timeout(20_000)), this.#watched);
      if (report.faults.length > 0) return report.faults.join('; ');
      this.#watched = watched!;
      return undefined;
    } catch (error) {
      if (error instanceof LogUnreachable || !(error instanceof Error)) return undefined;
      // A connection that breaks within a file.
      if (/fetch failed|terminated|aborted|timeout/i.test(`${error.message} ${error.name}`)) return undefined;
      throw error;
    }
  }

  async #watch(): Promise<void> {
    const { tally } = this.#deps;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const fault = await this.look();
      if (fault) tally.fail(`the watcher of the proof log says: ${fault}`);
      tally.operation('watched the proof log');
      await pause(500, signal);
    }
  }

  async #read(reader: number): Promise<void> {
    const { tally, days, seed } = this.#deps;
    const { signal } = this.#stop;
    const random = seededRandom(seed * 10 + reader);
    const pick = <T>(items: readonly T[]): T => items[Math.floor(random() * items.length)];
    while (!signal.aborted) {
      const published = days().filter((file) => file.published > 0);
      if (published.length > 0) {
        const file = pick(published);
        const question = pick(questionsOf(file.vendor, file.day));
        tally.operation(`asked ${question.name}`);
        const fault = await this.#question(file, question);
        if (fault) tally.fail(`${file.vendor.dataset} ${file.day} ${question.name}: ${fault}`);
      }
      await pause(30 + random() * 100, signal);
    }
  }

  /** Asks, and compares the answer with those of the undisturbed run. */
  async #question(file: FileDay, question: ReturnType<typeof questionsOf>[number]): Promise<string | undefined> {
    const { tally, url } = this.#deps;
    const { seen } = file;
    const { path, body, accept } = question;
    const reply = await this.#asked(() =>
      ask(url, path, { body, headers: { 'x-api-key': API_KEY, accept }, signal: AbortSignal.timeout(ANSWER_MS) }),
    );
    if (typeof reply === 'string') return reply;
    if (!reply) return undefined;
    const verdict = judged(file, question, reply, seen);
    if (reply.status === 200) tally.answers++;
    return verdict;
  }

  /** @returns undefined where a fault broke the connection, a text where nothing explains it */
  async #asked(send: () => Promise<Reply>): Promise<Reply | string | undefined> {
    try {
      const reply = await send();
      if (PASSING.has(reply.status)) {
        this.#deps.tally.operation('refused with 503');
        return undefined;
      }
      return reply;
    } catch (error) {
      if ((error as Error).name === 'TimeoutError') return `hangs for ${ANSWER_MS / 1000} s`;
      this.#deps.tally.operation('answer cut');
      return undefined;
    }
  }

  async #export(): Promise<void> {
    const { tally, days, seed } = this.#deps;
    const { signal } = this.#stop;
    const random = seededRandom(seed * 10 + 7);
    while (!signal.aborted) {
      await pause(300 + random() * 600, signal);
      const published = days().filter((file) => file.seen > 0);
      if (published.length === 0 || this.isQuiet || signal.aborted) continue;
      const file = published[Math.floor(random() * published.length)];
      const format = random() < 0.6 ? 'csv' : 'parquet';
      const key = `export-${++this.#exportCount}`;
      const of: ExportOf = { key, file, format };
      this.exports.push(of);
      tally.operation(`exported ${format}`);
      const fault = await this.submit(of);
      if (fault) tally.fail(`export of ${file.vendor.dataset} ${file.day}: ${fault}`);
    }
  }

  /** Another writer of the lake, which writes where the first one has lost the lock with the database, or its life. */
  async #compete(): Promise<void> {
    const { world, tally, excuses } = this.#deps;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await pause(8000, signal);
      if (this.isQuiet || signal.aborted) continue;
      const { outcome, fault } = outcomeOf(
        await startCommand(['lake', '--to', world.lake, '--no-progress'], world.settings).done,
        excuses,
      );
      tally.operation(`a second writer of the lake: ${outcome}`);
      if (fault) tally.fail(`an unexpected end of the second writer of the lake: ${fault}`);
    }
  }

  /** Submits an export, once or again: its key makes one of them. */
  async submit(of: ExportOf): Promise<string | undefined> {
    const { vendor, day } = of.file;
    const [{ body }] = questionsOf(vendor, day);
    const { sources: _, ...rows } = body as { sources: string[] };
    const reply = await this.#asked(() =>
      ask(this.#deps.url, '/v1/raw/export', {
        body: { dataset: vendor.dataset, format: of.format, ...rows },
        headers: { 'x-api-key': API_KEY, 'idempotency-key': of.key },
        signal: AbortSignal.timeout(ANSWER_MS),
      }),
    );
    if (typeof reply === 'string' || reply === undefined) return reply;
    if (reply.status !== 202) return `${reply.status} ${reply.body}`;
    const { export_id } = JSON.parse(reply.body.toString());
    if (of.id !== undefined && of.id !== export_id) return `two exports of one key: ${of.id} and ${export_id}`;
    of.id = export_id;
    return undefined;
  }
}

/** What is wrong with an answer about a file day, or undefined. A right one may raise the version that is known to be served. */
export function judged(
  file: FileDay,
  question: Pick<ReturnType<typeof questionsOf>[number], 'name' | 'accept'>,
  { status, body, headers }: Pick<Reply, 'status' | 'body'> & Partial<Pick<Reply, 'headers'>>,
  seen: number,
): string | undefined {
  // A frame has buckets for what lies between proved days, without values and with a warning.
  const isGap = status === 200 && String(headers?.['x-svc-warnings'] ?? '').includes('WINDOW_EXCEEDS_PROVED_COVERAGE');
  if (status === 404 || isGap) return seen > 0 ? `not there, though version ${seen} was served before` : undefined;
  if (status !== 200) return `${status} ${body.subarray(0, 1000)}`;
  const version = file.expected.get(question.name)!.lastIndexOf(digestOf(question, body)) + 1;
  if (version === 0)
    return `an answer that no version gives (${createHash('sha256').update(body).digest('hex')}): ${body.subarray(0, 700)}`;
  if (version > file.published) return `version ${version}, which the vendor has not published yet`;
  // Versions may agree on a question, such as a filter that nothing passes.
  if (version < seen) return `version ${version} after version ${seen}`;
  if (new Set(file.expected.get(question.name)).size === file.expected.get(question.name)!.length) {
    file.seen = Math.max(file.seen, version);
  }
  return undefined;
}

const pause = (ms: number, signal: AbortSignal) => delay(ms, undefined, { signal }).catch(() => {});
