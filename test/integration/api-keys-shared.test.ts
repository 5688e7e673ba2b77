import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { addKey, type KeyTerms } from '../../shared/keys/store.ts';
import type { Json } from '../support/command.ts';
import { EXPORT, type Exports, recordsIn, startExports } from '../support/exports.ts';
import { DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { type Answer, API_KEY, eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let exports: Exports;
/** Keys by name. */
const held = { owner: API_KEY, one: '', other: '' };
type Name = keyof typeof held;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 500, 1, 1)]);
  held.one = await add('one');
  held.other = await add('other');
  exports = await startExports(env);
});
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

async function add(name: string, more: Partial<KeyTerms> = {}): Promise<string> {
  await using client = await connect({ url: env.databaseUrl, name: 'test' });
  const terms = { datasets: null, requestsPerMinute: null, concurrentReads: null, expiresAt: null, ...more };
  return (await addKey(client, name, { scopes: ['read', 'export'], ...terms })).text;
}

const ask = (by: Name, path: string, more: { method?: string; body?: object; headers?: Record<string, string> } = {}) =>
  exports.serving.send({
    method: more.method ?? 'GET',
    path,
    key: held[by],
    headers: more.headers,
    ...(more.body && { method: 'POST', body: JSON.stringify(more.body) }),
  });

const BODY = { dataset: DATASET, format: 'csv', n_rows: 10 };
const submit = (by: Name, body: object = BODY, headers?: Record<string, string>) =>
  ask(by, EXPORT, { body, headers: headers ?? {} });

describe('an export', () => {
  test('belongs to the key that submitted it, by name; to another key there is none', async () => {
    const accepted = await submit('one');
    expect([accepted.status, accepted.json.api_key]).toEqual([202, 'one']);
    const id = accepted.json.export_id;
    await exports.finished(id);
    const manifest = await ask('one', `${EXPORT}/${id}/manifest`);
    expect(manifest.json.run).toMatchObject({ export_id: id, api_key: 'one' });
    const status = await ask('one', `${EXPORT}/${id}`);
    expect(status.json).toMatchObject({ status: 'succeeded', api_key: 'one' });
    const file = status.json.artifact.files[0].name;

    const unknown = '00000000-0000-4000-8000-000000000000';
    const said = async (by: Name, of: string, path: string, method: string) => {
      const { status: code, json, headers } = await ask(by, `${EXPORT}/${of}${path}`, { method });
      const { request_id: _, ...problem } = json;
      const { date: __, 'x-request-id': ___, 'content-length': ____, ...rest } = headers;
      return { code, problem, rest };
    };
    for (const [path, method] of [
      ['', 'GET'],
      ['/artifact', 'GET'],
      [`/artifact/${file}`, 'GET'],
      ['/manifest', 'GET'],
      ['', 'DELETE'],
    ] as const) {
      const refused = await said('other', id, path, method);
      expect([path, method, refused.code, refused.problem.code]).toEqual([path, method, 404, 'EXPORT_NOT_FOUND']);
      expect(refused).toEqual(await said('other', unknown, path, method));
      if (method === 'GET') {
        expect([path, (await ask('one', `${EXPORT}/${id}${path}`)).status]).toEqual([path, 200]);
        expect([path, (await ask('owner', `${EXPORT}/${id}${path}`)).status]).toEqual([path, 200]);
      }
    }
    expect((await ask('one', `${EXPORT}/${id}`, { method: 'DELETE' })).json.code).toBe('EXPORT_ALREADY_FINISHED');
  });

  test('of the owner is no key’s, and each key lists its own, page by page', async () => {
    const ids: Record<Name, string[]> = { owner: [], one: [], other: [] };
    for (const by of ['other', 'owner', 'one', 'other', 'owner'] as const) {
      const { json } = await submit(by);
      expect(json.api_key).toBe(by);
      ids[by].unshift(json.export_id);
    }
    expect((await ask('one', `${EXPORT}/${ids.owner[0]}`)).json.code).toBe('EXPORT_NOT_FOUND');
    const listed = async (by: Name, query = '') => (await ask(by, `${EXPORT}${query}`)).json;
    const idsOf = (page: Json) => page.exports.map((one: Json) => one.export_id);
    expect(idsOf(await listed('other'))).toEqual(ids.other);
    const first = await listed('other', '?limit=1');
    expect(idsOf(first)).toEqual(ids.other.slice(0, 1));
    const last = await listed('other', `?limit=1&cursor=${first.next_cursor}`);
    expect([idsOf(last), last.next_cursor]).toEqual([ids.other.slice(1), null]);
    expect(idsOf(await listed('one'))).toContain(ids.one[0]);
    expect(idsOf(await listed('one')).some((id: string) => [...ids.other, ...ids.owner].includes(id))).toBe(false);
    expect(idsOf(await listed('owner'))).toEqual(expect.arrayContaining(Object.values(ids).flat()));
  });

  test('has an Idempotency-Key of its caller’s: the same one of another key is another', async () => {
    const headers = { 'Idempotency-Key': 'monday' };
    const [one, other, owner] = [
      await submit('one', BODY, headers),
      await submit('other', { ...BODY, n_rows: 20 }, headers),
      await submit('owner', BODY, headers),
    ];
    expect([one, other, owner].map(({ status }) => status)).toEqual([202, 202, 202]);
    expect(new Set([one, other, owner].map(({ json }) => json.export_id)).size).toBe(3);
    const again = await submit('one', BODY, headers);
    expect([again.json.export_id, again.headers['idempotency-replayed']]).toEqual([one.json.export_id, 'true']);
    expect((await submit('one', { ...BODY, n_rows: 20 }, headers)).json.code).toBe('EXPORT_IDEMPOTENCY_CONFLICT');
    // Submitted at once they do not meet either, and each key gets one.
    const twice = { 'Idempotency-Key': 'tuesday' };
    const names: Name[] = ['one', 'other', 'owner', 'one', 'other', 'owner'];
    const answers = await Promise.all(names.map((by) => submit(by, BODY, twice)));
    expect(answers.map(({ status, json }) => json.code ?? status)).toEqual(names.map(() => 202));
    expect(new Set(answers.map(({ json }) => json.export_id)).size).toBe(3);
  });

  test('is in the audit log under the name of its key, and so are refusals', async () => {
    const { json } = await submit('other');
    await exports.finished(json.export_id);
    await ask('other', `${EXPORT}/${json.export_id}/artifact`);
    await exports.serving.app.exports.audit.recordDownloads();
    const reading = await add('reading', { scopes: ['read'] });
    await exports.serving.send({ path: EXPORT, key: reading, body: JSON.stringify(BODY) });
    await exports.serving.send({ path: EXPORT, key: 'wrong', body: JSON.stringify(BODY) });
    const records = await recordsIn(exports.audit);
    const own = records.filter(({ export_id: id }) => id === json.export_id);
    expect(new Set(own.map(({ event }) => event))).toEqual(
      new Set(['export_submit_intent', 'export_submit_accepted', 'export_transition', 'export_download']),
    );
    expect(own.map(({ payload }) => payload.api_key)).toEqual(own.map(() => 'other'));
    const refused = records.filter(({ event }) => event === 'export_access_refused').map(({ payload }) => payload);
    expect(refused).toContainEqual(expect.objectContaining({ api_key: 'reading', code: 'AUTH_SCOPE_MISSING' }));
    expect(refused).toContainEqual(expect.objectContaining({ api_key: null, code: 'AUTH_INVALID_API_KEY' }));
    expect(JSON.stringify(records)).not.toContain(held.other.slice(17));
  });
});

