/**
 * Signed notes and checkpoints: a text, an empty line, and one signature a line. Formats: https://c2sp.org/signed-note,
 * https://c2sp.org/tlog-checkpoint, and https://c2sp.org/tlog-cosignature for the time of a checkpoint. Signatures are Ed25519.
 */
import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject, sign, verify } from 'node:crypto';
import { HASH_BYTES, sha256, type TreeHead } from './merkle.ts';

/** What the formats call the type of a signature: Ed25519. */
const ED25519 = 1;
/** Ed25519 over a checkpoint and a time. */
const TIMED = 4;
const TIME_BYTES = 8;
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
  /** The same for its signatures with a time. */
  readonly timedId: number;
  /** The verifier key as one line: `name+hash+base64`. */
  readonly line: string;
  verifies(text: string, signature: Uint8Array): boolean;
}

/** A key, and the sizes of the trees that it signs: `from` is missing before a rotation, and `to` after the last one. */
export interface LogKey extends Verifier {
  readonly from?: number;
  readonly to?: number;
  /** The key that follows it, and until when it signs beside that one. */
  readonly next?: Verifier;
  readonly untilMs?: number;
  /** The note that says so. */
  readonly rotation?: string;
}

export interface Signer {
  readonly verifier: Verifier;
  /** The private key as one line, which is a secret. */
  readonly secret: string;
  /** The text as a note with this key's signature. The text ends with a line feed. */
  sign(text: string): string;
  /** The signature alone, as a line. */
  signature(text: string): string;
  /** A signature over the text of a checkpoint that says when: seconds since 1970. */
  timedSignature(text: string, seconds: number): string;
}

function keyId(name: string, key: Uint8Array, type = ED25519): number {
  const digest = sha256(Buffer.concat([Buffer.from(`${name}\n`), Buffer.of(type), key]));
  return digest.readUInt32BE();
}

const hexId = (id: number): string => id.toString(16).padStart(2 * KEY_ID_BYTES, '0');

/** A key in a message: its line without the key itself. */
export const keyName = ({ name, id }: Pick<Verifier, 'name' | 'id'>): string => `${name}+${hexId(id)}`;

const timedText = (text: string, seconds: number | bigint): string => `cosignature/v1\ntime ${seconds}\n${text}`;

const keyLine = (name: string, id: number, key: Uint8Array): string =>
  `${name}+${hexId(id)}+${Buffer.concat([Buffer.of(ED25519), key]).toString('base64')}`;

