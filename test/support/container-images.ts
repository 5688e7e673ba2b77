/**
 * Images under the names of those that `docker-compose.yml` runs, made without a registry: of the servers of the embedded
 * stack, the Node that the tests run on, and a few of the distribution's packages. Of the originals they have what the project
 * uses of them: names of programs and users, folders, variables of the environment.
 */
import { cp, mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import type { Runtime } from '../../shared/stack/packages.ts';
import { run } from '../../shared/stack/processes.ts';

/** Below the folder of tools. */
const BUSYBOX = 'usr/bin/busybox';

/** As the official images make a cluster, for a volume that is new. */
const POSTGRES_ENTRYPOINT = `#!/bin/sh
set -eu
if [ "$(id -u)" = 0 ]; then
  chown postgres:postgres "$PGDATA"
  exec su -s /bin/sh postgres -c 'exec "$0" "$@"' -- "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  if [ -z "\${POSTGRES_PASSWORD:-}" ]; then
    echo 'POSTGRES_PASSWORD is not set' >&2
    exit 1
  fi
  printf '%s\\n' "$POSTGRES_PASSWORD" > /tmp/password
  eval "initdb --pgdata='$PGDATA' --username='$POSTGRES_USER' --pwfile=/tmp/password $POSTGRES_INITDB_ARGS"
  rm /tmp/password
  printf '%s\\n' "listen_addresses = '*'" "shared_preload_libraries = 'timescaledb'" >> "$PGDATA/postgresql.conf"
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
  psql --username="$POSTGRES_USER" --dbname=postgres --command="create database $POSTGRES_DB"
  psql --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" --command='create extension timescaledb'
  pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
fi
exec "$@"
`;

const ACCOUNTS = {
  '/etc/passwd': [
    'root:x:0:0::/root:/bin/sh',
    'postgres:x:70:70::/var/lib/postgresql:/bin/sh',
    'node:x:1000:1000::/home/node:/bin/sh',
  ],
  '/etc/group': ['root:x:0:', 'postgres:x:70:', 'node:x:1000:'],
};

interface Image {
  /** Instructions of a Dockerfile. */
  readonly settings: readonly string[];
  /** Adds to a file system that has a shell and the C library. */
  fill(root: string): Promise<void>;
}

export interface ImageParts {
  /** The folder of the unpacked packages: busybox, the C and C++ libraries, time zones. */
  readonly packages: string;
  readonly runtime: Runtime;
}

/** @param images their names in `docker-compose.yml` and `Dockerfile`, without digests. */
export async function makeImages(
  podman: (...args: readonly string[]) => Promise<unknown>,
  folder: string,
  images: Readonly<Record<'postgres' | 'nats' | 'node', string>>,
  parts: ImageParts,
): Promise<void> {
  const contents: Readonly<Record<keyof typeof images, Image>> = {
    postgres: {
      settings: [
        'ENV PGDATA=/var/lib/postgresql/data',
        'ENTRYPOINT ["/usr/local/bin/docker-entrypoint.sh"]',
        'CMD ["postgres"]',
        'STOPSIGNAL SIGINT',
      ],
      async fill(root) {
        await copyTo(root, parts.runtime.prefix);
        const { postgresBin } = parts.runtime;
        for (const name of await readdir(postgresBin)) await link(root, join(postgresBin, name));
        await writeFile(join(root, 'usr/local/bin/docker-entrypoint.sh'), POSTGRES_ENTRYPOINT, { mode: 0o755 });
        for (const path of ['var/lib/postgresql/data', 'var/run/postgresql']) {
          await mkdir(join(root, path), { recursive: true });
          await run('chown', ['70:70', join(root, path)]);
        }
        // As theirs, too, is: runc gives a file system in memory the mode of the folder that it covers.
        await run('chmod', ['3777', join(root, 'var/run/postgresql')]);
      },
    },
    nats: {
      settings: ['ENTRYPOINT ["nats-server"]'],
      async fill(root) {
        await copyTo(root, parts.runtime.natsServer);
        for (const name of ['usr/lib', 'usr/lib64']) await copyTo(root, join(parts.runtime.prefix, name));
        await link(root, parts.runtime.natsServer);
      },
    },
    node: {
      settings: ['ENTRYPOINT ["node"]'],
      async fill(root) {
        await cp(process.execPath, join(root, 'usr/local/bin/node'));
        const npm = await npmFolder();
        await copyTree(npm, join(root, 'usr/local/lib/node_modules/npm'));
        await symlink('../lib/node_modules/npm/bin/npm-cli.js', join(root, 'usr/local/bin/npm'));
      },
    },
  };
  for (const [key, { settings, fill }] of Object.entries(contents)) {
    const root = join(folder, key);
    await fillBase(root, parts.packages);
    await fill(root);
    // COPY would make root the owner of everything.
    const context = join(folder, `${key}.context`);
    await mkdir(context);
    await run('tar', ['--create', '--file', join(context, 'root.tar'), '--directory', root, '.']);
    await writeFile(join(context, 'Dockerfile'), ['FROM scratch', 'ADD root.tar /', ...settings, ''].join('\n'));
    await podman('build', '--tag', `docker.io/${fullName(images[key as keyof typeof images])}`, context);
    for (const path of [root, context]) await rm(path, { recursive: true });
  }
}

/** Docker's own images have no owner in their short name. */
export const fullName = (image: string): string => (image.includes('/') ? image : `library/${image}`);

/** A shell with the usual commands, the libraries that a C++ program needs, accounts and time zones. */
async function fillBase(root: string, packages: string): Promise<void> {
  for (const path of [
    'usr/bin',
    'usr/local/bin',
    'usr/local/lib/node_modules',
    'etc',
    'run',
    'var',
    'root',
    'home/node',
  ])
    await mkdir(join(root, path), { recursive: true });
  await mkdir(join(root, 'tmp'));
  await run('chmod', ['1777', join(root, 'tmp')]);
  for (const name of ['bin', 'lib', 'lib64']) await symlink(`usr/${name}`, join(root, name));
  await symlink('../run', join(root, 'var/run'));
  for (const name of ['usr/lib', 'usr/lib64', 'usr/share/zoneinfo']) {
    await copyTree(join(packages, name), join(root, name));
  }
  await cp(join(packages, BUSYBOX), join(root, BUSYBOX));
  const { stdout } = await run(join(packages, BUSYBOX), ['--list']);
  for (const name of stdout.trim().split('\n')) {
    if (name !== 'busybox') await symlink('busybox', join(root, 'usr/bin', name));
  }
  for (const [path, lines] of Object.entries(ACCOUNTS)) await writeFile(join(root, path), `${lines.join('\n')}\n`);
}

/** To the same path, because programs are patched to find their libraries there. */
const copyTo = (root: string, path: string) => copyTree(path, join(root, path));

async function copyTree(from: string, to: string): Promise<void> {
  await mkdir(dirname(to), { recursive: true });
  await run('cp', ['--archive', '--no-target-directory', from, to]);
}

const link = (root: string, program: string) =>
  symlink(program, join(root, 'usr/local/bin', relative(dirname(program), program)));

/** That of the npm that runs the tests. */
async function npmFolder(): Promise<string> {
  const own = process.env.npm_execpath;
  if (own?.endsWith('npm-cli.js')) return join(dirname(own), '..');
  return join((await run('npm', ['root', '--global'])).stdout.trim(), 'npm');
}

/** A file of the project whose images have no digests: what is made here has others. */
export const withoutDigests = async (path: string): Promise<string> =>
  (await readFile(path, 'utf8')).replaceAll(/@sha256:[0-9a-f]{64}/g, '');

/** What of the machine's npm reaches its registry, for a build that runs npm: arguments of `podman build`. */
export async function npmAccess(folder: string): Promise<string[]> {
  const lines: string[] = ['fetch-retries=1'];
  const mounts: string[] = [];
  for (const name of ['registry', 'proxy', 'https-proxy', 'noproxy', 'cafile']) {
    const set = (await run('npm', ['config', 'get', name])).stdout.trim();
    // Which settings npm finds depends on which Node it runs on; Node itself trusts the other name.
    const other = name === 'cafile' ? (process.env.NODE_EXTRA_CA_CERTS ?? '') : '';
    const value = ['', 'null', 'undefined'].includes(set) ? other : set;
    if (value === '') continue;
    lines.push(`${name}=${value}`);
    if (name === 'cafile') mounts.push('--volume', `${value}:${value}:ro`);
  }
  const file = join(folder, 'npmrc');
  await writeFile(file, `${lines.join('\n')}\n`);
  return ['--network', 'host', '--volume', `${file}:/root/.npmrc:ro`, ...mounts];
}
