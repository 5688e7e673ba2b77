/**
 * A container engine of the test's own: podman with its storage, networks, configuration and socket in one folder, so that the
 * machine's own containers are neither seen nor touched, and Docker's command and Compose, which talk to it as to a Docker engine.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { cp, mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { delimiter, dirname, join, relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ensurePackages, type Recipe, type Runtime } from '../../shared/stack/packages.ts';
import { faultText, run } from '../../shared/stack/processes.ts';

const COMPOSE = 'usr/libexec/docker/cli-plugins/docker-compose';
const DOCKER = 'usr/bin/docker';
const INIT = 'usr/bin/catatonit';

/** Docker's clients, and what images and containers are made of: a shell, an init, time zones, the C and C++ libraries. */
const TOOLS: Recipe = {
  name: 'containers',
  what: "Docker's clients and parts of images",
  names: ['docker-compose', 'docker-cli', 'catatonit', 'busybox-static', 'tzdata', 'patchelf'],
  backports: false,
  unused: [],
  programs: async (root) => [COMPOSE, DOCKER].map((path) => join(root, path)),
  async smokeTest(prefix) {
    for (const path of [COMPOSE, DOCKER, INIT]) await run(join(prefix, path), ['--version']);
    await run(join(prefix, 'usr/bin/busybox'), ['true']);
  },
};

/** What must be installed, because it works with the machine's kernel and firewall. */
const PROGRAMS = ['podman', 'runc', 'iptables'];
const TO_INSTALL = 'apt-get install --no-install-recommends podman runc iptables netavark aardvark-dns';
/** Debian has some of them where only root's PATH looks. */
const PATH = [process.env.PATH, '/usr/sbin', '/sbin'].join(delimiter);

export interface ContainerTools {
  /** The folder of the unpacked packages. */
  readonly packages: string;
  /** Why there are none. */
  readonly missing?: string;
}

/** In one line without brackets: it becomes part of the tests' names. */
export async function containerTools(): Promise<ContainerTools> {
  const lacking = (missing: string) => ({ packages: '', missing });
  if (process.platform !== 'linux') return lacking('containers run on Linux');
  if (process.getuid?.() !== 0) return lacking('they run containers with networks of their own: run them as root');
  const absent = PROGRAMS.filter((name) => !PATH.split(delimiter).some((dir) => existsSync(join(dir, name))));
  if (absent.length > 0) return lacking(`${absent.join(', ')} missing: ${TO_INSTALL}`);
  try {
    const progress = (line: string) => void process.stderr.write(`tidemark: ${line}\n`);
    return { packages: await ensurePackages(TOOLS, { user: { name: 'self' }, progress }) };
  } catch (error) {
    const why = faultText(error).replaceAll(/[[\]]/g, '').replaceAll(/\s+/g, ' ').slice(0, 200);
    return lacking(`Docker Compose cannot be made: it needs Debian or Ubuntu with apt, and their mirror (${why})`);
  }
}

/** Without a limit of files, which takes a right that root has not everywhere; and nothing of systemd, which may not run. */
const engineConfiguration = (dir: string, tools: string) => `[containers]
default_ulimits = []
[network]
network_config_dir = "${join(dir, 'networks')}"
[engine]
runtime = "runc"
init_path = "${join(tools, INIT)}"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "${join(dir, 'engine')}"
`;

const storageConfiguration = (dir: string) => `[storage]
driver = "overlay"
runroot = "${join(dir, 'run')}"
graphroot = "${join(dir, 'storage')}"
`;

/** While a container starts, its checks are more frequent, and their failures do not count. */
const START_INTERVAL_MS = 5_000;

export interface CommandResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export class ContainerEngine {
  /** The environment in which Docker's clients and podman find this engine. */
  readonly env: NodeJS.ProcessEnv;
  readonly #dir: string;
  readonly #tools: string;
  readonly #service: ChildProcess;
  readonly #checks: AbortController;

  private constructor(dir: string, tools: string, env: NodeJS.ProcessEnv, service: ChildProcess) {
    this.#dir = dir;
    this.#tools = tools;
    this.env = env;
    this.#service = service;
    this.#checks = new AbortController();
    void this.#keepHealthChecks(this.#checks.signal);
  }

