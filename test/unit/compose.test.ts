/** `docker-compose.yml` and what it shares with the stack that `npm start` runs in Docker. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { dockerRunArgs } from '../../shared/stack/docker.ts';
import { INITDB_TEXT_ARGS } from '../../shared/stack/postgres.ts';

const text = readFileSync(join(import.meta.dirname, '../../docker-compose.yml'), 'utf8');
// biome-ignore lint/suspicious/noExplicitAny: a document of another's schema
const { services } = parse(text, { merge: true }) as { services: Record<string, any> };

// `--locale=C` means SQL_ASCII, which the provider refuses: no container got past initdb.
test('a cluster in a container has the encoding and the order of text of the embedded one', () => {
  expect(INITDB_TEXT_ARGS).toContain('--encoding=UTF8');
  const profile = { sharedBuffersBytes: 2 ** 30, durable: true, responseTimeoutMs: 1_000 };
  expect(dockerRunArgs('/some/state', 'postgres', 21_234, profile)).toContain(
    `POSTGRES_INITDB_ARGS=${INITDB_TEXT_ARGS.join(' ')}`,
  );
  expect(services.postgres.environment.POSTGRES_INITDB_ARGS).toBe(INITDB_TEXT_ARGS.join(' '));
});
