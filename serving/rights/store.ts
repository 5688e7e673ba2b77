/**
 * The matrix file and its legal artifacts, as they are now: a few `stat` calls before each read (10 us) find any
 * change, so that a right withdrawn on disk is withdrawn with the next request.
 */
import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import type { Logger } from '../../shared/log/logger.ts';
import { type Matrix, MatrixInvalid, parseMatrix, type SourceRights } from './matrix.ts';

export type MatrixState =
  | { readonly matrix: Matrix }
  /** Reads fail closed until the file is right again. */
  | { readonly faults: readonly string[] };

interface Seen<T> {
  readonly signature: string;
  readonly value: T;
}

export class RightsStore {
  readonly #path: string;
  readonly #byokRole: string | undefined;
  readonly #log: Logger;
  #seen: Seen<MatrixState> | undefined;
  readonly #artifacts = new Map<string, Seen<string>>();

  constructor(path: string, options: { readonly byokRole: string | undefined; readonly log: Logger }) {
    this.#path = path;
    this.#byokRole = options.byokRole;
    this.#log = options.log;
  }

  current(): MatrixState {
    const signature = signatureOf(this.#path);
    if (this.#seen?.signature !== signature) {
      const value = this.#load();
      if ('faults' in value)
        this.#log.error({ faults: value.faults }, 'the rights matrix cannot be used; reads are refused');
      else this.#log.info({ version: value.matrix.version }, 'rights matrix loaded');
      this.#seen = { signature, value };
    }
    return this.#seen.value;
  }

  /** Why the sign-off of a hosted source cannot be shown, or undefined when it can. */
  signoffFault(rights: SourceRights): string | undefined {
    if (rights.artifact === undefined) return 'none is named';
    const path = resolve(dirname(this.#path), rights.artifact);
    const signature = signatureOf(path);
    if (signature === MISSING) return 'it is not there';
    let seen = this.#artifacts.get(path);
    if (seen?.signature !== signature) {
      seen = { signature, value: digestOf(path) };
      this.#artifacts.set(path, seen);
    }
    if (seen.value === UNREADABLE) return 'it cannot be read';
    if (seen.value === EMPTY) return 'it is empty';
    if (rights.artifactSha256 !== undefined && rights.artifactSha256 !== seen.value)
      return 'it is not the one signed for';
    return undefined;
  }

  /** Everything wrong now, for the start and for operators. */
  faults(): string[] {
    const state = this.current();
    if ('faults' in state) return [...state.faults];
    return state.matrix.sources
      .filter((rights) => rights.state === 'Hosted Allowed')
      .flatMap((rights) => {
        const fault = this.signoffFault(rights);
        return fault === undefined ? [] : [`sources.${rights.source}.legal_signoff_artifact: ${fault}`];
      });
  }

  #load(): MatrixState {
    try {
      return { matrix: parseMatrix(readFileSync(this.#path, 'utf8'), { byokRole: this.#byokRole }) };
    } catch (error) {
      return {
        faults: error instanceof MatrixInvalid ? error.faults : [`cannot be read: ${(error as Error).message}`],
      };
    }
  }
}

const MISSING = '';
const EMPTY = 'empty';
const UNREADABLE = 'unreadable';

/** Changes whenever the file's content may have changed. */
function signatureOf(path: string): string {
  const stat = statSync(path, { bigint: true, throwIfNoEntry: false });
  return stat?.isFile() ? `${stat.ino} ${stat.size} ${stat.mtimeNs} ${stat.ctimeNs}` : MISSING;
}

function digestOf(path: string): string {
  try {
    const bytes = readFileSync(path);
    return bytes.toString('utf8').trim() === '' ? EMPTY : createHash('sha256').update(bytes).digest('hex');
  } catch {
    return UNREADABLE;
  }
}
