/**
 * Signed notes and checkpoints: a text, an empty line, and one signature a line.
 * Formats: https://c2sp.org/signed-note and https://c2sp.org/tlog-checkpoint. Signatures are Ed25519.
 */
import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject, sign, verify } from 'node:crypto';
import { HASH_BYTES, sha256, type TreeHead } from './merkle.ts';

/** What the formats call the type of a signature: Ed25519. */
const ED25519 = 1;
const SEED_BYTES = 32;
const KEY_ID_BYTES = 4;
/** DER around the 32 bytes of a key (RFC 8410). */
const PRIVATE_DER = Buffer.from('302e020100300506032b657004220420', 'hex');
const PUBLIC_DER = Buffer.from('302a300506032b6570032100', 'hex');
const PRIVATE_PREFIX = 'PRIVATE+KEY+';
const SIGNATURE_PREFIX = '\u2014 ';
/** A name of a key: not empty, without spaces and plus signs. */
const NAME = /^[^\s+]+$/u;

/** A note or key that is not what the formats say. */
export class NoteFault extends Error {
  override readonly name = 'NoteFault';
}

/** Verifies the signatures of one key. */
export interface Verifier {
  /** The name of the key; a checkpoint's origin is the name of the log's key. */
  readonly name: string;
  /** First bytes of a digest of name and key, in each of its signatures. */
  readonly id: number;
  /** The verifier key as one line: `name+hash+base64`. */
  readonly line: string;
  verifies(text: string, signature: Uint8Array): boolean;
}

export interface Signer {
  readonly verifier: Verifier;
  /** The private key as one line, which is a secret. */
  readonly secret: string;
  /** The text as a note with this key's signature. The text ends with a line feed. */
  sign(text: string): string;
}

function keyId(name: string, key: Uint8Array): number {
  const digest = sha256(Buffer.concat([Buffer.from(`${name}\n`), Buffer.of(ED25519), key]));
  return digest.readUInt32BE();
}

const hexId = (id: number): string => id.toString(16).padStart(2 * KEY_ID_BYTES, '0');

const keyLine = (name: string, id: number, key: Uint8Array): string =>
  `${name}+${hexId(id)}+${Buffer.concat([Buffer.of(ED25519), key]).toString('base64')}`;

function verifierOf(name: string, key: Buffer): Verifier {
  const id = keyId(name, key);
  const object = createPublicKey({ key: Buffer.concat([PUBLIC_DER, key]), format: 'der', type: 'spki' });
  return {
    name,
    id,
    line: keyLine(name, id, key),
    verifies: (text, signature) => verify(null, Buffer.from(text), object, signature),
  };
}

/** The name, id and bytes of a key's line. @throws NoteFault */
function parseKeyLine(line: string): { readonly name: string; readonly id: string; readonly key: Buffer } {
  const match = /^(?<name>[^\s+]+)\+(?<id>[0-9a-f]{8})\+(?<key>[A-Za-z0-9+/]+=*)$/u.exec(line.trim());
  const bytes = Buffer.from(match?.groups?.key ?? '', 'base64');
  if (!match || bytes[0] !== ED25519 || bytes.length !== 1 + SEED_BYTES) {
    throw new NoteFault('a key is one line `name+hash+base64` of an Ed25519 key');
  }
  return { name: match.groups!.name, id: match.groups!.id, key: bytes.subarray(1) };
}

/** @throws NoteFault */
export function parseVerifier(line: string): Verifier {
  const { name, id, key } = parseKeyLine(line);
  const verifier = verifierOf(name, key);
  if (hexId(verifier.id) !== id) throw new NoteFault(`the key ${name} has the hash ${hexId(verifier.id)}, not ${id}`);
  return verifier;
}

const rawPublicKey = (key: KeyObject): Buffer =>
  createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(PUBLIC_DER.length);

