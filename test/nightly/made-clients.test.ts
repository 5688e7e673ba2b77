/**
 * Clients that generators make of the OpenAPI document: each compiles, asks for rows of three datasets, for klines and for an
 * export, and must be told the same as who asks without one. A client that takes a row for another kind tells nulls.
 */
import { copyFile, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { afterAll, beforeAll, expect } from 'vitest';
import { run } from '../../shared/stack/processes.ts';
import { type Json, ROOT, type Running, startCommand } from '../support/command.ts';
import { givenTool } from '../support/given.ts';
import { SAMPLE_MATRIX } from '../support/serving.ts';
import { createTestEnv, natsSettings, type TestEnv } from '../support/stack.ts';
import {
  goClientMaker,
  JAVA_GENERATOR,
  javaClientMaker,
  pythonClientMaker,
  typescriptClientMaker,
} from '../support/tools.ts';

const KEY = 'a-key';
const PROGRAMS = join(ROOT, 'test/data/clients');
const DOCUMENT = 'openapi.json';
/** Maven and Go download what the generated client needs, the first time, and compile slowly on a busy machine. */
const TIMEOUT_MS = 900_000;

let env: TestEnv;
let up: Running;
let url: string;
let folder: string;
let expected: Json;

const post = async (path: string, body: unknown): Promise<Json> => {
  const answer = await fetch(`${url}${path}`, {
    method: 'POST',
    headers: { 'X-API-Key': KEY },
    body: JSON.stringify(body),
  });
  return await answer.json();
};

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'tidemark-clients-'));
  env = await createTestEnv();
  up = startCommand(['up'], {
    SVC_DATABASE_URL: env.databaseUrl,
    ...natsSettings(env),
    SVC_STATE_DIR: join(env.dir, 'state'),
    SVC_STREAM_MAX_BYTES: String(1 << 28),
    SVC_INTERNAL_API_KEY: KEY,
    SVC_SOURCE_RIGHTS_MATRIX_PATH: SAMPLE_MATRIX,
    SVC_HTTP_PORT: '0',
  });
  url = await new Promise<string>((resolve, reject) => {
    let said = '';
    up.child.stdout?.on('data', (text) => {
      said += text;
      if (said.endsWith('\n')) resolve(JSON.parse(said).url);
    });
    void up.done.then(({ stderr }) => reject(new Error(stderr)));
  });
  await writeFile(join(folder, DOCUMENT), await (await fetch(`${url}/openapi.json`)).text());
  expected = await askedPlainly();
});
afterAll(async () => {
  up.child.kill('SIGTERM');
  await up.done;
  await env[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

/** What the clients are to be told. */
async function askedPlainly(): Promise<Json> {
  const latest = async (dataset: string, ...fields: readonly string[]) => {
    const { rows } = await post('/v1/raw/query', { sources: [dataset], n_rows: 2 });
    expect(rows).toHaveLength(2);
    return rows.map((row: Json) => fields.map((field) => row[field]));
  };
  const klines = await post('/v1/historical/exchange_a/spot/klines', { n_latest_rows: 2, kline_size: '1h' });
  const csv = await fetch(`${url}/v1/raw/query`, {
    method: 'POST',
    headers: { 'X-API-Key': KEY, Accept: 'text/csv' },
    body: JSON.stringify({ sources: ['exchange_a_spot_trades'], n_rows: 3 }),
  });
  const file = await csv.text();
  return {
    trades: await latest('exchange_a_spot_trades', 'trade_id', 'price'),
    blocks: await latest('bitcoin_block_headers', 'height', 'difficulty'),
    metrics: await latest('etf_daily_metrics', 'metric_id', 'metric_value_float'),
    klines: klines.rows.map((row: Json) => [row.open, row.no_of_trades]),
    bytes: Buffer.byteLength(file),
    file,
  };
}

/** A folder for one client. */
async function folderOf(name: string): Promise<string> {
  const made = join(folder, name);
  await mkdir(made);
  return made;
}

async function expectTold(command: string, args: readonly string[], cwd: string): Promise<void> {
  const { stdout } = await run(command, args, { cwd, env: { TIDEMARK_URL: url, TIDEMARK_KEY: KEY } });
  expect(JSON.parse(stdout)).toEqual(expected);
}

const typescript = await typescriptClientMaker();
givenTool(typescript).test(
  'TypeScript, by openapi-typescript',
  async () => {
    const cwd = await folderOf('typescript');
    const programs = join(typescript.path, 'node_modules/.bin');
    await symlink(join(typescript.path, 'node_modules'), join(cwd, 'node_modules'));
    await copyFile(join(PROGRAMS, 'client.ts.txt'), join(cwd, 'client.ts'));
    await writeFile(join(cwd, 'package.json'), '{"type":"module"}');
    const making = run(join(programs, 'openapi-typescript'), [join(folder, DOCUMENT), '-o', 'api.ts'], { cwd });
    const { stdout, stderr } = await making;
    expect(`${stdout}${stderr}`).not.toMatch(/⚠|warning|invalid/i);
    const options = ['--strict', '--target', 'esnext', '--module', 'nodenext', '--lib', 'esnext,dom'];
    await writeFile(join(cwd, 'globals.d.ts'), 'declare const process: { env: Record<string, string | undefined> };\n');
    await run(join(programs, 'tsc'), [...options, '--skipLibCheck', 'client.ts', 'globals.d.ts'], { cwd });
    await expectTold(process.execPath, ['client.js'], cwd);
  },
  TIMEOUT_MS,
);

const python = await pythonClientMaker();
givenTool(python).test(
  'Python, by openapi-python-client',
  async () => {
    const cwd = await folderOf('python');
    const made = ['generate', '--path', join(folder, DOCUMENT), '--output-path', join(cwd, 'api'), '--meta', 'none'];
    // It formats what it makes by the ruff beside it.
    const env = { PATH: `${dirname(python.path)}${delimiter}${process.env.PATH}` };
    const { stdout, stderr } = await run(python.path, ['-m', 'openapi_python_client', ...made], { cwd, env });
    // It leaves out what it does not understand, and says so.
    expect(`${stdout}${stderr}`).not.toMatch(/unable to parse|warning/i);
    await copyFile(join(PROGRAMS, 'client.py'), join(cwd, 'client.py'));
    await expectTold(python.path, ['client.py'], cwd);
  },
  TIMEOUT_MS,
);

const go = await goClientMaker();
givenTool(go).test(
  'Go, by oapi-codegen',
  async () => {
    const cwd = await folderOf('go');
    await mkdir(join(cwd, 'api'));
    const options = ['-package', 'api', '-generate', 'types,client', '-o', 'api/api.go'];
    await run(join(go.path, 'oapi-codegen'), [...options, join(folder, DOCUMENT)], { cwd });
    await copyFile(join(PROGRAMS, 'client.go'), join(cwd, 'main.go'));
    await run('go', ['mod', 'init', 'client'], { cwd });
    await run('go', ['mod', 'edit', '-require', 'github.com/oapi-codegen/runtime@v1.9.0'], { cwd });
    await run('go', ['mod', 'tidy'], { cwd });
    await run('go', ['build', '-o', 'client', '.'], { cwd });
    await expectTold(join(cwd, 'client'), [], cwd);
  },
  TIMEOUT_MS,
);

const java = await javaClientMaker();
givenTool(java).test(
  'Java, by openapi-generator',
  async () => {
    const cwd = await folderOf('java');
    const options = ['-g', 'java', '--library', 'native', '--additional-properties', 'containerDefaultToNull=true'];
    const jar = ['-jar', join(java.path, JAVA_GENERATOR), 'generate', '-i', join(folder, DOCUMENT), '-o', cwd];
    await run('java', [...jar, ...options], { cwd });
    await mkdir(join(cwd, 'src/main/java/client'));
    await copyFile(join(PROGRAMS, 'Client.java'), join(cwd, 'src/main/java/client/Client.java'));
    const libraries = ['dependency:copy-dependencies', '-DincludeScope=runtime', '-DoutputDirectory=target/lib'];
    await run('mvn', ['-q', '-B', 'compile', ...libraries], { cwd });
    await expectTold('java', ['-cp', 'target/classes:target/lib/*', 'client.Client'], cwd);
  },
  TIMEOUT_MS,
);
