/** Reads the answer of GET /v1/coverage/{dataset}: everything about a dataset's coverage, from one snapshot. */

import { z } from 'zod';
import { isoOf } from '../../shared/dates.ts';
import { foundLeaf, joinLeaf, LEAF_COLUMNS, statingLeafSql } from '../../shared/db/partition-changes.ts';
import { PARTITION_STATES, type PartitionState } from '../../shared/db/schema.ts';
import { decodeLeaf, type LeafReason } from '../../shared/proof-log/leaf.ts';
import { expectedOf, gapsBetween, parseMultirange, type Range } from '../../shared/ranges.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import { instrumentMember } from '../contract/instruments.ts';
import { int2, int8, Params, text } from '../db/pg-messages.ts';
import type { Session, TextRow } from '../read/snapshot/session.ts';
import type { MayOpen } from '../rights/gate.ts';
import { checkpointField, HEAD_SQL, type ProofLog, proofLogAnswer, type SignedHead, signedHead } from './proof-log.ts';
import { count, datasetKey, document, flag, instrumentName, sha256, textField, utc } from './schemas.ts';

const span = z
  .strictObject({ unit: z.enum(['epoch_ms', 'height']), from: z.int(), to: z.int() })
  .describe('The same range in the unit of the partitions, [from, to).');

const stretch = z.strictObject({
  source_id: textField('The source that the stretch belongs to.'),
  start_utc: utc('Start of the stretch.'),
  through_utc: utc('Exclusive end of the stretch.'),
  span,
  partitions: count('Proved partitions in the stretch.'),
  rows: count('Their native rows.'),
});

const gap = z.strictObject({
  source_id: textField('The source that is incomplete.'),
  start_utc: utc('Start.'),
  end_utc: utc('Exclusive end.'),
  span,
});

const tally = z.strictObject({
  partitions: count('Partitions in this state.'),
  rows: count('Proved native rows of these partitions.'),
});

/** Whoever may not read the rows gets nothing that depends on them: digests and offsets of a single row can be guessed. */
const UNLESS_READABLE = ' Null for callers who may not read the rows.';

const partition = z.strictObject({
  partition: textField('Key of the partition.'),
  source_id: textField('Source of the partition.'),
  state: z.enum(PARTITION_STATES),
  start_utc: utc('Start of its window.').nullable(),
  end_utc: utc('Exclusive end.').nullable(),
  rows: count('Native rows; null unless proved.').nullable(),
  aligned_rows: count('Aligned rows, where each belongs to one partition.').nullable(),
  first_offset: z.string().nullable().describe(`Offset of the first event.${UNLESS_READABLE}`),
  last_offset: z.string().nullable().describe(`Offset of the last event.${UNLESS_READABLE}`),
  rows_hash: z
    .string()
    .nullable()
    .describe(`Sum of the row hashes, equal in the document and the database.${UNLESS_READABLE}`),
  events_sha256: sha256(
    `Digest of the events in order of offset: of trades each row and a line feed, of others the records of the log.${UNLESS_READABLE}`,
  ).nullable(),
  document: document.nullable().describe(`The document that the partition came in.${UNLESS_READABLE}`),
  revision: count('Number that rises when an operator ingests the partition again.'),
  attempt: count('Number of the publishing attempt.'),
  synthetic: flag('Whether the partition belongs to the sample: no vendor published it.'),
  ingested_at_utc: utc('Time at which it was published to the log; a replay does not change it.').nullable(),
  proved_at_utc: utc('Time at which its recount agreed.').nullable(),
  reason: z
    .string()
    .nullable()
    .describe(
      'Why the partition is quarantined: the expected and the found values; for callers who may not read the rows, in the words of its leaf.',
    ),
  proof_log: proofLogAnswer,
});

const lateArrival = z.strictObject({
  at_utc: utc('Time at which the document was refused.'),
  partition: textField('The proved partition that the document is for.'),
  reason: textField('What differs from the proved content; for callers who may not read the rows, that it differs.'),
  document: document.nullable().describe(`The refused document.${UNLESS_READABLE}`),
});

