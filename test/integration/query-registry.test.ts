/** Whatever is registered is served: every field of every dataset can be selected, filtered and sampled, in both modes. */
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { OPERATORS_OF } from '../../serving/contract/filters.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { ALIGNED_COLUMNS } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition, type PgType, shapeOf } from '../../shared/registry/index.ts';
import { fileDays, windowOf } from '../../shared/registry/keys.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const DAY = '2024-06-01';
const ROWS = 20;
/** Datasets whose rows lie in file days, one series each. */
const BUCKETS = [...DATASETS.values()].filter(
  ({ aligned, partition }) => aligned.windowing === 'bucket' && partition.kind === 'file_day',
);
/** The others have no rows here. */
const EMPTY = [...DATASETS.values()].filter((dataset) => !BUCKETS.includes(dataset));

let env: TestEnv;
let serving: Serving;

beforeAll(async () => {
  env = await createMigratedEnv();
  const client = new pg.Client({ connectionString: env.databaseUrl });
  await client.connect();
  for (const dataset of BUCKETS) await fill(client, dataset);
  await client.end();
  serving = await startServing({ databaseUrl: env.databaseUrl });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

/** A value of a column in row n: different in every row where the type can be. */
function sampleValue(pgType: PgType, n: number): unknown {
  switch (pgType) {
    case 'bool':
      return n % 2 === 0;
    case 'float8':
      return 1.5 + n;
    case 'text':
      return `t"${n}\\é`;
    case 'timestamptz':
      return new Date(Date.parse(`${DAY}T03:00:00Z`) + n * 1000);
    case 'uuid':
      return `00000000-0000-8000-8000-0000000000${String(n).padStart(2, '0')}`;
    default:
      return 1000 + n;
  }
}

/** Rows of one proved day, a second each. */
async function fill(client: pg.Client, dataset: DatasetDefinition): Promise<void> {
  const { native, number } = dataset;
  const [key] = fileDays(DAY, DAY);
  const { fromMs, toMs } = windowOf(dataset, key);
  const insert = async (table: string, row: Record<string, unknown>) => {
    const names = Object.keys(row);
    const places = names.map((_, index) => `$${index + 1}`);
    await client.query(
      `insert into ${table} (${names.map((name) => `"${name}"`)}) values (${places})`,
      Object.values(row),
    );
  };
  const series = await client.query(`select series_id from series where dataset_id = $1 and key = ''`, [number]);
  for (let n = 0; n < ROWS; n++) {
    const row = Object.fromEntries(native.columns.map(({ name, pg: type }) => [name, sampleValue(type, n)]));
    const ms = fromMs + n * 60_000;
    row[native.time.column] = native.time.pg === 'int8' ? ms : new Date(ms);
    await insert(native.table, row);
    const columns = new Set(dataset.aligned.fields.flatMap((field) => field.columns));
    const aligned = Object.fromEntries(
      [...columns].map((name) => [name, sampleValue(ALIGNED_COLUMNS[name as keyof typeof ALIGNED_COLUMNS], n)]),
    );
    await insert(ALIGNED_TABLE, {
      ...aligned,
      aligned_at_utc: new Date(ms),
      dataset_id: number,
      series_id: series.rows[0].series_id,
    });
  }
  await client.query(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows, aligned_rows,
       offsets, ingested_at, proved_at) values ($1, $2, 'proved', 1, 1, $3, $4, false, $5, $5, int8range(1000, $6), date_trunc('milliseconds', now()), now())`,
    [number, key, fromMs, toMs, ROWS, 1000 + ROWS],
  );
  await client.query(
    'update coverage set proved = int8multirange(int8range($2, $3)), version = 1 where dataset_id = $1',
    [number, fromMs, toMs],
  );
}

const PATTERNS: Record<string, RegExp> = {
  int64: /^-?\d+$/,
  float64: /^-?\d/,
  bool01: /^[01]$/,
  timestamp_utc: /^"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"$/,
  uuid: /^"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"$/,
  string: /^"/,
  json: /^"/,
};

describe.each(BUCKETS.map((dataset) => [dataset.key, dataset] as const))('%s', (key, dataset) => {
  describe.each(['native', 'aligned_1s'] as const)('%s', (mode) => {
    const { fields } = shapeOf(dataset, mode);
    const ask = async (body: object) => {
      const answer = await serving.query({ sources: [key], mode, ...body });
      expect(answer.status, answer.text.slice(0, 500)).toBe(200);
      return answer.json;
    };

    test('all fields, of the declared types, in the declared order', async () => {
      const { rows, schema } = await ask({});
      expect(schema).toEqual(fields.map(({ name, dtype }) => ({ name, dtype })));
      expect(rows.length).toBe(ROWS);
      for (const row of rows) {
        expect(Object.keys(row)).toEqual(fields.map((field) => field.name));
        for (const field of fields) expect(JSON.stringify(row[field.name])).toMatch(PATTERNS[field.dtype]);
      }
    });

    test('every window gives the same rows', async () => {
      const { rows } = await ask({});
      expect((await ask({ n_rows: 5 })).rows).toEqual(rows.slice(-5));
      expect((await ask({ n_rows: 5 })).rows).toEqual(rows.slice(-5));
      expect((await ask({ n_random: ROWS })).rows).toEqual(rows);
      const some = (await ask({ n_random: 7, random_seed: 1 })).rows;
      expect(some.length).toBe(7);
      for (const row of some) expect(rows).toContainEqual(row);
    });

    test('every field alone, and filtered by each of its operators', async () => {
      const { rows } = await ask({});
      for (const { name, dtype } of fields) {
        expect((await ask({ fields: [name] })).rows).toEqual(
          rows.map((row: object) => ({ [name]: row[name as keyof object] })),
        );
        const value = rows[7][name];
        const equal = rows.filter((row: Record<string, unknown>) => row[name] === value);
        for (const op of OPERATORS_OF[dtype]) {
          const filters = [{ field: name, op, value: op === 'in' || op === 'not_in' ? [value] : value }];
          const answer = await serving.query({ sources: [key], mode, filters });
          expect([200, 404], `${name} ${op}`).toContain(answer.status);
          if (op === 'eq' || op === 'in') expect(answer.json.rows, `${name} ${op}`).toEqual(equal);
        }
      }
    });
  });
});

describe.each(EMPTY.map((dataset) => [dataset.key] as const))('%s', (key) => {
  test.each(['native', 'aligned_1s'] as const)('without proved rows: %s is 404 for any window', async (mode) => {
    const windows = [{}, { n_rows: 1 }, { n_random: 1 }, { time_range: [`${DAY}T00:00:00Z`, `${DAY}T01:00:00Z`] }];
    for (const window of windows) {
      const answer = await serving.query({ sources: [key], mode, ...window });
      expect([answer.status, answer.json?.code], JSON.stringify(window)).toEqual([404, 'QUERY_NO_DATA']);
    }
  });
});
