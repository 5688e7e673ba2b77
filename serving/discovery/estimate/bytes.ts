/**
 * Estimates the size of an answer in each representation, by rendering a few rows of the window; and whether a read is likely
 * to find its next row in time. Also the schema of POST /v1/raw/estimate's answer.
 */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { Window } from '../../contract/read-request.ts';
import { MODES } from '../../contract/shapes.ts';
import type { RowSink } from '../../db/pg-connection.ts';
import { Params } from '../../db/pg-messages.ts';
import type { TimeBudget } from '../../read/execute/read-deadline.ts';
import type { PlanContext } from '../../read/plan/context.ts';
import { slicesOf } from '../../read/plan/slices.ts';
import type { Part, Slice } from '../../read/read-model.ts';
import type { Session } from '../../read/snapshot/session.ts';
import { BUFFER_BYTES, OutputBuffer } from '../../render/cells.ts';
import type { Envelope } from '../../render/json-rows.ts';
import { REPRESENTATIONS, type Representation } from '../../render/representations.ts';
import { readTimestamptzMs } from '../../render/text.ts';
import {
  count,
  datasetKey,
  flag,
  grantedRights,
  instrumentName,
  membersOf,
  problemCode,
  textField,
  utc,
  warning,
} from '../schemas.ts';

/** Slices of at most `lengthMs` at even distances in the time of the parts; each starts in the middle of its distance. */
export function probeSlices(parts: readonly Part[], count: number, lengthMs: number): Slice[] {
  const whole = parts.reduce((sum, { from, to }) => sum + to - from, 0);
  const slices: Slice[] = [];
  let before = 0;
  for (const part of parts) {
    const length = part.to - part.from;
    while (slices.length < count) {
      const at = ((slices.length + 0.5) * whole) / count - before;
      if (at >= length) break;
      const from = part.from + Math.floor(at);
      slices.push({ from, to: Math.min(part.to, from + lengthMs), part });
    }
    before += length;
  }
  return slices;
}

/** Number of positions in the window that rows are sampled at, and of rows per position. */
const POSITIONS = 4;
const ROWS = 32;
/** Number of rows to render, by repeating the sample: the answer's fixed parts then weigh as little as they will. */
const RENDERED = 1024;

export const SHORT_NAMES: Readonly<Record<string, string>> = {
  'application/json': 'json',
  'application/x-ndjson': 'ndjson',
  'text/csv': 'csv',
  'application/vnd.apache.arrow.stream': 'arrow',
};

const shortName = ({ mediaType }: Pick<Representation, 'mediaType'>): string => SHORT_NAMES[mediaType] ?? mediaType;

/** @param context that of the request without its filters: filters select rows, but hardly change their size. */
export async function estimateBytes(
  session: Session,
  context: PlanContext,
  rows: number,
  envelope: Envelope,
): Promise<Record<string, number>> {
  const sample = rows === 0 ? [] : await readSample(session, context);
  return Object.fromEntries(
    REPRESENTATIONS.map((representation) => {
      const bytes = (times: number) => render(representation, context, envelope, sample, times);
      if (sample.length === 0) return [shortName(representation), bytes(0)];
      const times = Math.ceil(RENDERED / sample.length);
      const [once, twice] = [bytes(times), bytes(2 * times)];
      const perRow = (twice - once) / (times * sample.length);
      const head = once - perRow * times * sample.length;
      return [shortName(representation), Math.max(0, Math.round(head + perRow * rows))];
    }),
  );
}

/** A row as the database sent it. */
interface SampledRow {
  readonly view: DataView;
  readonly bytes: Buffer;
  readonly at: number;
  readonly length: number;
}

async function readSample(session: Session, { relation, searched }: PlanContext): Promise<SampledRow[]> {
  const sample: SampledRow[] = [];
  const sink: RowSink = {
    row(_view, source, at, length) {
      // The row is copied, because the connection reuses its buffer for the next message.
      const bytes = Buffer.from(source.subarray(at, at + length));
      sample.push({ view: new DataView(bytes.buffer, bytes.byteOffset, length), bytes, at: 0, length });
    },
  };
  const take = async (slices: readonly Slice[]) => {
    for (const slice of slices) {
      const params = new Params();
      const statement = { text: `${relation.select(slice, params)} limit ${ROWS}`, params: params.list };
      await session.stream(statement, relation.oids, sink);
    }
  };
  await take(probeSlices(searched, POSITIONS, relation.chunkMs));
  // All rows may lie at the beginning of the window.
  if (sample.length === 0) await take([...slicesOf(searched, relation.chunkMs)].slice(0, 1));
  return sample;
}

