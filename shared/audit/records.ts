/**
 * The records of the audit log, and the heads of its chains. A record is one line of JSON with sorted keys and no spaces.
 * It holds the hash of the record before it, so that nobody can change, remove or insert a record without rewriting all
 * that follow. Each new chain records the heads of the chains before it, so that a chain that is cut or removed later
 * leaves a trace in another.
 */

import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { openRegular } from '../regular-file.ts';

export type AuditValue =
  | null
  | boolean
  | number
  | string
  | readonly AuditValue[]
  | { readonly [key: string]: AuditValue };
export type AuditPayload = { readonly [key: string]: AuditValue };

export interface AuditEvent {
  readonly event: string;
  /** Null where the event concerns no export. */
  readonly export_id: string | null;
  readonly payload: AuditPayload;
}

export interface AuditRecord extends AuditEvent {
  readonly chain: string;
  /** From 1, without a gap. */
  readonly sequence: number;
  readonly occurred_at: string;
  /** Null in the first record of a chain. */
  readonly previous_hash: string | null;
  /** sha256 of the line without this member. */
  readonly hash: string;
}

/** A position in a chain, and the hash of the record there. */
export interface AuditHead {
  readonly chain: string;
  readonly sequence: number;
  readonly hash: string;
}

export const CHAIN_OPENED = 'chain_opened';
export const SEGMENTS_PRUNED = 'segments_pruned';

const SEGMENT_NAME = /^\d{6}\.jsonl$/;
export const segmentName = (number: number): string => `${String(number).padStart(6, '0')}.jsonl`;

export function sealed(record: Omit<AuditRecord, 'hash'>): AuditRecord {
  return { ...record, hash: hashOf(record) };
}

export function hashOf({ hash: _, ...rest }: Omit<AuditRecord, 'hash'> & { readonly hash?: string }): string {
  return createHash('sha256').update(canonical(rest)).digest('hex');
}

export const lineOf = (record: AuditRecord): string => `${canonical(record as unknown as AuditValue)}\n`;

/** The canonical JSON text of a value: equal values have equal texts. */
export function canonical(value: AuditValue): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const members = Object.entries(value as AuditPayload)
    .filter(([, member]) => member !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, member]) => `${JSON.stringify(key)}:${canonical(member)}`);
  return `{${members.join(',')}}`;
}

/** An incomplete last line, as a power loss in the middle of a write leaves it behind. */
export interface Unfinished {
  readonly bytes: number;
  readonly sha256: string;
}

export type ChainHead = AuditHead & { readonly unfinished: Unfinished | null };

/** Heads that a new chain records, of the newest chains: several later chains record each head before it drops out. */
const MAX_RECORDED_HEADS = 16;
/** The last line of a segment fits into this many bytes. */
const TAIL_BYTES = 256 * 1024;

/** The heads of the newest chains, from the last lines of their segments. */
export async function readChainHeads(directory: string): Promise<ChainHead[]> {
  const chains = (await chainsIn(directory)).slice(-MAX_RECORDED_HEADS);
  const heads = await Promise.all(chains.map((chain) => headOf(directory, chain).catch(() => undefined)));
  return heads.filter((head) => head !== undefined);
}

/** Names of chains, oldest first. */
export async function chainsIn(directory: string): Promise<string[]> {
  const entries = await readdir(directory, { withFileTypes: true }).catch((error) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  });
  return entries
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => name)
    .sort();
}

export async function segmentsOf(directory: string, chain: string): Promise<string[]> {
  return (await readdir(join(directory, chain))).filter((name) => SEGMENT_NAME.test(name)).sort();
}

async function headOf(directory: string, chain: string): Promise<ChainHead | undefined> {
  for (const segment of (await segmentsOf(directory, chain)).reverse()) {
    const tail = await tailOf(join(directory, chain, segment));
    const end = tail.lastIndexOf('\n');
    // The segment was created and never written to.
    if (end < 0 && tail.length === 0) continue;
    const rest = tail.subarray(end + 1);
    const unfinished = rest.length === 0 ? null : unfinishedOf(rest);
    if (end < 0) return undefined;
    const start = tail.subarray(0, end).lastIndexOf('\n') + 1;
    const { sequence, hash } = JSON.parse(tail.toString('utf8', start, end)) as AuditRecord;
    return { chain, sequence, hash, unfinished };
  }
  return undefined;
}

export const unfinishedOf = (rest: Uint8Array): Unfinished => ({
  bytes: rest.length,
  sha256: createHash('sha256').update(rest).digest('hex'),
});

async function tailOf(path: string): Promise<Buffer> {
  const file = await openRegular(path);
  try {
    const { size } = await file.stat();
    const length = Math.min(size, TAIL_BYTES);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
    return buffer.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}
