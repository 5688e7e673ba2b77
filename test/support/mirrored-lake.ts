/** What tests of mirrors share: a lake's folder, the server that hands it out, and runs of the mirror. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect } from 'vitest';
import { type MirrorOptions, mirror } from '../../shared/mirror/mirror.ts';
import {
  digestsIn,
  type FileServer,
  type LakeOptions,
  pathOf,
  placeOf,
  serveFolder,
  sha256Of,
  writeLake,
} from './lake-folder.ts';

export const [TRADES, ETF] = ['exchange_a_spot_trades', 'etf_daily_metrics'];
export const [FIRST, SECOND, THIRD] = [
  placeOf(TRADES, '2024-01-01'),
  placeOf(TRADES, '2024-01-02'),
  placeOf(ETF, '2024'),
];
/** The file of a place, as its rows are now. */
export const rowsOf = (place: string) => pathOf(place, contents.get(place)!);

export let dir: string;
export let lake: string;
export let copy: string;
export let server: FileServer;
export let contents: Map<string, Buffer>;
export let change: number;

/** A lake of three files behind a server, and an empty folder for its mirror, new for each test of the file that calls it. */
export function useLake(): void {
  beforeEach(async () => {
    dir = mkdtempSync(join(tmpdir(), 'tidemark-mirror-'));
    [lake, copy] = [join(dir, 'lake'), join(dir, 'copy')];
    change = 0;
    contents = new Map([
      [FIRST, randomBytes(300_000)],
      [SECOND, randomBytes(1000)],
      [THIRD, randomBytes(5)],
    ]);
    await write();
    server = await serveFolder(lake);
  });
  afterEach(async () => {
    await server[Symbol.asyncDispose]();
    rmSync(dir, { recursive: true });
  });
}

export const write = (options: LakeOptions = {}) => writeLake(lake, contents, { change: ++change, ...options });
export const run = (options: Partial<MirrorOptions> = {}) =>
  mirror({ from: server.url, to: copy, pauseMs: 1, stallMs: 2000, ...options });
export const faultOf = async (options: Partial<MirrorOptions> = {}) =>
  await run(options).then(
    () => undefined,
    ({ kind, message }) => [kind, message],
  );
export const isSame = () => expect(digestsIn(copy)).toEqual(digestsIn(lake));

/** Requests for a path, without those of other files. */
export const asked = (path: string) => server.seen.filter((one) => one.path === path);

/** Leaves the beginning of a download behind, as a run that was killed does. */
export async function keep(path: string, rows: Buffer, bytes: number, kept = rows): Promise<void> {
  await mkdir(join(copy, '_partial'), { recursive: true });
  const name = `${sha256Of(rows)}.${sha256Of(path).slice(0, 8)}`;
  writeFileSync(join(copy, '_partial', name), kept.subarray(0, bytes));
}
