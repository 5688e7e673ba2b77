/** What the user's shell sets for other databases and servers, and faults of a given server that only another setting mends. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { retryThroughOutage } from '../../pipelines/cli/context.ts';
import { FairScheduler, PgConnection } from '../../serving/db/pg-connection.ts';
import { connect, createPool } from '../../shared/db/connect.ts';
import { codeOf } from '../../shared/errors.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { natsFault } from '../../shared/stack/nats.ts';
import { postgresFault } from '../../shared/stack/postgres.ts';
import { createTestEnv, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
const kept = { ...process.env };
beforeEach(async () => {
  env = await createTestEnv();
});
afterEach(async () => {
  for (const name of Object.keys(process.env)) if (!(name in kept)) delete process.env[name];
  Object.assign(process.env, kept);
  await env[Symbol.asyncDispose]();
});

/** Each of them ended a connection, or opened another one. */
const LIBPQ = {
  PGOPTIONS: '-c nothing=1',
  PGSSLMODE: 'require',
  PGSSLNEGOTIATION: 'direct',
  PGREPLICATION: 'database',
} as const;

const QUESTION = `select 7 as number`;

test.each(Object.entries(LIBPQ))('%s does not reach a connection of ours', async (name, value) => {
  const url = env.databaseUrl;
  process.env[name] = value;
  expect(await postgresFault(url, 5000)).toBeUndefined();
  process.env[name] = value;
  await using client = await connect({ url, name: 'tidemark test' });
  expect((await client.query(QUESTION)).rows).toEqual([{ number: 7 }]);
  process.env[name] = value;
  const pool = createPool({ url, name: 'tidemark test', max: 1 });
  expect((await pool.query(QUESTION)).rows).toEqual([{ number: 7 }]);
  await pool.end();
  process.env[name] = value;
  const scheduler = new FairScheduler();
  const reader = await PgConnection.open({ url, name: 'tidemark test', connectTimeoutMs: 5000, scheduler });
  reader.end();
});

test('what a URL lacks is not taken from the environment', async () => {
  const { password, username } = new URL(env.databaseUrl);
  const file = join(env.dir, 'passwords');
  await writeFile(file, `*:*:*:${username}:${password}\n`, { mode: 0o600 });
  const url = edited(env.databaseUrl, (at) => {
    at.password = '';
  });
  for (const variables of [{ PGPASSWORD: password }, { PGPASSFILE: file }]) {
    Object.assign(process.env, variables);
    expect(await postgresFault(url, 5000), JSON.stringify(Object.keys(variables))).toMatchObject({ kind: 'refused' });
  }
});

const edited = (text: string, edit: (url: URL) => void) => {
  const url = new URL(text);
  edit(url);
  return url.href;
};

const BY_SETTING: Readonly<Record<string, (url: URL) => void>> = {
  'wrong password': (url) => {
    url.password = 'wrong';
  },
  'no password': (url) => {
    url.password = '';
  },
  'missing database': (url) => {
    url.pathname = '/elsewhere';
  },
  'TLS that the server lacks': (url) => url.searchParams.set('sslmode', 'require'),
};

test.each(Object.entries(BY_SETTING))('PostgreSQL, %s: ends at once', async (_name, edit) => {
  const url = edited(env.databaseUrl, edit);
  const notes: string[] = [];
  const { signal } = new AbortController();
  const ask = async () => {
    await using _ = await connect({ url, name: 'tidemark test' });
  };
  const fault = await retryThroughOutage(ask, { signal, note: (note) => notes.push(note) }).catch((error) => error);
  expect([codeOf(fault), notes]).toEqual(['DATABASE_UNAVAILABLE', []]);
  expect((await postgresFault(url, 5000))?.kind).toBe('refused');
});

test.each([
  [
    'wrong password',
    (url: URL) => {
      url.password = 'wrong';
    },
  ],
  [
    'TLS that the server lacks',
    (url: URL) => {
      url.protocol = 'tls:';
    },
  ],
] as const)('nats-server, %s: ends at once', async (_name, edit) => {
  const url = edited(env.natsUrl, edit);
  const notes: string[] = [];
  const { signal } = new AbortController();
  const ask = async () => {
    await using _ = await connectNats(url, 'tidemark test');
  };
  const fault = await retryThroughOutage(ask, { signal, note: (note) => notes.push(note) }).catch((error) => error);
  expect([codeOf(fault), notes]).toEqual(['LOG_UNAVAILABLE', []]);
  expect((await natsFault(url, 5000))?.kind).toBe('refused');
});