export const coverageAnswer = z.strictObject({
  dataset: datasetKey,
  instrument: instrumentName,
  partition_kind: textField('What is fetched, proved and replayed together.'),
  version: count('Number that rises with every change of coverage.'),
  synthetic: flag('Whether the dataset holds the sample: rows that no vendor published.'),
  as_of_utc: utc('Time up to which every source is complete.').nullable(),
  proved: z.array(stretch).describe('Stretches without a gap, by source and time.'),
  gaps: z.array(gap).describe('Expected stretches between them that are not proved.'),
  totals: z.strictObject(
    Object.fromEntries(PARTITION_STATES.map((state) => [state, tally])) as Record<PartitionState, typeof tally>,
  ),
  partitions: z.array(partition).describe('The selected partitions, in order of time.'),
  next_cursor: z.string().nullable().describe('The `cursor` of the next page; null on the last page.'),
  late_arrivals: z
    .array(lateArrival)
    .describe('The newest documents that were refused because their partition is proved with other content.'),
  late_arrivals_total: count('Number of all such documents.'),
  checkpoint: checkpointField,
});

type CoverageAnswer = z.input<typeof coverageAnswer>;

type Kind = DatasetDefinition['partition']['kind'];
type Stretch = CoverageAnswer['proved'][number];
type CoverageGap = CoverageAnswer['gaps'][number];

/** By kind of partition: the unit of its spans, and whether the time between two spans of a source is a gap. */
const SPANS: Readonly<Record<Kind, { readonly unit: 'height' | 'epoch_ms'; readonly gaps: boolean }>> = {
  file_day: { unit: 'epoch_ms', gaps: true },
  capture: { unit: 'epoch_ms', gaps: true },
  vintage: { unit: 'epoch_ms', gaps: false },
  height: { unit: 'height', gaps: true },
  snapshot: { unit: 'epoch_ms', gaps: false },
};

/** What is proved of a dataset and the gaps in it: by time for file days, by source for all other kinds. */
interface Proved extends Pick<CoverageAnswer, 'version' | 'synthetic' | 'as_of_utc' | 'proved' | 'gaps'> {}

async function readProved(
  session: Session,
  dataset: DatasetDefinition,
  { listed }: Pick<PageRequest, 'listed'>,
): Promise<Proved> {
  const [row] = await inDataset(
    session,
    dataset,
    (id) => `select proved::text, synthetic::text, version::text from coverage where dataset_id = ${id}`,
  );
  const [proved, synthetic, version] = row ?? ['{}', 'false', '0'];
  const stretches =
    dataset.native.scope.kind === 'window'
      ? await stretchesOfTime(session, dataset, proved!)
      : await stretchesOfSources(session, dataset);
  const bySource = [...Map.groupBy(stretches, ({ source_id }) => source_id).values()];
  const ends = bySource.map((ofSource) => ofSource[ofSource.length - 1].through_utc).sort();
  return {
    version: Number(version),
    synthetic: synthetic === 'true' && stretches.length > 0,
    as_of_utc: ends[0] ?? null,
    proved: stretches,
    gaps: SPANS[dataset.partition.kind].gaps ? bySource.flatMap((own) => gapsOf(own, listed)) : [],
  };
}

/** File days follow each other in time, so their coverage is a set of stretches of time. */
async function stretchesOfTime(session: Session, dataset: DatasetDefinition, proved: string): Promise<Stretch[]> {
  const ranges = parseMultirange(proved);
  const counts = await inDataset(
    session,
    dataset,
    (id) => `select lower(r)::text, count(p.*)::text, coalesce(sum(p.rows), 0)::text
      from (select unnest(proved) as r from coverage where dataset_id = ${id}) c
      left join partitions p on p.dataset_id = ${id} and p.state = 'proved' and p.from_ms >= lower(r) and p.to_ms <= upper(r)
      group by 1`,
  );
  const countsOf = new Map(counts.map(([from, ...numbers]) => [Number(from), numbers.map(Number)]));
  return ranges.map(({ from, to }) => {
    const [partitions, rows] = countsOf.get(from) ?? [0, 0];
    return {
      source_id: dataset.sources[0],
      start_utc: isoOf(from),
      through_utc: isoOf(to),
      span: { unit: 'epoch_ms', from, to },
      partitions,
      rows,
    };
  });
}

