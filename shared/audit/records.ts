/**
 * Records of the audit log: one line of JSON each, keys sorted, without a space. A record names the one before it by its
 * hash, so that none can be changed, left out or put in without all that follow being made again.
 */
import { createHash } from 'node:crypto';

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
  /** Null where it is about none. */
  readonly export_id: string | null;
  readonly payload: AuditPayload;
}

export interface AuditRecord extends AuditEvent {
  readonly chain: string;
  /** From 1, without a gap. */
  readonly sequence: number;
  readonly occurred_at: string;
  /** Null in the first. */
  readonly previous_hash: string | null;
  /** sha256 of the line without this member. */
  readonly hash: string;
}

/** A place in a chain, and what stands there. */
export interface AuditHead {
  readonly chain: string;
  readonly sequence: number;
  readonly hash: string;
}

export const CHAIN_OPENED = 'chain_opened';
export const SEGMENTS_PRUNED = 'segments_pruned';

export const SEGMENT_NAME = /^\d{6}\.jsonl$/;
export const segmentName = (number: number): string => `${String(number).padStart(6, '0')}.jsonl`;

export function sealed(record: Omit<AuditRecord, 'hash'>): AuditRecord {
  return { ...record, hash: hashOf(record) };
}

export function hashOf({ hash: _, ...rest }: Omit<AuditRecord, 'hash'> & { readonly hash?: string }): string {
  return createHash('sha256').update(canonical(rest)).digest('hex');
}

export const lineOf = (record: AuditRecord): string => `${canonical(record as unknown as AuditValue)}\n`;

/** One text for one value. */
export function canonical(value: AuditValue): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const members = Object.entries(value as AuditPayload)
    .filter(([, member]) => member !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, member]) => `${JSON.stringify(key)}:${canonical(member)}`);
  return `{${members.join(',')}}`;
}
