/** The documented contract against the running service: the schema of OpenAPI, every example, every command of the page. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { Validator } from '@seriousme/openapi-schema-validator';
import { load } from 'cheerio';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { pascal } from '../../serving/contract/json-schema.ts';
import { PROBLEMS } from '../../serving/contract/problems.ts';
import { MODE_NAMES } from '../../serving/contract/shapes.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, shapeOf } from '../../shared/registry/index.ts';
import { type Json, ROOT, type Running, startCommand } from '../support/command.ts';
import { ContractSchemas } from '../support/contract-schema.ts';
import { SAMPLE_MATRIX } from '../support/serving.ts';
import { createTestEnv, natsSettings, type TestEnv } from '../support/stack.ts';

const KEY = 'a-key';

let env: TestEnv;
let up: Running;
let url: string;
let openapi: Json;
let schemas: ContractSchemas;
let page: string;
/** An export that is over, for the routes about one: values of `{export_id}` and `{file}`. */
let exported: Readonly<Record<string, string>>;
/** Keys of datasets whose sample has rows. */
let filled: Set<string>;

const get = (path: string, headers: Record<string, string> = {}) => fetch(`${url}${path}`, { headers });

beforeAll(async () => {
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
  openapi = await (await get('/openapi.json')).json();
  schemas = new ContractSchemas(openapi);
  page = await (await get('/docs')).text();
  const { datasets } = (await (await get('/v1/datasets', { 'X-API-Key': KEY })).json()) as Json;
  exported = await anExport();
  filled = new Set(datasets.filter((one: Json) => one.availability.rows > 0).map(({ key }: Json) => key));
});
afterAll(async () => {
  up.child.kill('SIGTERM');
  await up.done;
  await env[Symbol.asyncDispose]();
});

