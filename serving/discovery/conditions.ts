/** Reads the conditions of a dataset's days, for GET /v1/conditions, from one snapshot. */
import { z } from 'zod';
import { DAY_MS, dayKey, isoOf } from '../../shared/dates.ts';
import { statingLeafSql } from '../../shared/db/partition-changes.ts';
import {
  CONDITIONS,
  conditionMembers,
  conditionOfProved,
  conditionWithoutRows,
  DEGRADED_REASONS,
  isProvedThrough,
  MISSING_REASONS,
  type ProvedDay,
  type Silence,
  silencesOf,
  type Worth,
} from '../../shared/proof/conditions.ts';
import type { Facts } from '../../shared/proof/facts.ts';
import { expectedOf, parseMultirange, type Range } from '../../shared/ranges.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import { dayKeyOf } from '../../shared/registry/keys.ts';
import { instrumentMember } from '../contract/instruments.ts';
import type { Session, TextRow } from '../read/snapshot/session.ts';
import { count, datasetKey, document, instrumentName, utc } from './schemas.ts';

const UNLESS_READABLE = ' Null without such rows, and for callers who may not read them.';

const silence = z.strictObject({
  from_utc: utc('The event before it.'),
  to_utc: utc('The event after it.'),
  ms: count('Its length.'),
  state: z
    .enum(['proved', 'unknown'])
    .describe('`proved`: the exchange numbers its trades, and those on both sides follow each other.'),
});

export const condition = z.strictObject({
  day: z.string().describe('The day, `YYYY-MM-DD`; of trades that of their file.'),
  start_utc: utc('Start of the day: exchange B’s begin at 16:00 UTC of the day before.'),
  end_utc: utc('Exclusive end.'),
  condition: z.enum(CONDITIONS),
  reasons: z
    .array(z.enum([...DEGRADED_REASONS, ...MISSING_REASONS]))
    .describe('Why it is degraded or missing: of those that depend on rows, callers who may not read them see none.'),
  observed_increment: z
    .strictObject({
      price: z.string().nullable().describe('As a decimal.'),
      quantity: z.string().nullable().describe('As a decimal.'),
    })
    .nullable()
    .optional()
    .describe(`The greatest decimals that explain every row: multiples of the exchange’s ticks.${UNLESS_READABLE}`),
  silences: z
    .strictObject({
      count: count('Silences above a minute that begin in the day, also those over its end.'),
      longest_ms: count('The longest; 0 without any.'),
      unknown: count('How many nobody can prove.'),
      list: z.array(silence).optional().describe('All, where `silences=list` asks for them.'),
    })
    .nullable()
    .optional()
    .describe(`Times without a trade.${UNLESS_READABLE}`),
  ids_missing: z.int().nullable().optional().describe(`Ids, of blocks heights, that no row has.${UNLESS_READABLE}`),
  repeats: z.int().nullable().optional().describe(`Rows of the document that repeated another.${UNLESS_READABLE}`),
  first: utc(`The first event.${UNLESS_READABLE}`).nullable().optional(),
  last: utc(`The last event.${UNLESS_READABLE}`).nullable().optional(),
  document: document
    .extend({ captured_utc: utc('When it was published to the log.') })
    .nullable()
    .optional()
    .describe(`The document of the day, with what its vendor’s answer said.${UNLESS_READABLE}`),
  revisions: z
    .array(z.strictObject({ revision: count('Its number.'), proved_at_utc: utc('When it was proved first.') }))
    .optional()
    .describe('The revisions of the day, the oldest first.'),
});

export const conditionsAnswer = z.strictObject({
  dataset: datasetKey,
  instrument: instrumentName,
  conditions: z.array(condition).describe('One for each day, in order. What has no meaning for the dataset is absent.'),
});

export type DayCondition = z.input<typeof condition>;
type ConditionsAnswer = z.input<typeof conditionsAnswer>;

export interface ConditionsRequest {
  /** Starts of days, UTC midnight, both included. */
  readonly fromMs: number;
  readonly toMs: number;
  readonly withList: boolean;
  readonly listed: readonly Range[] | undefined;
  readonly nowMs: number;
  readonly mayRead: (synthetic: boolean) => boolean;
}

