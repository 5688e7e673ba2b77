/**
 * `docker-compose.yml`, whole, as its head describes it: from an empty folder to a backfill, answers and an export, and all of it
 * again after `down` and `up`. The images are made here under the names of those that the file runs. What each command printed is
 * on standard output.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmod, chown, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { ensureRuntime } from '../../shared/stack/packages.ts';
import { freePort } from '../../shared/stack/state.ts';
import type { Json } from '../support/command.ts';
import {
  type CommandResult,
  ContainerEngine,
  containerTools,
  fullName,
  makeImages,
  npmAccess,
  withoutDigests,
} from '../support/containers.ts';
import { given } from '../support/given.ts';

const ROOT = join(import.meta.dirname, '../..');
const tools = await containerTools();

/** The variables of the head, by the services that use them. */
const DATABASE_SECRETS = ['POSTGRES_PASSWORD'];
const LOG_SECRETS = ['', 'PROJECTOR_', 'READER_', 'EXPORT_', 'OPERATOR_'].map((account) => `NATS_${account}PASSWORD`);
const ROLE_SECRETS = ['OWNER', 'INGEST', 'SERVE', 'EXPORT', 'MONITOR'].map((role) => `POSTGRES_${role}_PASSWORD`);
const KEYS = ['SVC_INTERNAL_API_KEY', 'SVC_METRICS_KEY'];

const DATASET = 'exchange_a_spot_trades';
const DAYS = ['--from', '2024-01-01', '--to', '2024-01-03'];
const ROWS_A_DAY = 200_000;
/** Of the folder of rights: neither root nor the user of the image. */
const OPERATOR = 4_321;
/** Health checks run every 30 s at most, and a start has three times as long. */
const WAIT = ['--wait', '--wait-timeout', '240'];

const say = (text: string) => void process.stdout.write(`${text}\n`);

