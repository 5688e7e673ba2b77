/** A state folder that an earlier release left behind (test/data/README.md), unpacked for one test and held running. */
import { execFileSync } from 'node:child_process';
import { mkdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { zstdDecompress } from 'node:zlib';
import { serverUser } from '../../shared/stack/processes.ts';
import { acquireStack, type Stack } from '../../shared/stack/stack.ts';
import { type Answer, type Running, runCommand, startCommand } from './command.ts';
import { PRIVATE_PROFILE } from './profiles.ts';
import { remember, temporaryDir, testLogger } from './stack.ts';

const DATA = join(import.meta.dirname, '..', 'data');

/** What the release that made the folder answered from it, by dataset and mode. */
export type KeptAnswers = Record<string, Record<string, KeptAnswer>>;

export interface KeptAnswer {
  /** What was asked for; absent: all fields. */
  readonly fields?: readonly string[];
  readonly rows: number;
  /** Of the NDJSON body. */
  readonly sha256: string;
}

export const keptAnswers = async (): Promise<KeptAnswers> =>
  JSON.parse(await readFile(join(DATA, 'kept-state.json'), 'utf8'));

export interface KeptState extends AsyncDisposable {
  /** Brought up by today's code; nothing is migrated yet. */
  readonly stack: Stack;
  /** `./tidemark ARGS --json` on the folder, in this process. */
  run(args: readonly string[]): Promise<Answer>;
  start(args: readonly string[], env?: Readonly<Record<string, string>>): Running;
}

/** Unpacks the folder and starts its servers. */
export async function openKeptState(): Promise<KeptState> {
  const dir = await temporaryDir();
  const forget = await remember(dir);
  const stateDir = join(dir, 'stack');
  await mkdir(stateDir);
  const packed = await readFile(join(DATA, 'kept-state.tar.zst'));
  execFileSync('tar', ['-xp', '--no-same-owner', '-C', stateDir], { input: await promisify(zstdDecompress)(packed) });
  const servers = join(stateDir, 'servers');
  const { uid, gid } = serverUser(servers);
  if (uid !== undefined) execFileSync('chown', ['-R', `${uid}:${gid}`, servers]);
  const stack = await acquireStack({ stateDir, log: testLogger(), profile: PRIVATE_PROFILE });
  const settings = { SVC_STATE_DIR: stateDir, SVC_SAMPLE: 'false' };
  return {
    stack,
    start: (args, env) => startCommand(args, { ...settings, ...env }),
    run: (args) => runCommand(args, settings),
    async [Symbol.asyncDispose]() {
      await stack[Symbol.asyncDispose]();
      await rm(dir, { recursive: true, force: true });
      await forget();
    },
  };
}
