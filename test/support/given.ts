/**
 * Tests that need what not every machine has: where it is missing they are skipped, and say why in their name, so that
 * reports and the summary of a run tell it (skipped-reporter.ts).
 */
import { existsSync } from 'node:fs';
import { describe, type TestOptions, test } from 'vitest';
import type { Tool } from './tools.ts';

/** @param reason why the tests are skipped where `isThere` does not hold. */
export function given(isThere: boolean, reason: string) {
  const named = (name: string) => (isThere ? name : `${name} [skipped: ${reason}]`);
  return {
    describe: (name: string, tests: () => void) => describe.skipIf(!isThere)(named(name), tests),
    test: (name: string, work: () => void | Promise<void>, options: TestOptions | number = {}) =>
      test.skipIf(!isThere)(named(name), typeof options === 'number' ? { timeout: options } : options, work),
  };
}

/** Real data of others, kept beside the project. @param path below `../shared/data`. */
export const givenData = (path: string) => {
  const place = `../shared/data/${path}`;
  return given(existsSync(place), `there is no ${place}`);
};

export const givenTool = ({ missing }: Tool) => given(missing === undefined, missing ?? '');

/** A server of one's own, whose versions and edition the tests then run on. */
export const OTHER_DATABASE = process.env.TIDEMARK_TEST_DATABASE_URL;

/** Only the community edition of TimescaleDB has a columnstore, and no distribution has packages of it. */
export const givenOtherDatabase = given(
  OTHER_DATABASE !== undefined,
  'they need a server with the community edition of TimescaleDB: docker run -d -p 5433:5432 -e POSTGRES_PASSWORD=test ' +
    'timescale/timescaledb:2.29.2-pg17 postgres -c max_connections=200 -c max_locks_per_transaction=1024, then ' +
    'TIDEMARK_TEST_DATABASE_URL=postgres://postgres:test@127.0.0.1:5433/postgres npm test',
);

export const NO_MOUNT =
  'a small disk cannot be mounted: run the tests as root, in a container with --cap-add SYS_ADMIN';
