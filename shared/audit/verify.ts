/**
 * Reads every chain of the audit log and says what is wrong with it: lines that are not what was written, records that
 * are missing inside, before or after what is there, chains that are gone.
 */
import { join } from 'node:path';
import { openRegular } from '../regular-file.ts';
import {
  type AuditHead,
  type AuditRecord,
  type AuditValue,
  CHAIN_OPENED,
  type ChainHead,
  canonical,
  chainsIn,
  hashOf,
  SEGMENTS_PRUNED,
  segmentsOf,
  type Unfinished,
  unfinishedOf,
} from './records.ts';

export type AuditFault =
  /** A line is no record as one is written. */
  | 'LINE_ALTERED'
  /** A record's hash is not that of its content. */
  | 'HASH_MISMATCH'
  /** A record does not follow the one before it. */
  | 'LINK_BROKEN'
  /** The last line has no end, and no later chain has seen it like that. */
  | 'LINE_UNFINISHED'
  /** The chain begins late, and no record says that its beginning was deleted. */
  | 'BEGINNING_MISSING'
  /** The chain ends before a place where it is known to have been. */
  | 'END_MISSING'
  /** Another record stands where one is known to have been. */
  | 'RECORD_REPLACED'
  | 'CHAIN_MISSING'
  | 'UNREADABLE';

export interface AuditFinding {
  readonly fault: AuditFault;
  readonly chain: string;
  readonly segment: string | null;
  /** In the segment, from 1. */
  readonly line: number | null;
  readonly message: string;
}

export interface AuditReport {
  readonly chains: number;
  readonly segments: number;
  readonly records: number;
  readonly first_at: string | null;
  readonly last_at: string | null;
  readonly findings: readonly AuditFinding[];
}

interface Seen {
  readonly name: string;
  first: number;
  last: number;
  /** 32 bytes a record, from `first` on. */
  hashes: Buffer;
  unfinished: (Unfinished & { readonly segment: string; readonly line: number }) | undefined;
}

/** More missing at one place is taken for a number that was altered. */
const MAX_MISSING = 1_000_000;

/** @param heads where chains are known to have ended, from elsewhere than the log. */
export async function verifyAudit(directory: string, heads: readonly AuditHead[] = []): Promise<AuditReport> {
  const verifier = new Verifier(directory);
  for (const chain of await chainsIn(directory)) await verifier.read(chain);
  verifier.compare(heads);
  return verifier.report();
}

class Verifier {
  readonly #directory: string;
  readonly #chains = new Map<string, Seen>();
  readonly #claims: { readonly head: AuditHead; readonly by: string }[] = [];
  readonly #unfinished: { readonly chain: string; readonly seen: Unfinished }[] = [];
  /** Ends of deleted beginnings. */
  readonly #pruned: AuditHead[] = [];
  /** Hashes that the first records there are say were before them. */
  readonly #before = new Map<string, string | null>();
  readonly #findings: AuditFinding[] = [];
  #segments = 0;
  #records = 0;
  #firstAt: string | null = null;
  #lastAt: string | null = null;

  constructor(directory: string) {
    this.#directory = directory;
  }

