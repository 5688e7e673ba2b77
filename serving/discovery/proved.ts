/** What of a dataset is proved, and the gaps in it: by time for file days, by source for everything else. */
import { gapsBetween, parseMultirange } from '../../shared/db/ranges.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { isoOf } from '../contract/time.ts';
import { int2, Params } from '../db/params.ts';
import type { Session, TextRow } from '../read/session.ts';
import type { CoverageAnswer } from './coverage-answer.ts';

type Kind = DatasetDefinition['partition']['kind'];
type Stretch = CoverageAnswer['proved'][number];
type Gap = CoverageAnswer['gaps'][number];

/** What spans of a kind count, and whether what lies between two of a source was expected and is not there. */
const SPANS: Readonly<Record<Kind, { readonly unit: 'height' | 'epoch_ms'; readonly gaps: boolean }>> = {
  file_day: { unit: 'epoch_ms', gaps: true },
  capture: { unit: 'epoch_ms', gaps: true },
  vintage: { unit: 'epoch_ms', gaps: false },
  height: { unit: 'height', gaps: true },
  snapshot: { unit: 'epoch_ms', gaps: false },
};

export interface Proved extends Pick<CoverageAnswer, 'version' | 'synthetic' | 'as_of_utc' | 'proved' | 'gaps'> {}

export async function readProved(session: Session, dataset: DatasetDefinition): Promise<Proved> {
  const [row] = await inDataset(
    session,
    dataset,
    (id) => `select proved::text, synthetic::text, version::text from coverage where dataset_id = ${id}`,
  );
  const [proved, synthetic, version] = row ?? ['{}', 'false', '0'];
  const stretches =
    dataset.native.scope.kind === 'window'
      ? await stretchesOfTime(session, dataset, proved!)
      : await stretchesOfSources(session, dataset);
  const bySource = [...Map.groupBy(stretches, ({ source_id }) => source_id).values()];
  const ends = bySource.map((ofSource) => ofSource[ofSource.length - 1].through_utc).sort();
  return {
    version: Number(version),
    synthetic: synthetic === 'true' && stretches.length > 0,
    as_of_utc: ends[0] ?? null,
    proved: stretches,
    gaps: SPANS[dataset.partition.kind].gaps ? bySource.flatMap(gapsOf) : [],
  };
}

/** File days follow each other in time: what is proved is a set of stretches of it. */
async function stretchesOfTime(session: Session, dataset: DatasetDefinition, proved: string): Promise<Stretch[]> {
  const ranges = parseMultirange(proved);
  const counts = await inDataset(
    session,
    dataset,
    (id) => `select lower(r)::text, count(p.*)::text, coalesce(sum(p.rows), 0)::text
      from (select unnest(proved) as r from coverage where dataset_id = ${id}) c
      left join partitions p on p.dataset_id = ${id} and p.state = 'proved' and p.from_ms >= lower(r) and p.to_ms <= upper(r)
      group by 1`,
  );
  const countsOf = new Map(counts.map(([from, ...numbers]) => [Number(from), numbers.map(Number)]));
  return ranges.map(({ from, to }) => {
    const [partitions, rows] = countsOf.get(from) ?? [0, 0];
    return {
      source_id: dataset.sources[0],
      start_utc: isoOf(from),
      through_utc: isoOf(to),
      span: { unit: 'epoch_ms', from, to },
      partitions,
      rows,
    };
  });
}

async function stretchesOfSources(session: Session, dataset: DatasetDefinition): Promise<Stretch[]> {
  const { unit } = SPANS[dataset.partition.kind];
  const spans = await inDataset(
    session,
    dataset,
    (id) => `select source_id, lower(span)::text, upper(span)::text, from_ms::text, through_ms::text, partitions::text,
      rows::text from coverage_spans where dataset_id = ${id} order by source_id, span`,
  );
  return spans.map(([source, ...texts]) => {
    const [from, to, startMs, throughMs, partitions, rows] = texts.map(Number);
    return {
      source_id: source!,
      start_utc: isoOf(startMs),
      through_utc: isoOf(throughMs),
      span: { unit, from, to },
      partitions,
      rows,
    };
  });
}

/** Between the stretches of one source. Block time may run backwards: then a gap of heights has no time of its own. */
function gapsOf(stretches: readonly Stretch[]): Gap[] {
  return gapsBetween(stretches.map(({ span }) => span)).map((span, index) => {
    const [before, after] = [stretches[index], stretches[index + 1]];
    const endMs = Math.max(Date.parse(before.through_utc), Date.parse(after.start_utc));
    return {
      source_id: before.source_id,
      start_utc: before.through_utc,
      end_utc: isoOf(endMs),
      span: { unit: before.span.unit, ...span },
    };
  });
}

export async function inDataset(
  session: Session,
  dataset: DatasetDefinition,
  textOf: (id: string, params: Params) => string,
): Promise<readonly TextRow[]> {
  const params = new Params();
  const id = params.add(int2(dataset.number));
  return await session.rows(textOf(id, params), params);
}