export async function readConditions(
  session: Session,
  dataset: DatasetDefinition & { readonly key: DatasetKey },
  request: ConditionsRequest,
): Promise<ConditionsAnswer> {
  const [coverage] = await session.rows(`select proved::text from coverage where dataset_id = ${dataset.number}`);
  const proved = parseMultirange(coverage?.[0] ?? '{}');
  const read = dataset.partition.kind === 'file_day' ? readFileDays : readOtherDays;
  const conditions = await read(session, dataset, request, proved);
  return { dataset: dataset.key, ...instrumentMember(dataset), conditions };
}

interface Day {
  readonly day: string;
  readonly startMs: number;
}

function daysOf({ fromMs, toMs }: ConditionsRequest, offsetMs = 0): Day[] {
  const days: Day[] = [];
  for (let ms = fromMs; ms <= toMs; ms += DAY_MS) days.push({ day: dayKey(ms), startMs: ms + offsetMs });
  return days;
}

const begun = ({ day, startMs }: Day, { condition: word, reasons }: Worth) => ({
  day,
  start_utc: isoOf(startMs),
  end_utc: isoOf(startMs + DAY_MS),
  condition: word,
  reasons: [...reasons],
});

const isoOrNull = (ms: number | null): string | null => (ms === null ? null : isoOf(ms));

const isListed = (startMs: number, listed: readonly Range[] | undefined): boolean =>
  listed === undefined || expectedOf([{ from: startMs, to: startMs + DAY_MS }], listed).length > 0;

/**
 * Late arrivals since an operator last had the partition published again, but for documents that their source no longer
 * publishes.
 */
const LATE = `exists (select from ledger l where l.dataset_id = p.dataset_id and l.partition_key = p.partition_key
  and l.kind = 'late_arrival_refused' and not exists (select from ledger r where r.dataset_id = l.dataset_id
    and r.partition_key = l.partition_key and r.kind in ('revision_proved', 'released') and r.entry_id > l.entry_id)
  and not exists (select from late_arrivals a where a.dataset_id = l.dataset_id and a.partition_key = l.partition_key
    and a.left_at is not null and a.document ->> 'sha256' = l.details -> 'document' ->> 'sha256'))`;

interface FileDay {
  readonly key: string;
  readonly fromMs: number;
  readonly state: string;
  readonly isSynthetic: boolean;
  readonly isRetracted: boolean;
  readonly isLate: boolean;
  readonly proved: ProvedDay | undefined;
  readonly document: ConditionsAnswer['conditions'][number]['document'];
}

/** Times and offsets of an empty day end no silence. */
const hasRows = ({ proved }: FileDay): boolean => proved !== undefined && proved.facts.first_ms !== null;

