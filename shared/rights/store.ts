/**
 * The matrix file and its legal artifacts, as they are now: a few `stat` calls before each read (10 us) find any
 * change, so that a right withdrawn on disk is withdrawn with the next request.
 */

import { createHash } from 'node:crypto';
import { type BigIntStats, readFileSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Logger } from '../logger.ts';
import type { DatasetKey } from '../registry/index.ts';
import { type Matrix, MatrixInvalid, parseMatrix, type SourceRights } from './matrix.ts';

/**
 * What a legal artifact stands for, told by its content: never by its path, its name or the matrix's version. The artifact
 * of the sample and a form that nobody filled in are no licence; they cover synthetic rows alone.
 */

/** Of `serving/rights/sample/sample-data-only.md`, which has held this sentence since its first release. */
const SAMPLE_SENTENCE = 'This is not a licence. It is the artifact of the sample rights matrix';

/** Begins each place of a form that is to be filled in. */
export const UNSIGNED = '[UNSIGNED:';
/** Of every form that `rights init` writes. */
export const FORM_TITLE = 'Legal sign-off for';
/** A line of a form whose place was emptied instead of filled in. */
const EMPTY_ANSWER = /^- [^:\n]+:[ \t]*$/m;

/** Both marks stand at the top of short documents; a scanned licence need not be searched to its end. */
const SEARCHED_BYTES = 1024 * 1024;

export interface ArtifactMeaning {
  /** Why it is no artifact at all. */
  readonly fault?: string;
  /** What it is instead of a licence, and covers synthetic rows only; undefined where it covers the source's own. */
  readonly syntheticOnly?: string;
}

/** `bytes`: the content, or why there is none. */
export function meaningOf(bytes: Buffer | string): ArtifactMeaning {
  if (typeof bytes === 'string') return { fault: bytes };
  if (!bytes.some((byte) => byte > 0x20)) return { fault: 'it is empty' };
  // An editor may have changed line ends, wrapped the lines anew or saved two bytes a letter: the sentences stay.
  const text = bytes.toString('latin1', 0, SEARCHED_BYTES).replaceAll('\0', '').replaceAll('\r', '');
  const words = text.replace(/\s+/g, ' ');
  if (words.includes(SAMPLE_SENTENCE)) {
    return { syntheticOnly: 'the artifact of the sample, which is no licence' };
  }
  if (words.includes(UNSIGNED) || (words.includes(FORM_TITLE) && EMPTY_ANSWER.test(text))) {
    return { syntheticOnly: 'a form of `rights init` that is not filled in' };
  }
  return {};
}

/** Grants synthetic rows only. It is used where the stack is our own and the operator names no matrix. */
export const SAMPLE_MATRIX_PATH = fileURLToPath(new URL('../../serving/rights/sample/matrix.json', import.meta.url));

export type MatrixState =
  | { readonly matrix: Matrix }
  /** Reads fail closed until the file is right again. */
  | { readonly faults: readonly string[] };

export interface RightsStoreOptions {
  readonly byokRole: string | undefined;
  readonly log: Logger;
  /** Datasets whose serving state is `shadow`. */
  readonly shadowed?: ReadonlySet<DatasetKey>;
}

interface Seen<T> {
  readonly signature: string;
  readonly digest: string;
  readonly value: T;
}

const MAX_MATRIX_BYTES = 1024 * 1024;
/** A signed document; it is hashed in one go when it changes. */
const MAX_ARTIFACT_BYTES = 64 * 1024 * 1024;
/**
 * A file that changed this recently is read anew each time: a second change within one tick of its file system's clock
 * (up to two seconds on some) leaves no trace in its times.
 */
const SETTLED_MS = 2000;

export class RightsStore {
  readonly #path: string;
  readonly #options: RightsStoreOptions;
  #seen: Seen<MatrixState> | undefined;
  readonly #artifacts = new Map<string, Seen<ArtifactMeaning>>();

  constructor(path: string, options: RightsStoreOptions) {
    this.#path = path;
    this.#options = options;
  }

  current(): MatrixState {
    const file = look(this.#path, MAX_MATRIX_BYTES);
    if (this.#seen?.signature === file.signature) return this.#seen.value;
    const bytes = file.read();
    const digest = digestOf(bytes);
    const value = this.#seen?.digest === digest ? this.#seen.value : this.#load(bytes);
    this.#seen = { signature: file.signature, digest, value };
    return value;
  }

  /** What the sign-off of a hosted source covers, or why it cannot be shown. */
  signoff(rights: SourceRights): ArtifactMeaning {
    if (rights.artifact === undefined) return { fault: 'none is named' };
    const path = resolve(dirname(this.#path), rights.artifact);
    const file = look(path, MAX_ARTIFACT_BYTES);
    let seen = this.#artifacts.get(path);
    if (seen?.signature !== file.signature) {
      const bytes = file.read();
      seen = { signature: file.signature, digest: digestOf(bytes), value: meaningOf(bytes) };
      this.#artifacts.set(path, seen);
    }
    if (seen.value.fault !== undefined) return seen.value;
    if (rights.artifactSha256 !== undefined && rights.artifactSha256 !== seen.digest)
      return { fault: 'it is not the one signed for' };
    return seen.value;
  }

  /** Whether the dataset is ingested and proved, but held back from callers by its serving state. */
  isShadowed(dataset: DatasetKey): boolean {
    return this.#options.shadowed?.has(dataset) ?? false;
  }

  /** Everything wrong now, for the start and for operators. */
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
      if (typeof bytes === 'string') throw new MatrixInvalid([`the file: ${bytes}`]);
      const matrix = parseMatrix(bytes, { byokRole });
      log.info({ version: matrix.version }, 'rights matrix loaded');
      return { matrix };
    } catch (error) {
      if (!(error instanceof MatrixInvalid)) throw error;
      log.error({ faults: error.faults }, 'the rights matrix cannot be used; reads are refused');
      return { faults: error.faults };
    }
  }
}

interface Look {
  /** Changes whenever the file's content may have changed. */
  readonly signature: string;
  /** The content, or why there is none. */
  read(): Buffer | string;
}

let looks = 0;

function look(path: string, maxBytes: number): Look {
  let stat: BigIntStats;
  try {
    stat = statSync(path, { bigint: true });
  } catch {
    // Not there, a loop of links, a folder that may not be entered: the same to whoever asks for rights.
    return { signature: 'absent', read: () => 'it is not there' };
  }
  if (!stat.isFile()) return { signature: 'no file', read: () => 'it is no file' };
  const settled = Date.now() - Number(stat.ctimeMs) > SETTLED_MS;
  const times = `${stat.dev} ${stat.ino} ${stat.size} ${stat.mtimeNs} ${stat.ctimeNs}`;
  return {
    signature: settled ? times : `${times} look ${looks++}`,
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
