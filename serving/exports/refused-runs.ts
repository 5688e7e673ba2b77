/**
 * Refusals that anybody can cause, in the audit log: of each source address (of IPv6: each network) the first in a minute,
 * and at the minute's end how many there were. Whoever repeats one, from however many addresses, cannot fill the disk.
 */
import { isIPv6 } from 'node:net';
import type { AuditPayload, AuditValue } from '../../shared/audit/records.ts';

/** How long refusals are counted before their number is recorded. */
const REFUSED_RUN_MS = 60_000;
/**
 * Source addresses told apart in that time, of one event and code; those of all others are counted together. With fewer a
 * handful of decoys hides everybody else. Each has at most two records a minute, of 940 and 790 bytes at the longest:
 * 1.8 MB a minute for each code. Only refused keys cost their sender no key: 1.5 MB a minute, from 1,024 addresses.
 */
const MAX_REFUSED_ADDRESSES = 1024;

export interface RefusedRunsOptions {
  /** Writes a record. It does not throw. */
  readonly record: (event: string, payload: AuditPayload) => Promise<void>;
  readonly now: () => number;
  readonly runMs?: number;
}

/** What refusals of one event, code and address have in common. */
interface Run {
  readonly event: string;
  readonly code: AuditValue | undefined;
  /** Null: of all addresses that have no run of their own. */
  readonly address: AuditValue;
  readonly first: Refusal;
  last: Refusal;
  count: number;
}

interface Refusal {
  readonly at: string;
  readonly requestId: AuditValue | undefined;
}

export class RefusedRuns implements AsyncDisposable {
  readonly #options: RefusedRunsOptions;
  readonly #runs = new Map<string, Run>();
  /** How many addresses have a run, by event and code. */
  readonly #addresses = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #told: Promise<void> = Promise.resolve();

  constructor(options: RefusedRunsOptions) {
    this.#options = options;
  }

  /** The first of a run is on record when this resolves; those that follow are counted. */
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
    this.#timer ??= setTimeout(() => this.#tell(), this.#options.runMs ?? REFUSED_RUN_MS).unref();
    await this.#options.record(event, payload);
  }

  #find(event: string, code: AuditValue | undefined, address: AuditValue): Run | undefined {
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

  /** Records the runs of more than one, and begins anew. */
  #tell(): void {
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
    this.#told = Promise.all([this.#told, ...records]).then(() => {});
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#tell();
    await this.#told;
  }
}

/**
 * What refusals are counted by: an IPv6 address is told by its network of 64 bits, because whoever has one has all of its
 * addresses. Those that begin with zeros stand for an IPv4 address or for this machine, and stay as they are.
 */
function networkOf(address: AuditValue): AuditValue {
  if (typeof address !== 'string' || !isIPv6(address) || address.startsWith('::')) return address;
  const [head, tail = ''] = address.split('%')[0].split('::');
  const [first, last] = [head, tail].map((part) => part.split(':').filter(Boolean));
  const zeros = Array(Math.max(0, 8 - first.length - last.length)).fill('0');
  return `${[...first, ...zeros, ...last].slice(0, 4).join(':')}::/64`;
}

const kindOf = (event: string, code: AuditValue | undefined) => `${event} ${code ?? ''}`;
