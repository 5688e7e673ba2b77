/** How many bytes rows take in each representation: a few rows of the window are rendered, and the rest is arithmetic. */

import { z } from 'zod';
import type { Window } from '../../contract/read-request.ts';
import { MODES } from '../../contract/shapes.ts';
import { Params } from '../../db/params.ts';
import type { RowSink } from '../../db/pg-connection.ts';
import type { TimeBudget } from '../../read/execute/optimistic-read.ts';
import { slicesOf } from '../../read/plan/boundary-rows.ts';
import type { PlanContext } from '../../read/plan/context.ts';
import type { Session } from '../../read/snapshot/session.ts';
import type { Part, Slice } from '../../read/types.ts';
import { BUFFER_BYTES, OutputBuffer } from '../../render/cells.ts';
import type { Envelope } from '../../render/json-rows.ts';
import { REPRESENTATIONS, type Representation } from '../../render/representations.ts';
import { readTimestamptzMs } from '../../render/text.ts';
import { count, datasetKey, flag, grantedRights, membersOf, problemCode, textField, utc, warning } from '../schemas.ts';

/* Where in a window to look, when only some of it is looked at. */

/** Slices of at most `lengthMs` at even distances in the time of the parts, from the middle of each distance on. */
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

/** Places in the window that rows are taken from, and how many at each. */
const PLACES = 4;
const ROWS = 32;
/** Rows rendered, the sample over and over: what is once for many rows weighs as little as it will. */
const RENDERED = 1024;

export const SHORT_NAMES: Readonly<Record<string, string>> = {
  'application/json': 'json',
  'application/x-ndjson': 'ndjson',
  'text/csv': 'csv',
  'application/vnd.apache.arrow.stream': 'arrow',
};

export const shortName = ({ mediaType }: Pick<Representation, 'mediaType'>): string =>
  SHORT_NAMES[mediaType] ?? mediaType;

/** @param context of the request without its filters: they choose rows, and rows are of much the same size. */
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
interface Kept {
  readonly view: DataView;
  readonly bytes: Buffer;
  readonly at: number;
  readonly length: number;
}

async function readSample(session: Session, { relation, searched }: PlanContext): Promise<Kept[]> {
  const kept: Kept[] = [];
  const sink: RowSink = {
    row(_view, source, at, length) {
      // The connection's buffer goes on to the next message.
      const bytes = Buffer.from(source.subarray(at, at + length));
      kept.push({ view: new DataView(bytes.buffer, bytes.byteOffset, length), bytes, at: 0, length });
    },
  };
  const take = async (slices: readonly Slice[]) => {
    for (const slice of slices) {
      const params = new Params();
      const statement = { text: `${relation.select(slice, params)} limit ${ROWS}`, params: params.list };
      await session.stream(statement, relation.oids, sink);
    }
  };
  await take(probeSlices(searched, PLACES, relation.chunkMs));
  // Rows that lie at the beginning alone.
  if (kept.length === 0) await take([...slicesOf(searched, relation.chunkMs)].slice(0, 1));
  return kept;
}

function render(
  representation: Representation,
  { relation }: PlanContext,
  envelope: Envelope,
  sample: readonly Kept[],
  times: number,
): number {
  const hiddenFirst = relation.validity === 'lookahead';
  const spare = Buffer.allocUnsafe(BUFFER_BYTES);
  const out = new OutputBuffer({ write() {}, buffer: () => spare });
  const writer = representation.open(out, { columns: relation.columns, hiddenFirst }, envelope);
  for (let time = 0; time < times; time++) {
    for (const { view, bytes, at, length } of sample) {
      writer.row(view, bytes, at, length);
      // Its end of validity is told by the next row; any is as long.
      if (hiddenFirst) writer.resolve(readTimestamptzMs(view, at + 4));
    }
  }
  writer.end();
  return out.flushed + out.at;
}

/* What POST /v1/raw/estimate says. */

const names = REPRESENTATIONS.map(shortName);

const BASES = ['counted', 'statistics', 'rules_of_thumb'] as const;

export const estimateAnswer = z.strictObject({
  mode: z.enum(MODES),
  source: datasetKey,
  sources: z.array(datasetKey).length(1),
  rows: count('Rows the query would answer with.'),
  rows_is_exact: flag('They are counted, at this moment.'),
  rows_at_most: z.int().min(0).nullable().describe('They cannot be more; null: not known.'),
  rows_basis: z
    .enum(BASES)
    .describe(
      '`counted`: by partitions and frames. `statistics`: the database’s statistics of the columns filtered on. `rules_of_thumb`: it has none yet.',
    ),
  rows_searched: count('Rows that the filters are held against.'),
  bytes: z
    .strictObject(membersOf(names, count('Bytes.')))
    .describe('Size of the body in each representation, before compression.'),
  partitions: z.int().min(0).nullable().describe('Proved partitions that hold the window; null: not counted.'),
  will_exceed_time_budget: flag('The query is likely to find no row in time, and to be answered `QUERY_TIMEOUT`.'),
  time: z
    .strictObject({
      budget_ms: count('What a read is given to find its next row.'),
      first_row_ms: count('Until it finds one, if rows lie evenly.'),
      scan_ms: count('To go through all rows searched, if none passes.'),
    })
    .describe('For filters, at the speed of rows that are in memory.'),
  would_answer: z
    .strictObject({ status: z.int(), code: problemCode.nullable() })
    .describe('What the query would be answered with, as far as can be told.'),
  as_of_utc: utc('Until when every source is complete.').nullable(),
  warnings: z.array(warning).describe('Those of the query, and `QUERY_TIMEOUT_LIKELY` or `QUERY_TIMEOUT_POSSIBLE`.'),
  view_id: textField('The view that would be read.'),
  view_version: count('Its version.'),
  ...grantedRights,
});

export type EstimateAnswer = z.input<typeof estimateAnswer>;

/* Whether a read is likely to find its next row within the time it is given. */

/**
 * Rows a read goes through in a second where they are in memory: one backend in the order of the index, 4.6 M trades and
 * 3.8 M one-second rows measured. From a disk it is fewer.
 */
const ROWS_PER_SECOND = 4_000_000;

export interface BudgetVerdict {
  readonly budgetMs: number;
  /** To go through all rows the filters are held against. */
  readonly scanMs: number;
  /** Until a row is found, as far as is known. */
  readonly firstRowMs: number;
  readonly exceeds: boolean;
}

/** @param passing rows that pass the filters, of `searched` that are gone through. */
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

/** Rows gone through before one is shown. */
function rowsBeforeFirst(window: Window, searched: number, passing: number): number {
  switch (window.kind) {
    // All n are found, from the newest back, before the first of them is shown.
    case 'latest':
      return passing < window.rows ? searched : (searched * window.rows) / passing;
    // Counted by classes of their hash, looked at in one class, then read: three times over.
    case 'random':
      return 2 * searched + searched / (Math.min(window.rows, passing) + 1);
    default:
      return searched / (passing + 1);
  }
}
