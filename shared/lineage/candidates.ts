/** Which proved frames an offset may lie in, as SQL over the catalog. */
import type { DatasetDefinition, OffsetRule } from '../registry/types.ts';

/** A statement and its parameters, all of them text. */
export interface OffsetQuery {
  readonly text: string;
  readonly values: readonly string[];
}

/** Partitions named where several hold an offset. */
export const MAX_NAMED_PARTITIONS = 100;

interface Order {
  /** What an offset looks like. Numbers of 18 digits fit int8 whatever they are. */
  readonly pattern: RegExp;
  /** SQL that compares as offsets do. */
  readonly value: (sql: string) => string;
}

const part = (sql: string, number: number) => `split_part(${sql}, ':', ${number})`;

const ORDERS: Readonly<Record<OffsetRule['order'], Order>> = {
  numeric: { pattern: /^(?:0|[1-9]\d{0,17})$/, value: (sql) => `(${sql})::int8` },
  place: {
    pattern: /^\d{1,18}:\d{1,18}:[^\0]+$/,
    value: (sql) => `(${part(sql, 1)}::int8, ${part(sql, 2)}::int8)`,
  },
  // PostgreSQL's text holds no NUL, and would refuse the statement rather than find nothing.
  text: { pattern: /^[^\0]+$/, value: (sql) => `(${sql}) collate "C"` },
};

const LEADING_NUMBER = /^\d{1,18}(?::|$)/;
const OFFSET = '$1::text';

/**
 * Rows of (partition, frame, proof); a frame is null where several partitions hold the offset, for then none is read.
 * Undefined: the text cannot be an offset of the dataset, or no partition can have that key.
 */
export function candidatesSql(
  dataset: DatasetDefinition,
  offset: string,
  partition: string | undefined,
): OffsetQuery | undefined {
  const { order, unique } = dataset.offset;
  if (!ORDERS[order].pattern.test(offset) || partition?.includes('\0')) return undefined;
  if (unique && !LEADING_NUMBER.test(offset)) return undefined;
  return {
    values: partition === undefined ? [offset] : [offset, partition],
    text: `with held as materialized (
        select p.* from partitions p
        where p.dataset_id = ${dataset.number} and p.state = 'proved' and ${holds(dataset)}
          ${partition === undefined ? '' : 'and p.partition_key = $2::text'}
        order by p.partition_key limit ${MAX_NAMED_PARTITIONS + 1})
      select p.partition_key, f.stream_sequence::text, p.attempt::text, p.revision::text, p.synthetic::text,
        p.manifest::text, p.recount::text, floor(extract(epoch from p.proved_at) * 1000)::int8::text
      from held p
      left join frames f on (select count(*) from held) = 1 and f.dataset_id = p.dataset_id
        and f.partition_key = p.partition_key and ${between(order, 'f.first_offset', 'f.last_offset')}
      order by p.partition_key, f.stream_sequence`,
  };
}

/** The partition `p` may hold the offset. */
function holds({ offset, native }: DatasetDefinition): string {
  // Ranges of ids (or of the number an offset begins with) that no two partitions share: they have an index.
  if (offset.unique) return `p.offsets @> ${part(OFFSET, 1)}::int8`;
  // Rows that say which partition they are of.
  if (native.scope.kind === 'column') {
    return `p.partition_key in (select t."${native.scope.column}"::text from "${native.table}" t where ${offset.sql} = ${OFFSET})`;
  }
  // Few partitions, each of which knows its first and last.
  return between(offset.order, `p.manifest->>'first_offset'`, `p.manifest->>'last_offset'`);
}

function between(order: OffsetRule['order'], first: string, last: string): string {
  const { value } = ORDERS[order];
  return `${value(first)} <= ${value(OFFSET)} and ${value(last)} >= ${value(OFFSET)}`;
}
