/** The documentation against the code: derived parts, links, names, commands, queries, and what `--json` really prints. */
import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, normalize } from 'node:path';
import { jetstreamManager } from '@nats-io/jetstream';
import { describe, expect, test } from 'vitest';
import { generate, pages, ROOT } from '../../docs/generate.ts';
import { parse, programOf } from '../../pipelines/cli/commands/program.ts';
import { PROCESS_IO } from '../../pipelines/cli/io.ts';
import { parseExport } from '../../serving/contract/export.ts';
import { parseFrame } from '../../serving/contract/frame.ts';
import { historicalParser } from '../../serving/contract/historical.ts';
import { PROBLEMS } from '../../serving/contract/problems.ts';
import { parseQuery } from '../../serving/contract/query.ts';
import { loadSettings } from '../../shared/config/load.ts';
import { SETTINGS } from '../../shared/config/settings.ts';
import { ERROR_CODES } from '../../shared/errors.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { parseJson } from '../../shared/strict-json.ts';
import type { Json } from '../support/command.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const PAGES = await pages();
const packageJson = JSON.parse(read('package.json'));
const COMMANDS = programOf(PROCESS_IO, () => {}).commands.map((command) => command.name());

/** Fenced blocks of a language. */
const blocks = (text: string, language: string) =>
  [...text.matchAll(new RegExp(`^ *\`\`\`${language}\\n([\\s\\S]*?)^ *\`\`\`$`, 'gm'))].map(([, body]) => body);

