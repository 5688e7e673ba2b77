/** A matrix of the operator's own, with a form for each source's licence: to be filled in, and refused until it is. */
import { mkdir, open, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { TidemarkError } from '../errors.ts';
import { DATASETS } from '../registry/index.ts';
import { isSource } from './matrix.ts';
import { FORM_TITLE, UNSIGNED } from './store.ts';

/** What an operator does about real rows that are refused. */
export const OWN_MATRIX_REMEDY =
  'The operator writes a matrix with `./tidemark rights init`, fills in the forms it makes, and names it in SVC_SOURCE_RIGHTS_MATRIX_PATH.';

/** Folder of the forms, beside the matrix. */
const FORMS = 'signoff';

export interface WrittenMatrix {
  readonly matrix: string;
  /** One a source that is to be hosted. */
  readonly forms: readonly { readonly source: string; readonly path: string }[];
  /** Kept and proved, not served. */
  readonly ingestOnly: readonly string[];
}

const ALL_SOURCES = [...new Set([...DATASETS.values()].flatMap(({ sources }) => sources))];

/**
 * `hosted`: sources to be served, each with a form; none: all of them. The others are Ingest Only.
 * @throws TidemarkError USAGE for a source that is none, RIGHTS_FILE_EXISTS; nothing is written then.
 */
export async function writeOwnMatrix(path: string, hosted: readonly string[]): Promise<WrittenMatrix> {
  const unknown = hosted.filter((source) => !isSource(source));
  if (unknown.length > 0) {
    throw new TidemarkError('USAGE', `There is no source ${unknown.join(', ')}; known: ${ALL_SOURCES.join(', ')}`);
  }
  const served = ALL_SOURCES.filter((source) => hosted.length === 0 || hosted.includes(source));
  const forms = served.map((source) => ({ source, path: join(dirname(path), FORMS, `${source}.md`) }));
  const files = [
    ...forms.map((form) => ({ path: form.path, text: formOf(form.source) })),
    { path, text: `${JSON.stringify(matrixOf(served), undefined, 2)}\n` },
  ];
  await writeNew(files);
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

Tidemark serves rows that this source published only when every place in square brackets below is filled in. Or put the
signed document itself here, under any name, and name that in the matrix.

- Datasets: ${datasetsOf(source).join(', ')}
- Licence or agreement, and where it is kept: ${UNSIGNED} title and date of the document]
- What it allows: ${UNSIGNED} hosting, to whom, until when]
- Checked by: ${UNSIGNED} name and role]
- Date: ${UNSIGNED} YYYY-MM-DD]
`;

/** All of them or none, and never over what is there. */
async function writeNew(files: readonly { readonly path: string; readonly text: string }[]): Promise<void> {
  const made: string[] = [];
  try {
    for (const { path, text } of files) {
      await mkdir(dirname(path), { recursive: true });
      const file = await open(path, 'wx', 0o640);
      made.push(path);
      try {
        await file.writeFile(text);
        await file.sync();
      } finally {
        await file.close();
      }
    }
  } catch (cause) {
    for (const path of made) await rm(path, { force: true });
    const { code, path } = cause as NodeJS.ErrnoException;
    if (code === 'EEXIST') {
      throw new TidemarkError('RIGHTS_FILE_EXISTS', `${path} is there already; nothing was written`, { cause });
    }
    throw new TidemarkError('RIGHTS_FILE_UNWRITABLE', `${path ?? files[0].path} cannot be written`, { cause });
  }
}