  /** @param dir a new folder. @param tools the folder of `containerTools`. */
  static async start(dir: string, tools: string): Promise<ContainerEngine> {
    await mkdir(join(dir, 'networks'), { recursive: true });
    const files = { containers: join(dir, 'containers.conf'), storage: join(dir, 'storage.conf') };
    await writeFile(files.containers, engineConfiguration(dir, tools));
    await writeFile(files.storage, storageConfiguration(dir));
    // Docker's clients look for the engine, their plugins and credentials there, and podman for its own settings.
    const socket = join(dir, 'podman.sock');
    const env = {
      PATH,
      HOME: dir,
      DOCKER_CONFIG: dir,
      DOCKER_HOST: `unix://${socket}`,
      CONTAINERS_CONF: files.containers,
      CONTAINERS_STORAGE_CONF: files.storage,
      // systemd would run the health checks by timers; the engine below does.
      DISABLE_HC_SYSTEMD: 'true',
    };
    const service = spawn('podman', ['system', 'service', '--time', '0', `unix://${socket}`], {
      env,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    let stderr = '';
    service.stderr.setEncoding('utf8').on('data', (text) => {
      stderr += text;
    });
    while (!existsSync(socket)) {
      if (service.exitCode !== null) throw new Error(`podman's service ended with ${service.exitCode}:\n${stderr}`);
      await sleep(20);
    }
    return new ContainerEngine(dir, tools, env, service);
  }

  /** Throws with the output of a command that fails. */
  readonly podman = (...args: readonly string[]) => run('podman', args, { env: this.env });

  /** Docker's own command. */
  get docker(): string {
    return join(this.#tools, DOCKER);
  }

  /** Docker Compose of a project folder. Its environment is that of the engine and `variables`, and nothing else. */
  compose(project: string, variables: NodeJS.ProcessEnv, args: readonly string[]): Promise<CommandResult> {
    return execute(join(this.#tools, COMPOSE), args, { cwd: project, env: { ...this.env, ...variables } });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#checks.abort();
    await run('podman', ['rm', '--all', '--force', '--time', '5', '--volumes'], { env: this.env, check: false });
    await run('podman', ['network', 'prune', '--force'], { env: this.env, check: false });
    const ended = once(this.#service, 'exit');
    this.#service.kill('SIGTERM');
    if (this.#service.exitCode === null) await ended;
    spawnSync('umount', ['--recursive', join(this.#dir, 'storage', 'overlay')], { stdio: 'ignore' });
    await rm(this.#dir, { recursive: true, force: true });
  }

  /** Runs the health checks of all containers when they are due, as Docker's engine does. */
  async #keepHealthChecks(signal: AbortSignal): Promise<void> {
    const due = new Map<string, number>();
    const list = ['ps', '--quiet', '--no-trunc', '--filter', 'status=running'];
    while (!signal.aborted) {
      const { stdout } = await run('podman', list, { env: this.env, check: false });
      for (const id of stdout.split('\n').filter(Boolean)) {
        const pauseMs = (due.get(id) ?? 0) < Date.now() ? await this.#pauseOf(id) : undefined;
        if (pauseMs === undefined) continue;
        if (due.has(id)) await run('podman', ['healthcheck', 'run', id], { env: this.env, check: false });
        due.set(id, Date.now() + pauseMs);
      }
      await sleep(500, undefined, { signal }).catch(() => {});
    }
  }

  /** Until the next check; undefined for a container without one. */
  async #pauseOf(id: string): Promise<number | undefined> {
    const format = '{{json .State.StartedAt}} {{json .Config.Healthcheck}}';
    const { code, stdout } = await run('podman', ['inspect', '--format', format, id], { env: this.env, check: false });
    const [, started, check] = /^"([^"]+)" (\{.*\})$/.exec(stdout.trim()) ?? [];
    if (code !== 0 || check === undefined) return undefined;
    const { Interval = 30e9, StartPeriod = 0 } = JSON.parse(check) as { Interval?: number; StartPeriod?: number };
    const isStarting = Date.now() - Date.parse(started) < StartPeriod / 1e6;
    return isStarting ? START_INTERVAL_MS : Interval / 1e6;
  }
}

/** Runs a command with nothing else in its environment, whatever its end. */
export async function execute(
  command: string,
  args: readonly string[],
  options: { readonly cwd: string; readonly env: NodeJS.ProcessEnv },
): Promise<CommandResult> {
  const child = spawn(command, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text) => {
    stdout += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    stderr += text;
  });
  const [code] = await once(child, 'close');
  return { code: code ?? 1, stdout, stderr };
}

// Images under the names of those that `docker-compose.yml` runs, made without a registry: of the servers of the embedded
// stack, the Node that the tests run on, and a few of the distribution's packages. Of the originals they have what the project
// uses of them: names of programs and users, folders, variables of the environment.

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
# The distribution's TimescaleDB is the Apache edition, that of the original the community edition. The last option counts.
[ "$1" != postgres ] || set -- "$@" -c timescaledb.license=apache
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
