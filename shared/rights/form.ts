/**
 * Writes a rights matrix for the operator to own, with a form for each source's licence. The service refuses a form until
 * the operator has filled it in.
 */
import { chown, mkdir, open, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { TidemarkError } from '../errors.ts';
import { DATASETS } from '../registry/index.ts';
import { isSource } from './matrix.ts';
import { FORM_TITLE, UNSIGNED } from './store.ts';

/** What the operator should do when the service refuses real rows. */
export const OWN_MATRIX_REMEDY =
  'The operator writes a matrix with `./tidemark rights init` (with docker-compose.yml, `docker compose run --rm rights init`), fills in the forms it makes, and names it in SVC_SOURCE_RIGHTS_MATRIX_PATH.';

/** Folder of the forms, beside the matrix. */
const FORMS = 'signoff';

interface WrittenMatrix {
  readonly matrix: string;
  /** One for each hosted source. */
  readonly forms: readonly { readonly source: string; readonly path: string }[];
  /** Sources whose rows are stored and proved but not served. */
  readonly ingestOnly: readonly string[];
}

const ALL_SOURCES = [...new Set([...DATASETS.values()].flatMap(({ sources }) => sources))];

/**
 * Writes the matrix and a form for each hosted source. Without `hosted` every source is hosted; otherwise the others are
 * Ingest Only.
 * @throws TidemarkError USAGE for an unknown source and for a file that exists; then it writes nothing.
 */
export async function writeOwnMatrix(path: string, hosted: readonly string[]): Promise<WrittenMatrix> {
  const unknown = hosted.filter((source) => !isSource(source));
  if (unknown.length > 0) {
    throw new TidemarkError('USAGE', `There is no source ${unknown.join(', ')}. Sources: ${ALL_SOURCES.join(', ')}`);
  }
  const served = ALL_SOURCES.filter((source) => hosted.length === 0 || hosted.includes(source));
  const forms = served.map((source) => ({ source, path: join(dirname(path), FORMS, `${source}.md`) }));
  const files = [
    ...forms.map((form) => ({ path: form.path, text: formOf(form.source) })),
    { path, text: `${JSON.stringify(matrixOf(served), undefined, 2)}\n` },
  ];
  await writeNew(dirname(path), files);
  return { matrix: path, forms, ingestOnly: ALL_SOURCES.filter((source) => !served.includes(source)) };
}

const datasetsOf = (source: string): string[] =>
  [...DATASETS.values()].filter(({ sources }) => sources.includes(source)).map(({ key }) => key);

const matrixOf = (served: readonly string[]) => ({
  version: '1',
  sources: Object.fromEntries(
    ALL_SOURCES.map((source) => [
      source,
      served.includes(source)
        ? {
            rights_state: 'Hosted Allowed',
            rights_provisional: false,
            datasets: datasetsOf(source),
            legal_signoff_artifact: `${FORMS}/${source}.md`,
          }
        : { rights_state: 'Ingest Only', rights_provisional: false, datasets: datasetsOf(source) },
    ]),
  ),
});

const formOf = (source: string): string => `# ${FORM_TITLE} ${source}

Tidemark serves the rows of this source only when every field in square brackets below is filled in. You can also put the
signed document itself here, under any name, and name it in the matrix.

- Datasets: ${datasetsOf(source).join(', ')}
- Licence or agreement, and where it is archived: ${UNSIGNED} title and date of the document]
- What it allows: ${UNSIGNED} hosting, to whom, until when]
- Checked by: ${UNSIGNED} name and role]
- Date: ${UNSIGNED} YYYY-MM-DD]
`;

/**
 * Writes all of the files or none, and never over an existing file. Whoever may enter the folder may read them: the service
 * is another account in containers.
 */
async function writeNew(folder: string, files: readonly { readonly path: string; readonly text: string }[]) {
  const written: string[] = [];
  try {
    await mkdir(folder, { recursive: true });
    const owner = await stat(folder);
    // Root writes into anybody's folder; what it writes is for the folder's owner to fill in.
    const isForOther = process.getuid?.() === 0 && owner.uid !== 0;
    for (const { path, text } of files) {
      const isNewFolder = await makeFolder(dirname(path));
      if (isForOther && isNewFolder) await chown(dirname(path), owner.uid, owner.gid);
      const file = await open(path, 'wx', 0o644);
      written.push(path);
      try {
        if (isForOther) await file.chown(owner.uid, owner.gid);
        await file.writeFile(text);
        await file.sync();
      } finally {
        await file.close();
      }
    }
  } catch (cause) {
    for (const path of written) await rm(path, { force: true });
    const { code, path, syscall } = cause as NodeJS.ErrnoException;
    if (code === 'EEXIST' && syscall === 'open') {
      throw new TidemarkError('USAGE', `${path} exists already; nothing was written`, {
        remedy:
          'Change the existing files, or name another path: SVC_SOURCE_RIGHTS_MATRIX_PATH, or with docker-compose.yml another folder, RIGHTS_DIR.',
        cause,
      });
    }
    throw new TidemarkError('DISK_UNUSABLE', `Cannot write ${path ?? files[0].path}${await mayNot(code, folder)}`, {
      remedy:
        'Check space and permissions, or name another path with SVC_SOURCE_RIGHTS_MATRIX_PATH. With docker-compose.yml, `docker compose run --rm rights init` writes into RIGHTS_DIR whosever it is.',
      cause,
    });
  }
}

/** @returns whether it was not there. Not with `recursive`, which says ENOENT of a file system that is read-only. */
async function makeFolder(path: string): Promise<boolean> {
  try {
    await mkdir(path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

/** Who was refused, and whose the folder is. */
async function mayNot(code: string | undefined, folder: string): Promise<string> {
  const there = code === 'EACCES' || code === 'EPERM' ? await stat(folder).catch(() => undefined) : undefined;
  if (there === undefined) return '';
  const mode = (there.mode & 0o777).toString(8);
  return ` as user ${process.geteuid?.()}; ${folder} belongs to user ${there.uid} and has mode ${mode}`;
}