/** Reads of the dataset wait until its disposal. */
async function locked(): Promise<AsyncDisposable> {
  const client = new pg.Client({ connectionString: env.databaseUrl });
  await client.connect();
  await client.query(`begin; lock table ${DATASET} in access exclusive mode`);
  return { [Symbol.asyncDispose]: () => client.end() };
}

describe('reads under load', () => {
  const serve = (settings: Parameters<typeof startServing>[0]['settings']) =>
    startServing({ databaseUrl: env.databaseUrl, settings });
  const read = (serving: Serving, by: Name): Promise<Answer> =>
    serving.send({ key: held[by], body: JSON.stringify({ sources: [DATASET] }) });

  test('one read of a key goes before all that another key has waiting', async () => {
    await using serving = await serve({ SVC_QUERY_MAX_CONCURRENCY: '1' });
    const { plain } = serving.app.limiters;
    let flooded = 0;
    const flood: Promise<unknown>[] = [];
    let single: Promise<number>;
    {
      await using _locked = await locked();
      for (let at = 0; at < 30; at++)
        flood.push(read(serving, 'one').then(({ status }) => status === 200 && flooded++));
      await eventually(() => plain.load.waiting === 29, 'the flood waits');
      single = read(serving, 'other').then(({ status }) => {
        expect(status).toBe(200);
        return flooded;
      });
      await eventually(() => plain.load.waiting === 30, 'the single read waits');
    }
    // The read that ran already, and perhaps one whose answer overtook the other's on the way here.
    expect(await single).toBeLessThanOrEqual(3);
    await Promise.all(flood);
    expect(flooded).toBe(30);
  });

  test('a key with one read after the other keeps its share beside one that floods', async () => {
    await using serving = await serve({ SVC_QUERY_MAX_CONCURRENCY: '1' });
    const { plain } = serving.app.limiters;
    let [flooded, isOver] = [0, false];
    const loops = Array.from({ length: 30 }, async () => {
      while (!isOver) {
        expect((await read(serving, 'one')).status).toBe(200);
        flooded++;
      }
    });
    await eventually(() => plain.load.waiting > 20, 'the flood waits');
    const before = flooded;
    for (let at = 0; at < 20; at++) expect((await read(serving, 'other')).status).toBe(200);
    const beside = flooded - before;
    isOver = true;
    await Promise.all(loops);
    // In order of arrival it would be thirty for each.
    expect(beside).toBeLessThanOrEqual(20 * 4);
  });

  test('a full queue takes the read of a key that has none in it, and refuses one of the flood', async () => {
    await using serving = await serve({ SVC_QUERY_MAX_CONCURRENCY: '1', SVC_QUERY_MAX_QUEUE: '4' });
    const { plain } = serving.app.limiters;
    const answers: Promise<Answer>[] = [];
    let single: Promise<Answer>;
    {
      await using _locked = await locked();
      for (let at = 0; at < 20; at++) answers.push(read(serving, 'one'));
      await eventually(() => plain.rejected.full === 15, 'the flood is cut');
      single = read(serving, 'other');
      await eventually(() => plain.rejected.full === 16, 'one of the flood gives way');
      expect(plain.load).toMatchObject({ running: 1, waiting: 4 });
    }
    expect((await single).status).toBe(200);
    const outcomes = (await Promise.all(answers)).map(({ status, json }) => json.code ?? status);
    expect(outcomes.filter((one) => one === 200)).toHaveLength(4);
    expect(outcomes.filter((one) => one === 'QUERY_QUEUE_LIMIT_REACHED')).toHaveLength(16);
  });
});

