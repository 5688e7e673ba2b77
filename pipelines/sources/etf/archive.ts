/**
 * A folder of one issuer's documents archived by day: `<YYYY-MM-DD>.<ext>`, with anything after the day where a day has
 * several, or a folder `<YYYY-MM-DD>` of files under the issuer's own names.
 */
import { type Dirent, promises } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { TidemarkError } from '../../../shared/errors.ts';
import { parseDay } from '../../../shared/time/days.ts';
import { localPath } from '../documents/urls.ts';

export interface ArchivedDocument {
  /** Under which it is filed. */
  readonly day: string;
  /** Below the archive's folder. */
  readonly name: string;
  readonly url: URL;
  /** The archive's folder. */
  readonly root: URL;
  /** Differs once the file does. */
  readonly version: string;
}

const DATED = /^(\d{4}-\d{2}-\d{2})(?:[^0-9].*)?$/;

/** By day, then by name. @throws TidemarkError SOURCE_NOT_FOUND, SOURCE_UNREACHABLE. */
export async function archivedDocuments(base: URL, extension: string): Promise<ArchivedDocument[]> {
  const folder = localPath(base);
  const documents: ArchivedDocument[] = [];
  const add = async (day: string, ...names: readonly string[]) => {
    if (!names.at(-1)?.toLowerCase().endsWith(`.${extension}`)) return;
    const path = join(folder, ...names);
    const { mtimeMs, size } = await promises.stat(path).catch(() => ({ mtimeMs: 0, size: 0 }));
    documents.push({
      day,
      name: names.join('/'),
      url: pathToFileURL(path),
      root: base,
      version: `${path} ${mtimeMs} ${size}`,
    });
  };
  for (const entry of await entriesOf(folder)) {
    const day = DATED.exec(entry.name)?.[1];
    if (day === undefined || parseDay(day) === undefined) continue;
    if (!entry.isDirectory()) await add(day, entry.name);
    else for (const { name } of await entriesOf(join(folder, entry.name))) await add(day, entry.name, name);
  }
  return documents.sort((a, b) => (a.name < b.name ? -1 : 1));
}

async function entriesOf(folder: string): Promise<Dirent[]> {
  return await promises.readdir(folder, { withFileTypes: true }).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code === 'ENOENT' || cause.code === 'ENOTDIR') {
      throw new TidemarkError('SOURCE_NOT_FOUND', `There is no folder ${folder}`, { cause });
    }
    throw new TidemarkError('SOURCE_UNREACHABLE', `${folder} cannot be read`, { cause });
  });
}
