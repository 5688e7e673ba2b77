/** Cuts a statement for many rows into statements for sections of time with about as many rows each, for two connections. */
import { GRANULE_ROWS } from '../../../shared/proof/value-ranges.ts';
import type { Range } from '../../../shared/ranges.ts';
import { int2, int8, Params, type Statement } from '../../db/pg-messages.ts';
import type { Sections, Slice } from '../read-model.ts';
import type { LiveContext } from './context.ts';

/** Fewer rows than this come as fast over one connection. */
export const LEAST_LONG_ROWS = 32_768;
/** About 2 MB of rows: less than a connection reads ahead, so that both work all the time. */
const SECTION_ROWS = 24_576;
const SECTION_RANGES = SECTION_ROWS / GRANULE_ROWS;

/** Undefined where the rows of a section depend on those around it. */
export function sectionsOf(context: LiveContext, slice: Slice): Sections | undefined {
  const { request, relation } = context;
  const { from, to, count, ranges } = slice;
  const isPlain = request.mode === 'native' && relation.validity === 'none';
  if (!isPlain || request.dataset.partition.kind !== 'file_day') return undefined;
  if (!ranges && request.filters.length > 0) return undefined;
  const statementOf = (section: Pick<Slice, 'from' | 'to' | 'ranges'>): Statement => {
    const params = new Params();
    return { text: relation.select({ ...slice, ...section }, params), params: params.list };
  };
  return {
    ...{ dataset: request.dataset.number, from, to },
    // The work of a search is the rows searched, not those found.
    rows: ranges ? ranges.length * GRANULE_ROWS : count?.rows,
    async cut() {
      if (ranges) return groupsOfRanges(ranges).map(statementOf);
      const times = cutsOf(await framesIn(context, slice), slice);
      return times.slice(1).map((end, index) => statementOf({ from: times[index], to: end }));
    },
  };
}

/** The ranges that filters leave, of a granule or more each, by section. */
const groupsOfRanges = (ranges: readonly Range[]) =>
  Array.from({ length: Math.ceil(ranges.length / SECTION_RANGES) }, (_, at) => {
    const group = ranges.slice(at * SECTION_RANGES, (at + 1) * SECTION_RANGES);
    return { from: group[0].from, to: group[group.length - 1].to, ranges: group };
  });

/** The rows of a frame that lie in a range of time, estimated: a cut may lie anywhere. */
interface FrameRows extends Range {
  readonly rows: number;
}

async function framesIn({ session, request }: LiveContext, { from, to }: Range): Promise<FrameRows[]> {
  const params = new Params();
  const [id, start, end] = [params.add(int2(request.dataset.number)), params.add(int8(from)), params.add(int8(to))];
  const frames = await session.rows(
    `select f.first_ms, f.last_ms, f.rows from partitions p
     join frames f on f.dataset_id = p.dataset_id and f.partition_key = p.partition_key
     where p.dataset_id = ${id} and p.state = 'proved' and p.from_ms < ${end} and p.to_ms > ${start}
       and f.first_ms < ${end} and f.last_ms >= ${start} order by f.first_ms`,
    params,
  );
  return frames.map(([first, last, rows]) => {
    const frame = { from: Number(first), to: Number(last) + 1 };
    const within = { from: Math.max(from, frame.from), to: Math.min(to, frame.to) };
    return { ...within, rows: (Number(rows) * (within.to - within.from)) / (frame.to - frame.from) };
  });
}

/** The ends of the sections, from the start of the range to its end: an even number of sections, or one. */
export function cutsOf(frames: readonly FrameRows[], { from, to }: Range): number[] {
  const total = frames.reduce((sum, { rows }) => sum + rows, 0);
  const sections = total < LEAST_LONG_ROWS ? 1 : 2 * Math.ceil(total / (2 * SECTION_ROWS));
  const cuts = [from];
  let [index, before] = [0, 0];
  for (let cut = 1; cut < sections; cut++) {
    const wanted = (total * cut) / sections;
    while (index < frames.length - 1 && before + frames[index].rows <= wanted) before += frames[index++].rows;
    const frame = frames[index];
    const at = Math.round(frame.from + ((wanted - before) / frame.rows) * (frame.to - frame.from));
    if (at > cuts[cuts.length - 1] && at < to) cuts.push(at);
  }
  return [...cuts, to];
}
