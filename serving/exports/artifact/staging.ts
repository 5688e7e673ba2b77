/**
 * The directory of an artifact: filled under another name beside it, synced, then renamed. After a crash the final name holds
 * either nothing or the whole artifact. Also the names of its files, and the split of a large window by day.
 */

import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { lstat, mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { DAY_MS } from '../../../shared/dates.ts';
import { type ExportSubject, isFrame } from '../../contract/export.ts';
import type { Window } from '../../contract/read-request.ts';
import type { CountedStatement, LiveContext, ReadPlan } from '../../read/plan/context.ts';
import { inOrder } from '../../read/plan/in-order.ts';
import { mergedParts } from '../../read/plan/slices.ts';
import { within } from '../../read/snapshot/proved-runs.ts';
import { ArtifactFault, artifactFault } from './artifact.ts';

const STAGING_INFIX = '.partial-';
/** An attempt that still runs may create a file in the directory while it is being removed. */
const RM_RETRY = { maxRetries: 5, retryDelay: 20 };

/** Directories of unfinished attempts: of this process and of killed ones. */
async function partials(directory: string): Promise<string[]> {
  const parent = dirname(directory);
  const names = await readdir(parent).catch((error) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  });
  return names
    .filter((name) => name.startsWith(`${basename(directory)}${STAGING_INFIX}`))
    .map((name) => join(parent, name));
}

export class StagingDirectory implements AsyncDisposable {
  /** The directory to write to. */
  readonly path: string;
  readonly #directory: string;
  #isPublished = false;

  private constructor(directory: string, path: string) {
    this.#directory = directory;
    this.path = path;
  }

  /**
   * Supersedes earlier attempts at the same artifact: one that still runs loses its files and fails.
   * @throws ArtifactFault
   */
  static async create(directory: string): Promise<StagingDirectory> {
    try {
      await requireFolder(dirname(directory));
      for (const left of await partials(directory)) await rm(left, { recursive: true, force: true, ...RM_RETRY });
      const path = `${directory}${STAGING_INFIX}${randomBytes(6).toString('hex')}`;
      // Creates the parent too, because a sweep removes it whenever it is empty.
      await mkdir(path, { recursive: true, mode: 0o750 });
      return new StagingDirectory(directory, path);
    } catch (error) {
      throw artifactFault(error);
    }
  }

  /**
   * Publishes the files, which are complete and durable, as the artifact. False: another artifact is there; of two concurrent
   * attempts the first one stays.
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

  /** Removes a damaged artifact from the final name. @throws ArtifactFault */
  async clear(): Promise<void> {
    try {
      await rm(this.#directory, { recursive: true, force: true, ...RM_RETRY });
    } catch (error) {
      throw artifactFault(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isPublished) await rm(this.path, { recursive: true, force: true, ...RM_RETRY });
  }
}

/** Removes the artifact and everything that attempts at it left behind. */
export async function removeArtifact(directory: string): Promise<void> {
  for (const left of [directory, ...(await partials(directory))])
    await rm(left, { recursive: true, force: true, ...RM_RETRY });
}

/** The path must be absent or a directory: the service neither writes to nor clears the target of a link. @throws ArtifactFault */
async function requireFolder(path: string): Promise<void> {
  const found = await lstat(path).catch((error) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  });
  if (found && !found.isDirectory()) throw new ArtifactFault('not_writable');
}

async function syncDirectory(path: string): Promise<void> {
  // Without the flag, opening a pipe of the same name would block forever.
  const handle = await open(path, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** The prefix of an artifact's file names, safe for file systems and URLs: `exchange_a_spot_trades.native.2019-04`. */
export function stemOf(subject: ExportSubject): string {
  if (isFrame(subject)) {
    const { gridMs, window, asOf: known } = subject;
    const asOf = known === undefined ? '' : `.as-of-${known === 'row' ? known : instantName(known)}`;
    return `frame.${gridMs / 1000}s.${windowName(window)}${asOf}`;
  }
  const { dataset, mode, window, filters, asOfMs } = subject;
  const asOf = asOfMs === undefined ? '' : `.as-of-${instantName(asOfMs)}`;
  const of = dataset.instrument === undefined ? dataset.key : `${dataset.key}.${dataset.instrument}`;
  return `${of}.${mode}.${windowName(window)}${asOf}${filters.length > 0 ? '.filtered' : ''}`;
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

/** A month, a day or several days by their dates, inclusive; any other range by its instants. */
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

const dateName = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

const instantName = (ms: number | undefined): string =>
  ms === undefined ? 'open' : new Date(ms).toISOString().replaceAll(/[-:]|\.000(?=Z)/g, '');

/**
 * Whether a large window can become one file per UTC day. States of many series come in one piece: their windows are small, and
 * a row from before the window has no day of its own.
 */
export function canSplit({ request, relation }: LiveContext): boolean {
  const { kind } = request.window;
  return (kind === 'range' || kind === 'history') && (relation.isSingleSeries || !relation.isState);
}

/** The statements of a split window: each day's rows have statements of their own. A day that filters rule out has none. */
export async function* statementsByDay(
  live: LiveContext,
  { parts: all, left: parts = all, searched }: ReadPlan,
  begin: (day: string) => Promise<void>,
): AsyncGenerator<CountedStatement> {
  const read = searched ? mergedParts(live, parts, searched.rowsPerMs) : parts;
  const days = new Set<number>();
  for (const { from, to } of parts) {
    for (let day = Math.floor(from / DAY_MS); day * DAY_MS < to; day++) days.add(day);
  }
  for (const day of [...days].sort((a, b) => a - b)) {
    await begin(dateName(day * DAY_MS));
    yield* inOrder({
      ...live,
      rowsPerMs: searched?.rowsPerMs,
      searched: within(read, { from: day * DAY_MS, to: (day + 1) * DAY_MS }),
    });
  }
}
