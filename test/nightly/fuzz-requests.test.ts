/**
 * Requests made from the OpenAPI document, against the service as a process over rows of all twelve datasets.
 * `npm run fuzz -- requests` runs this test with its seed and numbers.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fuzzRequests, type ServiceUnderTest } from '../fuzz/requests.ts';
import { ROOT } from '../support/command.ts';
import { exportSettings } from '../support/exports.ts';
import { SEED } from '../support/seed.ts';
import { API_KEY, OWN_MATRIX } from '../support/serving.ts';
import { execute, rolesOf, type TestEnv } from '../support/stack.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

const { TIDEMARK_FUZZ_SEED, TIDEMARK_FUZZ_COUNT, TIDEMARK_FUZZ_ONLY, SVC_HTTP_PROCESSES = '1' } = process.env;
const seed = Number(TIDEMARK_FUZZ_SEED ?? SEED);
const only = TIDEMARK_FUZZ_ONLY === undefined ? undefined : Number(TIDEMARK_FUZZ_ONLY);
const countOf = (usual: number) => Number(TIDEMARK_FUZZ_COUNT ?? usual);
const isAsked = TIDEMARK_FUZZ_COUNT !== undefined || only !== undefined;
const note = isAsked ? (line: string) => void process.stdout.write(`${line}\n`) : undefined;

let env: TestEnv;
let child: ChildProcess;
let service: ServiceUnderTest & { readonly pid: number };
let log = '';

beforeAll(async () => {
  env = await createWorldsEnv();
  const settings = exportSettings(env);
  const roles = rolesOf(env.databaseUrl);
  child = spawn(process.execPath, [join(ROOT, 'serving/main.ts')], {
    cwd: env.dir,
    env: {
      PATH: process.env.PATH,
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
      ...settings,
      SVC_DATABASE_URL: roles.serve,
      SVC_DATABASE_MONITOR_URL: roles.monitor,
      SVC_INTERNAL_API_KEY: API_KEY,
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
      SVC_HTTP_PORT: '0',
      SVC_HTTP_PROCESSES,
      SVC_LOG_LEVEL: 'error',
      SVC_EXPORT_IN_PROCESS: 'true',
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child.stderr!.on('data', (chunk) => {
    log = (log + chunk).slice(-20_000);
  });
  const [line] = await once(child.stdout!, 'data');
  const { url, pid } = JSON.parse(String(line));
  const { pathname, password } = new URL(roles.serve);
  service = {
    url,
    pid,
    key: API_KEY,
    secrets: [API_KEY, env.dir, pathname.slice(1), password].filter((text) => text !== ''),
  };
});

afterAll(async () => {
  if (child?.exitCode === null) {
    child.kill('SIGTERM');
    const [code] = await once(child, 'exit');
    expect(code).toBe(0);
  }
  await env?.[Symbol.asyncDispose]();
});

/** Digests of all tables but those of exports and of what the service counts. */
async function stored(): Promise<unknown> {
  const { rows } = await execute(
    env.databaseUrl,
    `select table_name as name from information_schema.tables
     where table_schema = 'public' and table_type = 'BASE TABLE' and table_name !~ 'export' order by 1`,
  );
  const digests = rows.map(
    ({ name }) => `(select md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from "${name}" t) as "${name}"`,
  );
  return (await execute(env.databaseUrl, `select ${digests.join(', ')}`)).rows[0];
}

test('every answer to a request made from the OpenAPI document is one that the document declares, and changes nothing', async () => {
  const before = await stored();
  const report = await fuzzRequests(service, { seed, count: countOf(20_000), only, note });
  const { findings, ...facts } = report;
  note?.(JSON.stringify(facts));
  expect(findings.join('\n'), log).toBe('');
  expect(child.exitCode).toBeNull();
  expect(await stored()).toEqual(before);
  if (only !== undefined) return;
  expect(report.requests).toBe(countOf(20_000));
  const statuses = Object.values(report.outcomes).flatMap((one) => Object.keys(one));
  expect(new Set(statuses).size).toBeGreaterThan(5);
  // What was taken ends: nothing is left queued or half written.
  await expect.poll(unfinished, { message: log }).toEqual([]);
});

const unfinished = async () =>
  (
    await execute(
      env.databaseUrl,
      `select state, count(*) n from exports where state in ('queued', 'running') group by 1`,
    )
  ).rows;