  async read(name: string): Promise<void> {
    const chain: Seen = { name, first: 0, last: 0, hashes: Buffer.alloc(0), unfinished: undefined };
    this.#chains.set(name, chain);
    const segments = await segmentsOf(this.#directory, name);
    for (const [index, segment] of segments.entries()) {
      this.#segments++;
      let number = 0;
      const rest: Uint8Array[] = [];
      try {
        for await (const line of linesOf(join(this.#directory, name, segment), rest)) {
          number++;
          this.#record(chain, segment, number, line);
        }
      } catch (error) {
        this.#find('UNREADABLE', chain.name, segment, number + 1, `cannot be read: ${(error as Error).message}`);
      }
      const left = Buffer.concat(rest);
      if (left.length === 0) continue;
      if (index < segments.length - 1) {
        this.#find('LINE_ALTERED', chain.name, segment, number + 1, 'has no end');
      } else chain.unfinished = { ...unfinishedOf(left), segment, line: number + 1 };
    }
  }

  #record(chain: Seen, segment: string, number: number, line: string): void {
    const fault = (kind: AuditFault, message: string) => this.#find(kind, chain.name, segment, number, message);
    let record: AuditRecord;
    try {
      record = JSON.parse(line) as AuditRecord;
      if (canonical(record as unknown as AuditValue) !== line || !isRecord(record)) throw new Error('not as written');
    } catch {
      fault('LINE_ALTERED', 'is no record as one is written');
      // What follows is compared with what this should have been.
      if (chain.last > 0) this.#note(chain, chain.last + 1, '0'.repeat(64));
      return;
    }
    const found = hashOf(record);
    if (found !== record.hash) fault('HASH_MISMATCH', `record ${record.sequence} is not what its hash says`);
    if (record.chain !== chain.name) fault('LINK_BROKEN', `is of the chain ${record.chain}`);
    if (chain.last === 0) {
      chain.first = record.sequence;
      this.#before.set(chain.name, record.previous_hash);
    } else if (record.sequence !== chain.last + 1) {
      fault('LINK_BROKEN', `is record ${record.sequence} after ${chain.last}`);
      if (record.sequence <= chain.last || record.sequence > chain.last + MAX_MISSING) return;
    } else if (record.previous_hash !== hashAt(chain, chain.last) && !isUnknown(hashAt(chain, chain.last))) {
      fault('LINK_BROKEN', `record ${record.sequence} does not follow the one before it`);
    }
    this.#note(chain, record.sequence, record.hash);
    this.#records++;
    if (this.#firstAt === null || record.occurred_at < this.#firstAt) this.#firstAt = record.occurred_at;
    if (this.#lastAt === null || record.occurred_at > this.#lastAt) this.#lastAt = record.occurred_at;
    // What was altered is no witness of others.
    if (found === record.hash) this.#learn(record);
  }

  /** What a record says of other chains. */
  #learn({ event, payload, chain: by }: AuditRecord): void {
    const list = event === CHAIN_OPENED && Array.isArray(payload.witnessed) ? payload.witnessed : [];
    for (const { unfinished, ...head } of list.filter(isHead) as unknown as ChainHead[]) {
      this.#claims.push({ head, by });
      if (unfinished) this.#unfinished.push({ chain: head.chain, seen: unfinished });
    }
    if (event === SEGMENTS_PRUNED && isHead(payload)) this.#pruned.push(payload as unknown as AuditHead);
  }

  #note(chain: Seen, sequence: number, hash: string): void {
    if (chain.first === 0) chain.first = sequence;
    chain.last = sequence;
    const at = (sequence - chain.first) * 32;
    if (at + 32 > chain.hashes.length) {
      const larger = Buffer.alloc(Math.max(1024, chain.hashes.length * 2, at + 32));
      chain.hashes.copy(larger);
      chain.hashes = larger;
    }
    chain.hashes.write(hash, at, 'hex');
  }

  /** What is there against what is known to have been. */
  compare(heads: readonly AuditHead[]): void {
    for (const chain of this.#chains.values()) {
      this.#compareBeginning(chain);
      this.#compareEnd(chain);
    }
    const claims = [...this.#claims, ...heads.map((head) => ({ head, by: 'the database' }))];
    const told = new Set<string>();
    for (const { head, by } of claims) {
      const wrong = this.#contradiction(head, by);
      // One finding a chain and fault: many know of the same place.
      if (!wrong || told.has(`${head.chain} ${wrong.fault}`)) continue;
      told.add(`${head.chain} ${wrong.fault}`);
      this.#find(wrong.fault, head.chain, null, null, wrong.message);
    }
  }

  #compareBeginning(chain: Seen): void {
    if (chain.last === 0 || chain.first === 1) return;
    const before = this.#before.get(chain.name);
    const isPruned = this.#pruned.some(
      (head) => head.chain === chain.name && head.sequence === chain.first - 1 && head.hash === before,
    );
    if (!isPruned) {
      this.#find('BEGINNING_MISSING', chain.name, null, null, `begins with record ${chain.first}`);
    }
  }

  #compareEnd({ name, unfinished }: Seen): void {
    if (!unfinished) return;
    const isSeen = this.#unfinished.some(
      ({ chain, seen }) => chain === name && seen.bytes === unfinished.bytes && seen.sha256 === unfinished.sha256,
    );
    if (isSeen) return;
    this.#find(
      'LINE_UNFINISHED',
      name,
      unfinished.segment,
      unfinished.line,
      `${unfinished.bytes} bytes without an end`,
    );
  }

  #contradiction(head: AuditHead, by: string): { fault: AuditFault; message: string } | undefined {
    const { sequence, hash } = head;
    if (this.#pruned.some((pruned) => pruned.chain === head.chain && pruned.sequence >= sequence)) return undefined;
    const chain = this.#chains.get(head.chain);
    if (!chain || chain.last === 0) {
      return { fault: 'CHAIN_MISSING', message: `is gone; ${by} knows it to record ${sequence}` };
    }
    if (sequence > chain.last) {
      return { fault: 'END_MISSING', message: `ends with record ${chain.last}; ${by} knows it to ${sequence}` };
    }
    if (sequence < chain.first) return undefined;
    const found = hashAt(chain, sequence);
    if (found === hash || isUnknown(found)) return undefined;
    return { fault: 'RECORD_REPLACED', message: `record ${sequence} is not the one that ${by} knows` };
  }

  #find(fault: AuditFault, chain: string, segment: string | null, line: number | null, message: string): void {
    this.#findings.push({ fault, chain, segment, line, message });
  }

  report(): AuditReport {
    return {
      chains: this.#chains.size,
      segments: this.#segments,
      records: this.#records,
      first_at: this.#firstAt,
      last_at: this.#lastAt,
      findings: this.#findings,
    };
  }
}