/** @param secret `PRIVATE+KEY+name+hash+base64`. @throws NoteFault, which does not quote the secret */
export function parseSigner(secret: string): Signer {
  const text = secret.trim();
  if (!text.startsWith(PRIVATE_PREFIX)) throw new NoteFault(`a private key begins with ${PRIVATE_PREFIX}`);
  const { name, id, key: seed } = parseKeyLine(text.slice(PRIVATE_PREFIX.length));
  const key = createPrivateKey({ key: Buffer.concat([PRIVATE_DER, seed]), format: 'der', type: 'pkcs8' });
  const verifier = verifierOf(name, rawPublicKey(key));
  if (hexId(verifier.id) !== id) throw new NoteFault(`the private key ${name} does not have the hash ${id}`);
  return {
    verifier,
    secret: text,
    sign: (note) => `${note}\n${signatureLine(verifier, sign(null, Buffer.from(note), key))}`,
  };
}

function signatureLine({ name, id }: Verifier, signature: Uint8Array): string {
  const bytes = Buffer.alloc(KEY_ID_BYTES + signature.length);
  bytes.writeUInt32BE(id);
  bytes.set(signature, KEY_ID_BYTES);
  return `${SIGNATURE_PREFIX}${name} ${bytes.toString('base64')}\n`;
}

/** A new key. @throws NoteFault for a name with spaces or plus signs */
export function generateSigner(name: string): Signer {
  if (!NAME.test(name)) throw new NoteFault('the name of a key has neither spaces nor plus signs');
  const { privateKey } = generateKeyPairSync('ed25519');
  const seed = privateKey.export({ format: 'der', type: 'pkcs8' }).subarray(PRIVATE_DER.length);
  const id = keyId(name, rawPublicKey(privateKey));
  return parseSigner(PRIVATE_PREFIX + keyLine(name, id, seed));
}

/** The text of a note, and which of the keys signed it; signatures of other keys are ignored. @throws NoteFault */
export function openNote(note: string, keys: readonly Verifier[]): { readonly text: string; readonly by: Verifier } {
  const end = note.lastIndexOf('\n\n');
  if (end < 0) throw new NoteFault('a signed note has an empty line between its text and its signatures');
  const text = note.slice(0, end + 1);
  const lines = note.slice(end + 2).split('\n');
  if (lines.pop() !== '' || lines.length === 0) throw new NoteFault('the signatures of a note end with a line feed');
  let by: Verifier | undefined;
  const signers: string[] = [];
  for (const line of lines) {
    const match = /^\u2014 (?<name>[^\s+]+) (?<signature>[A-Za-z0-9+/]+=*)$/u.exec(line);
    const bytes = Buffer.from(match?.groups?.signature ?? '', 'base64');
    if (!match || bytes.length <= KEY_ID_BYTES) throw new NoteFault('a signature of the note is not of its form');
    const key = keys.find(({ name, id }) => match.groups!.name === name && bytes.readUInt32BE() === id);
    if (key && !key.verifies(text, bytes.subarray(KEY_ID_BYTES))) {
      throw new NoteFault(`the signature of ${key.name} does not belong to the text`);
    }
    by ??= key;
    signers.push(`${match.groups!.name}+${hexId(bytes.readUInt32BE())}`);
  }
  if (by) return { text, by };
  const names = keys.map(({ name, id }) => `${name}+${hexId(id)}`).join(' or ');
  const isRenewed = keys.some(({ name }) => signers.some((signer) => signer.startsWith(`${name}+`)));
  throw new NoteFault(
    isRenewed
      ? `${signers.join(' and ')} signed the note, another key of the log than ${names}: where the key was rotated, name the first one, and the log as well`
      : `the key ${names} did not sign the note`,
  );
}

export interface Checkpoint extends TreeHead {
  /** The name of the log. */
  readonly origin: string;
}

/** The text of a checkpoint, to be signed. */
export const checkpointText = ({ origin, size, root }: Checkpoint): string =>
  `${origin}\n${size}\n${Buffer.from(root).toString('base64')}\n`;

