/** The private keys of a log: of the setting, and of the file beside the log's folder, so that no file server hands it out. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { ROTATIONS_FILE, readIfThere, writeDurably } from './folder.ts';
import { generateSigner, keyName, NoteFault, parseSigner, type Signer } from './note.ts';
import { keysFrom, parseRotations, rotationNote } from './rotations.ts';

/** Where a log and its private keys are. */
export interface LogPlace {
  readonly folder: string;
  /** `SVC_PROOF_LOG_KEY`: a key, or several with commas between them. */
  readonly secret?: string;
  /** `SVC_PROOF_LOG_ORIGIN`. */
  readonly origin?: string;
}

export interface Signers {
  /** The key of the log. */
  readonly current: Signer;
  /** Those before it, as long as their lines stand beside its own. */
  readonly before: readonly Signer[];
}

export const keyPathOf = (folder: string): string => `${folder}.key`;

const signersIn = (text = ''): Signer[] =>
  text.split(/[\s,]+/).flatMap((line) => (line === '' ? [] : parseSigner(line)));

/** A rotation leaves the next key in the file, also where the setting names the one before. */
async function knownSigners({ folder, secret }: LogPlace): Promise<{ set: Signer[]; kept: Signer[] }> {
  const set = signersIn(secret);
  const kept = signersIn((await readIfThere(keyPathOf(folder)))?.toString());
  if (set.length === 0) return { set, kept };
  return { set, kept: kept.filter(({ verifier }) => verifier.name === set[0].verifier.name) };
}

export const readRotations = async (folder: string): Promise<string[]> =>
  parseRotations((await readIfThere(join(folder, ROTATIONS_FILE)))?.toString() ?? '');

/** Undefined where there is no key. @throws NoteFault where the key that the last rotation names is missing */
export async function readSigners(place: LogPlace, nowMs = Date.now()): Promise<Signers | undefined> {
  const { set, kept } = await knownSigners(place);
  const rotations = await readRotations(place.folder);
  const known = [...set, ...kept].map((signer) => ({ signer, keys: keysFrom(signer.verifier, rotations) }));
  if (known.length === 0) return undefined;
  // A rotation that was cut off leaves a key in the file to which nothing leads.
  const led = new Set(known.filter(({ keys }) => keys.length > 1).map(({ keys }) => keys.at(-1)!.line));
  const lasts = known.filter(({ keys }) => keys.length === 1).map(({ signer }) => signer);
  const current = lasts.find(({ verifier }) => led.has(verifier.line)) ?? lasts[0];
  if (!current) {
    const [first, last] = [known[0].keys[0], known[0].keys.at(-1)!];
    throw new NoteFault(
      `the key ${keyName(first)} was rotated, and the private key of ${keyName(last)} is neither set nor in ${keyPathOf(place.folder)}`,
    );
  }
  const { line } = current.verifier;
  const before = known.filter(({ keys }) => keys.length > 1 && keys.at(-1)!.line === line && nowMs < keys[0].untilMs!);
  return { current, before: before.map(({ signer }) => signer).reverse() };
}

/** Keys are generated where there is none. Their file can be read by its owner alone. @throws NoteFault */
export async function loadSigners(place: LogPlace): Promise<Signers> {
  const known = await readSigners(place);
  if (known) return known;
  // A name of its own, so that no other log's checkpoints are taken for this one's.
  const current = generateSigner(place.origin ?? `tidemark-${randomBytes(6).toString('hex')}`);
  await keep(place.folder, [current]);
  return { current, before: [] };
}

const keep = (folder: string, signers: readonly Signer[]): Promise<void> =>
  writeDurably(keyPathOf(folder), signers.map(({ secret }) => `${secret}\n`).join(''), 0o600);

/**
 * Makes a new key of the same name the log's. It is kept before the old key signs for it, so that a crash leaves either a key to
 * which nothing leads, and the old one in use, or the new one. The caller locks the head of the log.
 * @param turn the size of the tree above which the new key signs, and until when the old one signs beside it
 */
export async function rotateSigner(
  place: LogPlace,
  turn: { readonly size: number; readonly untilMs: number },
): Promise<Signer> {
  const { current, before } = await loadSigners(place);
  const { set } = await knownSigners(place);
  const next = generateSigner(current.verifier.name);
  const isSet = (signer: Signer) => set.some(({ secret }) => secret === signer.secret);
  await keep(place.folder, [...[...before.toReversed(), current].filter((signer) => !isSet(signer)), next]);
  const path = join(place.folder, ROTATIONS_FILE);
  const rotations = (await readIfThere(path))?.toString() ?? '';
  await writeDurably(path, rotations + rotationNote(current, { ...turn, next: next.verifier }));
  return next;
}

/** Takes the keys out of the file that sign no more. The caller locks the head of the log. */
export async function forgetRetired(place: LogPlace, { current, before }: Signers): Promise<void> {
  const { kept } = await knownSigners(place);
  const needed = kept.filter(({ secret }) => [current, ...before].some((signer) => signer.secret === secret));
  if (needed.length > 0 && needed.length < kept.length) await keep(place.folder, needed);
}
