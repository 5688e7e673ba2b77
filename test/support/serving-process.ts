/** `serving/main.ts` as a process of its own. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { expect } from 'vitest';

export const SERVING_MAIN = fileURLToPath(new URL('../../serving/main.ts', import.meta.url));

/** In an empty folder and environment, so that nothing of this machine's settings counts. */
export function startServingProcess(cwd: string, settings: Record<string, string>, order?: object): ChildProcess {
  const child = spawn(process.execPath, [SERVING_MAIN, ...(order ? ['--stdin'] : [])], {
    cwd,
    env: { PATH: process.env.PATH, NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE, ...settings },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  child.stdin!.end(order ? JSON.stringify(order) : '');
  return child;
}

/** The one line that the process says when it serves. @throws when it ends instead. */
export async function said(child: ChildProcess): Promise<{ url: string; pid: number }> {
  const ended = once(child, 'exit').then(([code, signal]): never => {
    throw new Error(`the process ended with ${code ?? signal} before it served`);
  });
  const [line] = await Promise.race([once(child.stdout!, 'data'), ended]);
  expect(String(line)).toMatch(/^\{.*\}\n$/);
  return JSON.parse(String(line));
}
