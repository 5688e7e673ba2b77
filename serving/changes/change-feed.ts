/**
 * The changes of the catalog, in the order of the proof log, and the event streams that follow them. A change is read after its
 * leaf has an index, which is after the commit that it is about. All streams share one connection to the database and one copy of
 * the changes, so that a stream costs its own connection to the client and nothing else.
 */
import type { ServerResponse } from 'node:http';
import { setImmediate } from 'node:timers/promises';
import type { QueryConfig } from 'pg';
import { type Client, connect } from '../../shared/db/connect.ts';
import { assert, explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { SECRET_BYTES } from '../../shared/proof-log/commitment.ts';
import { changeNumber, changeText } from '../../shared/proof-log/leaf.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import { baseNumber, type Instrument } from '../../shared/registry/instruments.ts';
import { instrumentOfKey } from '../../shared/registry/keys.ts';

/** The dataset of a change, or its instrument. */
export type ChangedDataset = Pick<DatasetDefinition, 'key'> & Partial<Pick<DatasetDefinition, 'trades' | 'instrument'>>;

/** One change, as both representations send it. */
interface Change {
  readonly number: number;
  /** Null where the change is about the log itself. */
  readonly dataset: ChangedDataset | null;
  readonly synthetic: boolean;
  /** The event: an `id` line and a `data` line with the JSON, its salt included. */
  readonly event: Buffer;
  /** Where the text of the salt begins in it, with its quotation marks; undefined where the leaf has none. */
  readonly saltAt: number | undefined;
}

/** Whether a reader wants the changes of a dataset. */
export type Covers = (dataset: ChangedDataset) => boolean;

/** Whether readers may have the salt of a leaf. */
type MayOpen = (dataset: string, synthetic: boolean) => boolean;

export interface FeedLimits {
  readonly heartbeatMs: number;
  /** A listener that reads nothing for this long is disconnected. */
  readonly stallMs: number;
}

interface FeedNeeds {
  readonly databaseUrl: string;
  readonly limits: FeedLimits;
  /** Asks the rights who may have salts. */
  readonly openers: () => MayOpen;
  readonly log: Logger;
}

/** Changes that are read from the database at once and kept together. */
const BLOCK = 256;
/** Kept blocks, the last used ones: 13 MB of changes. */
const MAX_BLOCKS = 64;
/** While there are listeners, the feed asks this often for new changes. */
const POLL_MS = 200;
/** A database that does not answer for this long counts as lost. */
const QUERY_TIMEOUT_MS = 5000;
/** Most bytes that one write to a listener takes; a listener that does not read holds no more than this and what the kernel takes. */
const WRITE_BYTES = 16 * 1024;
/** Listeners that are written to before other work of the process gets its turn. */
const BATCH = 200;

const DATASET_BY_NUMBER = new Map([...DATASETS.values()].map((dataset) => [dataset.number, dataset]));
const HEARTBEAT = Buffer.from(': heartbeat\n\n');

interface Listener {
  readonly response: ServerResponse;
  readonly covers: Covers;
  /** Number of the last change that was sent or passed over. */
  position: number;
  /** Number of the last `id` that was sent. */
  sent: number;
  /** When it stopped to read, by `performance.now()`. */
  blockedAt: number | undefined;
  isWriting: boolean;
}

export interface ChangePage {
  /** JSON of each change. */
  readonly changes: readonly string[];
  /** The number to ask on from. */
  readonly next: number;
}

export class ChangeFeed implements AsyncDisposable {
  readonly #needs: FeedNeeds;
  readonly #listeners = new Set<Listener>();
  readonly #blocks = new Map<number, Change[]>();
  readonly #loading = new Map<number, Promise<Change[]>>();
  readonly #timers: NodeJS.Timeout[] = [];
  #client: Promise<Client> | undefined;
  #size = 0;
  /** Of the last question for new changes: rights that change count from the next one. */
  #mayOpen: MayOpen = () => false;
  #asking: Promise<number> | undefined;
  #evicted = 0;
  #isFaulty = false;

  constructor(needs: FeedNeeds) {
    this.#needs = needs;
  }

  get load(): { readonly listeners: number; readonly evicted: number } {
    return { listeners: this.#listeners.size, evicted: this.#evicted };
  }

  /** Number of the last change, now. @throws the database's error */
  last(): Promise<number> {
    this.#asking ??= this.#askLast().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  /** The same, as new as the last answer of the database where that is not older than `number`. */
  async lastSince(number: number): Promise<number> {
    return this.#listeners.size > 0 && number <= this.#size ? this.#size : await this.last();
  }

  /** At most `limit` changes after `since`, which is not after the last. @throws the database's error */
  async page(since: number, limit: number, covers: Covers): Promise<ChangePage> {
    const changes: string[] = [];
    // A reader of a rare dataset gets an empty page and its `next` instead of a search through the whole log.
    const end = Math.min(this.#size, since + MAX_BLOCKS * BLOCK);
    let next = since;
    while (next < end && changes.length < limit) {
      const block = await this.#block(Math.floor(next / BLOCK));
      const wanted = block.slice(next % BLOCK, end - next + (next % BLOCK));
      // The database was restored to an earlier state while this page was made.
      if (wanted.length === 0) break;
      for (const change of wanted) {
        if (changes.length === limit) break;
        if (isWanted(change, covers)) changes.push(jsonOf(eventFor(change, this.#mayOpen)));
        next = change.number;
      }
    }
    return { changes, next };
  }

  /** Sends the changes after `since`, and later ones as they come, until the client goes. */
  async listen(response: ServerResponse, since: number, covers: Covers): Promise<void> {
    const listener: Listener = {
      ...{ response, covers, position: since, sent: since },
      ...{ blockedAt: undefined, isWriting: false },
    };
    this.#listeners.add(listener);
    this.#start();
    response.on('drain', () => {
      listener.blockedAt = undefined;
      void this.#write(listener);
    });
    void this.#write(listener);
    await new Promise<void>((resolve) => response.once('close', resolve));
    this.#listeners.delete(listener);
    if (this.#listeners.size === 0) this.#stop();
  }

  /** Ends all streams; their clients connect again and say where they were. */
  end(): void {
    for (const { response } of this.#listeners) response.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop();
    this.end();
    await this.#asking?.catch(() => {});
    await this.#disconnect();
  }

  #start(): void {
    if (this.#timers.length > 0) return;
    this.#timers.push(setInterval(() => void this.#poll(), POLL_MS).unref());
    this.#timers.push(setInterval(() => void this.#beat(), this.#needs.limits.heartbeatMs).unref());
  }

  #stop(): void {
    for (const timer of this.#timers.splice(0)) clearInterval(timer);
  }

  async #poll(): Promise<void> {
    try {
      await this.last();
      // Others may have asked meanwhile, so that the number alone does not say who has it.
      await this.#each((listener) => {
        if (listener.position < this.#size) void this.#write(listener);
      });
      this.#isFaulty = false;
    } catch (error) {
      // The readiness check reports an outage of the database; this line says what it means for the streams.
      if (!this.#isFaulty)
        this.#needs.log.warn({ fault: explain(error) }, 'changes cannot be read; event streams wait for them');
      this.#isFaulty = true;
    }
  }

  /** Tells every listener that the stream lives, and disconnects those that do not read. */
  async #beat(): Promise<void> {
    await this.#each((listener) => {
      const { response, blockedAt, position, sent } = listener;
      if (blockedAt !== undefined) {
        if (performance.now() - blockedAt < this.#needs.limits.stallMs) return;
        this.#evicted++;
        response.destroy();
      } else if (!listener.isWriting) {
        // An `id` without data moves the place from which the client continues past changes that it does not want.
        this.#send(listener, position > sent ? Buffer.from(`id: ${position}\n\n`) : HEARTBEAT);
        listener.sent = position;
      }
    });
  }

  async #each(work: (listener: Listener) => void): Promise<void> {
    let done = 0;
    for (const listener of this.#listeners) {
      work(listener);
      if (++done % BATCH === 0) await setImmediate();
    }
  }

  /** Writes until the listener has everything or does not read; `drain` and the next poll go on. */
  async #write(listener: Listener): Promise<void> {
    const { response } = listener;
    if (listener.isWriting) return;
    listener.isWriting = true;
    try {
      while (listener.position < this.#size && listener.blockedAt === undefined && !response.destroyed) {
        const at = Math.floor(listener.position / BLOCK);
        const block = this.#kept(at) ?? (await this.#block(at));
        this.#sendSome(listener, block);
      }
    } catch (error) {
      this.#needs.log.debug({ fault: explain(error) }, 'changes for an event stream cannot be read; tried again');
    } finally {
      listener.isWriting = false;
    }
  }

  #sendSome(listener: Listener, block: readonly Change[]): void {
    const events: Buffer[] = [];
    let bytes = 0;
    for (let at = listener.position % BLOCK; at < block.length && bytes < WRITE_BYTES; at++) {
      const change = block[at];
      listener.position = change.number;
      if (!isWanted(change, listener.covers)) continue;
      listener.sent = change.number;
      const event = eventFor(change, this.#mayOpen);
      events.push(event);
      bytes += event.length;
    }
    if (events.length > 0) this.#send(listener, events.length === 1 ? events[0] : Buffer.concat(events, bytes));
  }

  #send(listener: Listener, bytes: Buffer): void {
    // Ended, but not closed: its client has not read the rest yet.
    if (listener.response.writableEnded) return;
    if (!listener.response.write(bytes)) listener.blockedAt = performance.now();
  }

  /** A block that is kept up to the last change. */
  #kept(at: number): Change[] | undefined {
    const block = this.#blocks.get(at);
    return block && block.length === this.#lengthOf(at) ? block : undefined;
  }

  #lengthOf = (at: number): number => Math.min(BLOCK, this.#size - at * BLOCK);

  /** A block up to the last change; every one before the last is complete. @throws the database's error */
  async #block(at: number): Promise<Change[]> {
    for (;;) {
      const kept = this.#kept(at);
      if (kept) {
        this.#keep(at, kept);
        return kept;
      }
      const loading = this.#loading.get(at) ?? this.#loadBlock(at).finally(() => this.#loading.delete(at));
      this.#loading.set(at, loading);
      await loading;
    }
  }

  #keep(at: number, block: Change[]): void {
    this.#blocks.delete(at);
    this.#blocks.set(at, block);
    if (this.#blocks.size > MAX_BLOCKS) this.#blocks.delete(this.#blocks.keys().next().value!);
  }

  async #loadBlock(at: number): Promise<Change[]> {
    const held = this.#blocks.get(at) ?? [];
    const [from, to] = [at * BLOCK + held.length, at * BLOCK + this.#lengthOf(at)];
    const rows = await this.#query(
      'select leaf_index, dataset_id, body, salt from proof_leaves where leaf_index >= $1 and leaf_index < $2 order by leaf_index',
      [from, to],
    );
    assert(rows.length === to - from, `the catalog has the leaves from ${from} to ${to}`);
    const block = [...held, ...rows.map(changeOf)];
    this.#keep(at, block);
    return block;
  }

  async #askLast(): Promise<number> {
    const [head] = await this.#query('select size from proof_head', []);
    const size = Number(head?.size ?? 0);
    this.#mayOpen = this.#needs.openers();
    if (size < this.#size) {
      // The database was restored: what was kept may be about other changes, and clients have to find out where they are.
      this.#blocks.clear();
      this.end();
    }
    this.#size = size;
    return size;
  }

  // biome-ignore lint/suspicious/noExplicitAny: rows of the database
  async #query(text: string, values: unknown[]): Promise<any[]> {
    this.#client ??= connect({
      url: this.#needs.databaseUrl,
      name: 'tidemark changes',
      connectTimeoutMs: 5000,
    });
    try {
      return (await (await this.#client).query({ text, values, query_timeout: QUERY_TIMEOUT_MS } as QueryConfig)).rows;
    } catch (error) {
      // Not awaited: a server that does not answer does not answer this either.
      void this.#disconnect();
      throw error;
    }
  }

  async #disconnect(): Promise<void> {
    const client = this.#client;
    this.#client = undefined;
    await client?.then((open) => open[Symbol.asyncDispose]()).catch(() => {});
  }
}

