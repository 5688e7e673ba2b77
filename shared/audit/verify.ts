/**
 * Verifies the audit log: reads every chain and reports altered lines, records that are missing at the beginning, in the
 * middle or at the end of a chain, and missing chains.
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

type AuditFault =
  /** A line is not a record in the form that the writer writes. */
  | 'LINE_ALTERED'
  /** A record's hash does not match its content. */
  | 'HASH_MISMATCH'
  /** A record does not follow the one before it. */
  | 'LINK_BROKEN'
  /** The last line is incomplete, and no later chain recorded it so. */
  | 'LINE_UNFINISHED'
  /** The chain does not begin with record 1, and no record of a deletion explains it. */
  | 'BEGINNING_MISSING'
  /** The chain ends before a record that it is known to have had. */
  | 'END_MISSING'
  /** A record differs from the one that is known to have had its number. */
  | 'RECORD_REPLACED'
  | 'CHAIN_MISSING'
  | 'UNREADABLE';

interface AuditFinding {
  readonly fault: AuditFault;
  readonly chain: string;
  readonly segment: string | null;
  /** Line number in the segment, from 1. */
  readonly line: number | null;
  readonly message: string;
}

interface AuditReport {
  readonly chains: number;
  readonly segments: number;
  readonly records: number;
  readonly first_at: string | null;
  readonly last_at: string | null;
  readonly findings: readonly AuditFinding[];
}

interface ReadChain {
  readonly name: string;
  first: number;
  last: number;
  /** The hashes of the records from `first` on, 32 bytes each. */
  hashes: Buffer;
  unfinished: (Unfinished & { readonly segment: string; readonly line: number }) | undefined;
}

/** A larger jump of the sequence counts as an altered number, not as missing records. */
const MAX_MISSING = 1_000_000;

/** @param heads heads of chains that are known from elsewhere than the log: from the database. */
export async function verifyAudit(directory: string, heads: readonly AuditHead[] = []): Promise<AuditReport> {
  const verifier = new Verifier(directory);
  for (const chain of await chainsIn(directory)) await verifier.read(chain);
  verifier.compare(heads);
  return verifier.report();
}

