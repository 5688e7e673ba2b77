/**
 * Where other chains end, read from their last lines. Each new chain begins by saying so of those before it: a chain that
 * is cut or taken away later is missed by one that is still there.
 */
import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { openRegular } from '../files/regular-file.ts';
import { type AuditHead, type AuditRecord, SEGMENT_NAME } from './records.ts';

/** What a process that lost its power in the middle of a line left behind: seen, and no more than that. */
export interface Unfinished {
  readonly bytes: number;
  readonly sha256: string;
}

export type Witnessed = AuditHead & { readonly unfinished: { readonly bytes: number; readonly sha256: string } | null };

/** Every start looks at the newest ones: each chain is seen again and again before it drops out. */
const MAX_WITNESSED = 16;
/** The last line of a segment lies within this. */
const TAIL_BYTES = 256 * 1024;

export async function witnessed(directory: string): Promise<Witnessed[]> {
  const chains = (await chainsIn(directory)).slice(-MAX_WITNESSED);
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

async function headOf(directory: string, chain: string): Promise<Witnessed | undefined> {
  for (const segment of (await segmentsOf(directory, chain)).reverse()) {
    const tail = await tailOf(join(directory, chain, segment));
    const end = tail.lastIndexOf('\n');
    // A segment that was begun and never written to.
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
