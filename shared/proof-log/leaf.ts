/**
 * Leaves of the proof log: one statement each about a partition, as JSON with its members in a fixed order. docs/proof-log.md
 * describes every member. Anybody can read them, so that they name what is kept, count its rows, and commit to everything else.
 */
import { COMMITMENTS, type CommittedFact, commitmentOf } from './commitment.ts';

/** What a leaf says. `restored` and `rotated` are about the log itself. */
export const LEAF_KINDS = ['proved', 'revised', 'retracted', 'quarantined', 'refused', 'restored', 'rotated'] as const;
export type LeafKind = (typeof LEAF_KINDS)[number];

/**
 * Why, in the leaf's own words. Leaves are public, and what an error or a comparison says may quote rows and digests: the catalog
 * and the ledger have that.
 */
export type LeafReason =
  | 'the proof failed'
  | 'its stored rows are not those that were proved'
  | 'its source withdrew it'
  | 'a later revision covers it'
  | 'the first real partition was proved'
  | 'the partition is proved'
  | 'the partition is proved with other content'
  | 'the partition is proved with the same events'
  | 'the attempt cannot be completed'
  | 'released from quarantine'
  | 'replayed from the log';

export const LEAF_VERSION = 2;
/** A leaf is never longer. */
export const MAX_LEAF_BYTES = 1024;
/** UTF-16 units of a document's name and of a reason; the rest is cut off. */
const MAX_NAME = 120;
const MAX_REASON = 160;

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
  /** The name of the document. */
  readonly document: string | null;
  readonly document_commitment: string | null;
  readonly rows: number | null;
  readonly offsets_commitment: string | null;
  readonly rows_hash_commitment: string | null;
  readonly events_commitment: string | null;
  /** Of the sha256 over the canonical bytes of the rows; null unless they were proved. */
  readonly rows_commitment: string | null;
  /** Null until partitions have facts. */
  readonly facts_commitment: string | null;
  readonly at: string;
  /** A `LeafReason`; of `restored` also the words of the operator. */
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
  'document_commitment',
  'rows',
  'offsets_commitment',
  'rows_hash_commitment',
  'events_commitment',
  'rows_commitment',
  'facts_commitment',
  'at',
  'reason',
];

/** The canonical bytes of a leaf: its members in their order, as `JSON.stringify` writes them. */
export function encodeLeaf(leaf: Leaf): Buffer {
  const { document, reason } = leaf;
  const cut: Leaf = {
    ...leaf,
    document: document && cutText(document, MAX_NAME),
    reason: reason && cutText(reason, MAX_REASON),
  };
  const members = leaf.kind === 'rotated' ? [...MEMBERS, 'note' as const] : MEMBERS;
  const encode = (value: Leaf) =>
    Buffer.from(JSON.stringify(Object.fromEntries(members.map((name) => [name, value[name]]))));
  const bytes = encode(cut);
  if (bytes.length <= MAX_LEAF_BYTES) return bytes;
  // Names and reasons of many bytes a letter: the facts stay, the words go.
  return encode({ ...cut, document: document && '', reason: null });
}

/** The first units of a text; half a surrogate pair would have no UTF-8. */
const cutText = (text: string, length: number): string => text.slice(0, length).toWellFormed();

/** Whether a leaf is of the document: long names are cut, or left out. */
export const isNamed = ({ document }: Leaf, name: string): boolean =>
  document === '' || document === cutText(name, MAX_NAME);

/** A leaf that is not of its form. */
export class LeafFault extends Error {
  override readonly name = 'LeafFault';
}

const shown = (value: unknown): string =>
  typeof value === 'object' ? JSON.stringify(value).slice(0, 80) : String(value);

type MemberType = 'string' | 'number' | 'boolean';

