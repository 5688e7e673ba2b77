/** Partitions of a dataset by time, a page at a time: a cursor names the last one seen, so pages stay right as days come. */
import type { PARTITION_STATES } from '../../shared/db/partition-states.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { isoOf } from '../contract/time.ts';
import { int8, type Params, text } from '../db/params.ts';
import type { Session, TextRow } from '../read/session.ts';
import type { CoverageAnswer } from './coverage-answer.ts';
import { inDataset } from './proved.ts';

type Partition = CoverageAnswer['partitions'][number];
type State = (typeof PARTITION_STATES)[number];

/** The place of a partition in the order: its start, if that is known yet, and its key. */
export interface Cursor {
  readonly fromMs: number | null;
  readonly key: string;
}

const cursorText = ({ fromMs, key }: Cursor): string => Buffer.from(`${fromMs ?? ''}|${key}`).toString('base64url');

/** Undefined: no cursor of ours. */
export function parseCursor(cursor: string): Cursor | undefined {
  const match = /^(-?\d{1,15})?\|([^\0]+)$/.exec(Buffer.from(cursor, 'base64url').toString());
  if (!match) return undefined;
  const found = { fromMs: match[1] === undefined ? null : Number(match[1]), key: match[2] };
  return cursorText(found) === cursor ? found : undefined;
}

export interface PageRequest {
  /** Partitions whose times intersect [fromMs, toMs). */
  readonly fromMs: number | undefined;
  readonly toMs: number | undefined;
  readonly state: State | undefined;
  readonly after: Cursor | undefined;
  readonly limit: number;
}

export interface Page {
  readonly partitions: readonly Partition[];
  /** The cursor of the page after it. */
  readonly next: string | null;
}

export async function readPage(session: Session, dataset: DatasetDefinition, request: PageRequest): Promise<Page> {
  const wanted = request.limit + 1;
  const rows: TextRow[] = [];
  // Those whose times are not known yet come last.
  if (request.after?.fromMs !== null) rows.push(...(await readTimed(session, dataset, request, wanted)));
  const windowed = request.fromMs !== undefined || request.toMs !== undefined;
  if (rows.length < wanted && !windowed) {
    rows.push(...(await readUntimed(session, dataset, request, wanted - rows.length)));
  }
  const shown = rows.slice(0, request.limit);
  const last = shown.at(-1);
  const more = rows.length > request.limit && last !== undefined;
  return {
    partitions: shown.map((row) => partitionOf(dataset, row)),
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

/** In two tests, of which the first is what the index is searched by. */
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

/** Keys first: the rest of a row is wide, and only a page of it is wanted. */
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
        p.manifest->>'ingested_at_ms', ${epochMs('p.proved_at')}, p.reason
      from page join partitions p on p.dataset_id = ${id} and p.partition_key = page.partition_key
      order by page.from_ms, page.partition_key`;
  });
}

export const epochMs = (column: string): string => `floor(extract(epoch from ${column}) * 1000)::int8::text`;

function partitionOf(dataset: DatasetDefinition, row: TextRow): Partition {
  const [key, source, state, fromMs, toMs, rows, alignedRows, first, last, rowsHash, eventsSha256, document] = row;
  const [revision, attempt, synthetic, ingestedMs, provedMs, reason] = row.slice(12);
  const proved = state === 'proved';
  const number = (cell: string | null) => (cell === null || !proved ? null : Number(cell));
  const iso = (cell: string | null) => (cell === null ? null : isoOf(Number(cell)));
  return {
    partition: key!,
    source_id: source ?? dataset.sources[0],
    state: state as State,
    start_utc: iso(fromMs),
    end_utc: iso(toMs),
    rows: number(rows),
    aligned_rows: number(alignedRows),
    first_offset: first,
    last_offset: last,
    rows_hash: rowsHash,
    events_sha256: eventsSha256,
    document: document === null ? null : JSON.parse(document),
    revision: Number(revision),
    attempt: Number(attempt),
    synthetic: synthetic === 'true',
    ingested_at_utc: iso(ingestedMs),
    proved_at_utc: proved ? iso(provedMs) : null,
    reason: proved ? null : reason,
  };
}
