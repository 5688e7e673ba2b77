/**
 * The writer of the audit log, and its pruning. Each process writes a chain of its own in a folder of its own, so that no
 * two writers ever share a file. A record is on the disk when `append` resolves. Records that arrive together are written
 * and synced together.
 */

import { randomBytes } from 'node:crypto';
import { type FileHandle, mkdir, open, rm, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { openRegular } from '../regular-file.ts';
import {
  type AuditEvent,
  type AuditHead,
  type AuditPayload,
  type AuditRecord,
  type AuditValue,
  CHAIN_OPENED,
  chainsIn,
  hashOf,
  lineOf,
  readChainHeads,
  SEGMENTS_PRUNED,
  sealed,
  segmentName,
  segmentsOf,
} from './records.ts';

/** Size of a segment, the unit of deletion: about 40,000 records. */
const MAX_SEGMENT_BYTES = 16 * 1024 * 1024;

interface AuditWriterOptions {
  /** Folder of all chains. */
  readonly directory: string;
  /** The kind of the process: `serving`, `worker`. */
  readonly role: string;
  readonly now?: () => number;
  /** Receives the head of the chain after every append. */
  readonly onHead?: (head: AuditHead) => void;
  readonly maxSegmentBytes?: number;
}

interface PendingAppend {
  readonly event: AuditEvent;
  readonly resolve: (record: AuditRecord) => void;
  readonly reject: (error: unknown) => void;
}

export class AuditWriter implements AsyncDisposable {
  readonly #options: AuditWriterOptions;
  #chain: Chain | undefined;
  #waiting: PendingAppend[] = [];
  #writing: Promise<void> | undefined;

  constructor(options: AuditWriterOptions) {
    this.#options = options;
  }

  /** @throws the file system's error. The writer has then recorded nothing, and a later append may succeed. */
  append(event: AuditEvent): Promise<AuditRecord> {
    const { promise, resolve, reject } = Promise.withResolvers<AuditRecord>();
    this.#waiting.push({ event, resolve, reject });
    this.#writing ??= this.#writeAll();
    return promise;
  }

  async #writeAll(): Promise<void> {
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0);
      try {
        // Somebody moved or cut the file: recording continues in a new chain, and `verify` reports what is lost.
        if (this.#chain && !(await this.#chain.isIntact())) await this.#closeChain();
        this.#chain ??= await Chain.begin(this.#options);
        const records = await this.#chain.append(batch.map(({ event }) => event));
        records.forEach((record, index) => {
          batch[index].resolve(record);
        });
        const { chain, sequence, hash } = records[records.length - 1];
        this.#options.onHead?.({ chain, sequence, hash });
      } catch (error) {
        for (const { reject } of batch) reject(error);
      }
    }
    // The run ends in the same tick as the check that found nothing waiting, so that the next append starts a new one.
    this.#writing = undefined;
  }

  async #closeChain(): Promise<void> {
    await this.#chain?.close();
    this.#chain = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#writing;
    await this.#closeChain();
  }
}

class Chain {
  readonly name: string;
  readonly #options: AuditWriterOptions;
  readonly #folder: string;
  #file: FileHandle | undefined;
  #segment = 0;
  #bytes = 0;
  #sequence = 0;
  #hash: string | null = null;

  private constructor(name: string, options: AuditWriterOptions) {
    this.name = name;
    this.#options = options;
    this.#folder = join(options.directory, name);
  }