/** The types of the members. Bytes may be canonical and have others. */
const TYPES: Readonly<Record<Exclude<keyof Leaf, 'note'>, MemberType>> = {
  v: 'number',
  kind: 'string',
  dataset: 'string',
  partition: 'string',
  revision: 'number',
  attempt: 'number',
  synthetic: 'boolean',
  document: 'string',
  document_commitment: 'string',
  rows: 'number',
  offsets_commitment: 'string',
  rows_hash_commitment: 'string',
  events_commitment: 'string',
  rows_commitment: 'string',
  facts_commitment: 'string',
  at: 'string',
  reason: 'string',
};
const NEVER_NULL: ReadonlySet<string> = new Set(['synthetic', 'at'] satisfies (keyof Leaf)[]);

/** The first member that does not have its type. */
function mistyped(leaf: Leaf): string | undefined {
  const { note, kind } = leaf;
  if ((typeof note === 'string') !== (kind === 'rotated')) return 'note';
  return Object.entries(TYPES).find(([name, type]) => {
    const value: unknown = leaf[name as keyof Leaf];
    return value === null ? NEVER_NULL.has(name) : typeof value !== type;
  })?.[0];
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

/**
 * A change as JSON: its leaf with the number, the salt and another instrument than the default in front. Whoever takes them out
 * again has the leaf's bytes.
 * @param salt undefined: without the member, where readers have no rights that say whether they may have it
 */
export const changeText = (index: number, leaf: Buffer, salt?: Buffer | null, instrument?: string): string => {
  const member = salt === undefined ? '' : `"salt":${JSON.stringify(salt?.toString('hex') ?? null)},`;
  const of = instrument === undefined ? '' : `"instrument":${JSON.stringify(instrument)},`;
  return `{"number":${changeNumber(index)},${member}${of}${leaf.toString('utf8', 1)}`;
};

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

/** A leaf about the log itself. */
export const logLeaf = (stated: Pick<Leaf, 'kind' | 'reason'> & { readonly note?: string }): Leaf => ({
  ...(Object.fromEntries(MEMBERS.map((name) => [name, null])) as unknown as Leaf),
  ...{ v: LEAF_VERSION, synthetic: false, at: new Date().toISOString() },
  ...stated,
});

/** The commitments of a leaf to the facts that are known. */
export const commitTo = (
  salt: Uint8Array,
  facts: Readonly<Partial<Record<CommittedFact, string | undefined>>>,
): Readonly<Record<(typeof COMMITMENTS)[CommittedFact], string | null>> => {
  const committed = (Object.keys(COMMITMENTS) as CommittedFact[]).map((fact) => {
    const value = facts[fact];
    return [COMMITMENTS[fact], value === undefined ? null : commitmentOf(salt, fact, value)];
  });
  return Object.fromEntries(committed);
};

/** The text that a leaf commits to for the offsets. */
export const offsetsText = ({
  first_offset: first,
  last_offset: last,
}: {
  readonly first_offset: unknown;
  readonly last_offset: unknown;
}): string => `${first} ${last}`;

/** Facts of an answer that its leaf states, or commits to. */
export type StatedFacts = Readonly<Partial<Record<'revision' | 'rows' | CommittedFact, unknown>>>;

export const WRONG_SALT =
  'the salt opens none of the commitments: it is the salt of another leaf, or all facts of the answer were changed';

/** In which of the facts an answer differs from the leaf. */
export function differingFromLeaf(leaf: Leaf, salt: Uint8Array, facts: StatedFacts): string[] {
  const faults: string[] = [];
  for (const name of ['revision', 'rows'] as const) {
    if (name in facts && facts[name] !== leaf[name])
      faults.push(`${name} is ${facts[name]}, and ${leaf[name]} in the leaf`);
  }
  const committed = (Object.keys(COMMITMENTS) as CommittedFact[]).filter((fact) => fact in facts);
  const wrong = committed.filter((fact) => leaf[COMMITMENTS[fact]] !== commitmentOf(salt, fact, String(facts[fact])));
  if (wrong.length > 1 && wrong.length === committed.length) return [...faults, WRONG_SALT];
  return [
    ...faults,
    ...wrong.map((fact) => `${fact} ${String(facts[fact]).slice(0, 80)} is not what the leaf commits to`),
  ];
}
