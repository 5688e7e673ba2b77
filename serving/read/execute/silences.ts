/** Warns of times without a trade, for requests that ask: they look like holes in the rows. */
import { isoOf } from '../../../shared/dates.ts';
import { isProvedThrough, type Silence, silencesOf } from '../../../shared/proof/conditions.ts';
import type { Facts } from '../../../shared/proof/facts.ts';
import type { Range } from '../../../shared/ranges.ts';
import { instrumentMember } from '../../contract/instruments.ts';
import type { Warning } from '../../contract/problems.ts';
import { int2, int8, Params } from '../../db/pg-messages.ts';
import type { LiveContext, PlanContext, ReadPlan } from '../plan/context.ts';
import { boundsOf } from '../snapshot/proved-runs.ts';

/** The time that an answer is about: its window, of the latest rows from the first of them on. */
export function reachOf({ coverage, request }: PlanContext, { since }: Pick<ReadPlan, 'since'>): Range {
  const { from, to } = boundsOf(coverage, request.window);
  return { from: since?.ms ?? from, to };
}

export async function silenceWarnings(context: LiveContext, reach: Range): Promise<Warning[]> {
  const { dataset, silences: asked } = context.request;
  if (asked === undefined || dataset.trades === undefined) return [];
  const silences = await silencesIn(context, reach);
  if (silences.length === 0) return [];
  const longest = silences.reduce((most, one) => (lengthOf(one) > lengthOf(most) ? one : most));
  const unknown = silences.filter(({ state }) => state === 'unknown').length;
  const name = [dataset.key, ...Object.values(instrumentMember(dataset))].join(', ');
  return [
    {
      code: 'SILENCE_WITHIN_WINDOW',
      message: `${name}: ${silences.length} times above a minute without a trade reach into the window, ${unknown} of which nobody can prove; the longest is ${isoOf(longest.fromMs)} to ${isoOf(longest.toMs)}.`,
      details: {
        dataset: dataset.key,
        ...instrumentMember(dataset),
        count: silences.length,
        unknown,
        longest_ms: lengthOf(longest),
        longest: { start: isoOf(longest.fromMs), end: isoOf(longest.toMs), state: longest.state },
      },
    },
  ];
}

const lengthOf = ({ fromMs, toMs }: Silence): number => toMs - fromMs;

/** Silences of the proved days that share time with the reach. */
async function silencesIn({ request: { dataset }, session, coverage }: LiveContext, reach: Range): Promise<Silence[]> {
  const params = new Params();
  const days = `from partitions where dataset_id = ${params.add(int2(dataset.number))} and state = 'proved'
    and rows > 0 and facts is not null`;
  // A silence over the end of a day may begin before the reach, or end after it.
  const [from, to] = [params.add(int8(reach.from)), params.add(int8(reach.to))];
  const rows = await session.rows(
    `select from_ms::text, to_ms::text, facts, manifest->>'first_offset', manifest->>'last_offset' ${days}
       and from_ms >= coalesce((select max(from_ms) ${days} and to_ms <= ${from}), from_ms)
       and from_ms <= coalesce((select min(from_ms) ${days} and from_ms >= ${to}), from_ms)
     order by from_ms`,
    params,
  );
  const proved = rows.map(([fromMs, toMs, facts, firstOffset, lastOffset]) => ({
    fromMs: Number(fromMs),
    toMs: Number(toMs),
    day: { facts: JSON.parse(facts!) as Facts, firstOffset: firstOffset!, lastOffset: lastOffset! },
  }));
  return proved
    .flatMap(({ fromMs, day }, at) => {
      const next = proved[at + 1];
      const isJoined = next !== undefined && isProvedThrough(coverage.proved, fromMs, next.toMs);
      return silencesOf(dataset, day, isJoined ? next.day : undefined);
    })
    .filter((one) => one.fromMs < reach.to && one.toMs > reach.from);
}
