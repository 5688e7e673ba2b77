/** The audit log of exports: who requested what, the decision, the outcome, and who downloaded it. It holds no secrets. */

import { isIPv6 } from 'node:net';
import type { AuditPayload, AuditRecord, AuditValue } from '../../shared/audit/records.ts';
import { AuditWriter } from '../../shared/audit/writer.ts';
import type { Logger } from '../../shared/logger.ts';
import type { ProblemCode } from '../contract/problems.ts';
import type { ExportTransition } from './store.ts';

/** How long refusals are counted before their number is recorded. */
const REFUSED_RUN_MS = 60_000;
/**
 * Source addresses that are distinguished in that time, per event and code; refusals of all others are counted together. With
 * fewer, a handful of decoys would hide everybody else. Each has at most two records per minute, of at most 940 and 790 bytes:
 * 1.8 MB a minute for each code. Only refused keys need no key: 1.5 MB a minute, from 1,024 addresses.
 */
const MAX_REFUSED_ADDRESSES = 1024;

interface RefusedRunsOptions {
  /** Writes a record. It does not throw. */
  readonly record: (event: string, payload: AuditPayload) => Promise<void>;
  readonly now: () => number;
  readonly runMs?: number;
}

/** Refusals of one event, code and address. */
interface RefusedRun {
  readonly event: string;
  readonly code: AuditValue | undefined;
  /** Null: the refusals of all addresses without a run of their own. */
  readonly address: AuditValue;
  readonly first: Refusal;
  last: Refusal;
  count: number;
}

interface Refusal {
  readonly at: string;
  readonly requestId: AuditValue | undefined;
}

/**
 * Records refusals that anybody can cause. Per source address (for IPv6: per network) it records the first in a minute at once,
 * and at the minute's end the number of refusals. So nobody can fill the disk by repeating one, from however many addresses.
 */
class RefusedRuns implements AsyncDisposable {
  readonly #options: RefusedRunsOptions;
  readonly #runs = new Map<string, RefusedRun>();
  /** By event and code: the number of addresses that have a run. */
  readonly #addresses = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #recorded: Promise<void> = Promise.resolve();

  constructor(options: RefusedRunsOptions) {
    this.#options = options;
  }

  /** Resolves when the first refusal of a run is recorded; those that follow are counted. */
  async note(event: string, payload: AuditPayload): Promise<void> {
    const { client_address: sender = null, code, request_id: requestId } = payload;
    const address = networkOf(sender);
    const refusal = { at: new Date(this.#options.now()).toISOString(), requestId };
    const known = this.#find(event, code, address);
    if (known) {
      known.last = refusal;
      known.count++;
      return;
    }
    this.#begin(event, code, address, refusal);
    this.#timer ??= setTimeout(() => this.#recordRuns(), this.#options.runMs ?? REFUSED_RUN_MS).unref();
    await this.#options.record(event, payload);
  }

  #find(event: string, code: AuditValue | undefined, address: AuditValue): RefusedRun | undefined {
    const kind = kindOf(event, code);
    const own = this.#runs.get(`${kind} ${address}`);
    return own ?? (this.#isFull(kind) ? this.#runs.get(kind) : undefined);
  }

  #isFull(kind: string): boolean {
    return (this.#addresses.get(kind) ?? 0) >= MAX_REFUSED_ADDRESSES;
  }

  #begin(event: string, code: AuditValue | undefined, address: AuditValue, first: Refusal): void {
    const kind = kindOf(event, code);
    const isOwn = !this.#isFull(kind);
    if (isOwn) this.#addresses.set(kind, (this.#addresses.get(kind) ?? 0) + 1);
    const run = { event, code, address: isOwn ? address : null, first, last: first, count: 1 };
    this.#runs.set(isOwn ? `${kind} ${address}` : kind, run);
  }

  /** Records the runs with more than one refusal, and starts anew. */
  #recordRuns(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const records = [...this.#runs.values()]
      .filter(({ count }) => count > 1)
      .map(({ event, code, address, first, last, count }) =>
        this.#options.record(event, {
          client_address: address,
          ...(code !== undefined && { code }),
          count,
          first_at: first.at,
          last_at: last.at,
          first_request_id: first.requestId ?? null,
          last_request_id: last.requestId ?? null,
        }),
      );
    this.#runs.clear();
    this.#addresses.clear();
    this.#recorded = Promise.all([this.#recorded, ...records]).then(() => {});
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#recordRuns();
    await this.#recorded;
  }
}

