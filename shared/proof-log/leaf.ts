/**
 * Leaves of the proof log: one statement each about a partition, as JSON with its members in a fixed order. docs/proof-log.md
 * describes every member.
 */

/** What a leaf says. `restored` and `rotated` are about the log itself. */
export const LEAF_KINDS = ['proved', 'revised', 'retracted', 'quarantined', 'refused', 'restored', 'rotated'] as const;
export type LeafKind = (typeof LEAF_KINDS)[number];

export const LEAF_VERSION = 1;
/** A leaf is never longer. */
export const MAX_LEAF_BYTES = 1024;
/** UTF-16 units of a document's name and of a reason; the rest is cut off. */
const MAX_NAME = 120;
const MAX_REASON = 160;

export interface LeafDocument {
  readonly name: string;
  readonly sha256: string;
}

/** The members in their order. A member that does not apply is null. */
export interface Leaf {
  readonly v: typeof LEAF_VERSION;
  readonly kind: LeafKind;
  /** Null for `restored` and `rotated`. */
  readonly dataset: string | null;
  readonly partition: string | null;
  readonly revision: number | null;
  readonly attempt: number | null;
  readonly synthetic: boolean;
  readonly document: LeafDocument | null;
  readonly rows: number | null;
  readonly first_offset: string | null;
  readonly last_offset: string | null;
  readonly rows_hash: string | null;
  readonly events_sha256: string | null;
  /** sha256 over the canonical bytes of the rows; null unless they were proved. */
  readonly rows_sha256: string | null;
  readonly at: string;
  readonly reason: string | null;
  /** The rotation of the key, as a signed note; only `rotated` has this member. */
  readonly note?: string;
}

const MEMBERS: readonly (keyof Leaf)[] = [
  'v',
  'kind',
  'dataset',
  'partition',
  'revision',
  'attempt',
  'synthetic',
  'document',
  'rows',
  'first_offset',
  'last_offset',
  'rows_hash',
  'events_sha256',
  'rows_sha256',
  'at',
  'reason',
];

/** The canonical bytes of a leaf: its members in their order, as `JSON.stringify` writes them. */
export function encodeLeaf(leaf: Leaf): Buffer {
  const { document, reason } = leaf;
  const cut: Leaf = {
    ...leaf,
    document: document && { name: cutText(document.name, MAX_NAME), sha256: document.sha256 },
    reason: reason && cutText(reason, MAX_REASON),
  };
  const members = leaf.kind === 'rotated' ? [...MEMBERS, 'note' as const] : MEMBERS;
  const encode = (value: Leaf) =>
    Buffer.from(JSON.stringify(Object.fromEntries(members.map((name) => [name, value[name]]))));
  const bytes = encode(cut);
  if (bytes.length <= MAX_LEAF_BYTES) return bytes;
  // Names and reasons of many bytes a letter, or long offsets: the facts stay, the words go.
  return encode({ ...cut, document: cut.document && { ...cut.document, name: '' }, reason: null });
}

/** The first units of a text; half a surrogate pair would have no UTF-8. */
const cutText = (text: string, length: number): string => text.slice(0, length).toWellFormed();

/** Whether a leaf is of the document: long names are cut, or left out. */
export const isNamed = ({ document }: Leaf, name: string): boolean =>
  document !== null && (document.name === '' || document.name === cutText(name, MAX_NAME));

/** A leaf that is not of its form. */
export class LeafFault extends Error {
  override readonly name = 'LeafFault';
}

const shown = (value: unknown): string =>
  typeof value === 'object' ? JSON.stringify(value).slice(0, 80) : String(value);

type MemberType = 'string' | 'number' | 'boolean';

/** The types of the members, apart from the document's. Bytes may be canonical and have others. */
const TYPES: Readonly<Record<Exclude<keyof Leaf, 'document' | 'note'>, MemberType>> = {
  v: 'number',
  kind: 'string',
  dataset: 'string',
  partition: 'string',
  revision: 'number',
  attempt: 'number',
  synthetic: 'boolean',
  rows: 'number',
  first_offset: 'string',
  last_offset: 'string',
  rows_hash: 'string',
  events_sha256: 'string',
  rows_sha256: 'string',
  at: 'string',
  reason: 'string',
};
const NEVER_NULL: ReadonlySet<string> = new Set(['synthetic', 'at'] satisfies (keyof Leaf)[]);

