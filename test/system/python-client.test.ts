/** The Python client against a service with rows of every dataset: what needs no log and no exports. */
import { join } from 'node:path';
import { beforeAll, expect } from 'vitest';
import { HistoricalData, type Rows } from '../../client/index.ts';
import { run } from '../../shared/stack/processes.ts';
import { ROOT } from '../support/command.ts';
import { givenTool } from '../support/given.ts';
import { writeLake } from '../support/lake.ts';
import { pythonTests } from '../support/python-tests.ts';
import { servedEnv } from '../support/served-env.ts';
import { API_KEY } from '../support/serving.ts';
import { clientPython } from '../support/tools.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

const served = servedEnv(createWorldsEnv);
const python = await clientPython();
const lakeFolder = () => join(served.env.dir, 'lake');
beforeAll(() => writeLake({ databaseUrl: served.env.databaseUrl, folder: lakeFolder() }));
const environment = () => ({
  TIDEMARK_URL: served.serving.url,
  TIDEMARK_KEY: API_KEY,
  TIDEMARK_LAKE: lakeFolder(),
});

await pythonTests('the Python client', {
  python,
  files: ['test_units.py', 'test_proof_formats.py', 'test_answers.py', 'test_manners.py', 'test_lake.py'],
  // The whole runs at night against the sample.
  marks: 'not nightly',
  environment,
});

givenTool(python).test('both clients are told the same cells, in every form of Python', async () => {
  const data = new HistoricalData({ baseUrl: served.serving.url, apiKey: API_KEY }) as unknown as Readonly<
    Record<string, (request: object) => Rows<object>>
  >;
  const { stdout } = await run(python.path, ['-B', join(ROOT, 'test/data/clients/rows.py')], {
    env: { ...environment(), PYTHONPATH: join(ROOT, 'client/python/src') },
  });
  const told = stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(told).toHaveLength(12 * 2 * 4);
  for (const { dataset, mode, form, rows } of told) {
    const window = { start_date: '1960-01-01', end_date: '2030-01-01' };
    const expected = await data[`get_${dataset}`]({ ...window, mode });
    expect(expected.rows.length).toBeGreaterThan(0);
    expect(rows, `${dataset} ${mode} ${form}`).toEqual(expected.rows);
  }
});
