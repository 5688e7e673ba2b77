/**
 * The keys of a log, one after the other. A rotation is a note that the key before signs: it names the next key, the size of the
 * tree above which only that one counts, and until when the one before signs beside it.
 */
import { ROTATIONS_FILE } from './folder.ts';
import { keyName, type LogKey, NoteFault, openNote, parseVerifier, type Signer, type Verifier } from './note.ts';
import { type TileSource, textOf } from './tiles.ts';

const TITLE = ' key rotation';
const SIGNATURE = '\u2014 ';

export interface Rotation {
  readonly next: Verifier;
  /** Leaves of the largest tree that the key before signs; the rotation is the leaf of this index. */
  readonly size: number;
  /** Until when checkpoints carry the line of the key before as well. */
  readonly untilMs: number;
}

/** A rotation as a note. @param signer of the key that is replaced */
export function rotationNote(signer: Signer, { next, size, untilMs }: Rotation): string {
  const until = new Date(untilMs).toISOString();
  return signer.sign(`${signer.verifier.name}${TITLE}\n${next.line}\n${size}\n${until}\n`);
}

/** The rotation that a note states, where `key` signed it. @throws NoteFault for one to another log */
export function rotationBy(key: Verifier, note: string): Rotation | undefined {
  let lines: string[];
  let next: Verifier;
  try {
    lines = openNote(note, [key]).text.split('\n');
    next = parseVerifier(lines[1]);
  } catch {
    return undefined;
  }
  const [title, , size, until] = lines;
  const untilMs = Date.parse(until);
  if (title !== key.name + TITLE || !/^(?:0|[1-9]\d{0,14})$/.test(size) || Number.isNaN(untilMs)) return undefined;
  if (next.name !== key.name) throw new NoteFault(`the rotation of ${keyName(key)} leads to the log ${next.name}`);
  return { next, size: Number(size), untilMs };
}

/**
 * A key that is trusted, and those that followed it, each with the sizes of the trees that it signs.
 * @throws NoteFault where a key was rotated twice: one of the two is forged
 */
export function keysFrom(trusted: Verifier, rotations: readonly string[]): LogKey[] {
  const keys: LogKey[] = [trusted];
  for (;;) {
    const last = keys.at(-1)!;
    const found = [...new Set(rotations)].flatMap((note) => {
      const stated = rotationBy(last, note);
      return stated ? { ...stated, rotation: note } : [];
    });
    if (found.length === 0) return keys;
    if (found.length > 1) {
      const turns = found.map(({ next, size }) => `to ${keyName(next)} at ${size} leaves`).join(' and ');
      throw new NoteFault(`the key ${keyName(last)} was rotated twice, ${turns}: ask the operator which one is forged`);
    }
    const [{ next, size, untilMs, rotation }] = found;
    if (keys.some(({ line }) => line === next.line) || size < (last.from ?? 0)) {
      throw new NoteFault(`the rotation of ${keyName(last)} at ${size} leaves leads back to ${keyName(next)}`);
    }
    keys[keys.length - 1] = { ...last, to: size, next, untilMs, rotation };
    keys.push({ ...next, from: size });
  }
}

/** The keys from `trusted` on. @throws NoteFault when `next` is not one of them */
export function followRotations(trusted: Verifier, next: Verifier, rotations: readonly string[]): LogKey[] {
  const keys = keysFrom(trusted, rotations);
  if (keys.some(({ line }) => line === next.line)) return keys;
  throw new NoteFault(`no rotation leads from the trusted key ${trusted.line} to ${next.line}`);
}

/**
 * The keys that may sign for a log, by one that is trusted and the one that the log names. A log names a new key only after its
 * first signature, so that the trusted key may be the newer one.
 * @throws NoteFault when no rotation links them
 */
export function trustedKeys(trusted: Verifier, named: Verifier, rotations: readonly string[]): LogKey[] {
  const isNewer = keysFrom(named, rotations).some(({ line }) => line === trusted.line);
  return isNewer ? keysFrom(trusted, rotations) : followRotations(trusted, named, rotations);
}

/** Rotations as the log serves them: notes one after the other, each with one signature. What is none is left out. */
export function parseRotations(text: string): string[] {
  const lines = text.split('\n');
  const notes: string[] = [];
  for (let at = 0; at + 6 < lines.length; at++) {
    const [title, , , , empty, signature] = lines.slice(at, at + 6);
    if (!title.endsWith(TITLE) || empty !== '' || !signature.startsWith(SIGNATURE)) continue;
    notes.push(`${lines.slice(at, at + 6).join('\n')}\n`);
  }
  return notes;
}

/** The keys of a text, as `keysIn`, and those to which rotations of the log itself lead. @throws NoteFault */
export async function keysOfLog(text: string, source: TileSource): Promise<LogKey[]> {
  const [trusted] = keysIn(text);
  return keysFrom(trusted, [...parseRotations(text), ...parseRotations((await textOf(source, ROTATIONS_FILE)) ?? '')]);
}

/** The keys of a text: a trusted one in its first line, and below it the rotations of its log, if any. @throws NoteFault */
export function keysIn(text: string): LogKey[] {
  const given = text.trimStart();
  const [line] = given.split('\n', 1);
  return keysFrom(parseVerifier(line), parseRotations(given.slice(line.length + 1)));
}
