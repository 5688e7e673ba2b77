/** How the server packages are found: the machine's own sources, asked for another suite; or Docker. */
import { once } from 'node:events';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  aptDistribution,
  aptProxies,
  formatDeb822,
  parseDeb822Sources,
  parseOneLineSources,
  retargetSources,
  untilAnswered,
} from '../../shared/stack/apt.ts';
import { containerName, dockerRunArgs } from '../../shared/stack/docker.ts';
import { withLock } from '../../shared/stack/processes.ts';
import { temporaryDir } from '../support/stack.ts';

const TRIXIE = { suite: 'trixie', components: ['main'] };

describe('apt sources', () => {
  test('deb822: the distribution is asked for the other suite, third parties and disabled entries are not', () => {
    const sources = parseDeb822Sources(`Types: deb deb-src
# a comment inside
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc=
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: https://vendor.example/node_20.x
Suites: nodistro
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
Components: main
`);
    expect(formatDeb822(retargetSources(sources, 'bookworm', TRIXIE))).toBe(`Types: deb
URIs: http://mirror.example/debian
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://mirror.example/debian
Suites: trixie-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
Signed-By: 
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc=
 -----END PGP PUBLIC KEY BLOCK-----
`);
  });

  test('one-line entries: options become fields, the old name of the security suite is understood', () => {
    const sources = parseOneLineSources(`# deb http://commented.example/debian bullseye main
deb [arch=amd64,arm64 signed-by=/etc/keys/a.gpg] http://mirror.example/debian bullseye main non-free # why
deb-src http://mirror.example/debian bullseye main
deb http://mirror.example/debian-security bullseye/updates main
deb [signed-by=/etc/keys/v.asc] https://vendor.example/apt bullseye-pgdg main
deb https://vendor.example/engine bullseye stable
`);
    expect(retargetSources(sources, 'bullseye', TRIXIE)).toEqual([
      {
        types: ['deb'],
        uris: ['http://mirror.example/debian'],
        suites: ['trixie'],
        components: ['main'],
        options: { Architectures: 'amd64 arm64', 'Signed-By': '/etc/keys/a.gpg' },
      },
      {
        types: ['deb'],
        uris: ['http://mirror.example/debian-security'],
        suites: ['trixie-security'],
        components: ['main'],
        options: {},
      },
    ]);
  });

  test('a machine that follows a rolling name instead of a release is served too', () => {
    const sources = parseOneLineSources('deb http://mirror.example/debian stable main\n');
    expect(retargetSources(sources, 'bookworm', TRIXIE).map(({ suites }) => suites)).toEqual([['trixie']]);
  });

  test('a mirror that sends nothing is not awaited, one that sends something is', async () => {
    const lists = await temporaryDir();
    await mkdir(join(lists, 'partial'), { recursive: true });
    await writeFile(join(lists, 'lock'), '');
    const forever = (ends: AbortSignal) => once(ends, 'abort').then(() => Promise.reject(ends.reason));
    await expect(untilAnswered({ lists, copied: '/the/cache' }, undefined, forever, 10)).rejects.toThrow(
      'No package mirror answered within 0.01 s; without a network, copy /the/cache',
    );
    await writeFile(join(lists, 'partial', 'InRelease'), 'Origin');
    expect(await untilAnswered({ lists, copied: '/the/cache' }, undefined, () => delay(50, 'updated'), 10)).toBe(
      'updated',
    );
    await rm(lists, { recursive: true });
  });

  test('apt gets the proxies of the user, in the names that it reads', () => {
    const given = {
      HTTP_PROXY: 'http://a:1',
      https_proxy: 'http://b:2',
      HTTPS_PROXY: 'http://c:3',
      NO_PROXY: 'x',
      PGHOST: 'y',
    };
    expect(aptProxies(given)).toEqual({ http_proxy: 'http://a:1', https_proxy: 'http://b:2', no_proxy: 'x' });
    expect(aptProxies({})).toEqual({});
  });

  test('the family of the machine decides which suites are asked', () => {
    expect(aptDistribution('ID=debian\nVERSION_CODENAME=bookworm\n')?.targets.map(({ suite }) => suite)).toEqual([
      'trixie',
    ]);
    const ubuntu = aptDistribution(
      'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_CODENAME=x\nUBUNTU_CODENAME=noble\n',
    );
    expect(ubuntu?.codename).toBe('noble');
    expect(ubuntu?.targets.every(({ components }) => components.includes('universe'))).toBe(true);
    expect(aptDistribution('ID=fedora\n')).toBeUndefined();
  });
});

describe('docker', () => {
  const profile = { sharedBuffersBytes: 2 * 1024 ** 3, durable: true, responseTimeoutMs: 1_000 };

  test.each(['postgres', 'nats'] as const)('%s: loopback only, pinned image, no secret among the arguments', (name) => {
    const args = dockerRunArgs('/some/state', name, 21_234, profile);
    expect(args[args.indexOf('--publish') + 1]).toMatch(/^127\.0\.0\.1:21234:(5432|4222)$/);
    expect(
      args.some((arg) =>
        /^(timescale\/timescaledb:2\.29\.2-pg17|nats:2\.10\.27-alpine@sha256:[0-9a-f]{64})$/.test(arg),
      ),
    ).toBe(true);
    const passed = args
      .filter((_, index) => args[index - 1] === '--env')
      .filter((text) => /PASSWORD|CONFIG/.test(text));
    expect(passed).toEqual([name === 'postgres' ? 'POSTGRES_PASSWORD' : 'NATS_CONFIG']);
  });

  test('containers of two state folders have different names', () => {
    expect(containerName('/a', 'nats')).not.toBe(containerName('/b', 'nats'));
    expect(containerName('/a', 'nats')).toBe(containerName('/a', 'nats'));
  });
});

describe('the lock', () => {
  let dir: string;
  beforeEach(async () => {
    dir = await temporaryDir();
    await mkdir(join(dir, 'sub'));
  });
  afterEach(() => rm(dir, { recursive: true, force: true }));

  test('sections never overlap', async () => {
    let inside = 0;
    let most = 0;
    const section = async () => {
      most = Math.max(most, ++inside);
      await new Promise((resolve) => setTimeout(resolve, 20));
      inside--;
    };
    await Promise.all(Array.from({ length: 5 }, () => withLock(join(dir, 'lock'), { waitMs: 10_000 }, section)));
    expect(most).toBe(1);
  });

  test('is let go of when its section fails, and waiting for it ends', async () => {
    const path = join(dir, 'lock');
    await expect(withLock(path, { waitMs: 100 }, () => Promise.reject(new Error('inside')))).rejects.toThrow('inside');
    await withLock(path, { waitMs: 100 }, async () => {
      await expect(withLock(path, { waitMs: 100 }, async () => {})).rejects.toMatchObject({ code: 'WORK_HELD' });
      const abort = AbortSignal.timeout(50);
      await expect(withLock(path, { waitMs: 60_000, signal: abort }, async () => {})).rejects.toThrow(/abort|timeout/i);
    });
  });

  test('a place that cannot hold a lock is named', async () => {
    await writeFile(join(dir, 'file'), '');
    await expect(withLock(join(dir, 'file', 'lock'), { waitMs: 100 }, async () => {})).rejects.toMatchObject({
      code: 'STACK_START_FAILED',
    });
  });
});