async function readFileDays(
  session: Session,
  dataset: DatasetDefinition,
  request: ConditionsRequest,
  proved: readonly Range[],
): Promise<DayCondition[]> {
  const offsetMs = dataset.partition.kind === 'file_day' ? dataset.partition.startOffsetMs : 0;
  const days = daysOf(request, offsetMs);
  const [fromMs, endMs] = [request.fromMs + offsetMs, request.toMs + offsetMs + DAY_MS];
  const select = (test: string) =>
    session.rows(
      `select p.partition_key, p.from_ms::text, p.state, p.synthetic::text, p.facts, p.manifest->>'first_offset',
       p.manifest->>'last_offset', (p.manifest->'document')::text, p.manifest->>'ingested_at_ms',
       coalesce(${statingLeafSql('l.kind')}, '') , (${LATE})::text
     from partitions p where p.dataset_id = ${dataset.number} and ${test}`,
    );
  const rows = await select(`p.from_ms >= ${fromMs} and p.from_ms < ${endMs} order by p.from_ms`);
  // The day that ends a silence over the end of the last one.
  const after = await select(`p.from_ms >= ${endMs} and p.state = 'proved' and p.rows > 0 order by p.from_ms limit 1`);
  const found = [...rows, ...after].map(fileDayOf);
  const byKey = new Map(found.map((one) => [one.key, one]));
  const filled = found.filter(hasRows);
  const nextOf = new Map(filled.map((one, at) => [one.key, filled[at + 1]]));
  const revisions = await readRevisions(session, dataset, fromMs, endMs);
  return days.map((day) => {
    const key = dayKeyOf(dataset, day.day);
    const one = byKey.get(key);
    const isProved = one?.state === 'proved' && one.proved !== undefined;
    const known = isProved && request.mayRead(one.isSynthetic) ? one.proved : undefined;
    const next = nextOf.get(key);
    const isJoined =
      one !== undefined && next !== undefined && isProvedThrough(proved, one.fromMs, next.fromMs + DAY_MS);
    const silences = known ? silencesOf(dataset, known, isJoined ? next.proved : undefined) : [];
    const worth = isProved
      ? conditionOfProved({ idsMissing: known?.facts.ids_missing ?? 0, isLate: one.isLate, silences })
      : conditionWithoutRows({
          isComing: one?.state === 'publishing' || one?.state === 'published',
          refused: one?.state !== 'quarantined' ? undefined : one.isRetracted ? 'retracted' : 'quarantined',
          isListed: isListed(day.startMs, request.listed),
          startMs: day.startMs,
          provedThroughMs: proved.at(-1)?.to,
          nowMs: request.nowMs,
        });
    return {
      ...begun(day, worth),
      observed_increment: known
        ? { price: known.facts.price_increment ?? null, quantity: known.facts.quantity_increment ?? null }
        : null,
      silences: known ? silencesAnswer(silences, request.withList) : null,
      ids_missing: known?.facts.ids_missing ?? null,
      repeats: known?.facts.repeats ?? null,
      first: isoOrNull(known?.facts.first_ms ?? null),
      last: isoOrNull(known?.facts.last_ms ?? null),
      document: (known && one?.document) ?? null,
      revisions: revisions.get(key) ?? [],
    };
  });
}

function fileDayOf(row: TextRow): FileDay {
  const [key, from, state, synthetic, facts, firstOffset, lastOffset, document, ingested, leafKind, late] = row;
  const isProved = state === 'proved' && facts !== null;
  return {
    key: key!,
    fromMs: Number(from),
    state: state!,
    isSynthetic: synthetic === 'true',
    isRetracted: leafKind === 'retracted',
    isLate: late === 'true',
    proved: isProved
      ? { facts: JSON.parse(facts!) as Facts, firstOffset: firstOffset!, lastOffset: lastOffset! }
      : undefined,
    document: isProved ? { ...JSON.parse(document!), captured_utc: isoOf(Number(ingested)) } : null,
  };
}

const silencesAnswer = (silences: readonly Silence[], withList: boolean) => ({
  count: silences.length,
  longest_ms: silences.reduce((most, { fromMs, toMs }) => Math.max(most, toMs - fromMs), 0),
  unknown: silences.filter(({ state }) => state === 'unknown').length,
  ...(withList && {
    list: silences.map(({ fromMs, toMs, state }) => ({
      from_utc: isoOf(fromMs),
      to_utc: isoOf(toMs),
      ms: toMs - fromMs,
      state,
    })),
  }),
});

type Revisions = NonNullable<DayCondition['revisions']>;

/** By the key of the day. */
async function readRevisions(
  session: Session,
  dataset: DatasetDefinition,
  fromMs: number,
  endMs: number,
): Promise<Map<string, Revisions>> {
  const rows = await session.rows(
    `select l.partition_key, convert_from(l.body, 'UTF8')::jsonb->>'revision' as revision,
       floor(extract(epoch from min(l.written_at)) * 1000)::int8::text
     from proof_leaves l join partitions p using (dataset_id, partition_key)
     where p.dataset_id = ${dataset.number} and p.from_ms >= ${fromMs} and p.from_ms < ${endMs} and l.kind in ('proved', 'revised')
     group by 1, 2 order by 1, min(l.entry_id)`,
  );
  const revisions = new Map<string, Revisions>();
  for (const [key, revision, at] of rows) {
    const known = revisions.get(key!) ?? [];
    known.push({ revision: Number(revision), proved_at_utc: isoOf(Number(at)) });
    revisions.set(key!, known);
  }
  return revisions;
}

