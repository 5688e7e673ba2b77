/** The folder of a rate limit lies where every user of the host can write: it is used only if it is this user's alone. */
import { chmod, chown, lstat, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { rateLimitFolder, waitForRateLimit } from '../../pipelines/sources/documents/http.ts';
import { isOwn } from '../../shared/own-folder.ts';
import { faultOf } from '../support/faults.ts';
import { given } from '../support/given.ts';

let parent: string;
let directory: string;
const wait = () => waitForRateLimit({ name: 'any', spacingMs: 1, directory });

beforeEach(async () => {
  parent = await mkdtemp(join(tmpdir(), 'rate-limit-'));
  directory = join(parent, 'pace');
});
afterEach(() => rm(parent, { recursive: true }));

test('a link to files that are named by numbers: refused, and the files stay', async () => {
  const victim = join(parent, 'victim');
  await mkdir(victim);
  await writeFile(join(victim, '17'), 'kept');
  await mkdir(directory, { mode: 0o700 });
  await symlink(victim, rateLimitFolder('any', directory));
  await faultOf(wait(), 'DISK_UNUSABLE');
  await rm(directory, { recursive: true });
  await symlink(victim, directory);
  const fault = await faultOf(wait(), 'DISK_UNUSABLE');
  expect([fault.message, String(fault.cause)]).toEqual([
    expect.stringContaining('TMPDIR'),
    expect.stringContaining(`${directory} is a symbolic link`),
  ]);
  expect(await readdir(victim)).toEqual(['17']);
});

test('a folder that everyone can write to becomes private; what is no slot stays', async () => {
  await mkdir(rateLimitFolder('any', directory), { recursive: true });
  await chmod(directory, 0o1777);
  await writeFile(join(rateLimitFolder('any', directory), '1e3'), '');
  await writeFile(join(rateLimitFolder('any', directory), '7'), '');
  await wait();
  const modes = [directory, rateLimitFolder('any', directory)].map(async (path) => (await lstat(path)).mode & 0o7777);
  expect(await Promise.all(modes)).toEqual([0o700, 0o700]);
  const left = await readdir(rateLimitFolder('any', directory));
  expect([left.includes('1e3'), left.includes('7')]).toEqual([true, false]);
});

test('each user has a folder of their own', () => {
  expect(rateLimitFolder('any')).toContain(`tidemark-pace-${process.getuid!()}/`);
});

given(process.getuid?.() === 0, 'only root can give a folder away').test("another user's folder: refused", async () => {
  await mkdir(directory, { mode: 0o777 });
  await chown(directory, 65534, 65534);
  const fault = await faultOf(wait(), 'DISK_UNUSABLE');
  expect(String(fault.cause)).toContain('belongs to the user 65534');
  expect(await isOwn(directory)).toBe(false);
});
