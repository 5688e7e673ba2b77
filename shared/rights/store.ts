/**
 * The rights store: the current content of the matrix file and its legal artifacts. A few `stat` calls before each read
 * (10 us) detect any change, so that a right withdrawn on disk is withdrawn with the next request.
 */

import { createHash } from 'node:crypto';
import { type BigIntStats, readFileSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Logger } from '../logger.ts';
import type { DatasetKey } from '../registry/index.ts';
import { type Matrix, MatrixInvalid, parseMatrix, type SourceRights } from './matrix.ts';

/** A sentence of `serving/rights/sample/sample-data-only.md`, which has held it since its first release. */
const SAMPLE_SENTENCE = 'This is not a licence. It is the artifact of the sample rights matrix';

/** The start of each unfilled field of a form. */
export const UNSIGNED = '[UNSIGNED:';
/** The start of the title of every form that `rights init` writes. */
export const FORM_TITLE = 'Legal sign-off for';
/** A line of a form whose field was emptied instead of filled in. */
const EMPTY_ANSWER = /^- [^:\n]+:[ \t]*$/m;

/** Sample artifacts and forms are short and carry these texts at the top; a scanned licence need not be searched whole. */
const SEARCHED_BYTES = 1024 * 1024;

interface ArtifactMeaning {
  /** Why the artifact is unusable. */
  readonly fault?: string;
  /** What the artifact is instead of a licence, so that it covers synthetic rows only; undefined for a licence. */
  readonly syntheticOnly?: string;
}

/**
 * What a legal artifact covers, decided by its content and never by its path, its name or the version of the matrix. The
 * artifact of the sample and an unfilled form are not licences; they cover synthetic rows only.
 * @param bytes the content, or the reason why there is none.
 */
export function meaningOf(bytes: Buffer | string): ArtifactMeaning {
  if (typeof bytes === 'string') return { fault: bytes };
  if (!bytes.some((byte) => byte > 0x20)) return { fault: 'it is empty' };
  // An editor may have changed line ends, rewrapped the lines or saved as UTF-16: the sentences are still recognised.
  const text = bytes.toString('latin1', 0, SEARCHED_BYTES).replaceAll('\0', '').replaceAll('\r', '');
  const words = text.replace(/\s+/g, ' ');
  if (words.includes(SAMPLE_SENTENCE)) {
    return { syntheticOnly: 'the artifact of the sample, which is not a licence' };
  }
  if (words.includes(UNSIGNED) || (words.includes(FORM_TITLE) && EMPTY_ANSWER.test(text))) {
    return { syntheticOnly: 'a form of `rights init` that is not filled in' };
  }
  return {};
}

/** The sample matrix, which grants synthetic rows only. The embedded stack uses it unless the operator names a matrix. */
export const SAMPLE_MATRIX_PATH = fileURLToPath(new URL('../../serving/rights/sample/matrix.json', import.meta.url));

type MatrixState =
  | { readonly matrix: Matrix }
  /** Reads fail closed until the file is valid again. */
  | { readonly faults: readonly string[] };

interface RightsStoreOptions {
  readonly byokRole: string | undefined;
  readonly log: Logger;
  /** Datasets whose serving state is `shadow`. */
  readonly shadowed?: ReadonlySet<DatasetKey>;
}

interface CachedFile<T> {
  readonly signature: string;
  readonly digest: string;
  readonly value: T;
}

const MAX_MATRIX_BYTES = 1024 * 1024;
/** Limit of a signed document, which is read and hashed whole when it changes. */
const MAX_ARTIFACT_BYTES = 64 * 1024 * 1024;
/**
 * A file that changed this recently is read again each time: a second change within one tick of the file system's clock
 * (up to two seconds on some) does not change the file's times.
 */
const SETTLED_MS = 2000;

export class RightsStore {
  readonly #path: string;
  readonly #options: RightsStoreOptions;
  #cached: CachedFile<MatrixState> | undefined;
  readonly #artifacts = new Map<string, CachedFile<ArtifactMeaning>>();

