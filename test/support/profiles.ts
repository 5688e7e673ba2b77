import { availableParallelism } from 'node:os';
import type { Profile } from '../../shared/stack/server.ts';

const MIB = 1024 * 1024;

/** Of the log that a run shares: more than its workers hold at a time. */
export const LOG_ACCOUNTS = 16 + 4 * availableParallelism();

/** Of the servers shared by a run. A killed process loses nothing under it; a power cut may, which no test tries. */
export const SHARED_PROFILE: Profile = {
  sharedBuffersBytes: 256 * MIB,
  durable: false,
  responseTimeoutMs: 10_000,
  logAccounts: LOG_ACCOUNTS,
};

/** Of servers made for one test, to be killed and hung. */
export const PRIVATE_PROFILE: Profile = { sharedBuffersBytes: 64 * MIB, durable: false, responseTimeoutMs: 3_000 };