async function stretchesOfSources(session: Session, dataset: DatasetDefinition): Promise<Stretch[]> {
  const { unit } = SPANS[dataset.partition.kind];
  const spans = await inDataset(
    session,
    dataset,
    (id) => `select source_id, lower(span)::text, upper(span)::text, from_ms::text, through_ms::text, partitions::text,
      rows::text from coverage_spans where dataset_id = ${id} order by source_id, span`,
  );
  return spans.map(([source, ...texts]) => {
    const [from, to, startMs, throughMs, partitions, rows] = texts.map(Number);
    return {
      source_id: source!,
      start_utc: isoOf(startMs),
      through_utc: isoOf(throughMs),
      span: { unit, from, to },
      partitions,
      rows,
    };
  });
}

/** The gaps between the stretches of one source. Block times may run backwards; a gap of heights then has no length in time. */
function gapsOf(stretches: readonly Stretch[], listed: readonly Range[] | undefined): CoverageGap[] {
  const spans = gapsBetween(stretches.map(({ span }) => span));
  if (listed) {
    // Of file days alone, whose spans are their times.
    const [
      {
        source_id,
        span: { unit },
      },
    ] = stretches;
    return expectedOf(spans, listed).map((span) => {
      return { source_id, start_utc: isoOf(span.from), end_utc: isoOf(span.to), span: { unit, ...span } };
    });
  }
  return spans.map((span, index) => {
    const [before, after] = [stretches[index], stretches[index + 1]];
    const endMs = Math.max(Date.parse(before.through_utc), Date.parse(after.start_utc));
    return {
      source_id: before.source_id,
      start_utc: before.through_utc,
      end_utc: isoOf(endMs),
      span: { unit: before.span.unit, ...span },
    };
  });
}

export async function inDataset(
  session: Session,
  dataset: DatasetDefinition,
  textOf: (id: string, params: Params) => string,
): Promise<readonly TextRow[]> {
  const params = new Params();
  const id = params.add(int2(dataset.number));
  return await session.rows(textOf(id, params), params);
}

type PartitionAnswer = CoverageAnswer['partitions'][number];

/** A position in the order of partitions: the start, if known, and the key of the last one seen. New days do not shift it. */
interface Cursor {
  readonly fromMs: number | null;
  readonly key: string;
}

const cursorText = ({ fromMs, key }: Cursor): string => Buffer.from(`${fromMs ?? ''}|${key}`).toString('base64url');

/** @returns undefined for a text that is not a cursor of this service. */
export function parseCursor(cursor: string): Cursor | undefined {
  const match = /^(-?\d{1,15})?\|([^\0]+)$/.exec(Buffer.from(cursor, 'base64url').toString());
  if (!match) return undefined;
  const found = { fromMs: match[1] === undefined ? null : Number(match[1]), key: match[2] };
  return cursorText(found) === cursor ? found : undefined;
}

interface PageRequest {
  /** Partitions whose times intersect [fromMs, toMs). */
  readonly fromMs: number | undefined;
  readonly toMs: number | undefined;
  readonly state: PartitionState | undefined;
  readonly after: Cursor | undefined;
  readonly limit: number;
  /** When the instrument is listed: outside of it nothing is missing. */
  readonly listed: readonly Range[] | undefined;
}

/** What an answer says of the proof log. */
interface Logged {
  readonly proofLog: ProofLog;
  readonly head: SignedHead;
  readonly mayOpen: MayOpen;
}

export interface Page {
  readonly partitions: readonly PartitionAnswer[];
  /** The cursor of the next page. */
  readonly next: string | null;
}

