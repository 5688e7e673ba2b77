/** Sources that publish every market day: looked at on the latest day that the window holds rows of. */
import { dayKey } from '../../../shared/time/days.ts';
import { marketDaysSince } from '../../../shared/time/market-days.ts';
import type { Warning } from '../../contract/problems.ts';
import { array, int2, int8, Params, text } from '../../db/params.ts';
import type { LiveContext } from '../context.ts';
import { admits } from '../coverage.ts';
import { secondsOf } from '../known-seconds.ts';
import { withCarriedIn } from '../states.ts';
import { type Evaluation, listed } from './evaluation.ts';

/** The latest day, and the sources that have rows of it. */
interface Latest {
  readonly ms: number;
  readonly sources: readonly string[];
}

export async function dailyWarnings(
  context: LiveContext,
  { rule, clockMs, maxAgeDays = Number.POSITIVE_INFINITY }: Evaluation<'daily'>,
): Promise<Warning[]> {
  const { request } = context;
  const expected = request.dataset.sources.filter((id) => admits(request.filters, id));
  if (expected.length === 0) return [];
  const latest = (await observedIn(context)) ?? (await carriedInto(context));
  if (!latest) {
    const message = `The window holds no rows of any day: ${listed(expected)}.`;
    return [{ code: rule.codes.missing, message, details: { latest_day: null, sources: expected } }];
  }
  const day = dayKey(latest.ms);
  const today = dayKey(clockMs);
  const warnings: Warning[] = [];
  const missing = expected.filter((id) => !latest.sources.includes(id));
  if (missing.length > 0) {
    warnings.push({
      code: rule.codes.missing,
      message: `No rows of ${day}, the latest day in the window: ${listed(missing)}.`,
      details: { latest_day: day, sources: missing },
    });
  }
  const age = marketDaysSince(day, today);
  if (age > maxAgeDays) {
    warnings.push({
      code: rule.codes.stale,
      message: `The latest day in the window is ${day}, ${age} market days before ${today}; at most ${maxAgeDays} are fresh: ${listed(expected)}.`,
      details: { latest_day: day, today, age_market_days: age, max_age_market_days: maxAgeDays, sources: expected },
    });
  }
  const there = { ...latest, sources: expected.filter((id) => latest.sources.includes(id)) };
  const incomplete = await lacking(context, there, rule.required);
  if (incomplete.length > 0) {
    const named = incomplete.map(({ source_id, metrics }) => `${source_id} (${metrics.join(', ')})`);
    warnings.push({
      code: rule.codes.incomplete,
      message: `Without a value on ${day}, the latest day in the window: ${listed(named)}.`,
      details: { latest_day: day, sources: incomplete },
    });
  }
  return warnings;
}

/** Of partitions alone: all rows of one are of its day. */
async function observedIn({ session, request }: LiveContext): Promise<Latest | undefined> {
  const { dataset, filters, window } = request;
  const { fromMs, toMs }: { readonly fromMs?: number; readonly toMs?: number } = window.kind === 'range' ? window : {};
  const params = new Params();
  const ids = params.add(array(dataset.sources.filter((id) => admits(filters, id)).map(text)));
  const rows = await session.rows(
    `with held as (select p.source_id, p.from_ms from partitions p
       where p.dataset_id = ${params.add(int2(dataset.number))} and p.state = 'proved' and p.rows > 0 and p.source_id = any (${ids})
       ${fromMs === undefined ? '' : `and p.from_ms >= ${params.add(int8(fromMs))}`}
       ${toMs === undefined ? '' : `and p.from_ms < ${params.add(int8(toMs))}`})
     select distinct from_ms::text, source_id from held where from_ms = (select max(from_ms) from held)`,
    params,
  );
  return rows.length === 0 ? undefined : { ms: Number(rows[0][0]), sources: rows.map(([, id]) => id!) };
}

/** What holds in the window although it was observed before. */
async function carriedInto(context: LiveContext): Promise<Latest | undefined> {
  const { relation, request } = context;
  if (!relation.isState) return undefined;
  const { carried, series } = await withCarriedIn(context);
  if (carried.length === 0) return undefined;
  const ms = Math.max(...carried.map((row) => row.ms));
  const place = request.dataset.aligned.seriesKey.indexOf('source_id');
  const sourceOf = new Map(series.map(({ id, key }) => [id, key[place]]));
  const sources = carried.filter((row) => row.ms === ms).map(({ seriesId }) => sourceOf.get(seriesId)!);
  return { ms, sources };
}

/** Which of the metrics the day's sources do not have, or without a value. */
async function lacking(
  { session, request }: LiveContext,
  { ms, sources }: Latest,
  required: readonly string[],
): Promise<{ readonly source_id: string; readonly metrics: readonly string[] }[]> {
  const params = new Params();
  const test = `t.source_id = any (${params.add(array(sources.map(text)))})
    and t.metric_name = any (${params.add(array(required.map(text)))})`;
  const found = await session.rows(
    // Of several captures of the day the one that is served as its state.
    `select distinct m.source_id, m.metric_name from (${secondsOf(request, { from: ms, to: ms + 1 }, test)}) m
     where m.metric_value_string is not null`,
    params,
  );
  const have = new Set(found.map(([id, name]) => `${id} ${name}`));
  return sources
    .map((id) => ({ source_id: id, metrics: required.filter((name) => !have.has(`${id} ${name}`)) }))
    .filter(({ metrics }) => metrics.length > 0);
}
