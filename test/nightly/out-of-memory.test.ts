/**
 * Memory runs out: the kernel kills one process of PostgreSQL, whereupon the server ends all its others, or V8 gives one of
 * ours up. Everything goes on by itself, and comes to what an undisturbed run has.
 */
import { once } from 'node:events';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Change, Changes } from '../../client/index.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { freePort } from '../../shared/stack/state.ts';
import { childrenOf, type Json, startCommand } from '../support/command.ts';
import { faultsOf, tableFiles } from '../support/lake.ts';
import { csvOf, DATASET, digestsOf, System, writeDocument } from '../support/pipeline.ts';
import { checkpointOf, logFolderOf } from '../support/proof-log.ts';
import { API_KEY, eventually, migrated, OWN_MATRIX } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { createPrivateStack, natsSettings, type PrivateStack } from '../support/stack.ts';

const DAYS = ['2024-01-01', '2024-01-02', '2024-01-03', '2024-01-04'];

let own: PrivateStack;
let undisturbed: System;
beforeAll(async () => {
  [own, undisturbed] = await Promise.all([createPrivateStack(), System.create()]);
  await migrated(own.stack.databaseUrl);
  for (const [index, day] of DAYS.entries()) {
    const text = csvOf({ day, firstId: 1 + index * 20_000, seed: index, rows: 20_000, timeUnit: 'ms' });
    await writeDocument(undisturbed.vendor, day, text);
  }
});
afterAll(async () => {
  await own?.[Symbol.asyncDispose]();
  await undisturbed?.[Symbol.asyncDispose]();
});

/** Each attempt on a connection of its own: the last one may have been ended with all others. */
async function asked<T>(question: (client: Client) => Promise<T>): Promise<T | undefined> {
  try {
    await using client = await connect({ url: own.stack.databaseUrl, name: 'test', connectTimeoutMs: 1000 });
    return await question(client);
  } catch {
    return undefined;
  }
}

test('killed processes of the database, the projector and the service cost nobody more than time', async () => {
  const folder = join(own.dir, 'lake');
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const settings = {
    SVC_DATABASE_URL: own.stack.databaseUrl,
    ...natsSettings(own.stack),
    SVC_STATE_DIR: join(own.dir, 'state'),
    SVC_EXCHANGE_A_BASE_URL: undisturbed.settings.SVC_EXCHANGE_A_BASE_URL,
    SVC_STREAM_MAX_BYTES: String(1 << 28),
    ...limitsEnv({ frameRawBytes: 60_000, heartbeatMs: 1000, exportLeaseMs: 1000 }),
  };
  const up = startCommand(['up', '--http-port', String(port)], {
    ...settings,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    SVC_LAKE_FOLDER: folder,
    SVC_SAMPLE: 'false',
  });
  await once(up.child.stdout!, 'data');
  const seen: Change[] = [];
  const leaving = new AbortController();
  const following = (async () => {
    const changes = new Changes({ baseUrl: url, apiKey: API_KEY });
    for await (const change of changes.follow({ since: 0 }, { signal: leaving.signal })) seen.push(change);
  })().catch((error) => {
    if (!leaving.signal.aborted) throw error;
  });
  /** A refused connection and a broken answer have no status. */
  const api = async (path: string, body?: object): Promise<{ status?: number; json?: Json }> => {
    const init = {
      method: body ? 'POST' : 'GET',
      headers: { 'X-API-Key': API_KEY },
      body: body && JSON.stringify(body),
    };
    return await fetch(url + path, init).then(
      async (answer) => ({ status: answer.status, json: await answer.json() }),
      () => ({}),
    );
  };
  const query = { sources: [DATASET], n_rows: 5 };
  const KILLS: readonly [string, () => Promise<boolean>][] = [
    [
      'a process of the database',
      async () => {
        const busy = `select pid from pg_stat_activity where application_name like 'tidemark projector%'
        order by state = 'active' desc limit 1`;
        const pid = await asked(async (client) => (await client.query(busy)).rows[0]?.pid as number | undefined);
        return pid !== undefined && process.kill(pid, 'SIGKILL');
      },
    ],
    // As V8 ends a process whose heap is full.
    [
      'the projector',
      async () => childrenOf(up.child.pid!, 'pipelines/projector/main.ts').some((pid) => process.kill(pid, 'SIGABRT')),
    ],
    [
      'the service',
      async () => childrenOf(up.child.pid!, 'serving/main.ts').some((pid) => process.kill(pid, 'SIGABRT')),
    ],
    ['a process of the database again', async () => KILLS[0][1]()],
  ];
  const paths: string[] = [];
  for (const [index, [what, kill]] of KILLS.entries()) {
    const day = DAYS[index];
    const backfill = startCommand(['backfill', DATASET, '--from', day, '--to', day], settings);
    const begun = `select 1 from attempts where partition_key = $1`;
    await eventually(
      async () => ((await asked((client) => client.query(begun, [day])))?.rows.length ?? 0) > 0,
      `${day} is being published`,
    );
    if (index > 0) {
      const body = { dataset: DATASET, format: 'csv', time_range: [`${DAYS[0]}T00:00:00Z`, `${DAYS[0]}T23:00:00Z`] };
      const { status, json } = await api('/v1/raw/export', body);
      expect(status).toBe(202);
      paths.push(json.status_path);
    }
    await eventually(kill, `${what} is killed`);
    const { exit, json, stderr } = await backfill.done;
    // Unchanged: the day was proved while the command waited for the database, and it looked again.
    expect([exit, json?.proved + json?.unchanged], stderr).toEqual([0, 1]);
    await eventually(async () => {
      const { status, json: answer } = await api('/v1/raw/query', query);
      // Away, or not well yet: never another answer.
      if (status !== undefined && status !== 200) expect([status, answer.code]).toEqual([503, 'QUERY_BACKEND_ERROR']);
      return status === 200;
    }, `rows are served after ${what} was killed`);
  }
  for (const path of paths) {
    const over = async () => ['succeeded', 'failed'].includes((await api(path)).json?.status);
    await eventually(over, 'the export is over');
    expect((await api(path)).json.status).toBe('succeeded');
  }
  await eventually(() => seen.length === DAYS.length, 'every change is heard');
  expect(seen.map(({ number, kind, partition }) => [number, kind, partition])).toEqual(
    DAYS.map((day, index) => [index + 1, 'proved', day]),
  );
  const files = async () => (await tableFiles(folder).catch(() => [])).map(({ date }) => date);
  await eventually(async () => (await files()).length === 2 * DAYS.length, 'the lake has every day');
  leaving.abort();
  await following;
  up.child.kill('SIGTERM');
  expect((await up.done).exit).toBe(0);
  expect(await faultsOf(folder)).toEqual([]);
  expect((await checkMirror(await checkpointOf(own), folderSource(logFolderOf(own)))).faults).toEqual([]);
  expect((await undisturbed.backfill(DAYS[0], DAYS.at(-1)!, limitsEnv({ frameRawBytes: 60_000 }))).exit).toBe(0);
  await using last = await connect({ url: own.stack.databaseUrl, name: 'test' });
  expect(await digestsOf(last)).toEqual(await undisturbed.digests());
});
