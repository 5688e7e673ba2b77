/** One-second rows of metrics out of native ones, where the storage does not have them as they are asked for. */
import type { Range } from '../../shared/db/ranges.ts';
import { assert } from '../../shared/errors.ts';
import { isOfPartition } from '../../shared/registry/partitions.ts';
import { PARTITION_FACTS } from '../../shared/registry/types.ts';
import { knownTest } from './as-of.ts';
import type { ReadRequest } from './types.ts';

const SECOND_MS = 1000;

type Asked = Pick<ReadRequest, 'dataset' | 'asOfMs'>;

/** SQL of one-second rows as the registry makes them, of a stretch of time and of what was known; `test` is one more over `t`. */
export function secondsOf(request: Asked, { from, to }: Range, test?: string): string {
  const { native, aligned, number, offset, key } = request.dataset;
  assert(aligned.seconds && native.time.pg === 'int8', `the seconds of ${key} are not made from its rows`);
  const time = `t."${native.time.column}"`;
  // All of a second, however little of it is asked for: its rows decide together.
  const [first, end] = [Math.floor(from / SECOND_MS) * SECOND_MS, Math.ceil(to / SECOND_MS) * SECOND_MS];
  const tests = [`p.state = 'proved'`, `${time} >= ${first}`, `${time} < ${end}`, knownTest(request), test];
  return aligned.seconds.select(`(select t.*, floor(${time} / ${SECOND_MS}.0)::int8 as second, ${offset.sql} as source_offset,
      ${PARTITION_FACTS.map((fact) => `p.${fact}`).join(', ')}
    from "${native.table}" t join partitions p on p.dataset_id = ${number} and ${isOfPartition()}
    where ${tests.filter((one) => one !== undefined).join(' and ')})`);
}

/**
 * Aligned rows as of a time, as a table of the columns of the storage. The storage has those of the newest vintages; these
 * are made of the native rows that were known.
 */
export function knownSeconds(request: Asked, range: Range): string {
  const { aligned, number } = request.dataset;
  const columns = aligned.seconds!.columns.map((column) => `m.${column}`).join(', ');
  const series = aligned.seriesKey.map((name) => `m.${name}`).join(', ');
  return `(select s.dataset_id, s.series_id, to_timestamp(m.second) as aligned_at_utc, ${columns}
    from (${secondsOf(request, range)}) m join series s on s.dataset_id = ${number} and s.key = concat_ws('|', ${series}))`;
}
