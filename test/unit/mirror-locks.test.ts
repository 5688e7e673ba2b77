import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { copy, faultOf, isSame, run, useLake } from '../support/mirrored-lake.ts';

useLake();

/** A process that has ended. */
const { pid: gone } = spawnSync(process.execPath, ['-e', '']);
const inPartial = (name: string) => join(copy, '_partial', name);

function leave(removing: number): void {
  mkdirSync(join(copy, '_partial'), { recursive: true });
  writeFileSync(inPartial('lock'), String(gone));
  writeFileSync(inPartial('lock.removing'), String(removing));
}

test('two runs that met the lock of a killed one both took it, and wrote to the same partial files', async () => {
  leave(process.ppid);
  expect(await faultOf()).toEqual(['held', expect.stringContaining(`Process ${process.ppid} mirrors to`)]);
  expect(readFileSync(inPartial('lock'), 'utf8')).toBe(String(gone));
});

test('a run that was killed while it removed a lock holds up no other', async () => {
  leave(gone);
  await run();
  isSame();
  expect(existsSync(inPartial('lock'))).toBe(false);
});