const hashAt = ({ hashes, first }: Seen, sequence: number): string =>
  hashes.toString('hex', (sequence - first) * 32, (sequence - first + 1) * 32);

/** Of a line that could not be read. */
const isUnknown = (hash: string) => /^0+$/.test(hash);

function isHead(said: unknown): boolean {
  const { chain, sequence, hash } = (said ?? {}) as Partial<AuditHead>;
  return typeof chain === 'string' && Number.isSafeInteger(sequence) && typeof hash === 'string';
}

function isRecord({ chain, sequence, occurred_at, event, hash, payload }: AuditRecord): boolean {
  return (
    typeof chain === 'string' &&
    Number.isSafeInteger(sequence) &&
    sequence > 0 &&
    typeof occurred_at === 'string' &&
    typeof event === 'string' &&
    typeof payload === 'object' &&
    payload !== null &&
    /^[0-9a-f]{64}$/.test(hash)
  );
}

/** Lines that have an end; what is left after the last goes to `rest`. */
async function* linesOf(path: string, rest: Uint8Array[]): AsyncGenerator<string> {
  let left: Buffer = Buffer.alloc(0);
  await using file = await openRegular(path);
  for await (const chunk of file.createReadStream({ autoClose: false }) as AsyncIterable<Buffer>) {
    left = left.length === 0 ? chunk : Buffer.concat([left, chunk]);
    let start = 0;
    for (let end = left.indexOf(0x0a); end >= 0; end = left.indexOf(0x0a, start)) {
      yield left.toString('utf8', start, end);
      start = end + 1;
    }
    left = left.subarray(start);
  }
  if (left.length > 0) rest.push(left);
}
