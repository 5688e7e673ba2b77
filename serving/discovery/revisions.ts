/**
 * The revisions of a dataset's partitions: which was served from which change to which, and documents that the source published in
 * place of one and that were never served. They are read from the proof log, whose changes number them.
 */
import { z } from 'zod';
import type { DocumentFacts } from '../../shared/frame/manifest.ts';
import { changeNumber, decodeLeaf } from '../../shared/proof-log/leaf.ts';
import { DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import { baseNumber, type Instrument } from '../../shared/registry/instruments.ts';
import { instrumentOfKey } from '../../shared/registry/keys.ts';
import { instrumentMember } from '../contract/instruments.ts';
import { int2, int8, Params, text } from '../db/pg-messages.ts';
import type { Coverable } from '../http/caller.ts';
import type { Session, TextRow } from '../read/snapshot/session.ts';
import type { MayOpen } from '../rights/gate.ts';
import { count, datasetKey, flag, instrumentName, sha256, textField, utc } from './schemas.ts';

/** `taken_back`: the source publishes the document before again. `accepted`: an operator reingested it, which is another revision. */
export const REVISION_STATES = ['served', 'replaced', 'withdrawn', 'refused', 'taken_back', 'accepted'] as const;
type RevisionState = (typeof REVISION_STATES)[number];

const change = (doc: string) => z.int().min(1).nullable().describe(doc);

export const revisionsAnswer = z.strictObject({
  revisions: z.array(
    z.strictObject({
      id: count('Number of the change that made it known.'),
      dataset: datasetKey,
      instrument: instrumentName,
      partition: textField('The partition.'),
      revision: count('Number of the revision, of one that was never served: of that which it would have replaced.'),
      state: z.enum(REVISION_STATES),
      from_change: change('Number of the change from which it was served; null: never.'),
      to_change: change('Number of the change that ended that; null: it is served, or never was.'),
      from_utc: utc('Time of the first.').nullable(),
      to_utc: utc('Time of the second.').nullable(),
      found_utc: utc('When the source was found to publish it, of one that was never served.').nullable(),
      taken_back_utc: utc('When it was found to publish the one before again.').nullable(),
      synthetic: flag('Whether it belongs to the sample.'),
      rows: z.int().nullable().describe('Its rows; null where it was never served.'),
      document: z
        .strictObject({
          name: textField('Name of the document.').nullable(),
          sha256: sha256('Digest of its bytes.').nullable(),
          etag: textField('As the vendor stated it.').nullable(),
          last_modified: textField('As the vendor stated it.').nullable(),
          fetched_utc: utc('When it was fetched.').nullable(),
        })
        .describe('Of a replaced revision the name alone; the rest for callers who may read the rows.'),
      differences: z
        .strictObject({
          added: count('Rows that it has and the served one lacks.'),
          removed: count('Rows that it lacks.'),
          altered: count('Rows with other values.'),
          sha256: sha256('Digest of the file that lists them.').nullable(),
          bytes: count('Its size.'),
        })
        .nullable()
        .describe('To the served revision, row by row. All 0: the same rows in another order, form or archive.'),
      fault: textField('Why it is no document of its source.').nullable(),
    }),
  ),
  next_cursor: textField('The `cursor` of the next page; null on the last page.').nullable(),
});
export type Revision = z.infer<typeof revisionsAnswer>['revisions'][number];

const MS = (column: string) => `(extract(epoch from ${column}) * 1000)::int8::text`;

/** A leaf begins what it proves and ends what was proved before it; one that withdraws ends its own attempt alone. */
const PAGE_SQL = `select l.leaf_index::text, l.kind, convert_from(l.body, 'UTF8'), n.leaf_index::text, n.kind,
    convert_from(n.body, 'UTF8'), case when p.attempt = l.attempt and l.kind <> 'refused' then p.manifest ->> 'document' end,
    a.document::text, ${MS('a.found_at')}, ${MS('a.left_at')}, a.rows_added::text, a.rows_removed::text, a.rows_altered::text,
    a.diff_sha256, a.diff_bytes::text, a.fault,
    (p.state = 'proved' and p.document_sha256 = a.document ->> 'sha256')::text
  from proof_leaves l
  left join late_arrivals a on a.revision_id = l.entry_id
  left join partitions p on p.dataset_id = l.dataset_id and p.partition_key = l.partition_key
  left join lateral (select * from proof_leaves n where n.dataset_id = l.dataset_id and n.partition_key = l.partition_key
    and n.entry_id > l.entry_id and n.leaf_index is not null and (n.kind in ('proved', 'revised')
      or n.kind in ('quarantined', 'retracted') and n.attempt = l.attempt)
    order by n.entry_id limit 1) n on l.kind <> 'refused'
  where l.dataset_id = $1 and l.leaf_index >= $2 and ($4 = '' or l.partition_key = $4) and (l.kind in ('proved', 'revised') or a.revision_id is not null)
  order by l.leaf_index limit $3`;

export interface RevisionPage {
  /** Of this partition alone. */
  readonly partition: string | undefined;
  /** Revisions behind this change. */
  readonly after: number;
  readonly limit: number;
}

export async function readRevisions(
  session: Session,
  dataset: DatasetDefinition,
  { partition = '', after, limit }: RevisionPage,
  mayOpen: MayOpen,
): Promise<{ revisions: Revision[]; next_cursor: string | null }> {
  const params = new Params();
  for (const param of [int2(dataset.number), int8(after), int8(limit + 1), text(partition)]) params.add(param);
  const rows = await session.rows(PAGE_SQL, params);
  const revisions = rows.slice(0, limit).map((row) => revisionOf(dataset, row, mayOpen));
  return { revisions, next_cursor: rows.length > limit ? String(revisions.at(-1)!.id) : null };
}

const isoOf = (ms: number | string | null | undefined) => (ms == null ? null : new Date(Number(ms)).toISOString());

function revisionOf(dataset: DatasetDefinition, row: TextRow, mayOpen: MayOpen): Revision {
  const [index, kind, body, endIndex, endKind, endBody, proved, found, foundMs, leftMs] = row;
  const [added, removed, altered, digest, bytes, fault, isServed] = row.slice(10);
  const leaf = decodeLeaf(Buffer.from(body!));
  const isOpen = mayOpen(dataset.key, leaf.synthetic);
  const isRefused = kind === 'refused';
  const document: Partial<DocumentFacts> = (isOpen && JSON.parse(found ?? proved ?? 'null')) || {};
  const state: RevisionState = isRefused
    ? isServed === 'true'
      ? 'accepted'
      : leftMs === null
        ? 'refused'
        : 'taken_back'
    : endKind === null
      ? 'served'
      : endKind === 'proved' || endKind === 'revised'
        ? 'replaced'
        : 'withdrawn';
  return {
    id: changeNumber(Number(index)),
    dataset: dataset.key as DatasetKey,
    ...instrumentMember(dataset),
    partition: leaf.partition!,
    revision: leaf.revision!,
    state,
    from_change: isRefused ? null : changeNumber(Number(index)),
    to_change: endIndex === null ? null : changeNumber(Number(endIndex)),
    from_utc: isRefused ? null : leaf.at,
    to_utc: endBody === null ? null : decodeLeaf(Buffer.from(endBody)).at,
    found_utc: isoOf(foundMs),
    taken_back_utc: isoOf(leftMs),
    synthetic: leaf.synthetic,
    rows: leaf.rows,
    document: {
      name: leaf.document,
      sha256: document.sha256 ?? null,
      etag: document.etag ?? null,
      last_modified: document.last_modified ?? null,
      fetched_utc: isoOf(document.fetched_ms),
    },
    differences:
      added === null
        ? null
        : {
            ...{ added: Number(added), removed: Number(removed), altered: Number(altered) },
            sha256: isOpen ? digest : null,
            bytes: Number(bytes),
          },
    fault: isOpen ? fault : null,
  };
}

/** The file with the differences of a revision. */
export interface FoundDiff {
  readonly dataset: Coverable & { readonly key: DatasetKey; readonly number: number };
  readonly partition: string;
  readonly sha256: string;
  readonly bytes: number;
  readonly foundMs: number;
}

/** @returns undefined where no revision has the number, or it has no differences. */
export async function findDiff(session: Session, id: number): Promise<FoundDiff | undefined> {
  const params = new Params();
  params.add(int8(id));
  const [row] = await session.rows(
    `select a.dataset_id::text, a.partition_key, a.diff_sha256, a.diff_bytes::text, ${MS('a.found_at')}
     from late_arrivals a join proof_leaves l on l.entry_id = a.revision_id
     where l.leaf_index = $1::int8 - 1 and a.diff_sha256 is not null`,
    params,
  );
  if (!row) return undefined;
  const [number, partition, digest, bytes, foundMs] = row as string[];
  const base = [...DATASETS.values()].find((one) => one.number === baseNumber(Number(number)))!;
  const instrument = base.trades && (instrumentOfKey(partition) as Instrument | undefined);
  const { key, trades } = base;
  return {
    dataset: {
      key: key as DatasetKey,
      trades,
      number: Number(number),
      ...(instrument === undefined ? {} : { instrument }),
    },
    ...{ partition, sha256: digest, bytes: Number(bytes), foundMs: Number(foundMs) },
  };
}