/** Words in backticks, outside of fenced blocks. */
const quoted = (text: string) =>
  [...text.replaceAll(/^ *```[\s\S]*?^ *```$/gm, '').matchAll(/`([^`\n]+)`/g)].map(([, words]) => words);

const sourceText = (folder: string): string =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts'))
    .map((name) => read(join(folder, name)))
    .join('\n');

describe('derived parts', async () => {
  test.for([...(await generate())])('%s is what the code says; else run `npm run docs`', ([path, text]) => {
    expect(read(path)).toBe(text);
  });

  test('.env.example with everything uncommented loads, and changes nothing', async () => {
    const cwd = await mkdtemp(join(tmpdir(), 'docs-'));
    try {
      const plain = loadSettings({ env: {}, cwd });
      await writeFile(join(cwd, '.env'), read('.env.example').replaceAll(/^#(?=SVC_)/gm, ''));
      expect(loadSettings({ env: {}, cwd })).toEqual(plain);
    } finally {
      await rm(cwd, { recursive: true });
    }
  });
});

describe.for(PAGES)('%s', (page) => {
  const text = read(page);

  test('its links lead somewhere', () => {
    const broken = [...text.matchAll(/\]\(([^)\s]+)\)/g)]
      .map(([, target]) => target)
      .filter((target) => !/^[a-z]+:/.test(target) && !leadsSomewhere(page, target));
    expect(broken).toEqual([]);
  });

  test('its commands are commands, with options they take', () => {
    for (const line of commandLines(text)) {
      const args = line.split(' ').slice(1);
      if (args[0] !== 'help') expect(parse(args, PROCESS_IO), line).toBeTypeOf('object');
    }
    for (const words of quoted(text)) {
      const name = /^\.\/tidemark ([a-z]\S*)/.exec(words)?.[1];
      if (name !== undefined) expect([...COMMANDS, 'help'], words).toContain(name);
    }
    for (const [, script] of text.matchAll(/\bnpm run ([a-z]+)/g))
      expect(Object.keys(packageJson.scripts)).toContain(script);
  });

  test('settings, codes and files it names are there', () => {
    const codes = sourceText('shared') + sourceText('pipelines') + sourceText('serving');
    for (const words of quoted(text)) {
      const setting = /^SVC_\w+/.exec(words)?.[0];
      if (setting !== undefined && setting !== 'SVC_') expect(Object.keys(SETTINGS), words).toContain(setting);
      else if (/^[A-Z]{2,}(_[A-Z\d]+)+$/.test(words) && !(words in PROBLEMS) && !(words in ERROR_CODES))
        expect(codes.includes(words), words).toBe(true);
      if (/^(shared|pipelines|serving|test|bench|docs|migrations)\/[\w./-]*$/.test(words))
        expect(exists(words), words).toBe(true);
    }
  });

  test('tests it names are there, by file and title', () => {
    for (const { file, titles } of namedTests(text)) {
      expect(exists(file), file).toBe(true);
      const source = read(file);
      for (const title of titles) expect(source.includes(title), `${file}: ${title}`).toBe(true);
    }
    if (page === 'docs/reliability.md') expect(namedTests(text).length).toBeGreaterThan(40);
  });

  test('requests it shows are taken by the contract', () => {
    const requests = [
      ...[...text.matchAll(/curl [^']*?(\/v1\/[\w/]+)(?:(?!curl )[\s\S])*? -d '(\{[\s\S]*?\})'/g)].map(
        ([, path, body]) => ({
          path,
          body,
        }),
      ),
      ...blocks(text, 'json')
        .filter((body) => body.includes('"sources": ["') && !body.includes('"rows"'))
        .map((body) => ({ path: '/v1/raw/query', body })),
    ];
    for (const { path, body } of requests) {
      const parse = parserOf(path);
      expect(parse, path).toBeDefined();
      expect(parse!(parseJson(body)), body).not.toHaveProperty('faults');
    }
    if (page === 'README.md' || page === 'docs/query.md') expect(requests).not.toHaveLength(0);
  });
});

/** Test files in backticks, each with the titles in quotes that follow it. */
const namedTests = (text: string) =>
  [...text.matchAll(/`(test\/[\w./-]+\.test\.ts)`((?:,?\s+(?:and\s+)?"[^"]+")*)/g)].map(([, file, rest]) => ({
    file,
    titles: [...rest.matchAll(/"([^"]+)"/g)].map(([, title]) => title.replaceAll(/\s+/g, ' ')),
  }));

/** The contract of the route at a path. */
function parserOf(path: string) {
  if (path === '/v1/raw/export') return parseExport;
  if (path === '/v1/frame') return parseFrame;
  if (path.startsWith('/v1/raw/')) return parseQuery;
  for (const dataset of DATASETS.values()) {
    if (path === `/v1/historical/${dataset.historicalPath}`) return historicalParser(dataset, 'rows');
    if (path === `/v1/historical/${dataset.trades?.klinesPath}`) return historicalParser(dataset, 'klines');
  }
  return undefined;
}

/** Lines of shell blocks that call the operator's command, variables filled in. */
function commandLines(text: string): string[] {
  return blocks(text, 'sh')
    .flatMap((block) => block.replaceAll('\\\n', ' ').split('\n'))
    .map((line) => line.replace(/ #.*$/, '').trim())
    .filter((line) => line.startsWith('./tidemark '))
    .map((line) => line.replaceAll(/"[^"]*"/g, 'text'));
}

function exists(path: string): boolean {
  try {
    readdirSync(dirname(join(ROOT, path)));
    return path.endsWith('/')
      ? readdirSync(join(ROOT, path)).length > 0
      : readdirSync(dirname(join(ROOT, path))).includes(path.split('/').at(-1)!);
  } catch {
    return false;
  }
}

function leadsSomewhere(page: string, target: string): boolean {
  const [path, anchor] = target.split('#');
  const file = path === '' ? page : normalize(join(dirname(page), path));
  if (!exists(file)) return false;
  return anchor === undefined || anchorsOf(read(file)).includes(anchor);
}

const anchorsOf = (text: string) =>
  [...text.replaceAll(/^ *```[\s\S]*?^ *```$/gm, '').matchAll(/^#+ (.+)$/gm)].map(([, heading]) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );

describe('statements', () => {
  test('docs/dependencies.md names every dependency with its version, and no other', () => {
    const declared: Record<string, string> = {
      ...packageJson.dependencies,
      ...packageJson.optionalDependencies,
      ...Object.fromEntries(
        Object.entries(packageJson.devDependencies).filter(([name]) => !name.startsWith('@types/')),
      ),
    };
    const rows = [...read('docs/dependencies.md').matchAll(/^- `([^`]+)` (\d\S*): /gm)];
    expect(Object.fromEntries(rows.map(([, name, version]) => [name, version]))).toEqual(declared);
  });

  test('packages with published advisories are not brought in by others', () => {
    const { packages } = JSON.parse(read('package-lock.json')) as {
      packages: Record<string, { name?: string; version: string }>;
    };
    const found = Object.entries(packages).flatMap(([path, { name, version }]) => {
      const installedAs = path.split('node_modules/').at(-1)!;
      return [{ name: name ?? installedAs, version }];
    });
    // The least major version without known faults; `request` was given up with its last one.
    const least: Readonly<Record<string, number>> = {
      request: 99,
      'har-validator': 99,
      'form-data': 4,
      'tough-cookie': 4,
    };
    const faulty = found.filter(({ name, version }) => Number(version.split('.')[0]) < (least[name] ?? 0));
    expect(faulty).toEqual([]);
    expect(found).toContainEqual({ name: '@cypress/request', version: '4.0.1' });
  });

  test('docker-compose.yml runs the versions of the stack in Docker', () => {
    const compose = read('docker-compose.yml');
    const imageOf = (service: string) =>
      new RegExp(`^  ${service}:\\n(?:    .*\\n)*?    image: (\\S+)$`, 'm').exec(compose)?.[1];
    for (const service of ['postgres', 'nats']) {
      expect(read('shared/stack/docker.ts')).toContain(`'${imageOf(service)}'`);
    }
  });
});

