/** A real day from the vendor's document to artifacts, in both formats and modes, beside the query's rows in DuckDB. */
import { writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { datasetOf, shapeOf } from '../../shared/registry/index.ts';
import { type ArtifactLab, type Artifacts, artifactLab } from '../support/artifacts.ts';
import { ROOT } from '../support/command.ts';
import { startExports } from '../support/exports.ts';
import { givenData } from '../support/given.ts';
import { DATASET, documentPath, System } from '../support/pipeline.ts';
import { checkpointOf, logFolderOf, sequence } from '../support/proof-log.ts';
import type { DuckDb } from '../support/read-parquet.ts';
import type { Serving } from '../support/serving.ts';

const REAL = join(ROOT, '..', 'shared', 'data', 'exchange_a');
const DAY = '2019-04-01';
const WINDOW = { time_range: ['2019-04-01T00:00:00Z', '2019-04-02T00:00:00Z'] };

const TYPES = { int64: 'bigint', float64: 'double', bool01: 'tinyint', timestamp_utc: 'timestamptz' } as const;

givenData('exchange_a').describe(`the real ${DAY}`, () => {
  let system: System;
  let lab: ArtifactLab;
  let serving: Serving;
  let files: Artifacts;
  let duck: DuckDb;

  beforeAll(async () => {
    system = await System.create();
    const { exit } = await system.backfill(DAY, DAY, { SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${REAL}/`).href });
    expect(exit).toBe(0);
    lab = await artifactLab(system.env);
    ({ files, serving, duck } = lab);
  });
  afterAll(async () => {
    await lab?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  test.for([
    ['native', 183_355],
    ['aligned_1s', undefined],
  ] as const)('%s: both files hold the rows that the query serves', async ([mode, count]) => {
    const body = { sources: [DATASET], mode, ...WINDOW };
    const served = join(system.env.dir, `${mode}.ndjson`);
    await writeFile(served, (await serving.query(body, { Accept: 'application/x-ndjson' })).text);
    const { fields } = shapeOf(datasetOf(DATASET), mode);
    const columns = `{${fields.map(({ name, dtype }) => `${name}: '${TYPES[dtype as keyof typeof TYPES]}'`).join(', ')}}`;
    const query = `select row_number() over () as place, * from read_json('${served}', format = 'newline_delimited', columns = ${columns})`;
    const sources = {
      parquet: (path: string) => `'${path}'`,
      csv: (path: string) => `read_csv('${path}', header = true, columns = ${columns})`,
    };
    const [[rows]] = await duck.texts(`select count(*) from (${query})`);
    if (count !== undefined) expect(Number(rows)).toBe(count);
    for (const format of ['csv', 'parquet'] as const) {
      const { manifest, files: written } = await files.write(body, format);
      const ours = `select row_number() over () as place, * from ${sources[format](written[0].path)}`;
      const differing = `(${query} except ${ours}) union all (${ours} except ${query})`;
      expect(await duck.texts(`select count(*) from (${differing})`)).toEqual([['0']]);
      expect(manifest.row_count).toBe(Number(rows));
      const { listed } = manifest.proof!;
      expect(listed).toMatchObject([{ partition: DAY, source_id: 'exchange_a', revision: 1, rows: 183_355 }]);
      expect(listed[0].document_sha256).toMatch(/^[0-9a-f]{64}$/);
      expect(listed[0].events_sha256).toMatch(/^[0-9a-f]{64}$/);
      expect(listed[0].rows_hash).not.toBeNull();
      expect(listed[0].aligned_hash).not.toBeNull();
    }
  });

  test('is checked by strangers: every row of both files by its leaf, and a trade down to the vendor’s file', async () => {
    await sequence(system.env);
    const key = (await checkpointOf(system.env)).verifier.line;
    await using exports = await startExports(system.env, {
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl },
    });
    const check = (...args: string[]) => system.run(['check', ...args, '--key', key, '--log', logFolderOf(system.env)]);
    for (const format of ['csv', 'parquet']) {
      const { json: run } = await exports.run({ dataset: DATASET, format, ...WINDOW });
      const { json } = await check(join(exports.root, run.export_id, '1'));
      expect([json.ok, json.not_checked]).toEqual([true, []]);
      expect(json.checked).toContain(
        'every row of 1 whole partition hashed again from the files and equal to its leaf: 183,355 rows',
      );
    }
    const answer = join(system.env.dir, 'lineage.json');
    await writeFile(answer, (await exports.get(`/v1/lineage/${DATASET}/109344068`)).text);
    const { exit, json } = await check(answer, '--document', join(REAL, documentPath(DAY)));
    expect([exit, json.not_checked, json.checked.at(-1)]).toEqual([
      0,
      ['that the event is the one of offset 109344068: the leaf covers all events of the partition'],
      `${basename(documentPath(DAY))} has the sha256 of the answer, and one of its lines is the event`,
    ]);
  });

  test.for([60, 3600, 7200])('a frame of buckets of %i s is what DuckDB makes of the file', async (grid) => {
    const aggregates = ['first', 'last', 'min', 'max', 'count'];
    const columns = [
      ...aggregates.map((aggregate) => ({ name: aggregate, dataset: DATASET, field: 'price', aggregate })),
      { name: 'volume', dataset: DATASET, field: 'quantity', aggregate: 'sum' },
    ];
    const body = JSON.stringify({ columns, grid, ...WINDOW });
    const { rows } = (await serving.send({ path: '/v1/frame', body })).json;
    const { files: written } = await files.write({ sources: [DATASET], ...WINDOW }, 'parquet');
    const found = await duck.texts(
      `select strftime(to_timestamp(timestamp // ${grid * 1000} * ${grid}), '%Y-%m-%dT%H:%M:%S.000Z'),
         arg_min(price, trade_id), arg_max(price, trade_id), min(price), max(price), count(*),
         sum(quantity::varchar::decimal(38, 10))::varchar
       from '${written[0].path}' group by 1 order by 1`,
    );
    expect(rows).toHaveLength(86_400 / grid);
    const traded = rows.filter((row: { count: number | null }) => row.count !== null);
    expect(traded.map((row: object) => Object.values(row))).toEqual(
      found.map(([start, ...cells]) => [start, ...cells.map(Number)]),
    );
  });
});
