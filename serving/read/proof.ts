/**
 * Which rows of a native table are proved, where time does not say it: what the snapshot's coverage holds, in the terms
 * of the column by which rows belong to partitions.
 */
import { clip, type Range } from '../../shared/db/ranges.ts';
import { isOfPartition } from '../../shared/registry/partitions.ts';
import { type Params, text } from '../db/params.ts';
import { knownTest } from './as-of.ts';
import type { Coverage } from './coverage.ts';
import type { ReadRequest } from './types.ts';

/** More ranges are looked up in a multirange (a binary search) than compared one by one. */
const MAX_COMPARED = 4;

/** A test over `t`; undefined where a slice of proved time holds proved rows only. Of what was known, as of a time. */
export function proofTest(
  request: Pick<ReadRequest, 'dataset' | 'asOfMs'>,
  coverage: Coverage,
  slice: Range,
  params: Params,
): string | undefined {
  const { dataset } = request;
  const { scope } = dataset.native;
  if (scope.kind === 'window') return undefined;
  const column = `t."${scope.column}"`;
  if (scope.pg === 'text') {
    const known = knownTest(request);
    return `exists (select from partitions p where p.dataset_id = ${dataset.number} and p.state = 'proved'
      and ${isOfPartition(scope.column)}${known === undefined ? '' : ` and ${known}`})`;
  }
  const isTime = scope.column === dataset.native.time.column;
  const ranges = isTime ? clip(coverage.proved, slice.from, slice.to) : coverage.proved;
  if (ranges.length === 0) return 'false';
  if (ranges.length <= MAX_COMPARED) {
    return `(${ranges.map(({ from, to }) => `${column} >= ${from} and ${column} < ${to}`).join(' or ')})`;
  }
  const multirange = `{${ranges.map(({ from, to }) => `[${from},${to})`).join(',')}}`;
  return `${column} <@ ${params.add(text(multirange))}::text::int8multirange`;
}
