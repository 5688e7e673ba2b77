/** Under a matrix that demands the caller's own credentials everywhere, the restricted role is enough for every route. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { makeReadRole } from '../../shared/db/roles.ts';
import { DATASETS as REGISTERED } from '../../shared/registry/index.ts';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { ROW_ROUTES, type RowRoute } from '../support/oracle/routes.ts';
import { STORED } from '../support/oracle/setups.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const ROLE = `byok_routes_${Math.random().toString(36).slice(2, 10)}`;
const DATASET = 'exchange_a_spot_trades';

let env: TestEnv;
let serving: Serving;
let password: string;
beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 60, 1000, 1), randomDay('2024-03-02', 60, 1060, 2)]);
  await using client = await connect({ url: env.databaseUrl, name: 'test' });
  password = (await makeReadRole(client, ROLE, false)).password!;
  const feeds = Map.groupBy(
    [...REGISTERED.values()].flatMap(({ key, sources }) => sources.map((source) => ({ key, source }))),
    ({ source }) => source,
  );
  const sources = [...feeds].map(([source, fed]) => [
    source,
    { rights_state: 'BYOK Required', rights_provisional: false, datasets: fed.map(({ key }) => key) },
  ]);
  const rightsMatrixPath = join(env.dir, 'matrix.json');
  await writeFile(rightsMatrixPath, JSON.stringify({ version: '1', sources: Object.fromEntries(sources) }));
  serving = await startServing({
    databaseUrl: env.databaseUrl,
    rightsMatrixPath,
    settings: { SVC_BYOK_DATABASE_ROLE: ROLE },
  });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await execute(env.databaseUrl, `drop owned by ${ROLE}; drop role ${ROLE}`);
  await env[Symbol.asyncDispose]();
});

const WINDOWS = {
  query: [{}, { n_rows: 5 }, { n_random: 5 }, { time_range: ['2024-03-01T06:00:00Z', '2024-03-02T06:00:00Z'] }],
  historical: [{}, { n_latest_rows: 5 }, { n_random_rows: 5 }, { start_date: '2024-03-01', end_date: '2024-03-01' }],
};
/** What is asked for beside the window: all fields, and filters that look things up in the catalog. */
const SELECTIONS = [{}, { filters: [{ field: 'trade_id', op: 'gte', value: 1001 }] }];

describe.each(ROW_ROUTES)('$path', (route) => {
  const datasets = route.style.kind === 'query' ? [...REGISTERED.keys()] : [route.style.dataset as string];

  // One dataset a route in `npm test`: the statement that checks the role does not depend on it.
  for (const dataset of datasets) {
    const options = { tags: dataset === datasets[0] ? [] : ['nightly'] };
    test(`${dataset} is read by the role, by nobody without it`, options, () => expectRoleNeeded(route, dataset));
  }
});

async function expectRoleNeeded({ path, style }: RowRoute, dataset: string): Promise<void> {
  const source = style.kind === 'query' ? { sources: [dataset] } : {};
  for (const mode of ['native', 'aligned_1s']) {
    const windows = WINDOWS[style.kind === 'query' ? 'query' : 'historical'];
    const [first] = windows;
    for (const window of windows) {
      const isTrades = dataset === DATASET && mode === 'native' && style.kind !== 'klines';
      for (const selection of isTrades ? SELECTIONS : [{}]) {
        const body = JSON.stringify({ ...source, mode, ...window, ...selection });
        const ask = (token?: string) =>
          serving.send({ path, body, headers: token === undefined ? {} : { 'X-Backend-Token': token } });
        const answer = await ask(password);
        expect([body, answer.status]).toEqual([body, dataset === DATASET || path.endsWith('/estimate') ? 200 : 404]);
        if (answer.status === 200) expect(answer.json.rights_state).toBe('BYOK Required');
        expect((await ask()).json.code).toBe('QUERY_RIGHTS_BYOK_REQUIRED');
        // Who asks is known before what is asked for: once is enough where there are no rows.
        if (dataset !== DATASET && window !== first) continue;
        expect((await ask('wrong')).json.code).toBe('QUERY_RIGHTS_BYOK_REFUSED');
      }
    }
  }
}

test('lineage looks an event up as the role', async () => {
  const offset = STORED.native[0].get('trade_id');
  const ask = (token?: string) =>
    serving.send({
      method: 'GET',
      path: `/v1/lineage/${DATASET}/${offset}`,
      headers: token === undefined ? {} : { 'X-Backend-Token': token },
    });
  expect((await ask()).json.code).toBe('QUERY_RIGHTS_BYOK_REQUIRED');
  expect((await ask('wrong')).json.code).toBe('QUERY_RIGHTS_BYOK_REFUSED');
  // There is no log here: what is told of is that the look-up itself went well.
  expect(['LINEAGE_LOG_UNAVAILABLE', 'LINEAGE_OFFSET_NOT_FOUND']).toContain((await ask(password)).json.code);
});