class Verifier {
  readonly #directory: string;
  readonly #chains = new Map<string, ReadChain>();
  readonly #claims: { readonly head: AuditHead; readonly by: string }[] = [];
  readonly #unfinished: { readonly chain: string; readonly recorded: Unfinished }[] = [];
  /** The last deleted record of each recorded deletion. */
  readonly #pruned: AuditHead[] = [];
  /** By chain: the hash that its first existing record gives for the record before it. */
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
    const chain: ReadChain = { name, first: 0, last: 0, hashes: Buffer.alloc(0), unfinished: undefined };
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
        this.#report('UNREADABLE', chain.name, segment, number + 1, `cannot be read: ${(error as Error).message}`);
      }
      const left = Buffer.concat(rest);
      if (left.length === 0) continue;
      if (index < segments.length - 1) {
        this.#report('LINE_ALTERED', chain.name, segment, number + 1, 'the line has no line feed at its end');
      } else chain.unfinished = { ...unfinishedOf(left), segment, line: number + 1 };
    }
  }

  #record(chain: ReadChain, segment: string, number: number, line: string): void {
    const fault = (kind: AuditFault, message: string) => this.#report(kind, chain.name, segment, number, message);
    let record: AuditRecord;
    try {
      record = JSON.parse(line) as AuditRecord;
      if (canonical(record as unknown as AuditValue) !== line || !isRecord(record)) throw new Error('not as written');
    } catch {
      fault('LINE_ALTERED', 'the line is not a record in the written form');
      // The next record is checked as if this one had the number after the last.
      if (chain.last > 0) this.#note(chain, chain.last + 1, '0'.repeat(64));
      return;
    }
    const found = hashOf(record);
    if (found !== record.hash) fault('HASH_MISMATCH', `record ${record.sequence} does not match its hash`);
    if (record.chain !== chain.name) fault('LINK_BROKEN', `the record belongs to the chain ${record.chain}`);
    if (chain.last === 0) {
      chain.first = record.sequence;
      this.#before.set(chain.name, record.previous_hash);
    } else if (record.sequence !== chain.last + 1) {
      fault('LINK_BROKEN', `record ${record.sequence} follows record ${chain.last}`);
      if (record.sequence <= chain.last || record.sequence > chain.last + MAX_MISSING) return;
    } else if (record.previous_hash !== hashAt(chain, chain.last) && !isUnknown(hashAt(chain, chain.last))) {
      fault('LINK_BROKEN', `record ${record.sequence} does not follow the one before it`);
    }
    this.#note(chain, record.sequence, record.hash);
    this.#records++;
    if (this.#firstAt === null || record.occurred_at < this.#firstAt) this.#firstAt = record.occurred_at;
    if (this.#lastAt === null || record.occurred_at > this.#lastAt) this.#lastAt = record.occurred_at;
    // An altered record proves nothing about other chains.
    if (found === record.hash) this.#collectHeads(record);
  }

  /** Collects the heads of other chains that a record holds. */
  #collectHeads({ event, payload, chain: by }: AuditRecord): void {
    const list = event === CHAIN_OPENED && Array.isArray(payload.witnessed) ? payload.witnessed : [];
    for (const { unfinished, ...head } of list.filter(isHead) as unknown as ChainHead[]) {
      this.#claims.push({ head, by });
      if (unfinished) this.#unfinished.push({ chain: head.chain, recorded: unfinished });
    }
    if (event === SEGMENTS_PRUNED && isHead(payload)) this.#pruned.push(payload as unknown as AuditHead);
  }

  #note(chain: ReadChain, sequence: number, hash: string): void {
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

  /** Compares the chains with the heads that other chains and the database recorded. */
  compare(heads: readonly AuditHead[]): void {
    for (const chain of this.#chains.values()) {
      this.#compareBeginning(chain);
      this.#compareEnd(chain);
    }
    const claims = [...this.#claims, ...heads.map((head) => ({ head, by: 'the database' }))];
    const reported = new Set<string>();
    for (const { head, by } of claims) {
      const wrong = this.#contradiction(head, by);
      // One finding for each chain and fault: many chains may have recorded the same head.
      if (!wrong || reported.has(`${head.chain} ${wrong.fault}`)) continue;
      reported.add(`${head.chain} ${wrong.fault}`);
      this.#report(wrong.fault, head.chain, null, null, wrong.message);
    }
  }

  #compareBeginning(chain: ReadChain): void {
    if (chain.last === 0 || chain.first === 1) return;
    const before = this.#before.get(chain.name);
    const isPruned = this.#pruned.some(
      (head) => head.chain === chain.name && head.sequence === chain.first - 1 && head.hash === before,
    );
    if (!isPruned) {
      this.#report('BEGINNING_MISSING', chain.name, null, null, `begins with record ${chain.first}`);
    }
  }

  #compareEnd({ name, unfinished }: ReadChain): void {
    if (!unfinished) return;
    const isRecorded = this.#unfinished.some(
      ({ chain, recorded }) =>
        chain === name && recorded.bytes === unfinished.bytes && recorded.sha256 === unfinished.sha256,
    );
    if (isRecorded) return;
    this.#report(
      'LINE_UNFINISHED',
      name,
      unfinished.segment,
      unfinished.line,
      `the last line is incomplete: ${unfinished.bytes} bytes without a line feed`,
    );
  }

  #contradiction(head: AuditHead, by: string): { fault: AuditFault; message: string } | undefined {
    const { sequence, hash } = head;
    if (this.#pruned.some((pruned) => pruned.chain === head.chain && pruned.sequence >= sequence)) return undefined;
    const chain = this.#chains.get(head.chain);
    if (!chain || chain.last === 0) {
      return {
        fault: 'CHAIN_MISSING',
        message: `the chain is missing; ${by} has recorded it up to record ${sequence}`,
      };
    }
    if (sequence > chain.last) {
      return {
        fault: 'END_MISSING',
        message: `the chain ends with record ${chain.last}; ${by} has recorded it up to ${sequence}`,
      };
    }
    if (sequence < chain.first) return undefined;
    const found = hashAt(chain, sequence);
    if (found === hash || isUnknown(found)) return undefined;
    return { fault: 'RECORD_REPLACED', message: `record ${sequence} is not the one that ${by} has recorded` };
  }

  #report(fault: AuditFault, chain: string, segment: string | null, line: number | null, message: string): void {
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

const hashAt = ({ hashes, first }: ReadChain, sequence: number): string =>
  hashes.toString('hex', (sequence - first) * 32, (sequence - first + 1) * 32);

/** Whether the hash stands for a line that could not be read. */
const isUnknown = (hash: string) => /^0+$/.test(hash);

function isHead(value: unknown): boolean {
  const { chain, sequence, hash } = (value ?? {}) as Partial<AuditHead>;
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

/** Yields the complete lines of a file; the bytes after the last line feed go to `rest`. */
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
