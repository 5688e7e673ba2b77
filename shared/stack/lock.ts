/**
 * One-at-a-time sections between processes. The lock is SQLite's exclusive lock on a file, which the kernel lets go
 * of when its owner dies however it dies: no stale lock files, no guessing by pid.
 */
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../errors.ts';

const RETRY_MS = 25;
const TELL_AFTER_MS = 2_000;

export interface LockOptions {
  readonly waitMs: number;
  /** Told once, when waiting takes noticeably long. */
  readonly onWait?: () => void;
  readonly signal?: AbortSignal;
}

/**
 * Runs `section` while holding the lock at `path`.
 * @throws TidemarkError STACK_LOCKED when it cannot be had within `waitMs`.
 */
export async function withLock<T>(path: string, options: LockOptions, section: () => Promise<T>): Promise<T> {
  const { waitMs, onWait, signal } = options;
  const started = Date.now();
  let told = false;
  let file: DatabaseSync;
  try {
    file = new DatabaseSync(path, { timeout: 0 });
  } catch (cause) {
    throw new TidemarkError('STACK_START_FAILED', `The lock ${path} cannot be used`, { cause });
  }
  try {
    while (!begin(file, path)) {
      const waitedMs = Date.now() - started;
      if (waitedMs >= waitMs) {
        throw new TidemarkError('STACK_LOCKED', `The lock ${path} was held by another process for ${waitMs} ms`);
      }
      if (waitedMs >= TELL_AFTER_MS && !told) {
        told = true;
        onWait?.();
      }
      await sleep(RETRY_MS, undefined, { signal });
    }
    return await section();
  } finally {
    file.close();
  }
}

const SQLITE_BUSY = 5;

function begin(file: DatabaseSync, path: string): boolean {
  try {
    // Beginning writes to the journal, which in memory needs no space on a disk that is full. Nothing is ever committed.
    file.exec('PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE');
    return true;
  } catch (cause) {
    if ((cause as { errcode?: number }).errcode === SQLITE_BUSY) return false;
    throw new TidemarkError('STACK_START_FAILED', `The lock ${path} cannot be used`, { cause });
  }
}
