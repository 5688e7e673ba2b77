import { spawn } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { TidemarkError } from '../errors.ts';

export interface RunResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * Runs a command to its end, output captured.
 * @throws TidemarkError STACK_INSTALL_FAILED with the end of its output, unless `check` is false.
 */
export async function run(
  command: string,
  args: readonly string[],
  options: {
    readonly env?: NodeJS.ProcessEnv;
    readonly cwd?: string;
    readonly check?: boolean;
    readonly uid?: number;
    readonly gid?: number;
    readonly signal?: AbortSignal;
  } = {},
): Promise<RunResult> {
  const { check = true, env, ...rest } = options;
  const child = spawn(command, args, { ...rest, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout.on('data', (chunk: Buffer) => out.push(chunk));
  child.stderr.on('data', (chunk: Buffer) => err.push(chunk));
  const code = await new Promise<number>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (status) => resolve(status ?? 1));
  });
  const result = { code, stdout: Buffer.concat(out).toString(), stderr: Buffer.concat(err).toString() };
  if (check && code !== 0) {
    const tail = `${result.stdout}\n${result.stderr}`.trim().split('\n').slice(-8).join('\n');
    throw new TidemarkError('STACK_INSTALL_FAILED', `${command} ${args[0] ?? ''} ended with ${code}:\n${tail}`);
  }
  return result;
}

export function commandExists(name: string): boolean {
  for (const dir of (process.env.PATH ?? '/usr/bin:/bin').split(delimiter)) {
    try {
      accessSync(join(dir, name), constants.X_OK);
      return true;
    } catch {
      // not here
    }
  }
  return false;
}