  constructor(path: string, options: RightsStoreOptions) {
    this.#path = path;
    this.#options = options;
  }

  current(): MatrixState {
    const file = probe(this.#path, MAX_MATRIX_BYTES);
    if (this.#cached?.signature === file.signature) return this.#cached.value;
    const bytes = file.read();
    const digest = digestOf(bytes);
    const value = this.#cached?.digest === digest ? this.#cached.value : this.#load(bytes);
    this.#cached = { signature: file.signature, digest, value };
    return value;
  }

  /** What the sign-off of a hosted source covers, or why it is unusable. */
  signoff(rights: SourceRights): ArtifactMeaning {
    if (rights.artifact === undefined) return { fault: 'the matrix names none' };
    const path = resolve(dirname(this.#path), rights.artifact);
    const file = probe(path, MAX_ARTIFACT_BYTES);
    let cached = this.#artifacts.get(path);
    if (cached?.signature !== file.signature) {
      const bytes = file.read();
      cached = { signature: file.signature, digest: digestOf(bytes), value: meaningOf(bytes) };
      this.#artifacts.set(path, cached);
    }
    if (cached.value.fault !== undefined) return cached.value;
    if (rights.artifactSha256 !== undefined && rights.artifactSha256 !== cached.digest)
      return { fault: 'its digest is not the one in legal_signoff_sha256' };
    return cached.value;
  }

  /** Whether the serving state of the dataset is `shadow`: it is ingested and proved, and callers cannot read it. */
  isShadowed(dataset: DatasetKey): boolean {
    return this.#options.shadowed?.has(dataset) ?? false;
  }

  /** Every current fault of the matrix and its artifacts, for the log at start and for the operator. */
  faults(): string[] {
    const state = this.current();
    if ('faults' in state) return [...state.faults];
    return state.matrix.sources
      .filter((rights) => rights.state === 'Hosted Allowed')
      .flatMap((rights) => {
        const { fault } = this.signoff(rights);
        return fault === undefined ? [] : [`sources.${rights.source}.legal_signoff_artifact: ${fault}`];
      });
  }

  #load(bytes: Buffer | string): MatrixState {
    const { byokRole, log } = this.#options;
    try {
      if (typeof bytes === 'string') throw new MatrixInvalid([`file: ${bytes}`]);
      const matrix = parseMatrix(bytes, { byokRole });
      log.info({ version: matrix.version }, 'rights matrix loaded');
      return { matrix };
    } catch (error) {
      if (!(error instanceof MatrixInvalid)) throw error;
      log.error(
        { path: this.#path, faults: error.faults },
        'the rights matrix is invalid; the service refuses reads until it is corrected',
      );
      return { faults: error.faults };
    }
  }
}

interface FileProbe {
  /** Differs whenever the file's content may have changed. */
  readonly signature: string;
  /** The content, or the reason why there is none. */
  read(): Buffer | string;
}

let probes = 0;

function probe(path: string, maxBytes: number): FileProbe {
  let stat: BigIntStats;
  try {
    stat = statSync(path, { bigint: true });
  } catch {
    // The file is missing, its links form a loop, or a folder is not accessible: reads fail closed in each case.
    return { signature: 'absent', read: () => 'it does not exist, or its folder is not accessible' };
  }
  if (!stat.isFile()) return { signature: 'not a file', read: () => 'it is not a regular file' };
  const settled = Date.now() - Number(stat.ctimeMs) > SETTLED_MS;
  const times = `${stat.dev} ${stat.ino} ${stat.size} ${stat.mtimeNs} ${stat.ctimeNs}`;
  return {
    signature: settled ? times : `${times} probe ${probes++}`,
    read() {
      if (stat.size > maxBytes) return `it is larger than ${maxBytes} bytes`;
      try {
        return readFileSync(path);
      } catch {
        return 'it cannot be read';
      }
    },
  };
}

const digestOf = (bytes: Buffer | string) => createHash('sha256').update(bytes).digest('hex');