/** Partitions that are no file days: the day's events are those of the partitions that lie in it, or reach into it. */
async function readOtherDays(
  session: Session,
  dataset: DatasetDefinition,
  request: ConditionsRequest,
  proved: readonly Range[],
): Promise<DayCondition[]> {
  const days = daysOf(request);
  const members = conditionMembers(dataset);
  const [fromMs, endMs] = [request.fromMs, request.toMs + DAY_MS];
  const rows = await session.rows(
    `select p.state, p.from_ms::text, p.to_ms::text, lower(p.span)::text, upper(p.span)::text, p.synthetic::text,
       p.manifest->>'first_ms', p.manifest->>'last_ms',
       case when p.state = 'quarantined' then ${statingLeafSql('l.kind')} end,
       case when p.state = 'proved' then (${LATE})::text end
     from partitions p where p.dataset_id = ${dataset.number} and p.from_ms < ${endMs} and p.to_ms > ${fromMs} order by p.from_ms`,
  );
  const byDay = new Map<number, TextRow[]>();
  for (const row of rows) {
    const first = Math.max(0, Math.floor((Number(row[1]) - fromMs) / DAY_MS));
    const last = Math.min(days.length - 1, Math.floor((Number(row[2]) - 1 - fromMs) / DAY_MS));
    for (let at = first; at <= last; at++) byDay.set(at, [...(byDay.get(at) ?? []), row]);
  }
  // Captures and vintages make their sources complete until the next is expected.
  const isTimed = dataset.partition.kind === 'capture' || dataset.partition.kind === 'vintage';
  const [through] = await session.rows(
    `select max(greatest(through_ms, to_ms))::text from coverage_spans where dataset_id = ${dataset.number}`,
  );
  const provedThroughMs = through?.[0] ? Number(through[0]) : undefined;
  return days.map((day, at) => {
    const parts = byDay.get(at) ?? [];
    const served = parts.filter(([state]) => state === 'proved');
    const quarantined = parts.filter(([state]) => state === 'quarantined');
    const readable = served.filter((row) => request.mayRead(row[5] === 'true'));
    const idsMissing = dataset.partition.kind === 'height' ? missingHeights(readable) : 0;
    const isCovered = isTimed && proved.some((range) => range.from < day.startMs + DAY_MS && range.to > day.startMs);
    const worth =
      served.length > 0 || isCovered
        ? conditionOfProved({ idsMissing, isLate: served.some((row) => row[9] === 'true'), silences: [] })
        : conditionWithoutRows({
            isComing: parts.length > quarantined.length,
            refused:
              quarantined.length === 0
                ? undefined
                : quarantined.every((row) => row[8] === 'retracted')
                  ? 'retracted'
                  : 'quarantined',
            isListed: true,
            startMs: day.startMs,
            provedThroughMs,
            nowMs: request.nowMs,
          });
    const inDay = (ms: string | null) => Number(ms) >= day.startMs && Number(ms) < day.startMs + DAY_MS;
    const firsts = readable.flatMap((row) => (inDay(row[6]) ? [Number(row[6])] : []));
    const lasts = readable.flatMap((row) => (inDay(row[7]) ? [Number(row[7])] : []));
    return {
      ...begun(day, worth),
      ...(members.includes('ids_missing') && { ids_missing: readable.length === 0 ? null : idsMissing }),
      ...(members.includes('first') && {
        first: isoOrNull(firsts.length === 0 ? null : firsts.reduce((a, b) => Math.min(a, b))),
        last: isoOrNull(lasts.length === 0 ? null : lasts.reduce((a, b) => Math.max(a, b))),
      }),
    };
  });
}

/** Heights between the lowest and the highest of the partitions that none of them has. */
function missingHeights(rows: readonly TextRow[]): number {
  const spans = rows.map((row) => ({ from: Number(row[3]), to: Number(row[4]) })).sort((a, b) => a.from - b.from);
  let [missing, end] = [0, spans[0]?.from ?? 0];
  for (const { from, to } of spans) {
    if (from > end) missing += from - end;
    end = Math.max(end, to);
  }
  return missing;
}