function verifierOf(name: string, key: Buffer): Verifier {
  const id = keyId(name, key);
  const object = createPublicKey({ key: Buffer.concat([PUBLIC_DER, key]), format: 'der', type: 'spki' });
  return {
    name,
    id,
    timedId: keyId(name, key, TIMED),
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
  const signature = (note: string) => signatureLine(verifier.name, verifier.id, sign(null, Buffer.from(note), key));
  return {
    verifier,
    secret: text,
    signature,
    sign: (note) => `${note}\n${signature(note)}`,
    timedSignature(note, seconds) {
      const time = Buffer.alloc(TIME_BYTES);
      time.writeBigUInt64BE(BigInt(seconds));
      const signed = sign(null, Buffer.from(timedText(note, seconds)), key);
      return signatureLine(verifier.name, verifier.timedId, Buffer.concat([time, signed]));
    },
  };
}

function signatureLine(name: string, id: number, signature: Uint8Array): string {
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

interface OpenedNote {
  readonly text: string;
  /** The keys that signed it, in the order of their lines. */
  readonly by: readonly LogKey[];
  /** The times that they state, in seconds. */
  readonly times: readonly { readonly key: LogKey; readonly seconds: number }[];
  /** The others that signed it. */
  readonly others: readonly string[];
}

/** A note and its signatures; those of other keys are named, and not verified. @throws NoteFault for one that does not hold */
function readNote(note: string, keys: readonly LogKey[]): OpenedNote {
  const end = note.lastIndexOf('\n\n');
  if (end < 0) throw new NoteFault('a signed note has an empty line between its text and its signatures');
  const text = note.slice(0, end + 1);
  const lines = note.slice(end + 2).split('\n');
  if (lines.pop() !== '' || lines.length === 0) throw new NoteFault('the signatures of a note end with a line feed');
  const by: LogKey[] = [];
  const times: { key: LogKey; seconds: number }[] = [];
  const others: string[] = [];
  for (const line of lines) {
    const match = /^\u2014 (?<name>[^\s+]+) (?<signature>[A-Za-z0-9+/]+=*)$/u.exec(line);
    const bytes = Buffer.from(match?.groups?.signature ?? '', 'base64');
    if (!match || bytes.length <= KEY_ID_BYTES) throw new NoteFault('a signature of the note is not of its form');
    const { name } = match.groups!;
    const id = bytes.readUInt32BE();
    const signature = bytes.subarray(KEY_ID_BYTES);
    const key = keys.find((one) => one.name === name && one.id === id);
    const timed = keys.find((one) => one.name === name && one.timedId === id);
    const seconds = signature.length > TIME_BYTES ? signature.readBigUInt64BE() : 0n;
    if (key && !key.verifies(text, signature)) {
      throw new NoteFault(`the signature of ${key.name} does not belong to the text`);
    }
    if (timed && !timed.verifies(timedText(text, seconds), signature.subarray(TIME_BYTES))) {
      throw new NoteFault(`the time that ${timed.name} states is not signed with the text`);
    }
    if (key) by.push(key);
    else if (timed) times.push({ key: timed, seconds: Number(seconds) });
    else others.push(keyName({ name, id }));
  }
  return { text, by, times, others };
}

/** Says who signed, in place of the keys that had to. */
function notSigned(what: string, { others }: OpenedNote, keys: readonly LogKey[]): NoteFault {
  const names = keys.map(keyName).join(' or ');
  const isRenewed = keys.some(({ name }) => others.some((signer) => signer.startsWith(`${name}+`)));
  return new NoteFault(
    isRenewed
      ? `${others.join(' and ')} signed ${what}, another key of the log than ${names}: where the key was rotated, name the first one, and the log as well`
      : `the key ${names} did not sign ${what}`,
  );
}

/** The text of a note, and which of the keys signed it; signatures of other keys are ignored. @throws NoteFault */
export function openNote(note: string, keys: readonly LogKey[]): { readonly text: string; readonly by: LogKey } {
  const opened = readNote(note, keys);
  if (opened.by.length === 0) throw notSigned('the note', opened, keys);
  return { text: opened.text, by: opened.by[0] };
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
  readonly by: LogKey;
  /** When, in seconds since 1970, where a line says so. */
  readonly signedAt?: number;
}

/**
 * A checkpoint with its lines: the signature of the log's key, its time, and the signatures of the keys before it, by which those
 * who do not know of the rotation go.
 */
export function signCheckpoint(
  checkpoint: Checkpoint,
  [current, ...before]: readonly Signer[],
  seconds = Math.floor(Date.now() / 1000),
): string {
  const text = checkpointText(checkpoint);
  const lines = [current.signature(text), current.timedSignature(text, seconds)];
  return `${text}\n${[...lines, ...before.map((signer) => signer.signature(text))].join('')}`;
}

/** @throws NoteFault for a tree that the key does not sign, saying which key does */
export function requireInForce(key: LogKey, size: number, what: string): void {
  if (size > (key.to ?? Number.POSITIVE_INFINITY)) {
    throw new NoteFault(
      `${what} is signed with ${keyName(key)}, which was rotated and signs trees of at most ${key.to} leaves: above them only ${keyName(key.next!)} counts`,
    );
  }
}

/** The checkpoint of a note that the key signed whose turn it was at its size. @throws NoteFault */
export function openCheckpoint(note: string, keys: readonly LogKey[]): SignedCheckpoint {
  const opened = readNote(note, keys);
  const checkpoint = parseCheckpoint(opened.text);
  const { origin, size } = checkpoint;
  const what = `the checkpoint of ${size} leaves`;
  if (opened.by.length === 0) throw notSigned(what, opened, keys);
  const isInForce = ({ from = 0, to = Number.POSITIVE_INFINITY }: LogKey) => from <= size && size <= to;
  const [by] = opened.by.filter(isInForce);
  if (!by) {
    const [key] = opened.by;
    requireInForce(key, size, what);
    throw new NoteFault(`${what} is signed with ${keyName(key)}, which signs trees from ${key.from} leaves on`);
  }
  if (origin !== by.name) throw new NoteFault(`the checkpoint is of the log ${origin}, and the key of ${by.name}`);
  const times = opened.times.filter(({ key }) => isInForce(key)).map(({ seconds }) => seconds);
  return { ...checkpoint, by, ...(times.length > 0 && { signedAt: Math.max(...times) }) };
}