/** Changes of the log itself are everybody's. */
const isWanted = ({ dataset }: Change, covers: Covers): boolean => dataset === null || covers(dataset);

interface LeafRow {
  readonly leaf_index: string;
  readonly dataset_id: number | null;
  readonly body: Buffer;
  readonly salt: Buffer | null;
}

export function changeOf({ leaf_index, dataset_id, body, salt }: LeafRow): Change {
  const index = Number(leaf_index);
  const dataset = dataset_id === null ? null : changedDataset(dataset_id, body);
  const text = `id: ${changeNumber(index)}\n${DATA}${changeText(index, body, salt, dataset?.instrument)}\n\n`;
  // Changes come one at a time. In Node's pool each would keep the 64 KiB that it shares with what is long gone.
  const event = Buffer.allocUnsafeSlow(Buffer.byteLength(text));
  event.write(text);
  return {
    number: changeNumber(index),
    dataset,
    // In a text of JSON the quotation marks would be escaped.
    synthetic: body.includes('"synthetic":true'),
    event,
    saltAt: salt ? event.indexOf(SALT) + SALT.length : undefined,
  };
}

function changedDataset(number: number, body: Buffer): ChangedDataset {
  const dataset = DATASET_BY_NUMBER.get(baseNumber(number)) ?? { key: '' };
  if (baseNumber(number) === number) return dataset;
  // The partition says of which instrument it is.
  const { partition } = JSON.parse(body.toString()) as { readonly partition: string };
  return { ...dataset, instrument: instrumentOfKey(partition) as Instrument };
}

const DATA = 'data: ';
const SALT = '"salt":';
/** Two digits a byte, and the quotation marks. */
const SALT_TEXT = 2 * SECRET_BYTES + 2;
const NULL = Buffer.from('null');

/** The event as a reader may have it. */
function eventFor({ dataset, synthetic, event, saltAt }: Change, mayOpen: MayOpen): Buffer {
  if (saltAt === undefined || mayOpen(dataset?.key ?? '', synthetic)) return event;
  return Buffer.concat([event.subarray(0, saltAt), NULL, event.subarray(saltAt + SALT_TEXT)]);
}

function jsonOf(event: Buffer): string {
  const from = event.indexOf(DATA) + DATA.length;
  return event.toString('utf8', from, event.length - 2);
}
