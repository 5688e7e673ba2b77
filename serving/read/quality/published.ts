/** Sources that say when they last published: named where none of their rows tells it, and where it is long ago. */
import { DAY_MS, dayKey } from '../../../shared/time/days.ts';
import type { Warning } from '../../contract/problems.ts';
import { isoOf } from '../../contract/time.ts';
import { int2, int8, Params } from '../../db/params.ts';
import { knownTest } from '../as-of.ts';
import type { LiveContext } from '../context.ts';
import { admits } from '../coverage.ts';
import { type Evaluation, listed } from './evaluation.ts';

export async function publishedWarnings(
  context: LiveContext,
  { rule, clockMs, maxAgeDays }: Evaluation<'published'>,
): Promise<Warning[]> {
  const sources = Object.entries(rule.sources).filter(([id]) => admits(context.request.filters, id));
  const published = await lastPublished(context);
  const today = dayKey(clockMs);
  const missing = sources.flatMap(([id]) => (published.has(id) ? [] : [id]));
  const stale = sources.flatMap(([id, cadence]) => {
    const at = published.get(id);
    const age = at === undefined ? 0 : Math.floor(clockMs / DAY_MS) - Math.floor(at / DAY_MS);
    const limit = maxAgeDays ?? cadence;
    return at !== undefined && age > limit ? [{ id, at, age, limit }] : [];
  });
  const end = Number.isFinite(context.endMs) ? isoOf(context.endMs) : null;
  return [
    ...(missing.length > 0
      ? [
          {
            code: rule.codes.missing,
            message: `No proved row${end === null ? '' : ` up to ${end}`} tells when its source last published: ${listed(missing)}.`,
            details: { sources: missing, window_end: end },
          },
        ]
      : []),
    ...(stale.length > 0
      ? [
          {
            code: rule.codes.stale,
            message: `Published long before ${today}: ${listed(
              stale.map(({ id, at, age, limit }) => `${id} on ${dayKey(at)}, ${age} days, at most ${limit} are fresh`),
            )}.`,
            details: {
              today,
              sources: stale.map(({ id, at, age, limit }) => ({
                source_id: id,
                last_updated_utc: isoOf(at),
                age_days: age,
                max_age_days: limit,
              })),
            },
          },
        ]
      : []),
  ];
}

/**
 * By source the latest time of publishing that proved rows of up to the window's end carry. It is one for all rows of a
 * partition. As of a time a publication is no later than the vintage was known: what the fetch was told came after it.
 */
async function lastPublished({ session, request, endMs }: LiveContext): Promise<ReadonlyMap<string, number>> {
  const { number, partition } = request.dataset;
  const known = knownTest(request);
  const params = new Params();
  const told = 'extract(epoch from p.last_updated_at) * 1000';
  const at =
    known === undefined || partition.kind !== 'vintage'
      ? told
      : `least(${told}, lower(p.span) + ${partition.knownAfterMs})`;
  const rows = await session.rows(
    `select p.source_id, floor(max(${at}))::int8::text from partitions p
     where p.dataset_id = ${params.add(int2(number))} and p.state = 'proved' and p.rows > 0 and p.last_updated_at is not null
       ${Number.isFinite(endMs) ? `and p.from_ms <= ${params.add(int8(endMs))}` : ''}
       ${known === undefined ? '' : `and ${known}`} group by p.source_id`,
    params,
  );
  return new Map(rows.map(([id, ms]) => [id!, Number(ms)]));
}