given(tools.missing === undefined, tools.missing ?? '').describe('docker-compose.yml under podman', () => {
  let folder: string;
  let project: string;
  let rights: string;
  let engine: ContainerEngine;
  let variables: Record<string, string>;
  let url: string;
  let answered: readonly Json[];

  const only = (names: readonly string[]) =>
    Object.fromEntries(Object.entries(variables).filter(([name]) => names.includes(name) || name.endsWith('_PORT')));

  /**
   * Runs Docker Compose and shows what it printed. Fails with it, unless a failure is expected: that is then known by what is
   * printed, because podman 4 may lose the exit code of a container that `run --rm` removes.
   */
  async function compose(
    args: readonly string[],
    { given: env = variables, fails = false }: { given?: Record<string, string>; fails?: boolean } = {},
  ): Promise<CommandResult> {
    const started = performance.now();
    const result = await engine.compose(project, env, args);
    const lines = `${result.stderr}${result.stdout}`.trimEnd().split('\n');
    const shown =
      lines.length > 24 ? [...lines.slice(0, 4), `  ... ${lines.length - 20} lines ...`, ...lines.slice(-16)] : lines;
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    const short = shown.map((line) => (line.length > 300 ? `${line.slice(0, 300)} ...` : line));
    say([`$ docker compose ${args.join(' ')}    # ${seconds} s, exit ${result.code}`, ...short, ''].join('\n'));
    if (!fails && result.code !== 0) {
      const logs = await engine.compose(project, env, ['--profile', '*', 'logs', '--tail', '15']);
      say(`${logs.stdout}${logs.stderr}`);
      expect.fail(`exit ${result.code}: ${result.stderr}`);
    }
    return result;
  }

  async function call(path: string, body?: unknown): Promise<Response> {
    const answer = await fetch(`${url}${path}`, {
      method: body === undefined ? 'GET' : 'POST',
      headers: { 'X-API-Key': variables.SVC_INTERNAL_API_KEY },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    say(
      `${body === undefined ? 'GET' : 'POST'} ${path} ${body === undefined ? '' : JSON.stringify(body)}    # ${answer.status}`,
    );
    return answer;
  }

  async function json(path: string, body?: unknown): Promise<Json> {
    const answer = await call(path, body);
    const text = await answer.text();
    expect(answer.ok, text).toBe(true);
    say(`${text.slice(0, 300)}\n`);
    return JSON.parse(text);
  }

  /** Klines of all three days and the last rows: what must be the same after `down` and `up`. */
  const questions = async (): Promise<readonly Json[]> => [
    await json('/v1/historical/exchange_a/spot/klines', {
      kline_size: '1d',
      start_date: '2024-01-01',
      end_date: '2024-01-03',
    }),
    await json('/v1/raw/query', { sources: [DATASET], n_rows: 2 }),
  ];

  const states = async (): Promise<Record<string, string>> => {
    const { stdout } = await engine.podman('ps', '--all', '--format', '{{.Names}} {{.Status}}');
    return Object.fromEntries(
      stdout
        .trim()
        .split('\n')
        .map((line) => [line.split(' ')[0], line.split(' ').slice(1).join(' ')]),
    );
  };

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'tidemark-containers-'));
    // The account of the embedded servers looks for a cache folder that it can enter.
    await chmod(folder, 0o755);
    project = join(folder, 'project');
    rights = join(folder, 'rights');
    engine = await ContainerEngine.start(join(folder, 'engine'), tools.packages);
    const { stdout } = await engine.podman('version', '--format', '{{.Client.Version}}');
    say(`podman ${stdout.trim()}, ${(await engine.compose(folder, {}, ['version'])).stdout.trim()}\n`);
    await mkdir(project);
    const text = await withoutDigests(join(ROOT, 'docker-compose.yml'));
    await writeFile(join(project, 'docker-compose.yml'), text);
    await symlink(join(ROOT, 'docs'), join(project, 'docs'));
    await writeFile(join(project, 'settings.env'), 'SVC_QUERY_MAX_CONCURRENCY=4\n');
    await writeFile(join(project, 'sources.env'), 'SVC_EXCHANGE_A_BASE_URL=file:///state/exchange_a\n');
    const secrets = [...DATABASE_SECRETS, ...LOG_SECRETS, ...ROLE_SECRETS, ...KEYS, 'GRAFANA_PASSWORD'];
    variables = Object.fromEntries(secrets.map((name) => [name, randomBytes(12).toString('hex')]));
    for (const name of ['POSTGRES_PORT', 'NATS_PORT', 'HTTP_PORT']) variables[name] = String(await freePort());
    variables.RIGHTS_DIR = rights;
    url = `http://127.0.0.1:${variables.HTTP_PORT}`;

    const { services } = parse(text, { merge: true }) as Json;
    const dockerfile = join(folder, 'Dockerfile');
    await writeFile(dockerfile, await withoutDigests(join(ROOT, 'Dockerfile')));
    const [, node] = /^FROM (\S+)/m.exec(await readFile(dockerfile, 'utf8'))!;
    const names = { postgres: services.postgres.image, nats: services.nats.image, node };
    const runtime = await ensureRuntime({ user: { name: 'self' } });
    await makeImages(engine.podman, join(folder, 'images'), names, { packages: tools.packages, runtime });
    // As it is written, with the registry that npm uses on this machine.
    const ours = [
      '--file',
      dockerfile,
      '--target',
      'tidemark',
      '--tag',
      `docker.io/${fullName(services.migrate.image)}`,
    ];
    await engine.podman('build', ...(await npmAccess(folder)), ...ours, ROOT);
    // The browser is of an archive that few machines reach; a follower of trades opens none.
    await engine.podman('tag', services.migrate.image, `docker.io/${fullName(services.follower.image)}`);
    say((await engine.podman('images', '--format', '{{.Repository}}:{{.Tag}} {{.Size}}')).stdout);
  });

  afterAll(async () => {
    await engine?.[Symbol.asyncDispose]();
    if (folder) await rm(folder, { recursive: true });
  });

  test('is valid, and neither reading it nor stopping needs a variable', async () => {
    const { stdout } = await compose(['--profile', '*', 'config', '--services'], { given: {} });
    expect(stdout.trim().split('\n').sort()).toEqual(
      Object.keys((parse(await readFile(join(project, 'docker-compose.yml'), 'utf8')) as Json).services).sort(),
    );
    await compose(['--profile', '*', 'config', '--quiet']);
    await compose(['down'], { given: {} });
  });

  test('a service without its password ends, and says which', async () => {
    const { NATS_READER_PASSWORD: _, ...others } = variables;
    const log = await compose(['run', '--rm', '--no-deps', 'nats'], { given: others, fails: true });
    expect(log.stderr + log.stdout).toContain('NATS_READER_PASSWORD: is not set');
    const run = ['run', '--rm', '--no-deps'];
    const projector = await compose([...run, 'projector'], { given: {}, fails: true });
    for (const name of ['SVC_DATABASE_URL', 'SVC_NATS_PROJECTOR_URL'])
      expect(projector.stderr + projector.stdout).toContain(`${name}: has no password between`);
  });

  test('the two servers start with their own passwords alone', async () => {
    const given = only([...DATABASE_SECRETS, ...LOG_SECRETS]);
    await compose(['up', '--detach', ...WAIT, 'postgres', 'nats'], { given });
    expect(await states()).toMatchObject({
      'tidemark-postgres-1': expect.stringContaining('(healthy)'),
      'tidemark-nats-1': expect.stringContaining('(healthy)'),
    });
    const sql =
      "select pg_encoding_to_char(encoding), datlocprovider, datlocale from pg_database where datname = 'tidemark'";
    const psql = [
      'exec',
      '--no-TTY',
      'postgres',
      'psql',
      '--username=tidemark',
      '--tuples-only',
      '--no-align',
      `--command=${sql}`,
    ];
    expect((await compose(psql, { given })).stdout.trim()).toBe('UTF8|b|C.UTF-8');
  });

  test("a matrix is written into a folder of any user, and is that user's to fill in", async () => {
    await mkdir(rights, { mode: 0o755 });
    await chown(rights, OPERATOR, OPERATOR);
    const refused = await compose(['run', '--rm', '--no-deps', 'tidemark', 'rights', 'init'], { fails: true });
    expect(refused.stderr).toContain(`as user 1000; /rights belongs to user ${OPERATOR} and has mode 755`);
    expect(refused.stderr).toContain('docker compose run --rm rights init');
    const { stdout } = await compose(['run', '--rm', 'rights', 'init'], { given: { RIGHTS_DIR: rights } });
    expect(stdout).toContain('/rights is the folder that RIGHTS_DIR names');
    const forms = (await readdir(join(rights, 'signoff'))).map((name) => join(rights, 'signoff', name));
    for (const path of [join(rights, 'matrix.json'), ...forms]) expect((await stat(path)).uid, path).toBe(OPERATOR);
    expect(forms.length).toBeGreaterThan(5);
    for (const path of forms) {
      await writeFile(path, (await readFile(path, 'utf8')).replaceAll(/\[UNSIGNED:[^\]]*\]/g, 'of the test'));
    }
    const again = await compose(['run', '--rm', 'rights', 'init'], { given: { RIGHTS_DIR: rights }, fails: true });
    expect(again.stderr).toContain('RIGHTS_DIR');
  });

  test('everything starts and is well', async () => {
    await compose(['up', '--detach', ...WAIT]);
    const found = await states();
    for (const name of ['postgres', 'nats', 'projector', 'serving', 'export-worker'])
      expect(found[`tidemark-${name}-1`], name).toContain('(healthy)');
    expect(found['tidemark-migrate-1']).toContain('Exited (0)');
    expect(await (await fetch(`${url}/readyz`)).json()).toMatchObject({ status: 'ready' });
  });

  test('a backfill is proved, and what was proved is served', async () => {
    const rows = ['--rows', String(ROWS_A_DAY), '--out', '/state/exchange_a'];
    await compose(['run', '--rm', 'tidemark', 'sample', DATASET, ...DAYS, ...rows]);
    await compose(['run', '--rm', 'tidemark', 'backfill', DATASET, ...DAYS]);
    await compose(['run', '--rm', 'tidemark', 'status']);
    answered = await questions();
    const [klines, latest] = answered;
    expect(klines.rows).toHaveLength(3);
    expect(latest.rows.at(-1).trade_id).toBe(3 * ROWS_A_DAY);
    const lineage = await json(`/v1/lineage/${DATASET}/123456`);
    expect(JSON.stringify(lineage)).toContain('BTCUSDT-trades-2024-01-01.zip');
    const event = await compose(['run', '--rm', 'tidemark', 'event', DATASET, '123456']);
    expect(event.stdout).toMatch(/^123456,/);
  });

  test('an export is made by its worker and downloaded from the service', async () => {
    const request = { dataset: DATASET, format: 'parquet', n_rows: 100_000 };
    const { export_id: id } = await json('/v1/raw/export', request);
    await expect
      .poll(async () => ((await (await call(`/v1/raw/export/${id}`)).json()) as Json).status, {
        interval: 500,
        timeout: 60_000,
      })
      .toBe('succeeded');
    const bytes = Buffer.from(await (await call(`/v1/raw/export/${id}/artifact`)).arrayBuffer());
    expect([bytes.toString('latin1', 0, 4), bytes.toString('latin1', bytes.length - 4)]).toEqual(['PAR1', 'PAR1']);
    const { artifact } = await json(`/v1/raw/export/${id}`);
    expect([artifact.row_count, artifact.bytes]).toEqual([100_000, bytes.length]);
  });

  test('doctor finds no setting to change, and the key of metrics opens them', async () => {
    const { stdout } = await compose(['run', '--rm', 'tidemark', 'doctor', '--json']);
    const { checks } = JSON.parse(stdout) as Json;
    say(`${checks.map(({ check, state }: Json) => `${check}: ${state}`).join(', ')}\n`);
    expect(checks.filter(({ check }: Json) => check === 'postgres')).toMatchObject([{ state: 'ok', findings: [] }]);
    const metrics = await fetch(`${url}/metrics`, { headers: { 'X-API-Key': variables.SVC_METRICS_KEY } });
    expect([metrics.status, await metrics.text()]).toEqual([200, expect.stringContaining('# TYPE ')]);
  });

  test('a follower is well', async () => {
    await compose(['--profile', 'follow', 'up', '--detach', ...WAIT, 'follower']);
    expect((await states())['tidemark-follower-1']).toContain('(healthy)');
  });

  test('what was stored is there after `down` and `up`', async () => {
    await compose(['--profile', 'follow', 'down']);
    expect(Object.keys(await states()).filter((name) => name.startsWith('tidemark-'))).toEqual([]);
    await compose(['up', '--detach', ...WAIT]);
    const again = await questions();
    expect(again.map(({ rows }) => rows)).toEqual(answered.map(({ rows }) => rows));
    await compose(['--profile', '*', 'down', '--volumes']);
    expect((await engine.podman('volume', 'ls', '--quiet')).stdout).toBe('');
  });

  /** `npm start` on a machine without apt, whose Docker engine answers. @param change of each argument of `docker`. */
  async function withDocker(name: string, change: string) {
    const bin = join(folder, name, 'bin');
    const state = join(folder, name, 'state');
    await mkdir(bin, { recursive: true });
    for (const program of ['sh', 'id', 'env']) await symlink(join('/usr/bin', program), join(bin, program));
    await symlink(process.execPath, join(bin, 'node'));
    // What is made here has the names of the images that are pinned, without their digests.
    const script = `#!/bin/sh
for word do
  shift
  word=\${word%%@sha256:*}
  ${change}
  set -- "$@" "$word"
done
exec ${engine.docker} "$@"
`;
    await writeFile(join(bin, 'docker'), script, { mode: 0o755 });
    const port = await freePort();
    const env = {
      ...engine.env,
      PATH: bin,
      XDG_CACHE_HOME: join(folder, name, 'cache'),
      SVC_STATE_DIR: state,
      SVC_HTTP_PORT: String(port),
      SVC_SAMPLE: 'false',
    };
    const child = spawn(process.execPath, ['pipelines/cli/main.ts', 'up', '--json'], { cwd: ROOT, env });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => {
        output += text;
      });
    }
    const ended = once(child, 'close').then(([code]) => code as number | null);
    return { child, state, ended, output: () => output, answered: Promise.race([once(child.stdout, 'data'), ended]) };
  }

  test('`npm start` on a machine without apt runs its servers in Docker', async () => {
    const up = await withDocker('docker', '');
    await up.answered;
    expect(up.child.exitCode, up.output()).toBeNull();
    const containers = await engine.podman('ps', '--format', '{{.Names}}');
    const name = containers.stdout.split('\n').find((line) => line.endsWith('-postgres')) ?? 'none';
    const sql = "select pg_encoding_to_char(encoding), datlocale from pg_database where datname = 'tidemark'";
    const { stdout } = await engine.podman('exec', name, 'psql', '--username=tidemark', '-tA', `--command=${sql}`);
    expect(stdout.trim()).toBe('UTF8|C.UTF-8');
    up.child.kill('SIGINT');
    expect(await up.ended, up.output()).toBe(0);
    say(`$ npm start    # without apt, with Docker\n${up.output()}`);
  });

  test('a server in Docker that does not start leaves its log where the message says', async () => {
    const old = 'POSTGRES_INITDB_ARGS=--locale-provider=builtin --builtin-locale=C.UTF-8 --locale=C';
    const up = await withDocker('broken', `case $word in POSTGRES_INITDB_ARGS=*) word='${old}' ;; esac`);
    const exit = await up.ended;
    say(`$ npm start    # with a cluster that initdb refuses\n${up.output()}`);
    const log = join(up.state, 'log', 'postgres.log');
    expect([exit, up.output()]).toEqual([1, expect.stringContaining(`the end of ${log}:`)]);
    expect(await readFile(log, 'utf8')).toContain('requires encoding "UTF-8"');
  });
});
