/** `docker-compose.yml` and what it shares with the stack that `npm start` runs in Docker. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { loadSettings } from '../../shared/config/load.ts';
import { dockerRunArgs } from '../../shared/stack/docker.ts';
import { INITDB_TEXT_ARGS, postgresSettings } from '../../shared/stack/postgres.ts';

const text = readFileSync(join(import.meta.dirname, '../../docker-compose.yml'), 'utf8');
// biome-ignore lint/suspicious/noExplicitAny: a document of another's schema
const { services } = parse(text, { merge: true }) as { services: Record<string, any> };

// `--locale=C` means SQL_ASCII, which the provider refuses: no container got past initdb.
test('a cluster in a container has the encoding and the order of text of the embedded one', () => {
  expect(INITDB_TEXT_ARGS).toContain('--encoding=UTF8');
  const profile = { sharedBuffersBytes: 2 ** 30, durable: true, responseTimeoutMs: 1_000 };
  expect(dockerRunArgs('/some/state', 'postgres', 21_234, profile)).toContain(
    `POSTGRES_INITDB_ARGS=${INITDB_TEXT_ARGS.join(' ')}`,
  );
  expect(services.postgres.environment.POSTGRES_INITDB_ARGS).toBe(INITDB_TEXT_ARGS.join(' '));
});

/** All texts of a service: its command, environment, health check and the rest. */
const textsOf = (value: unknown): string[] =>
  typeof value === 'object' && value !== null ? Object.values(value).flatMap(textsOf) : [String(value)];

// `up postgres nats` wanted the password of Grafana, whose profile nobody had asked for.
test('loading the file needs no variable: what a service needs, it asks for when it starts', () => {
  // `$$` is the shell's own `$`, in the container.
  expect(textsOf(services).flatMap((one) => one.replaceAll('$$', '').match(/\$\{\w+:?\?[^}]*\}/g) ?? [])).toEqual([]);
});

describe('a secret that is not set is refused at the start', () => {
  /** The names that a shell command refuses to find empty. */
  const asked = (service: string) => {
    const command = textsOf(services[service].command).join(' ');
    return [...command.matchAll(/\$\$\{(\w+):\?/g)].map(([, name]) => name);
  };

  test('by the log, whose accounts would be open', () => {
    const { NATS_CONFIG, ...passwords } = services.nats.environment;
    const inUse = [...NATS_CONFIG.matchAll(/password: "\$\{(\w+):-\}"/g)].map(([, name]) => name);
    expect(inUse).toHaveLength(4);
    expect(asked('nats').sort()).toEqual(inUse.sort());
    for (const name of inUse) expect(passwords[name]).toBe(`\${${name}:-}`);
  });

  test('by Grafana, whose account would have a known password, and Prometheus', () => {
    expect(asked('grafana')).toEqual(['GF_SECURITY_ADMIN_PASSWORD']);
    expect(services.grafana.environment.GF_SECURITY_ADMIN_PASSWORD).toMatch(/^\$\{GRAFANA_PASSWORD:-\}$/);
    expect(asked('prometheus')).toEqual(['SVC_METRICS_KEY']);
  });

  test('by processes of ours, which name the setting', () => {
    let urls = 0;
    for (const [name, { environment }] of Object.entries(services)) {
      for (const [setting, value] of Object.entries<string>(environment ?? {})) {
        if (!/^SVC_.*_URL$/.test(setting)) continue;
        urls++;
        const unset = value.replaceAll(/\$\{\w+:-\}/g, '');
        expect(() => loadSettings({ env: { [setting]: unset }, cwd: '/' }), name).toThrow(
          `${setting}: has no password between`,
        );
      }
    }
    expect(urls).toBeGreaterThan(10);
  });
});

// podman 4 splits an argument of a health check at its blanks, and the container never becomes healthy.
test('no argument of a health check holds a blank', () => {
  const checks = Object.entries(services).flatMap(([name, { healthcheck }]) =>
    healthcheck ? [[name, healthcheck.test]] : [],
  );
  expect(checks.length).toBeGreaterThan(5);
  for (const [name, words] of checks)
    expect(
      words.filter((word: string) => /\s/.test(word)),
      name,
    ).toEqual([]);
});

// podman 4 refuses `uid=` and `gid=`, and gives what lies below /run to root, whatever its mode.
test('a file system in memory needs no options', () => {
  const mounts = Object.values(services).flatMap(({ tmpfs = [] }) => tmpfs);
  expect(new Set(mounts)).toEqual(new Set(['/tmp']));
  expect(services.postgres.volumes).toContain('postgres-socket:/var/run/postgresql');
});

test('the settings of PostgreSQL are those of the embedded stack on a machine with enough memory', () => {
  const ours = postgresSettings({ sharedBuffersBytes: 2 ** 30, durable: true, responseTimeoutMs: 1_000 }, 4 * 2 ** 30);
  const bytes = (value: string) => value.replace(/^(\d+)GB$/, (_, count) => `${Number(count) * 1024}MB`);
  const theirs = services.postgres.command
    .filter((word: string) => word.includes('='))
    .map((word: string) => word.split('='));
  // The embedded stack has another edition.
  const own = ['timezone', 'timescaledb.license'];
  for (const [name, value] of theirs) if (!own.includes(name)) expect(bytes(value), name).toBe(ours[name]);
  expect(Object.fromEntries(theirs)['timescaledb.license']).toBe('timescale');
  // Doctor warns of less, and the image's tuner need not know that.
  expect(theirs.map(([name]: string[]) => name)).toContain('maintenance_work_mem');
});