async function readPage(
  session: Session,
  dataset: DatasetDefinition,
  request: PageRequest,
  logged: Logged,
): Promise<Page> {
  const wanted = request.limit + 1;
  const rows: TextRow[] = [];
  // Partitions without known times come last.
  if (request.after?.fromMs !== null) rows.push(...(await readTimed(session, dataset, request, wanted)));
  const windowed = request.fromMs !== undefined || request.toMs !== undefined;
  if (rows.length < wanted && !windowed) {
    rows.push(...(await readUntimed(session, dataset, request, wanted - rows.length)));
  }
  const shown = rows.slice(0, request.limit);
  const last = shown.at(-1);
  const more = rows.length > request.limit && last !== undefined;
  return {
    partitions: await Promise.all(shown.map((row) => partitionOf(dataset, row, logged))),
    next: more ? cursorText({ fromMs: last[3] === null ? null : Number(last[3]), key: last[0]! }) : null,
  };
}

function readTimed(session: Session, dataset: DatasetDefinition, request: PageRequest, limit: number) {
  const { fromMs, toMs, after } = request;
  return readKeys(session, dataset, request, limit, (params) => [
    'from_ms is not null',
    ...(fromMs === undefined ? [] : [`to_ms > ${params.add(int8(fromMs))}`]),
    ...(toMs === undefined ? [] : [`from_ms < ${params.add(int8(toMs))}`]),
    ...(after === undefined ? [] : laterThan(after, params)),
  ]);
}

/** The index serves the first of the two conditions. */
function laterThan({ fromMs, key }: Cursor, params: Params): string[] {
  const at = params.add(int8(fromMs!));
  return [`from_ms >= ${at}`, `(from_ms > ${at} or partition_key > ${params.add(text(key))})`];
}

function readUntimed(session: Session, dataset: DatasetDefinition, request: PageRequest, limit: number) {
  const { after } = request;
  return readKeys(session, dataset, request, limit, (params) => [
    'from_ms is null',
    ...(after?.fromMs === null ? [`partition_key > ${params.add(text(after.key))}`] : []),
  ]);
}

/** Selects keys first: the rest of a row is wide, and only a page of rows is needed. */
function readKeys(
  session: Session,
  dataset: DatasetDefinition,
  { state }: PageRequest,
  limit: number,
  testsOf: (params: Params) => readonly string[],
): Promise<readonly TextRow[]> {
  return inDataset(session, dataset, (id, params) => {
    const tests = [...testsOf(params), ...(state === undefined ? [] : [`state = ${params.add(text(state))}`])];
    return `with page as materialized (select partition_key, from_ms from partitions
        where dataset_id = ${id} and ${tests.join(' and ')} order by from_ms, partition_key limit ${limit})
      select p.partition_key, p.source_id, p.state, p.from_ms::text, p.to_ms::text, p.rows::text, p.aligned_rows::text,
        p.manifest->>'first_offset', p.manifest->>'last_offset', p.manifest->>'rows_hash', p.manifest->>'events_sha256',
        (p.manifest->'document')::text, p.revision::text, p.attempt::text, p.synthetic::text,
        p.manifest->>'ingested_at_ms', ${epochMs('p.proved_at')}, p.reason,
        ${LEAF_COLUMNS}
      from page join partitions p on p.dataset_id = ${id} and p.partition_key = page.partition_key ${joinLeaf(statingLeafSql)}
      order by page.from_ms, page.partition_key`;
  });
}

const epochMs = (column: string): string => `floor(extract(epoch from ${column}) * 1000)::int8::text`;