/**
 * The address that refusals are counted by: for IPv6 the network of 64 bits, because whoever has one address has all of them.
 * Addresses that begin with zeros stand for an IPv4 address or for this machine, and stay as they are.
 */
function networkOf(address: AuditValue): AuditValue {
  if (typeof address !== 'string' || !isIPv6(address) || address.startsWith('::')) return address;
  const [head, tail = ''] = address.split('%')[0].split('::');
  const [first, last] = [head, tail].map((part) => part.split(':').filter(Boolean));
  const zeros = Array(Math.max(0, 8 - first.length - last.length)).fill('0');
  return `${[...first, ...zeros, ...last].slice(0, 4).join(':')}::/64`;
}

const kindOf = (event: string, code: AuditValue | undefined) => `${event} ${code ?? ''}`;

const HOUR_MS = 3_600_000;
/** Keys and files that are counted at once; beyond them the hour's records are written early. */
const MAX_COUNTED_DOWNLOADS = 10_000;
/** Addresses that a record of downloads names. */
const MAX_DOWNLOAD_ADDRESSES = 16;

/** What was sent of a file. */
export interface Download {
  readonly exportId: string;
  readonly file: string;
  readonly bytes: number;
  readonly apiKey: string | null;
  readonly clientAddress: string | null;
  readonly requestId: string;
}

interface CountedDownloads {
  readonly first: Download & { readonly at: string };
  last: Download & { readonly at: string };
  count: number;
  bytes: number;
  readonly addresses: Set<string | null>;
}

interface DownloadCountsOptions {
  /** Writes a record. It does not throw. */
  readonly record: (exportId: string, payload: AuditPayload) => Promise<void>;
  readonly now: () => number;
}

/**
 * Counts downloads and writes one record for each key, file and hour (UTC), when the hour or the process ends: a key that asks for
 * the same bytes in a loop does not fill the disk. A process that is killed loses the counts of its hour.
 */
class DownloadCounts implements AsyncDisposable {
  readonly #options: DownloadCountsOptions;
  /** By key and file. */
  readonly #counted = new Map<string, CountedDownloads>();
  #hour = 0;
  #timer: NodeJS.Timeout | undefined;
  #recorded: Promise<void> = Promise.resolve();

  constructor(options: DownloadCountsOptions) {
    this.#options = options;
  }

  add(download: Download): void {
    const now = this.#options.now();
    const hour = Math.floor(now / HOUR_MS);
    if (hour !== this.#hour || this.#counted.size >= MAX_COUNTED_DOWNLOADS) void this.record();
    this.#hour = hour;
    this.#timer ??= setTimeout(() => void this.record(), (hour + 1) * HOUR_MS - now).unref();
    const one = { ...download, at: new Date(now).toISOString() };
    const key = JSON.stringify([download.apiKey, download.exportId, download.file]);
    const known = this.#counted.get(key);
    const counted = known ?? { first: one, last: one, count: 0, bytes: 0, addresses: new Set() };
    if (!known) this.#counted.set(key, counted);
    counted.last = one;
    counted.count++;
    counted.bytes += download.bytes;
    if (counted.addresses.size < MAX_DOWNLOAD_ADDRESSES) counted.addresses.add(download.clientAddress);
  }

  /** Writes what is counted, and starts anew. */
  async record(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const hour = new Date(this.#hour * HOUR_MS).toISOString();
    const records = [...this.#counted.values()].map(({ first, last, count, bytes, addresses }) =>
      this.#options.record(first.exportId, {
        api_key: first.apiKey,
        file: first.file,
        hour,
        count,
        bytes,
        client_addresses: [...addresses],
        first_at: first.at,
        last_at: last.at,
        first_request_id: first.requestId,
        last_request_id: last.requestId,
      }),
    );
    this.#counted.clear();
    this.#recorded = Promise.all([this.#recorded, ...records]).then(() => {});
    await this.#recorded;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.record();
  }
}

export const AUDIT_EVENTS = {
  intent: 'export_submit_intent',
  accepted: 'export_submit_accepted',
  rejected: 'export_submit_rejected',
  /** The acceptance is on record, but the database did not confirm it: the export may run or not. */
  failed: 'export_submit_failed',
  transition: 'export_transition',
  cancel: 'export_cancel_requested',
  download: 'export_download',
  refused: 'export_access_refused',
  expired: 'export_artifact_deleted',
} as const;

