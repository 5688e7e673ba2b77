/**
 * The directory of an artifact: filled under another name beside it, made durable, renamed. A crash leaves either nothing
 * under the final name or all of it.
 */

import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { lstat, mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { DAY_MS } from '../../../shared/dates.ts';
import type { ReadRequest, Window } from '../../contract/read-request.ts';
import { inOrder } from '../../read/execute/plan-read.ts';
import type { CountedStatement, LiveContext, Plan } from '../../read/plan/context.ts';
import { within } from '../../read/snapshot/coverage.ts';
import { ArtifactFault, artifactFault } from './types.ts';

const MARK = '.partial-';
/** An attempt that still runs may make a file in the folder that is being removed. */
const RETRY = { maxRetries: 5, retryDelay: 20 };

/** Directories of attempts that are not finished, ours and those of a process that was killed. */
async function partials(directory: string): Promise<string[]> {
  const parent = dirname(directory);
  const names = await readdir(parent).catch((error) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  });
  return names.filter((name) => name.startsWith(`${basename(directory)}${MARK}`)).map((name) => join(parent, name));
}

export class StagingDirectory implements AsyncDisposable {
  /** Where to write. */
  readonly path: string;
  readonly #directory: string;
  #isPublished = false;

  private constructor(directory: string, path: string) {
    this.#directory = directory;
    this.path = path;
  }

  /**
   * Takes over from earlier attempts at the same artifact: one that still runs loses its files, and its end is a fault.
   * @throws ArtifactFault
   */
  static async create(directory: string): Promise<StagingDirectory> {
    try {
      await requireFolder(dirname(directory));
      for (const left of await partials(directory)) await rm(left, { recursive: true, force: true, ...RETRY });
      const path = `${directory}${MARK}${randomBytes(6).toString('hex')}`;
      // With its parent, which a sweep removes whenever it finds it empty.
      await mkdir(path, { recursive: true, mode: 0o750 });
      return new StagingDirectory(directory, path);
    } catch (error) {
      throw artifactFault(error);
    }
  }

  /**
   * The files are complete and durable: from here on they are the artifact. False: another stands there; of two that
   * publish at once the first stays.
   * @throws ArtifactFault
   */
  async publish(): Promise<boolean> {
    try {
      await syncDirectory(this.path);
      await rename(this.path, this.#directory);
      this.#isPublished = true;
      await syncDirectory(dirname(this.#directory));
      return true;
    } catch (error) {
      const code = (error as { code?: unknown }).code;
      if (code === 'ENOTEMPTY' || code === 'EEXIST') return false;
      if (code === 'ENOENT') throw new ArtifactFault('superseded', error);
      throw artifactFault(error);
    }
  }

  /** What stands there is no artifact, or no longer. @throws ArtifactFault */
  async clear(): Promise<void> {
    try {
      await rm(this.#directory, { recursive: true, force: true, ...RETRY });
    } catch (error) {
      throw artifactFault(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isPublished) await rm(this.path, { recursive: true, force: true, ...RETRY });
  }
}

/** The artifact, and what any attempt at it left behind. */
export async function removeArtifact(directory: string): Promise<void> {
  for (const left of [directory, ...(await partials(directory))])
    await rm(left, { recursive: true, force: true, ...RETRY });
}

/** Not there yet, or a folder: what a link leads to is not ours to write to, or to clear. @throws ArtifactFault */
async function requireFolder(path: string): Promise<void> {
  const found = await lstat(path).catch((error) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  });
  if (found && !found.isDirectory()) throw new ArtifactFault('not_writable');
}

async function syncDirectory(path: string): Promise<void> {
  // Without the flag the open of a pipe in its place would wait for ever.
  const handle = await open(path, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/* Names of an artifact's files: they say what is inside and hold nothing that a file system or a URL minds. */

/** `exchange_a_spot_trades.native.2019-04` */
export function stemOf({ dataset, mode, window, asOfMs }: ReadRequest): string {
  const asOf = asOfMs === undefined ? '' : `.as-of-${instantName(asOfMs)}`;
  return `${dataset.key}.${mode}.${windowName(window)}${asOf}`;
}

function windowName(window: Window): string {
  switch (window.kind) {
    case 'history':
      return 'history';
    case 'latest':
      return `latest-${window.rows}`;
    case 'random':
      return `random-${window.rows}-${window.seed}`;
    case 'range':
      return rangeName(window.fromMs, window.toMs);
  }
}

/** A month, a day or days by their dates, both included; anything else by its instants. */
function rangeName(fromMs: number | undefined, toMs: number | undefined): string {
  if (fromMs === undefined || toMs === undefined || fromMs % DAY_MS !== 0 || toMs % DAY_MS !== 0) {
    return `${instantName(fromMs)}-${instantName(toMs)}`;
  }
  const first = dateName(fromMs);
  const last = dateName(toMs - DAY_MS);
  if (first === last) return first;
  const isMonth = first.endsWith('-01') && dateName(toMs).endsWith('-01') && first.slice(0, 7) === last.slice(0, 7);
  return isMonth ? first.slice(0, 7) : `${first}_${last}`;
}

export const dateName = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

const instantName = (ms: number | undefined): string =>
  ms === undefined ? 'open' : new Date(ms).toISOString().replaceAll(/[-:]|\.000(?=Z)/g, '');

/* A very large window as a file a UTC day: each day's rows by statements of their own. */

/** Rows of many series that hold on come in one piece: their windows are small, and a row of before has no day of its own. */
export function canSplit({ request, relation }: LiveContext): boolean {
  const { kind } = request.window;
  return (kind === 'range' || kind === 'history') && (relation.isSingleSeries || !relation.isState);
}

export async function* statementsByDay(
  live: LiveContext,
  { parts }: Plan,
  begin: (day: string) => Promise<void>,
): AsyncGenerator<CountedStatement> {
  const days = new Set<number>();
  for (const { from, to } of parts) {
    for (let day = Math.floor(from / DAY_MS); day * DAY_MS < to; day++) days.add(day);
  }
  for (const day of [...days].sort((a, b) => a - b)) {
    await begin(dateName(day * DAY_MS));
    const searched = within(parts, { from: day * DAY_MS, to: (day + 1) * DAY_MS });
    yield* inOrder({ ...live, searched });
  }
}