// ---- fields of --json ----------------------------------------------------------------------------------------------

/** Field paths that docs/cli.md lists under a heading, after a line that ends in `intro`: `units[].rows`. */
function documentedFields(
  heading: string,
  intro = /\b[Ff]ields(?! of `(?:--dry-run|--only|read-role))[^\n]*:/,
): string[] {
  const text = read('docs/cli.md')
    .split(new RegExp(`^#{2,3} ${heading}$`, 'm'))[1]
    .split(/^#{2,3} /m)[0];
  const lists = [...text.matchAll(new RegExp(`(${intro.source})\\n\\n((?:- .*\\n)+)`, 'g'))];
  return lists.flatMap(([, line, list]) => {
    const [, below = ''] = /\bFields below `([^`]+)`:/.exec(line) ?? [];
    const names = [...list.matchAll(/^- ([^:(]+)/gm)].map(([, before]) => before);
    return names.flatMap((before) =>
      [...before.matchAll(/`([^`]+)`/g)].flatMap(([, field]) => unfolded(field).map((path) => `${below}${path}`)),
    );
  });
}

/** `a.{b,c}` is `a.b` and `a.c`. */
function unfolded(field: string): string[] {
  const [, before, names] = /^(.*)\{(.+)\}$/.exec(field) ?? [];
  return names === undefined ? [field] : names.split(',').map((name) => before + name);
}

function fieldsOf(value: Json, path = ''): string[] {
  if (Array.isArray(value)) return value.flatMap((element) => fieldsOf(element, `${path}[]`));
  if (typeof value !== 'object' || value === null) return [path];
  return Object.entries(value).flatMap(([key, inner]) => fieldsOf(inner, path === '' ? key : `${path}.${key}`));
}

/** Which fields `columnstore` has depends on the server: null, an empty list, or tables. */
const distinct = (fields: readonly string[]) =>
  [...new Set(fields.filter((field) => !field.startsWith('columnstore')))].sort();

