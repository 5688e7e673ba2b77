/** Which versions of TimescaleDB this release works with. Others are refused by name before anything is written. */
import type { Client } from 'pg';
import { TidemarkError } from '../errors.ts';

/** Minor versions of TimescaleDB 2, both included, that the tests were run against. */
const OLDEST_MINOR = 19;
const NEWEST_MINOR = 29;

export const SUPPORTED_TIMESCALE = `2.${OLDEST_MINOR} to 2.${NEWEST_MINOR}`;

/** What is wrong with a version, as an operator reads it; undefined for one that is supported. */
export function timescaleFault(version: string | null | undefined): string | undefined {
  if (!version) return `the server has no TimescaleDB; ${SUPPORTED_TIMESCALE} is needed`;
  const [, major, minor] = /^(\d+)\.(\d+)(?:\.|-|$)/.exec(version) ?? [];
  const isSupported = major === '2' && Number(minor) >= OLDEST_MINOR && Number(minor) <= NEWEST_MINOR;
  return isSupported ? undefined : `TimescaleDB ${version} is not supported; ${SUPPORTED_TIMESCALE} is needed`;
}

/** One row and column: the version of the database, or of what `create extension` would install there; null: neither. */
export const TIMESCALE_VERSION = `select coalesce(
    (select extversion from pg_extension where extname = 'timescaledb'),
    (select default_version from pg_available_extensions where name = 'timescaledb')) as version`;

/** @throws TidemarkError DATABASE_UNSUPPORTED naming the version found and those that are supported. */
export async function requireTimescale(client: Pick<Client, 'query'>): Promise<void> {
  const { rows } = await client.query<{ version: string | null }>(TIMESCALE_VERSION);
  const fault = timescaleFault(rows[0].version);
  if (fault) throw new TidemarkError('DATABASE_UNSUPPORTED', `The database cannot be used: ${fault}`);
}