async function anExport() {
  const headers = { 'X-API-Key': KEY };
  const body = JSON.stringify({ dataset: 'exchange_a_spot_trades', format: 'csv', n_rows: 5 });
  const submitted = await fetch(`${url}/v1/raw/export`, { method: 'POST', headers, body });
  const { status_path, export_id } = (await submitted.json()) as Json;
  for (;;) {
    const { status, artifact } = (await (await get(status_path, headers)).json()) as Json;
    if (status === 'succeeded') return { export_id, file: artifact.files[0].name };
    expect(['queued', 'running']).toContain(status);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** What an example is answered with when nothing is wrong: an export that is over can be canceled no longer. */
/** A young log has no whole tiles, and its key was never renewed; the service has no lake; no vendor changed a day. */
const isOfOldLog = (path: string): boolean =>
  path.startsWith('/v1/lake/') ||
  path.startsWith('/v1/revisions/') ||
  (path.includes('/v1/proofs/') && !/(checkpoint|key|000\.p\/1)$/.test(decodeURIComponent(path)));

const statusOf = (method: string, path: string): number =>
  isOfOldLog(path) ? 404 : method === 'DELETE' ? 409 : method === 'POST' && path.endsWith('/export') ? 202 : 200;

interface Operation {
  readonly name: string;
  readonly method: string;
  readonly path: string;
  readonly operation: Json;
}

const operations = (): Operation[] =>
  Object.entries<Json>(openapi.paths).flatMap(([path, methods]) =>
    Object.entries<Json>(methods).map(([method, operation]) => ({
      name: `${method.toUpperCase()} ${path}`,
      method: method.toUpperCase(),
      path,
      operation,
    })),
  );

describe('/openapi.json', () => {
  test('is valid by the official schema of 3.1', async () => {
    const validator = new Validator();
    const { valid, errors } = await validator.validate(structuredClone(openapi));
    expect(errors ?? []).toEqual([]);
    expect([valid, validator.version, openapi.openapi]).toEqual([true, '3.1', '3.1.0']);
  });

  test('has every route of the service, and no other', async () => {
    const { detail } = (await (await get('/nowhere')).json()) as Json;
    const served = [...detail.matchAll(/(GET|POST|DELETE) (\/(?:[^\s,]*[^\s,.])?)/g)].map(
      ([, method, path]) => `${method} ${path.replaceAll(/:(\w+)/g, '{$1}')}`,
    );
    expect(served.length).toBeGreaterThan(20);
    // Pages are no part of the interface.
    const pages = ['/', '/page/{file}', '/docs', '/docs/docs.css', '/docs/docs.js'].map((path) => `GET ${path}`);
    expect(served).toEqual(expect.arrayContaining(pages));
    expect(
      operations()
        .filter(({ method }) => method !== 'HEAD')
        .map(({ name }) => name)
        .sort(),
    ).toEqual(served.filter((name) => !pages.includes(name)).sort());
  });

  test('HEAD of an export’s files was served and declared nowhere', async () => {
    const heads = operations().filter(({ method }) => method === 'HEAD');
    expect(heads.map(({ path }) => path.replace('/v1/raw/export/{export_id}/', '')).sort()).toEqual([
      'artifact',
      'artifact/{file}',
      'manifest',
    ]);
    for (const { path, operation } of heads) {
      const { operationId, responses, ...rest } = operation;
      const { operationId: _, responses: ofGet, ...get } = openapi.paths[path].get;
      expect(rest).toEqual(get);
      expect(operationId).toMatch(/^head[A-Z]/);
      const without = Object.entries<Json>(ofGet).map(([status, { content, ...response }]) => [status, response]);
      expect(responses).toEqual(Object.fromEntries(without));
      const target = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => exported[name]);
      const answer = await fetch(`${url}${target}`, { method: 'HEAD', headers: { 'X-API-Key': KEY } });
      expect([answer.status, await answer.text()]).toEqual([200, '']);
      const declared = Object.keys(responses[200].headers).map((name) => name.toLowerCase());
      for (const name of answer.headers.keys()) if (!OF_HTTP.includes(name)) expect(declared, path).toContain(name);
    }
  });

  const SCOPE_OF = [
    ['/metrics', 'metrics'],
    ['/v1/ops/', 'operate'],
    ['/v1/revisions/', 'operate'],
    ['/v1/raw/export', 'export'],
    ['/v1/lake', 'export'],
  ] as const;

  test('asks for the key where the service does', async () => {
    for (const { name, method, path, operation } of operations()) {
      // The answer to HEAD has no body that names a code.
      const answer = await fetch(`${url}${path}`, { method: method === 'HEAD' ? 'GET' : method });
      const asked = ((await answer.json().catch(() => ({}))) as Json).code === 'AUTH_INVALID_API_KEY';
      const scope = SCOPE_OF.find(([prefix]) => path.startsWith(prefix))?.[1] ?? 'read';
      const ways = path === '/metrics' ? [{ key: [scope] }, { bearer: [scope] }] : [{ key: [scope] }];
      expect(operation.security, name).toEqual(asked ? ways : []);
      if (asked) expect(operation.responses['409'].description).toContain('AUTH_INVALID_API_KEY');
    }
  });

  test('declares rows as the registry does', () => {
    for (const [key, dataset] of DATASETS) {
      for (const mode of ['native', 'aligned_1s'] as const) {
        const { properties } = openapi.components.schemas[`${pascal(key)}${MODE_NAMES[mode]}Row`];
        expect(Object.keys(properties)).toEqual(shapeOf(dataset, mode).fields.map(({ name }) => name));
        for (const { name, nullable } of shapeOf(dataset, mode).fields) {
          expect(Array.isArray(properties[name].type), `${key} ${name}`).toBe(nullable);
        }
      }
    }
  });

  test('has names for what it has, which read like methods and types', () => {
    const ids = operations().map(({ operation }) => operation.operationId);
    expect(new Set(ids).size).toBe(ids.length);
    for (const id of ids)
      expect(id).toMatch(/^(?:get|list|query|create|cancel|download|estimate|head)(?:[A-Z][a-z0-9]*)+$/);
    for (const name of Object.keys(openapi.components.schemas)) expect(name).toMatch(/^(?:[A-Z][a-z0-9]*)+$/);
    for (const { name, operation } of operations()) {
      const contents = [operation.requestBody, ...Object.values<Json>(operation.responses)].map((one) => one?.content);
      for (const content of contents.filter(Boolean)) {
        for (const [type, { schema }] of Object.entries<Json>(content)) {
          if (type === 'application/json') expect(schema.properties ?? schema.oneOf, name).toBe(undefined);
        }
      }
    }
  });

  test('stopped generators of clients: boolean schemas, types of three, nullable enums, integers without a size', () => {
    const met: string[] = [];
    const visit = (schema: Json, at: string): void => {
      if (typeof schema === 'boolean') met.push(at);
      if (typeof schema !== 'object' || schema === null) return;
      const { type, format, maximum, pattern, enum: values = [], const: constant } = schema;
      if (Array.isArray(type) && type.length > 2) met.push(`${at}: ${type}`);
      if (values.includes(null)) met.push(`${at}: ${values}`);
      if (/\(\?[=!<]|\\u/.test(pattern)) met.push(`${at}: ${pattern}`);
      if ([type].flat().includes('integer') && format !== 'int64' && !(maximum < 2 ** 31) && constant === undefined)
        met.push(`${at}: ${JSON.stringify(schema)}`);
      for (const key of ['items', 'not', 'if', 'then', 'else', 'contains', 'propertyNames'])
        if (schema[key] !== undefined) visit(schema[key], `${at}/${key}`);
      for (const key of ['allOf', 'anyOf', 'oneOf', 'prefixItems'])
        for (const [index, one] of (schema[key] ?? []).entries()) visit(one, `${at}/${key}/${index}`);
      for (const key of ['properties', 'dependentSchemas', '$defs'])
        for (const [name, one] of Object.entries<Json>(schema[key] ?? {})) visit(one, `${at}/${key}/${name}`);
    };
    for (const [name, schema] of Object.entries<Json>(openapi.components.schemas)) visit(schema, name);
    for (const { name, operation } of operations())
      for (const { name: of, schema } of operation.parameters ?? []) if (schema) visit(schema, `${name} ${of}`);
    expect(met).toEqual([]);
  });

  test('tells answers with rows apart by a constant, so that no client takes them for others', () => {
    const { schemas } = openapi.components;
    const named = ({ $ref }: Json) => schemas[$ref.split('/').at(-1)];
    const { oneOf, discriminator } = schemas.QueryRows;
    expect([oneOf.length, discriminator.propertyName]).toEqual([DATASETS.size, 'source']);
    for (const [key, place] of Object.entries<string>(discriminator.mapping)) {
      const ofDataset = named({ $ref: place });
      expect(ofDataset.discriminator.propertyName).toBe('mode');
      for (const [mode, $ref] of Object.entries<string>(ofDataset.discriminator.mapping)) {
        const { properties, required } = named({ $ref });
        expect([properties.source.const, properties.mode.const]).toEqual([key, mode]);
        expect(required).toEqual(expect.arrayContaining(['source', 'mode']));
        const { fields } = shapeOf(DATASETS.get(key)!, mode as Mode);
        expect(Object.keys(named(properties.rows.items).properties)).toEqual(fields.map(({ name }) => name));
      }
    }
  });

  test('names known codes only, each under its status; every code is somewhere', () => {
    const named = new Set<string>();
    for (const { name, operation } of operations()) {
      for (const [status, { content }] of Object.entries<Json>(operation.responses)) {
        const codes = content?.['application/problem+json']?.['x-codes'] ?? [];
        for (const code of codes) {
          named.add(code);
          const expected = PROBLEMS[code as keyof typeof PROBLEMS].status;
          if (code !== 'ALIGNED_STORAGE_CONTRACT_VIOLATION') expect(String(expected), `${name} ${code}`).toBe(status);
        }
      }
    }
    // About no operation: there is none of that method.
    const others = ['METHOD_NOT_ALLOWED'];
    const missing = Object.keys(PROBLEMS).filter((code) => !named.has(code));
    expect(missing.sort()).toEqual(others.sort());
  });
});

/** Headers of HTTP itself, which no operation declares. */
const OF_HTTP = [
  'cache-control',
  'connection',
  'content-length',
  'content-security-policy',
  'content-type',
  'date',
  'keep-alive',
  'referrer-policy',
  'trailer',
  'transfer-encoding',
  'vary',
  'x-content-type-options',
];

describe('headers and refusals that nothing declared', () => {
  test('every header of an answer is declared where it is sent', async () => {
    type Tried = readonly [method: string, path: string, place: string, headers: Record<string, string>, body?: Json];
    const artifact = (headers: Record<string, string>): Tried => [
      'GET',
      `/v1/raw/export/${exported.export_id}/artifact`,
      '/v1/raw/export/{export_id}/artifact',
      headers,
    ];
    const submit = (key: string): Tried => [
      'POST',
      '/v1/raw/export',
      '/v1/raw/export',
      { 'Idempotency-Key': key },
      { dataset: 'exchange_a_spot_trades', format: 'csv', n_rows: 5 },
    ];
    const tried: readonly Tried[] = [
      [
        'POST',
        '/v1/raw/query',
        '/v1/raw/query',
        { Accept: 'application/x-ndjson', 'Accept-Encoding': 'gzip' },
        { sources: ['exchange_a_spot_trades'], n_rows: 2 },
      ],
      ['POST', '/v1/historical/exchange_a/spot/trades', '', { Accept: 'text/csv' }, { n_latest_rows: 2 }],
      ['GET', '/v1/coverage/exchange_a_spot_trades', '/v1/coverage/{dataset}', {}],
      ['GET', '/v1/lineage/exchange_a_spot_trades/1', '/v1/lineage/{dataset}/{offset}', {}],
      artifact({}),
      artifact({ Range: 'bytes=0-1' }),
      artifact({ Range: 'bytes=99999999-' }),
      artifact({ 'If-None-Match': '*' }),
      artifact({ 'If-Match': '"x"' }),
      submit('headers'),
      submit('headers'),
      submit(' '),
      ['GET', '/openapi.json', '', {}],
      ['GET', '/openapi.json', '', { 'If-None-Match': '*' }],
    ];
    const seen = new Set<string>();
    for (const [method, path, place, headers, body] of tried) {
      const answer = await fetch(`${url}${path}`, {
        method,
        headers: { 'X-API-Key': KEY, ...headers },
        body: body && JSON.stringify(body),
      });
      await answer.arrayBuffer();
      const response = openapi.paths[place || path][method.toLowerCase()].responses[answer.status];
      const declared = Object.keys(response.headers).map((name) => name.toLowerCase());
      for (const name of answer.headers.keys()) {
        if (!OF_HTTP.includes(name)) expect(declared, `${method} ${path} ${answer.status}`).toContain(name);
        seen.add(`${answer.status} ${name}`);
      }
    }
    for (const one of [
      '200 x-svc-schema',
      '202 location',
      '206 content-range',
      '304 etag',
      '412 etag',
      '416 content-range',
    ]) {
      expect(seen).toContain(one);
    }
  });

  test('a dtype that there is none of is no answer', async () => {
    const body = JSON.stringify({ sources: ['exchange_a_spot_trades'], n_rows: 1, fields: ['price'] });
    const headers = { 'X-API-Key': KEY };
    const answer = (await (await fetch(`${url}/v1/raw/query`, { method: 'POST', headers, body })).json()) as Json;
    const holds = schemas.at(
      ...['paths', '/v1/raw/query', 'post', 'responses', 200, 'content', 'application/json', 'schema'],
    );
    expect(holds(answer)).toBe(true);
    expect(holds({ ...answer, schema: [{ name: 'price', dtype: 'decimal' }] })).toBe(false);
  });
});

/** Requests that an operation gives as examples: bodies, or values of parameters by the name of the example. */
function examplesOf({
  path,
  operation,
}: Operation): { readonly name: string; readonly path: string; readonly body?: string }[] {
  const bodies = operation.requestBody?.content['application/json'].examples;
  if (bodies) {
    return Object.entries<Json>(bodies).map(([name, { value }]) => ({ name, path, body: JSON.stringify(value) }));
  }
  const parameters = (operation.parameters ?? []).filter(({ examples }: Json) => examples);
  const names = new Set<string>(parameters.flatMap(({ examples }: Json) => Object.keys(examples)));
  if (names.size === 0) {
    return [{ name: 'as it is', path: path.replaceAll(/\{(\w+)\}/g, (_, name: string) => exported[name] ?? '') }];
  }
  return [...names].map((name) => {
    const given = parameters.filter(({ examples }: Json) => examples[name]);
    const target = given.reduce(
      (text: string, { name: of, in: place, examples }: Json) =>
        place === 'path' ? text.replace(`{${of}}`, encodeURIComponent(examples[name].value)) : text,
      path,
    );
    const query = given
      .filter((one: Json) => one.in === 'query')
      .map((one: Json) => [one.name, one.examples[name].value]);
    return { name, path: query.length === 0 ? target : `${target}?${new URLSearchParams(query)}` };
  });
}

/** The dataset a request is about: examples of those without a sample are answered that there is nothing. */
function datasetOf(path: string, body = ''): string | undefined {
  const named = [...DATASETS.keys()].find((key) => path.includes(key) || body.includes(key));
  if (named) return named;
  return [...DATASETS.values()].find(
    ({ historicalPath, trades }) => path.endsWith(`/${historicalPath}`) || path.endsWith(`/${trades?.klinesPath}`),
  )?.key;
}

const isEmpty = (path: string, body?: string) => {
  const key = datasetOf(path, body);
  return path.includes('/v1/') && key !== undefined && !filled.has(key);
};

describe('every example', () => {
  test('is answered, with what its operation declares', async () => {
    let answered = 0;
    for (const operation of operations()) {
      for (const { name, path, body } of examplesOf(operation)) {
        const what = `${operation.name}: ${name}`;
        const answer = await fetch(`${url}${path}`, {
          method: operation.method,
          body,
          headers: { 'X-API-Key': KEY },
        });
        const type = answer.headers.get('content-type')!.split(';')[0];
        const text = await answer.text();
        if (isEmpty(path, body) && answer.status === 404) {
          expect(JSON.parse(text).code, what).toMatch(/_NO_DATA$/);
        } else {
          expect(answer.status, `${what}: ${text.slice(0, 500)}`).toBe(statusOf(operation.method, path));
          answered++;
        }
        if (!type.includes('json') || operation.method === 'HEAD') continue;
        const place = ['paths', operation.path, operation.method.toLowerCase(), 'responses', answer.status, 'content'];
        const validate = schemas.at(...place, type, 'schema');
        expect(validate(JSON.parse(text)), `${what}: ${JSON.stringify(validate.errors)?.slice(0, 1000)}`).toBe(true);
      }
    }
    expect(answered).toBeGreaterThan(20);
  });

  test('follows the schema of its request, which refuses other keys', () => {
    for (const operation of operations()) {
      if (!operation.operation.requestBody) continue;
      const place = ['paths', operation.path, 'post', 'requestBody', 'content', 'application/json', 'schema'];
      const validate = schemas.at(...place);
      const examples = examplesOf(operation);
      expect(examples.length, operation.name).toBeGreaterThan(0);
      for (const { body } of examples) {
        expect(validate(JSON.parse(body!)), `${operation.name} ${body}`).toBe(true);
        expect(validate({ ...JSON.parse(body!), stray: 1 })).toBe(false);
      }
    }
  });
});

describe('/docs', () => {
  test('loads nothing from elsewhere, and may not', async () => {
    const { headers } = await get('/docs');
    expect(headers.get('content-type')).toBe('text/html; charset=utf-8');
    expect(headers.get('content-security-policy')).toMatch(/^default-src 'none'; style-src 'self'; script-src 'self'/);
    const $ = load(page);
    const loaded = $('[src], link[href], [srcset], iframe, object, embed, form')
      .toArray()
      .map((element) => element.attribs.src ?? element.attribs.href);
    expect(loaded).toEqual(['data:,', 'page/page.css', 'docs/docs.css', 'docs/docs.js']);
    expect($('[style], style, script:not([src])').length).toBe(0);
    for (const [path, type] of [
      ['/page/page.css', 'text/css'],
      ['/docs/docs.css', 'text/css'],
      ['/docs/docs.js', 'text/javascript'],
    ]) {
      const file = await get(path);
      const text = await file.text();
      expect([file.status, file.headers.get('content-type')]).toEqual([200, `${type}; charset=utf-8`]);
      expect(text).not.toMatch(/https?:|@import|url\(|fetch\(|import\(/);
    }
  });

  test('shows every operation, dataset, field and code; links lead to places on it', () => {
    const $ = load(page);
    const text = $('main').text();
    for (const { path, operation } of operations()) {
      expect(text, path).toContain(path);
      expect(text, path).toContain(operation.summary.replaceAll('`', ''));
    }
    for (const [key, dataset] of DATASETS) {
      const fields = $(`#${key} td:first-child`)
        .toArray()
        .map((cell) => $(cell).text());
      expect(fields).toEqual([...dataset.native.fields, ...dataset.aligned.fields].map(({ name }) => name));
    }
    const codes = $('#problems td:first-child')
      .toArray()
      .map((cell) => $(cell).text());
    expect(codes).toEqual(Object.keys(PROBLEMS));
    // What several routes take or answer stands once.
    const members = $('.route')
      .find('[aria-label^="Body of"], [aria-label^="Answer of"]')
      .toArray()
      .map((table) => $(table).find('tbody').text());
    expect(new Set(members).size).toBe(members.length);
    const ids = new Set(
      $('[id]')
        .toArray()
        .map(({ attribs }) => attribs.id),
    );
    expect(ids.size).toBe($('[id]').length);
    for (const { attribs } of $('a[href^="#"]').toArray()) expect(ids).toContain(attribs.href.slice(1));
  });

  test('has commands that work when they are pasted', async () => {
    const $ = load(page);
    const commands = $('.route .command pre')
      .toArray()
      .map((element) => $(element).text());
    expect(commands.length).toBeGreaterThan(30);
    // One for every operation, and for every example of it.
    // HEAD is told in the words of its GET.
    const examples = operations()
      .filter(({ path, method }) => method !== 'HEAD' && !/^\/(docs|page)\//.test(path))
      .flatMap(examplesOf);
    expect(commands.length).toBeGreaterThanOrEqual(examples.length);
    for (const command of commands) {
      const { stdout, exit } = await shell(`${command} -w '\\n%{http_code} %{content_type}'`);
      const at = stdout.lastIndexOf('\n');
      const path = /\$TIDEMARK_URL([^"?]*)/.exec(command)![1];
      const [status, type] = stdout.slice(at + 1).split(' ');
      expect([exit, status], `${command}\n${stdout.slice(0, 500)}`).toEqual([
        0,
        isEmpty(path, command)
          ? '404'
          : String(statusOf(command.includes('-X DELETE') ? 'DELETE' : methodOf(command), path)),
      ]);
      if (command.includes('Accept: text/csv')) {
        expect(type).toContain('text/csv');
        expect(stdout.slice(0, at).trim().split('\n')).toHaveLength(6);
      }
    }
  });
});

const methodOf = (command: string) => (command.includes(" -d '") ? 'POST' : 'GET');

const exportedEnv = () => ({ EXPORT_ID: exported.export_id, EXPORT_FILE: exported.file });

function shell(command: string): Promise<{ readonly stdout: string; readonly exit: number }> {
  return new Promise((resolve) => {
    const options = {
      cwd: ROOT,
      env: { PATH: process.env.PATH, TIDEMARK_URL: url, TIDEMARK_KEY: KEY, ...exportedEnv() },
      maxBuffer: 1 << 28,
    };
    execFile('sh', ['-c', command], options, (error, stdout) =>
      resolve({ stdout, exit: error ? Number(error.code) : 0 }),
    );
  });
}