interface ExportAuditOptions {
  readonly directory: string;
  readonly role: string;
  readonly log: Logger;
  readonly now?: () => number;
  /** How long refusals of an address are counted before their number is recorded. */
  readonly refusedRunMs?: number;
  /** Stores the head of the chain outside the log. */
  readonly keepHead: (chain: string, sequence: number, hash: string) => Promise<void>;
}

/** Interval of storing heads. If the log is cut off, records since the last head are not missed. */
const HEAD_INTERVAL_MS = 500;
/** Refusals of requests that were not understood are counted; all others are recorded one by one. */
const COUNTED: ReadonlySet<ProblemCode> = new Set([
  'NOT_ACCEPTABLE',
  'EXPORT_CONTRACT_ERROR',
  'EXPORT_AUTH_TOKEN_UNSUPPORTED',
]);

export class ExportAudit implements AsyncDisposable {
  readonly #writer: AuditWriter;
  readonly #options: ExportAuditOptions;
  #head: { readonly chain: string; readonly sequence: number; readonly hash: string } | undefined;
  #headTimer: NodeJS.Timeout | undefined;
  #headStored: Promise<void> = Promise.resolve();
  readonly #refusals: RefusedRuns;
  readonly #downloads: DownloadCounts;

  constructor(options: ExportAuditOptions) {
    this.#options = options;
    const { directory, role, now, refusedRunMs } = options;
    this.#refusals = new RefusedRuns({
      record: (event, payload) => this.note(event, null, payload),
      now: now ?? Date.now,
      runMs: refusedRunMs,
    });
    this.#downloads = new DownloadCounts({
      record: (exportId, payload) => this.note(AUDIT_EVENTS.download, exportId, payload),
      now: now ?? Date.now,
    });
    this.#writer = new AuditWriter({
      directory,
      role,
      now,
      onHead: (head) => {
        this.#head = head;
        this.#headTimer ??= setTimeout(() => this.#storeHead(), HEAD_INTERVAL_MS).unref();
      },
    });
  }

  /** Records what must be on record before anything happens. @throws if it cannot be recorded. */
  async must(event: string, exportId: string | null, payload: AuditPayload): Promise<AuditRecord> {
    return await this.#writer.append({ event, export_id: exportId, payload });
  }

  /** Records what happens in any case: a fault of the log stops only new exports. */
  async note(event: string, exportId: string | null, payload: AuditPayload): Promise<void> {
    try {
      await this.must(event, exportId, payload);
    } catch (error) {
      this.#options.log.error(
        { err: error, event, exportId, payload },
        'the service cannot write the audit log; check its folder and disk',
      );
    }
  }

  async transition({ event, from, row }: ExportTransition): Promise<void> {
    await this.note(AUDIT_EVENTS.transition, row.exportId, {
      event,
      from,
      to: row.state,
      fence: row.fence,
      worker: row.worker,
      api_key: row.apiKey,
      ...(row.artifact && { row_count: row.artifact.row_count, sha256: row.artifact.sha256 }),
      ...(row.errorCode !== null && { error_code: row.errorCode }),
    });
  }

  /** Counts a download; a record of it is written at the end of the hour. */
  downloaded(download: Download): void {
    this.#downloads.add(download);
  }

  /** Writes the records of the downloads that are counted, before their hour ends. */
  async recordDownloads(): Promise<void> {
    await this.#downloads.record();
  }

  /** Records a refused key. */
  async refusedKey(payload: AuditPayload): Promise<void> {
    await this.#refusals.note(AUDIT_EVENTS.refused, payload);
  }

  /** Records a refused submission. */
  async rejected(code: ProblemCode, facts: AuditPayload): Promise<void> {
    const payload = { ...facts, code };
    if (COUNTED.has(code)) await this.#refusals.note(AUDIT_EVENTS.rejected, payload);
    else await this.note(AUDIT_EVENTS.rejected, null, payload);
  }

  #storeHead(): void {
    this.#headTimer = undefined;
    const head = this.#head;
    if (!head) return;
    this.#headStored = this.#options.keepHead(head.chain, head.sequence, head.hash).catch((error) => {
      this.#options.log.warn(
        { err: error },
        'the service could not store the head of the audit log; it tries again with the next record',
      );
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#refusals[Symbol.asyncDispose]();
    await this.#downloads[Symbol.asyncDispose]();
    await this.#writer[Symbol.asyncDispose]();
    clearTimeout(this.#headTimer);
    if (this.#headTimer !== undefined) this.#storeHead();
    await this.#headStored;
  }
}