  static async begin(options: AuditWriterOptions): Promise<Chain> {
    const { directory, role, now = Date.now } = options;
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const others = await readChainHeads(directory);
    const started = new Date(now()).toISOString().replaceAll(/[-:.]/g, '');
    const host = hostname().replaceAll(/[^A-Za-z0-9]/g, '-');
    const chain = new Chain(`${started}-${host}-${process.pid}-${randomBytes(4).toString('hex')}`, options);
    try {
      await mkdir(chain.#folder, { mode: 0o700 });
      await syncFolder(directory);
      const payload: AuditPayload = {
        host: hostname(),
        pid: process.pid,
        role,
        witnessed: others as unknown as AuditValue,
      };
      await chain.append([{ event: CHAIN_OPENED, export_id: null, payload }]);
      return chain;
    } catch (error) {
      await chain.close();
      throw error;
    }
  }

  get #path(): string {
    return join(this.#folder, segmentName(this.#segment));
  }

  /** Whether the segment on disk is still the file that this process writes, with the size that it wrote. */
  async isIntact(): Promise<boolean> {
    if (!this.#file) return true;
    try {
      const [ours, there] = [await this.#file.stat(), await stat(this.#path)];
      return ours.ino === there.ino && ours.dev === there.dev && there.size === this.#bytes;
    } catch {
      return false;
    }
  }

  async append(events: readonly AuditEvent[]): Promise<AuditRecord[]> {
    const { now = Date.now, maxSegmentBytes = MAX_SEGMENT_BYTES } = this.#options;
    if (!this.#file || this.#bytes >= maxSegmentBytes) await this.#nextSegment();
    const records: AuditRecord[] = [];
    let [sequence, previous] = [this.#sequence, this.#hash];
    for (const { event, export_id, payload } of events) {
      const record = sealed({
        chain: this.name,
        sequence: ++sequence,
        occurred_at: new Date(now()).toISOString(),
        event,
        export_id,
        payload,
        previous_hash: previous,
      });
      records.push(record);
      previous = record.hash;
    }
    const bytes = Buffer.from(records.map(lineOf).join(''));
    const file = this.#file!;
    try {
      await writeWhole(file, bytes, this.#bytes);
      await file.datasync();
    } catch (error) {
      // The disk may have filled up in the middle of a line: remove what was written.
      await file.truncate(this.#bytes).catch(() => {});
      throw error;
    }
    [this.#sequence, this.#hash] = [sequence, previous];
    this.#bytes += bytes.length;
    return records;
  }

  async #nextSegment(): Promise<void> {
    const number = this.#segment + 1;
    const file = await open(join(this.#folder, segmentName(number)), 'a+', 0o600);
    try {
      // An earlier attempt may have failed here and left bytes.
      await file.truncate(0);
      await syncFolder(this.#folder);
    } catch (error) {
      await file.close();
      throw error;
    }
    await this.close();
    [this.#file, this.#segment, this.#bytes] = [file, number, 0];
  }

  async close(): Promise<void> {
    const file = this.#file;
    this.#file = undefined;
    await file?.close().catch(() => {});
  }
}

async function writeWhole(file: FileHandle, bytes: Buffer, at: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    done += (await file.write(bytes, done, bytes.length - done, at + done)).bytesWritten;
  }
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

const DAY_MS = 86_400_000;

interface Pruned {
  readonly chain: string;
  readonly segments: number;
  /** The last deleted record. */
  readonly sequence: number;
}

/**
 * Deletes whole segments that are older than the retention, and records the last deleted record of each chain. The age of
 * a segment counts from its newest record or its last change, whichever is later: clocks may have been wrong.
 */
export async function pruneAudit(
  directory: string,
  retentionDays: number,
  { now = Date.now, dryRun = false }: { readonly now?: () => number; readonly dryRun?: boolean } = {},
): Promise<Pruned[]> {
  const floor = now() - retentionDays * DAY_MS;
  const pruned: Pruned[] = [];
  await using writer = new AuditWriter({ directory, role: 'prune', now });
  for (const chain of await chainsIn(directory)) {
    const old: { readonly path: string; readonly last: AuditRecord }[] = [];
    for (const segment of await segmentsOf(directory, chain)) {
      const path = join(directory, chain, segment);
      const last = await lastRecord(path);
      const changed = (await stat(path)).mtimeMs;
      if (!last || Math.max(Date.parse(last.occurred_at), changed) >= floor) break;
      old.push({ path, last });
    }
    const end = old.at(-1)?.last;
    if (!end) continue;
    const { sequence, hash } = end;
    if (!dryRun) {
      const segments = old.length;
      const payloads = [...(await prunedEarlier(old)), { chain, sequence, hash, segments }];
      await Promise.all(payloads.map((payload) => writer.append({ event: SEGMENTS_PRUNED, export_id: null, payload })));
      for (const { path } of old) await rm(path);
    }
    pruned.push({ chain, segments: old.length, sequence });
  }
  return pruned;
}

/**
 * What segments record of earlier deletions, the latest of each chain: they alone explain what those deleted, and are recorded
 * again before the segments go. An altered record is not: it proves nothing.
 */
async function prunedEarlier(segments: readonly { readonly path: string }[]): Promise<AuditPayload[]> {
  const latest = new Map<AuditValue, AuditPayload>();
  for (const { path } of segments) {
    await using file = await openRegular(path);
    for (const line of (await file.readFile('utf8')).split('\n')) {
      const record = line.includes(SEGMENTS_PRUNED) ? unalteredRecord(line) : undefined;
      if (record?.event !== SEGMENTS_PRUNED) continue;
      const { chain, sequence } = record.payload;
      // What is recorded again comes after the chain's own later deletion.
      if (Number(sequence) > Number(latest.get(chain)?.sequence ?? 0)) latest.set(chain, record.payload);
    }
  }
  return [...latest.values()];
}

function unalteredRecord(line: string): AuditRecord | undefined {
  try {
    const record = JSON.parse(line) as AuditRecord;
    return hashOf(record) === record.hash ? record : undefined;
  } catch {
    return undefined;
  }
}

/** Undefined for an altered segment: `verify` reports it, and nothing is deleted. */
async function lastRecord(path: string): Promise<AuditRecord | undefined> {
  try {
    await using file = await openRegular(path);
    const lines = (await file.readFile('utf8')).split('\n');
    const last = lines.at(-1) === '' ? lines.at(-2) : undefined;
    return last === undefined ? undefined : (JSON.parse(last) as AuditRecord);
  } catch {
    return undefined;
  }
}