async function partitionOf(
  dataset: DatasetDefinition,
  row: TextRow,
  { proofLog, head, mayOpen }: Logged,
): Promise<PartitionAnswer> {
  const [key, source, state, fromMs, toMs, rows, alignedRows, first, last, rowsHash, eventsSha256, document] = row;
  const [revision, attempt, synthetic, ingestedMs, provedMs, reason, ...leaf] = row.slice(12);
  const proved = state === 'proved';
  const found = foundLeaf(leaf);
  const isOpen = mayOpen(dataset.key, synthetic === 'true');
  const opened = (cell: string | null) => (isOpen ? cell : null);
  const number = (cell: string | null) => (cell === null || !proved ? null : Number(cell));
  const iso = (cell: string | null) => (cell === null ? null : isoOf(Number(cell)));
  return {
    partition: key!,
    source_id: source ?? dataset.sources[0],
    state: state as PartitionState,
    start_utc: iso(fromMs),
    end_utc: iso(toMs),
    rows: number(rows),
    aligned_rows: number(alignedRows),
    first_offset: opened(first),
    last_offset: opened(last),
    rows_hash: opened(rowsHash),
    events_sha256: opened(eventsSha256),
    document: JSON.parse(opened(document) ?? 'null'),
    revision: Number(revision),
    attempt: Number(attempt),
    synthetic: synthetic === 'true',
    ingested_at_utc: iso(ingestedMs),
    proved_at_utc: proved ? iso(provedMs) : null,
    reason: proved ? null : isOpen || !found ? opened(reason) : decodeLeaf(Buffer.from(found.body)).reason,
    proof_log: await proofLog.describe(found && { ...found, salt: opened(found.salt) }, head),
  };
}

/** The answer lists at most this many refused documents; it counts all of them. */
const MAX_LATE_ARRIVALS = 100;

export async function readCoverage(
  session: Session,
  dataset: DatasetDefinition & { readonly key: DatasetKey },
  request: PageRequest,
  { proofLog, mayOpen }: Pick<Logged, 'proofLog' | 'mayOpen'>,
): Promise<CoverageAnswer> {
  const head = signedHead(await session.rows(HEAD_SQL));
  const proved = await readProved(session, dataset, request);
  const totals = await readTotals(session, dataset, proved);
  const { partitions, next } = await readPage(session, dataset, request, { proofLog, head, mayOpen });
  const late = await readLateArrivals(session, dataset, mayOpen);
  return {
    dataset: dataset.key,
    ...instrumentMember(dataset),
    partition_kind: dataset.partition.kind,
    ...proved,
    totals,
    partitions: [...partitions],
    next_cursor: next,
    ...late,
    checkpoint: head.checkpoint,
  };
}

/** Proved partitions are counted by their stretches. There are few others, and an index finds them. */
async function readTotals(
  session: Session,
  dataset: DatasetDefinition,
  { proved }: Proved,
): Promise<CoverageAnswer['totals']> {
  const others = await inDataset(
    session,
    dataset,
    (id) =>
      `select state, count(*)::text from partitions where dataset_id = ${id} and state <> 'proved' group by state`,
  );
  const countOf = new Map(others.map(([state, count]) => [state, Number(count)]));
  const sum = (of: 'partitions' | 'rows') => proved.reduce((total, stretch) => total + stretch[of], 0);
  const tally = (state: (typeof PARTITION_STATES)[number]) =>
    state === 'proved'
      ? { partitions: sum('partitions'), rows: sum('rows') }
      : { partitions: countOf.get(state) ?? 0, rows: 0 };
  return Object.fromEntries(PARTITION_STATES.map((state) => [state, tally(state)])) as CoverageAnswer['totals'];
}

/** Of a late arrival, in the words of its leaf. */
const LATE: LeafReason = 'the partition is proved with other content';

async function readLateArrivals(
  session: Session,
  dataset: DatasetDefinition,
  mayOpen: MayOpen,
): Promise<Pick<CoverageAnswer, 'late_arrivals' | 'late_arrivals_total'>> {
  // A document comes late for either kind of rows: whoever may not read real ones does not learn what it says.
  const isOpen = mayOpen(dataset.key, false);
  const rows = await inDataset(
    session,
    dataset,
    (id) => `select ${epochMs('at')}, partition_key, reason, (details->'document')::text, count(*) over ()::text
      from ledger where dataset_id = ${id} and kind = 'late_arrival_refused'
      order by entry_id desc limit ${MAX_LATE_ARRIVALS}`,
  );
  return {
    late_arrivals: rows.map(([at, partition, reason, document]) => ({
      at_utc: isoOf(Number(at)),
      partition: partition!,
      reason: isOpen ? reason! : LATE,
      document: JSON.parse((isOpen ? document : null) ?? 'null'),
    })),
    late_arrivals_total: Number(rows[0]?.[4] ?? 0),
  };
}
