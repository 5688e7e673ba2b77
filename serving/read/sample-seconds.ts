/**
 * Aligned rows drawn where partitions are heights or snapshots. How many seconds hold a row is not known, since several
 * blocks may share one; but of these just one is the lowest, so blocks are drawn and those that are the lowest of their
 * second are kept: every second is as likely.
 */
import type { Range } from '../../shared/db/ranges.ts';
import { array, int2, int8, Params } from '../db/params.ts';
import type { LiveContext } from './context.ts';
import { batched } from './sample.ts';

const SECOND_MS = 1000;

/** Heights, or places among the snapshots that hold rows. */
export interface Units {
  readonly count: number;
  /** Of the drawn units those that are the lowest of their second: their seconds in epoch ms, as drawn. */
  lowest(numbers: readonly number[]): Promise<number[]>;
}

export const unitsOf = async (context: LiveContext): Promise<Units> =>
  context.coverage.kind === 'height' ? heights(context) : await snapshots(context);

// ---- heights -------------------------------------------------------------------------------------------------------

function heights(context: LiveContext): Units {
  const { coverage } = context;
  const count = coverage.proved.reduce((sum, { from, to }) => sum + to - from, 0);
  return {
    count,
    async lowest(numbers) {
      const wanted = numbers.map((number) => heightAt(coverage.proved, number));
      const windows = await windowsOf(context, wanted);
      const order = new Map(wanted.map((height, index) => [height, index]));
      const found: { readonly height: number; readonly ms: number }[] = [];
      for (const batch of batched(windows.map((window) => [window]))) {
        const params = new Params();
        const selects = batch.map((window) => lowestOfSecond(context, window, params));
        for (const [height, ms] of await context.session.rows(selects.join(' union all '), params)) {
          found.push({ height: Number(height), ms: Number(ms) });
        }
      }
      // In the order they were drawn: a part of them may be taken.
      return found.sort((a, b) => order.get(a.height)! - order.get(b.height)!).map(({ ms }) => ms);
    },
  };
}

function heightAt(proved: readonly Range[], number: number): number {
  let left = number;
  for (const { from, to } of proved) {
    if (left < to - from) return from + left;
    left -= to - from;
  }
  throw new RangeError(`there are no ${number} proved heights`);
}

interface HeightWindow extends Range {
  readonly height: number;
}

/** Times of the partitions that hold the heights. */
async function windowsOf({ session, request }: LiveContext, wanted: readonly number[]): Promise<HeightWindow[]> {
  const params = new Params();
  const found = await session.rows(
    `select h.height, p.from_ms, p.to_ms from unnest(${params.add(array(wanted.map((height) => int8(height))))}) h (height)
     join partitions p on p.dataset_id = ${params.add(int2(request.dataset.number))} and p.state = 'proved'
       and p.span @> h.height`,
    params,
  );
  return found.map(([height, from, to]) => ({ height: Number(height), from: Number(from), to: Number(to) }));
}

/** The second of a block, unless a lower proved one shares it. */
function lowestOfSecond(
  { relation, request }: LiveContext,
  { height, from, to }: HeightWindow,
  params: Params,
): string {
  const { native } = request.dataset;
  const time = `t."${native.time.column}"`;
  const column = native.scope.kind === 'column' ? `t."${native.scope.column}"` : 'null';
  const second = `${time} - ${time} % ${SECOND_MS}`;
  const within = { from: from - SECOND_MS, to: to + SECOND_MS };
  const near = (alias: string) =>
    `"${native.table}" t where ${time} >= ${within.from} and ${time} < ${within.to} ${alias}`;
  const proved = relation.provedNative(within, params);
  return `(select ${height}, ms from (select ${second} as ms from ${near(`and ${column} = ${height}`)} limit 1) b
    where not exists (select from ${near(`and ${column} < ${height} and ${second} = b.ms${proved ? ` and ${proved}` : ''}`)}))`;
}

// ---- snapshots -----------------------------------------------------------------------------------------------------

async function snapshots({ session, request }: LiveContext): Promise<Units> {
  const held = `from partitions p where p.dataset_id = ${request.dataset.number} and p.state = 'proved' and p.rows > 0`;
  const [[count]] = await session.rows(`select count(*) ${held}`);
  return {
    count: Number(count),
    async lowest(numbers) {
      const params = new Params();
      const places = params.add(array(numbers.map((number) => int8(number))));
      const second = `ms - ms % ${SECOND_MS}`;
      const found = await session.rows(
        `select ${second} from (select lower(p.span) as ms, lag(lower(p.span)) over w as before, row_number() over w - 1 as place
           ${held} window w as (order by p.span)) p
         join unnest(${places}) with ordinality d (place, n) using (place)
         where before is null or before < ${second} order by d.n`,
        params,
      );
      return found.map(([ms]) => Number(ms));
    },
  };
}
