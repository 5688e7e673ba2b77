/** PostgreSQL 17, TimescaleDB and nats-server: what the embedded stack is made of. */
import { existsSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { TidemarkError } from '../errors.ts';
import { ensurePackages, type InstallOptions, loaderOf, type Recipe } from './packages.ts';
import { run } from './run.ts';

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

/** The installed runtime, installing it first if needed. @throws TidemarkError as `ensurePackages`. */
export async function ensureRuntime(options: InstallOptions): Promise<Runtime> {
  const prefix = await ensurePackages(SERVERS, options);
  return { prefix, postgresBin: join(prefix, POSTGRES_BIN), natsServer: natsServer(prefix) };
}

function natsServer(root: string): string {
  const path = ['usr/sbin/nats-server', 'usr/bin/nats-server'].map((at) => join(root, at)).find(existsSync);
  if (!path) throw new TidemarkError('STACK_INSTALL_FAILED', 'The unpacked packages hold no nats-server');
  return path;
}

/** Every library resolves: the programs start, and TimescaleDB's modules have what they need. */
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