test('docs/cli.md lists the fields that --json prints', { tags: ['nightly'] }, async () => {
  await using system = await System.create('empty');
  const write = (day: string, firstId: number, seed: number) =>
    writeDocument(system.vendor, day, csvOf({ day, firstId, seed, rows: 200, timeUnit: 'ms' }));
  const seen = new Map<string, string[]>();
  const run = async (name: string, args: readonly string[], exit: number, of = name) => {
    const answer = await system.run([name, ...args]);
    expect(answer.exit, answer.stdout + answer.stderr).toBe(exit);
    expect(answer.json.command).toBe(name);
    seen.set(of, [...(seen.get(of) ?? []), ...fieldsOf(answer.json)]);
    return answer.json;
  };
  const days = (from: string, to = from) => [DATASET, '--from', from, '--to', to];
  const [first, second, fourth, fifth] = ['2024-01-01', '2024-01-02', '2024-01-04', '2024-01-05'];

  const migrated = await run('migrate', [], 0);
  expect(migrated.applied).not.toHaveLength(0);
  await run('migrate', [], 0);
  {
    // `migrate` makes every stream; `status` is to tell of one that is not there.
    await using operator = await connectNats(system.env.natsOperatorUrl, 'test');
    await (await jetstreamManager(operator)).streams.delete('macro_series_metrics');
  }
  await run('status', [], 0);
  await write(first, 1, 1);
  await write(second, 1001, 2); // ids that do not follow
  await write(fourth, 1201, 3);
  await write(fifth, 1, 4); // ids that are taken
  await run('backfill', days(first, second), 0);
  await run('backfill', days(fourth), 0);
  await run('status', [DATASET], 0);
  await run('backfill', days(fifth, '2024-01-06'), 1);
  await write(fourth, 1201, 5);
  await run('backfill', [...days(fourth), '--compare'], 1);
  await run('backfill', [...days(fourth), '--compare'], 1); // refused before
  await run('backfill', [...days(first, '2024-01-06'), '--dry-run'], 0, 'backfill, dry');
  await run('verify', [DATASET], 0, 'replay');
  await system.client.query(`update ${DATASET} set price = price + 1 where trade_id = 7`);
  await run('verify', [DATASET, '--deep'], 1, 'replay');
  // As the writer of a lake states it.
  await system.client.query(
    `insert into lakes (folder, host, pid, synthetic, files, rows, bytes, change, written_at)
      values ('/lake', 'h', 1, false, 1, 1, 1, 0, now())`,
  );
  await run('status', [DATASET], 1);
  await run('quarantine', [DATASET], 0);
  await run('replay', [DATASET, '--verify-only'], 1, 'replay');
  await run('replay', [DATASET], 1);
  await run('recover', ['all'], 0);
  await run('doctor', [], 1);
  await run('quarantine', ['release', DATASET, fifth, '--reason', 'its ids were right all along'], 0);
  await run('ledger', [DATASET, '--kind', 'quarantined'], 0);
  await run('status', ['--runs', '--limit', '3'], 0);
  await run('reingest', [...days(fourth), '--reason', 'it was republished'], 0, 'backfill');
  // As a backfill claims it for another instrument.
  await system.client.query(`insert into series (dataset_id, key) values (257, 'ETHUSDT')`);
  await run('status', [DATASET], 0);
  await run('status', [DATASET, '--instrument', 'ETHUSDT'], 0);
  await run('event', [DATASET, '7'], 0);
  await run('sample', [...days(first), '--rows', '2', '--out', join(system.env.dir, 'sample')], 0);
  await run('rights', ['init', 'exchange_a', '--source-rights-matrix-path', join(system.env.dir, 'matrix.json')], 0);
  await run('keys', ['add', 'desk', '--scopes', 'read'], 0);
  await run('event', [DATASET, '999999'], 1, 'When a command fails');
  seen.set(
    'up',
    (await started(system)).flatMap((answer) => fieldsOf(answer)),
  );

  const common = documentedFields('Every command');
  expect(common).not.toHaveLength(0);
  const documented = (...of: Parameters<typeof documentedFields>) => distinct([...common, ...documentedFields(...of)]);
  expect(distinct(seen.get('backfill, dry')!)).toEqual(documented('backfill', /Fields of `--dry-run`:/));
  seen.delete('backfill, dry');
  for (const [heading, fields] of seen) expect(distinct(fields), heading).toEqual(documented(heading));
});

/** What `up` prints when it answers requests, and what a second one does; the first is told to stop then. */
async function started(system: System): Promise<Json[]> {
  const env = {
    SVC_INTERNAL_API_KEY: 'key',
    SVC_SOURCE_RIGHTS_MATRIX_PATH: join(ROOT, 'serving/rights/sample/matrix.json'),
    SVC_HTTP_PORT: '0',
    // Loading samples of every feed takes ten seconds, and adds nothing to what is printed.
    SVC_SAMPLE: 'false',
  };
  const { child, done } = system.start(['up'], env);
  await new Promise((resolve) => child.stdout?.once('data', resolve));
  const second = await system.run(['up'], env);
  child.kill('SIGTERM');
  const { exit, json, stderr } = await done;
  expect([second.exit, exit], stderr).toEqual([0, 0]);
  return [json, second.json];
}
