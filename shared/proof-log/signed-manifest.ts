/** The signature of an export's manifest: a signed note in its last member, over the bytes of the manifest without that member. */
import { sha256 } from './merkle.ts';
import { type LogKey, NoteFault, openNote, parseCheckpoint, requireInForce, type Signer } from './note.ts';

export const SIGNED = 'signed';

/** A leaf of a partition that an export's rows come from. */
export interface LoggedPartition {
  readonly dataset: string;
  readonly partition: string;
  /** Null while the leaf has no index. */
  readonly leaf_index: number | null;
  /** The bytes of the leaf, as text. */
  readonly leaf: string;
  /** What opens its commitments, in hexadecimal digits. */
  readonly salt?: string | null;
  /** In base64; null where the service could not make the proof. */
  readonly inclusion: readonly string[] | null;
}

/** The statements of the proof log that an export relies on. */
export interface ManifestProofLog {
  readonly checkpoint: string | null;
  /** The first of the partitions; the manifest's proof counts all of them. */
  readonly leaves: readonly LoggedPartition[];
}

type Manifest = Readonly<Record<string, unknown>>;

/** An integer above 2^53 becomes a text: most readers of JSON would round it, and what they write would not be what was signed. */
const largeAsText = (_: string, member: unknown) => (typeof member === 'bigint' ? String(member) : member);

/** What a manifest says, in one line. */
export const manifestText = (facts: object): string => JSON.stringify(facts, largeAsText);

/** The bytes of a manifest's file. */
export const manifestBytes = (manifest: object): Buffer => Buffer.from(`${JSON.stringify(manifest, largeAsText, 2)}\n`);

/** What is signed. It has two lines, so that it cannot be taken for a checkpoint. */
const textOf = (origin: string, unsigned: object): string =>
  `${origin} export manifest\nsha256:${sha256(manifestBytes(unsigned)).toString('hex')}\n`;

/** The manifest with its signature as the last member; null where the process does not know the key. */
export const signManifest = <M extends object>(
  manifest: M,
  signer: Signer | undefined,
): M & { readonly signed: string | null } => ({
  ...manifest,
  [SIGNED]: signer ? signer.sign(textOf(signer.verifier.name, manifest)) : null,
});

/** The leaves of the log when a manifest was written, as its checkpoint says; the note of a lake's table also names its last change. */
function leavesOf({ proof_log: log, checkpoint: ofTable, change }: Manifest): number {
  const checkpoint = (log as Partial<ManifestProofLog> | undefined)?.checkpoint ?? ofTable;
  const sizes = typeof change === 'number' ? [change] : [];
  if (typeof checkpoint === 'string') sizes.push(parseCheckpoint(checkpoint).size);
  // Without either nobody knows when a key that was rotated signed it.
  return sizes.length > 0 ? Math.max(...sizes) : Number.POSITIVE_INFINITY;
}

/**
 * @returns the key that signed it
 * @throws NoteFault when the manifest is not what one of the keys signed, or of a larger tree than the key signs
 */
export function verifyManifest(manifest: Manifest, keys: readonly LogKey[]): LogKey {
  const { [SIGNED]: note, ...unsigned } = manifest;
  if (typeof note !== 'string') throw new NoteFault('the manifest is not signed: the service that wrote it had no key');
  const { text, by } = openNote(note, keys);
  if (text !== textOf(by.name, unsigned)) throw new NoteFault('the manifest is not the one that was signed');
  if (by.to !== undefined) requireInForce(by, leavesOf(manifest), 'the manifest');
  return by;
}
