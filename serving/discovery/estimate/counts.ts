/**
 * How many rows a window without filters holds, without reading it: partitions know theirs, and of those that the
 * window cuts, the frames index and a short count at the cut know the rest.
 */
import type { Range } from '../../../shared/db/ranges.ts';
import { int2, int8, Params, text } from '../../db/params.ts';
import { knownTest } from '../../read/as-of.ts';
import type { LiveContext } from '../../read/context.ts';
import { inDataset } from '../proved.ts';

export interface Count {
  readonly rows: number;
  readonly isExact: boolean;
  /** Proved partitions that hold the window. */
  readonly partitions: number;
}

/** Rows looked at where a window cuts partitions. More are taken for spread evenly over the partition's time. */
const MAX_COUNTED = 300_000;

/** A partition of which the window holds a part. */
interface Cut {
  readonly key: string;
  readonly times: Range;
  readonly rows: number;
  readonly span: string | null;
}

/** Undefined: partitions do not say (one-second rows that several of them share). */
export async function countRows(context: LiveContext): Promise<Count | undefined> {
  const { request, searched } = context;
  const { scope } = request.dataset.native;
  if (request.mode !== 'native' && scope.kind !== 'window') return undefined;
  if (searched.length === 0) return { rows: 0, isExact: true, partitions: 0 };
  const window = { from: searched[0].from, to: searched[searched.length - 1].to };
  const { partitions, rows, cuts } = await readPartitions(context, window);
  let total = rows;
  let isExact = true;
  for (const cut of cuts) {
    const counted = await countCut(context, cut, window);
    total += counted.rows;
    isExact &&= counted.isExact;
  }
  return { rows: total, isExact, partitions };
}

async function readPartitions({ session, request }: LiveContext, window: Range) {
  const column = request.mode === 'native' ? 'rows' : 'aligned_rows';
  const known = knownTest(request);
  const rows = await inDataset(session, request.dataset, (id, params) => {
    const [from, to] = [params.add(int8(window.from)), params.add(int8(window.to))];
    return `with held as (select partition_key, from_ms, to_ms, ${column} as rows, span,
          from_ms >= ${from} and to_ms <= ${to} as whole
        from partitions p where dataset_id = ${id} and state = 'proved' and from_ms < ${to} and to_ms > ${from}
          ${known === undefined ? '' : `and ${known}`})
      select null, count(*)::text, coalesce(sum(rows) filter (where whole), 0)::text, null, null, null from held
      union all select partition_key, null, rows::text, from_ms::text, to_ms::text, span::text from held where not whole`;
  });
  const [[, partitions, whole], ...cuts] = rows;
  return {
    partitions: Number(partitions),
    rows: Number(whole),
    cuts: cuts.map(
      ([key, , count, from, to, span]): Cut => ({
        key: key!,
        times: { from: Number(from), to: Number(to) },
        rows: Number(count),
        span,
      }),
    ),
  };
}

type Counted = Pick<Count, 'rows' | 'isExact'>;

async function countCut(context: LiveContext, cut: Cut, window: Range): Promise<Counted> {
  const within = { from: Math.max(cut.times.from, window.from), to: Math.min(cut.times.to, window.to) };
  if (context.request.mode === 'native' && context.request.dataset.native.scope.kind === 'window') {
    return await countFrames(context, cut, within);
  }
  if (cut.rows > MAX_COUNTED) return spread(cut, within);
  return { rows: await countStored(context, within, scopeTest(context, cut)), isExact: true };
}

/** Frames within the cut are counted already; those across it are looked at. */
async function countFrames(context: LiveContext, cut: Cut, within: Range): Promise<Counted> {
  const { session, request } = context;
  const { dataset } = request;
  const params = new Params();
  const [id, key] = [params.add(int2(dataset.number)), params.add(text(cut.key))];
  const [from, to] = [params.add(int8(within.from)), params.add(int8(within.to))];
  const frames = await session.rows(
    `select rows::text, (first_ms >= ${from} and last_ms < ${to})::text, first_offset, last_offset, first_ms::text,
       last_ms::text from frames
     where dataset_id = ${id} and partition_key = ${key} and first_ms < ${to} and last_ms >= ${from}`,
    params,
  );
  const [whole, across] = [
    frames.filter((frame) => frame[1] === 'true'),
    frames.filter((frame) => frame[1] !== 'true'),
  ];
  const sum = (list: typeof frames) => list.reduce((total, [rows]) => total + Number(rows), 0);
  // A partition without an index of its frames is one frame.
  const [isIndexed, looked] = frames.length > 0 ? [true, sum(across)] : [false, cut.rows];
  if (looked > MAX_COUNTED) return spread(cut, within);
  if (!isIndexed) return { rows: await countStored(context, within), isExact: true };
  const identity = `t."${dataset.native.identity[0]}"`;
  let rows = sum(whole);
  for (const [, , first, last, firstMs, lastMs] of across) {
    const times = { from: Math.max(within.from, Number(firstMs)), to: Math.min(within.to, Number(lastMs) + 1) };
    const test = (list: Params) =>
      `${identity} between ${list.add(text(first!))}::text::int8 and ${list.add(text(last!))}::text::int8`;
    rows += await countStored(context, times, test);
  }
  return { rows, isExact: true };
}

/** Rows of the partition alone: others may have theirs at the same times. */
function scopeTest({ request }: LiveContext, { key, span }: Cut): ((params: Params) => string) | undefined {
  const { scope } = request.dataset.native;
  if (request.mode !== 'native' || scope.kind !== 'column') return undefined;
  const column = `t."${scope.column}"`;
  return scope.pg === 'text'
    ? (params) => `${column} = ${params.add(text(key))}`
    : (params) => `${params.add(text(span!))}::text::int8range @> ${column}`;
}

async function countStored(
  { session, relation, searched }: LiveContext,
  { from, to }: Range,
  test?: (params: Params) => string,
): Promise<number> {
  if (from >= to) return 0;
  const params = new Params();
  const where = test?.(params);
  const [[rows]] = await session.rows(
    `select count(*)::text ${relation.from({ from, to, part: searched[0] }, params, { where })}`,
    params,
  );
  return Number(rows);
}

function spread({ times, rows }: Cut, within: Range): Counted {
  const share = Math.max(0, within.to - within.from) / (times.to - times.from);
  return { rows: Math.round(rows * share), isExact: false };
}