/** Further lines are extensions, and ignored. @throws NoteFault */
export function parseCheckpoint(text: string): Checkpoint {
  const [origin, size, hash] = text.split('\n');
  const root = Buffer.from(hash ?? '', 'base64');
  const isSize = /^(?:0|[1-9]\d{0,15})$/.test(size ?? '') && Number.isSafeInteger(Number(size));
  if (!origin || !isSize || root.length !== HASH_BYTES || root.toString('base64') !== hash) {
    throw new NoteFault('a checkpoint has three lines: the origin, the size and the root in base64');
  }
  return { origin, size: Number(size), root };
}

export interface SignedCheckpoint extends Checkpoint {
  /** The key that signed it. */
  readonly by: Verifier;
}

/** The checkpoint of a note that one of the log's keys signed. @throws NoteFault */
export function openCheckpoint(note: string, keys: readonly Verifier[]): SignedCheckpoint {
  const { text, by } = openNote(note, keys);
  const checkpoint = parseCheckpoint(text);
  if (checkpoint.origin !== by.name) {
    throw new NoteFault(`the checkpoint is of the log ${checkpoint.origin}, and the key of ${by.name}`);
  }
  return { ...checkpoint, by };
}

/**
 * A key that is trusted, and the keys that followed it: each rotation is a note whose text is the next key's line, signed by a key
 * before it. A rotation that was cut off leaves a note whose key never signed anything.
 */
export function keysFrom(trusted: Verifier, rotations: readonly string[]): Verifier[] {
  const keys = [trusted];
  // The list grows while it is read.
  for (const key of keys) {
    for (const note of rotations) {
      const next = followed(note, key);
      if (next && !keys.some(({ line }) => line === next.line)) keys.push(next);
    }
  }
  return keys;
}

/** The keys from `trusted` on. @throws NoteFault when `next` is not one of them */
export function followRotations(trusted: Verifier, next: Verifier, rotations: readonly string[]): Verifier[] {
  const keys = keysFrom(trusted, rotations);
  if (keys.some(({ line }) => line === next.line)) return keys;
  throw new NoteFault(`no rotation leads from the trusted key ${trusted.line} to ${next.line}`);
}

/**
 * The keys that may sign for a log, by one that is trusted and the one that the log names. A log names a new key only after its
 * first signature, so that the trusted key may be the newer one.
 * @throws NoteFault when no rotation links them
 */
export function trustedKeys(trusted: Verifier, named: Verifier, rotations: readonly string[]): Verifier[] {
  const isNewer = keysFrom(named, rotations).some(({ line }) => line === trusted.line);
  return isNewer ? keysFrom(trusted, rotations) : followRotations(trusted, named, rotations);
}

/** The key that a rotation names, where `key` signed it. */
function followed(note: string, key: Verifier): Verifier | undefined {
  let next: Verifier;
  try {
    next = parseVerifier(openNote(note, [key]).text);
  } catch {
    return undefined;
  }
  if (next.name !== key.name) throw new NoteFault(`the rotation of ${key.name} leads to the log ${next.name}`);
  return next;
}

/** Rotations as the log serves them: notes one after the other, each with one signature. What is none is left out. */
export function parseRotations(text: string): string[] {
  const lines = text.split('\n');
  const notes: string[] = [];
  for (let at = 0; at + 3 < lines.length; at++) {
    const [key, empty, signature] = lines.slice(at, at + 3);
    if (key !== '' && empty === '' && signature.startsWith(SIGNATURE_PREFIX)) notes.push(`${key}\n\n${signature}\n`);
  }
  return notes;
}

/** The keys of a text: a trusted one in its first line, and below it the rotations of its log, if any. @throws NoteFault */
export function keysIn(text: string): Verifier[] {
  const given = text.trimStart();
  const [line] = given.split('\n', 1);
  return keysFrom(parseVerifier(line), parseRotations(given.slice(line.length + 1)));
}