/** The first member that does not have its type. */
function mistyped(leaf: Leaf): string | undefined {
  const found = Object.entries(TYPES).find(([name, type]) => {
    const value: unknown = leaf[name as keyof Leaf];
    return value === null ? NEVER_NULL.has(name) : typeof value !== type;
  });
  if (found) return found[0];
  const { document, note, kind } = leaf;
  if ((typeof note === 'string') !== (kind === 'rotated')) return 'note';
  if (document === null) return undefined;
  return typeof document?.name === 'string' && typeof document.sha256 === 'string' ? undefined : 'document';
}

/** @throws LeafFault when the bytes are not the canonical ones of a leaf */
export function decodeLeaf(bytes: Uint8Array): Leaf {
  let leaf: Leaf;
  try {
    leaf = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) as Leaf;
  } catch (cause) {
    throw new LeafFault('a leaf is not JSON', { cause });
  }
  if (leaf?.v !== LEAF_VERSION || !LEAF_KINDS.includes(leaf.kind)) {
    throw new LeafFault(
      `a leaf has the version ${shown(leaf?.v)} and the kind ${shown(leaf?.kind)}, which this release does not know`,
    );
  }
  const wrong = mistyped(leaf);
  if (wrong !== undefined) throw new LeafFault(`a leaf has no ${wrong} of its type`);
  if (!encodeLeaf(leaf).equals(bytes)) throw new LeafFault('a leaf does not have its canonical bytes');
  return leaf;
}

/** The number of a change: the index of its leaf plus one, so that 0 is the place before the first. */
export const changeNumber = (index: number): number => index + 1;

/** A change as JSON: its leaf with the number in front. Whoever takes the number out again has the leaf's bytes. */
export const changeText = (index: number, leaf: Buffer): string =>
  `{"number":${changeNumber(index)},${leaf.toString('utf8', 1)}`;

/** The leaf of a change, which `changeText` made; undefined for another text. */
export function leafOfChange(index: number, text: string): Buffer | undefined {
  const start = `{"number":${changeNumber(index)},`;
  if (!text.startsWith(start)) return undefined;
  const body = Buffer.from(`{${text.slice(start.length)}`);
  try {
    decodeLeaf(body);
  } catch {
    return undefined;
  }
  return body;
}

/** The facts that a manifest, a lineage answer and a leaf have in common, by the leaf's names. */
const SHARED_FACTS = ['revision', 'rows', 'rows_hash', 'events_sha256'] as const;

/** In which facts of a partition an answer differs from the leaf; facts that the answer lacks do not count. */
export function differingFromLeaf(leaf: Leaf, facts: Readonly<Partial<Record<string, unknown>>>): string[] {
  const faults = SHARED_FACTS.flatMap((name) =>
    facts[name] === undefined || facts[name] === null || facts[name] === leaf[name]
      ? []
      : [`${name} is ${facts[name]}, and ${leaf[name]} in the leaf`],
  );
  const { document_sha256: document } = facts;
  if (typeof document === 'string' && document !== leaf.document?.sha256) {
    faults.push(`document_sha256 is ${document}, and ${leaf.document?.sha256} in the leaf`);
  }
  return faults;
}

/** A leaf about the log itself. */
export const logLeaf = (
  stated: Pick<Leaf, 'reason'> & ({ kind: 'restored' } | { kind: 'rotated'; note: string }),
): Leaf => ({
  v: LEAF_VERSION,
  dataset: null,
  partition: null,
  revision: null,
  attempt: null,
  synthetic: false,
  document: null,
  rows: null,
  first_offset: null,
  last_offset: null,
  rows_hash: null,
  events_sha256: null,
  rows_sha256: null,
  at: new Date().toISOString(),
  ...stated,
});