describe('forty exports of one key', () => {
  const settings = { SVC_EXPORT_MAX_CONCURRENCY: '2', SVC_EXPORT_MAX_QUEUE: '16' };

  test('lock out no other key and not the owner, and those of others run before they are done', async () => {
    await exports.serving.app.exports.stopWork();
    await using one = await startExports(env, { settings: { ...settings, SVC_STATE_DIR: join(env.dir, 'forty') } });
    const send = (by: Name) => one.serving.send({ path: EXPORT, key: held[by], body: JSON.stringify(BODY) });
    const ids: string[] = [];
    {
      await using _locked = await locked();
      for (let at = 0; at < 2; at++) ids.push((await send('one')).json.export_id);
      for (const id of ids) await eventually(async () => (await one.status(id)).json.status === 'running', 'it runs');
      const flood = await Promise.all(Array.from({ length: 38 }, () => send('one')));
      const taken = flood.filter(({ status }) => status === 202);
      const refused = flood.filter(({ status }) => status !== 202);
      expect([taken.length, refused.length]).toEqual([8, 30]);
      for (const { status, json } of refused) {
        expect([status, json.code]).toEqual([503, 'EXPORT_QUEUE_LIMIT_REACHED']);
        expect(json.detail).toBe(
          '8 exports of this key are waiting, and a key may hold half of the queue’s 16 places. Try again later.',
        );
      }
      ids.push(...taken.map(({ json }) => json.export_id));
      for (const by of [...Array(7).fill('other'), 'owner'] as Name[]) {
        const { status, json, text } = await send(by);
        expect(status, text).toBe(202);
        ids.push(json.export_id);
        if (by === 'owner' || ids.length < 17) continue;
        // Fifteen wait: named keys have no more room.
        expect((await send('other')).json.detail).toBe(
          '15 exports are waiting, and the last of the queue’s 16 places is kept for the owner’s key. Try again later.',
        );
      }
      expect((await send('owner')).json.detail).toBe('16 exports are waiting and 2 are running. Try again later.');
    }
    // What was taken on is done, all of it.
    for (const id of ids) expect((await one.finished(id)).json.status).toBe('succeeded');
    const claims = (await recordsIn(join(env.dir, 'forty', 'export-audit'))).filter(
      ({ payload }) => payload.event === 'claim',
    );
    const order = claims.map(({ payload }) => payload.api_key);
    expect(order).toHaveLength(18);
    expect(order.slice(0, 2)).toEqual(['one', 'one']);
    // Two run at once: a place that is free goes to a key that has none.
    expect(order.indexOf('other')).toBeLessThan(4);
    expect(order.indexOf('owner')).toBeLessThan(5);
  });

  test('run one after the other all the same where nobody else waits', async () => {
    await using alone = await startExports(env, { settings: { ...settings, SVC_STATE_DIR: join(env.dir, 'alone') } });
    await using _locked = await locked();
    const answers = [];
    for (let at = 0; at < 2; at++) {
      const { json } = await alone.serving.send({ path: EXPORT, key: held.one, body: JSON.stringify(BODY) });
      answers.push(json.export_id);
    }
    for (const id of answers)
      await eventually(async () => (await alone.status(id)).json.status === 'running', 'both workers run its exports');
    for (const id of answers) await alone.cancel(id);
  });
});