function render(
  representation: Representation,
  { relation }: PlanContext,
  envelope: Envelope,
  sample: readonly SampledRow[],
  times: number,
): number {
  const hiddenFirst = relation.validity === 'lookahead';
  const spare = Buffer.allocUnsafe(BUFFER_BYTES);
  const output = new OutputBuffer({ write() {}, buffer: () => spare, digest: () => createHash('sha256') });
  const writer = representation.open(output, { columns: relation.columns, hiddenFirst }, envelope);
  for (let time = 0; time < times; time++) {
    for (const { view, bytes, at, length } of sample) {
      writer.row(view, bytes, at, length);
      // The next row determines the end of validity; every time has the same length.
      if (hiddenFirst) writer.resolve(readTimestamptzMs(view, at + 4));
    }
  }
  writer.end();
  return output.flushed + output.at;
}

const names = REPRESENTATIONS.map(shortName);

const BASES = ['counted', 'statistics', 'rules_of_thumb'] as const;

export const estimateAnswer = z.strictObject({
  mode: z.enum(MODES),
  source: datasetKey,
  sources: z.array(datasetKey).length(1),
  instrument: instrumentName,
  rows: count('Number of rows that the query would return.'),
  rows_is_exact: flag('Whether the number is an exact count, at this moment.'),
  rows_at_most: z.int().min(0).nullable().describe('Upper bound of the number; null if unknown.'),
  rows_basis: z
    .enum(BASES)
    .describe(
      '`counted`: by partitions and frames. `statistics`: by the database’s statistics of the filtered columns. `rules_of_thumb`: the database has no statistics yet.',
    ),
  rows_searched: count('Number of rows that the filters are applied to.'),
  bytes: z
    .strictObject(membersOf(names, count('Bytes.')))
    .describe('Size of the body in each representation, before compression.'),
  partitions: z.int().min(0).nullable().describe('Number of proved partitions in the window; null if not counted.'),
  ruled_out: z
    .strictObject({
      partitions_read: count('Partitions that the query would search.'),
      partitions_skipped: count('Partitions that it would leave out.'),
      frames_read: count('Frames that it would search, some 16,000 rows each.'),
      frames_skipped: count('Frames that it would leave out.'),
    })
    .nullable()
    .describe(
      'What the ranges of values rule out: no row there passes the filters. Null without filters, and for datasets that are not of trades.',
    ),
  will_exceed_time_budget: flag('Whether the query is likely to find no row in time and to fail with `QUERY_TIMEOUT`.'),
  time: z
    .strictObject({
      budget_ms: count('Time that a read has to find its next row.'),
      first_row_ms: count('Expected time to the first row, if rows are spread evenly.'),
      scan_ms: count('Time to scan all searched rows, if none passes.'),
    })
    .describe('Times for filters, at the speed of rows in memory.'),
  would_answer: z
    .strictObject({ status: z.int(), code: problemCode.nullable() })
    .describe('The answer that the query would probably get.'),
  as_of_utc: utc('Time up to which every source is complete.').nullable(),
  warnings: z
    .array(warning)
    .describe('The warnings of the query, and `QUERY_TIMEOUT_LIKELY` or `QUERY_TIMEOUT_POSSIBLE`.'),
  view_id: textField('The view that the query would read.'),
  view_version: count('Version of the view.'),
  ...grantedRights,
});

export type EstimateAnswer = z.input<typeof estimateAnswer>;

/**
 * Rows that a read scans per second from memory. Measured for one backend in the order of the index: 4.6 M trades, 3.8 M
 * aligned rows. From a disk it is fewer.
 */
const ROWS_PER_SECOND = 4_000_000;

export interface BudgetVerdict {
  readonly budgetMs: number;
  /** Time to scan all rows that the filters are applied to. */
  readonly scanMs: number;
  /** Expected time to the first row. */
  readonly firstRowMs: number;
  readonly exceeds: boolean;
}

/**
 * Estimates whether a read finds its next row within its time budget.
 * @param passing number of rows that pass the filters, of the `searched` rows to scan.
 */
export function evaluateBudget(
  window: Window,
  {
    searched,
    passing,
    isFiltered,
  }: { readonly searched: number; readonly passing: number; readonly isFiltered: boolean },
  { firstRowMs: first, nextRowMs: next }: TimeBudget,
): BudgetVerdict {
  const budgetMs = window.kind === 'history' || window.kind === 'range' ? Math.min(first, next) : first;
  const ms = (rows: number) => Math.round((rows / ROWS_PER_SECOND) * 1000);
  const firstRowMs = isFiltered ? ms(rowsBeforeFirst(window, searched, passing)) : 0;
  return { budgetMs, scanMs: isFiltered ? ms(searched) : 0, firstRowMs, exceeds: firstRowMs > budgetMs };
}

/** The number of rows scanned before the first one is shown. */
function rowsBeforeFirst(window: Window, searched: number, passing: number): number {
  switch (window.kind) {
    // The read finds all n rows, from the newest back, before it shows the first.
    case 'latest':
      return passing < window.rows ? searched : (searched * window.rows) / passing;
    // The read counts hash classes, examines one class, then reads the rows: three passes.
    case 'random':
      return 2 * searched + searched / (Math.min(window.rows, passing) + 1);
    default:
      return searched / (passing + 1);
  }
}
