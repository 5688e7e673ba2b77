/** Folders of artifacts: one an export, in it one a run, by its fence. Nothing a caller says ever becomes part of a path. */
import { lstat, readdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { assert } from '../../shared/errors.ts';
import { isFinished } from './states.ts';
import type { Folders } from './store.ts';

const EXPORT_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
/** A run's folder, or what it is written in until it is whole. */
const RUN_FOLDER = /^(\d+)(?:\.|$)/;

export const isExportId = (text: string): boolean => EXPORT_ID.test(text);

export class ExportPlaces {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
  }

  #folder(exportId: string): string {
    assert(isExportId(exportId), 'an export id is a UUID');
    return join(this.#root, exportId);
  }

  /** Where a run's artifact lies, or will. */
  artifact(exportId: string, fence: number): string {
    return join(this.#folder(exportId), String(fence));
  }

  /** What one run left behind. */
  async removeRun(exportId: string, fence: number): Promise<void> {
    await this.#removeRuns(exportId, (number) => number === fence);
  }

  /** What is no longer needed of an export. */
  async removeUnneeded(exportId: string, { state, fence, kept }: Folders): Promise<void> {
    await this.#removeRuns(exportId, (number) => (isFinished(state) ? number !== kept : number < fence));
  }

  /** Ids of exports that have a folder. */
  async present(): Promise<string[]> {
    const names = await readdir(this.#root).catch((error) => {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    });
    return names.filter(isExportId);
  }

  async #removeRuns(exportId: string, isUnneeded: (fence: number) => boolean): Promise<void> {
    const folder = this.#folder(exportId);
    // What a link leads to is not ours.
    if (!(await lstat(folder).catch(() => undefined))?.isDirectory()) return;
    const names = await readdir(folder).catch(() => []);
    for (const name of names) {
      const fence = RUN_FOLDER.exec(name)?.[1];
      if (fence !== undefined && isUnneeded(Number(fence)))
        await rm(join(folder, name), { recursive: true, force: true });
    }
    // Only where nothing is left.
    await rmdir(folder).catch(() => {});
  }
}
