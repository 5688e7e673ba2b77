/** The SQL of klines, over the rows of a dataset's relation and over kept klines. */

import { DAY_MS } from '../../../shared/dates.ts';
import { assert } from '../../../shared/errors.ts';
import { joined } from '../../../shared/ranges.ts';
import { type Field, shapeOf } from '../../../shared/registry/index.ts';
import { KLINE_TABLES } from '../../../shared/registry/kept-klines.ts';
import { KLINE_DATETIME, KLINE_FIELDS } from '../../../shared/registry/trades.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { int8, type Params } from '../../db/pg-messages.ts';
import type { PlanContext } from '../plan/context.ts';
import type { Rows } from '../read-model.ts';
import { inRanges, Relation } from '../sql/relation.ts';
import type { KlineSlice } from './slices.ts';
import { keptSizeFor, QUARTILE_COLUMNS } from './sources.ts';
import {
  ADDED_ALIGNED,
  addedNative,
  alignedFormulas,
  type Bucket,
  type Formulas,
  KEPT_ROWS,
  nativeFormulas,
  quartilesOf,
  SECONDS_NATIVE,
  storedColumn,
} from './sums.ts';

/** From this length on a bucket may hold some hundred thousand trades. */
const LARGE_MS = 3_600_000;
/** The column with the number of rows that a kline aggregates. */
const KLINE_ROWS = 'kline_rows';
/** No id has more than 15 digits (50 bits); below the sign bit that leaves 13 bits, the number of a day among 8,192. */
const ID_BITS = 50;

/** The columns that are made of the rows of a bucket, beside its start. */
export interface BucketColumns {
  /** In an order that all sources share. */
  readonly names: readonly string[];
  /** Over the rows; `id` is the expression that orders trades. */
  ofRows(id: string, bucket: Bucket): Formulas;
  /** SQL over a kept kline of the same size. */
  stored(name: string): string;
  /** Over the aligned rows of exact seconds; absent where no value comes from them. */
  readonly ofSeconds?: Formulas;
  /** Over shorter kept klines; `idOf` gives the expression that orders trades from a column with ids. */
  added(idOf: (column: string) => string): Formulas;
}

function klineColumns({ dataset, mode }: ReadRequest): BucketColumns {
  const isNative = mode === 'native';
  return {
    names: KLINE_FIELDS[mode].map(({ name }) => name),
    ofRows(id, bucket) {
      if (!isNative) return alignedFormulas(bucket);
      assert(dataset.trades !== undefined, 'klines are made of trades');
      return nativeFormulas(dataset.trades.unified, id, bucket);
    },
    ofSeconds: SECONDS_NATIVE,
    stored: storedColumn,
    added: (idOf) => (isNative ? addedNative(idOf) : ADDED_ALIGNED),
  };
}

const intervalOf = (sizeMs: number): string => `interval '${sizeMs / 1000} seconds'`;
/** The start of the bucket that a timestamptz lies in. */
const bucketOf = (time: string, sizeMs: number): string =>
  `time_bucket(${intervalOf(sizeMs)}, ${time}, timestamptz '1970-01-01T00:00:00Z')`;

export class KlineRelation implements Rows<KlineSlice> {
  readonly #request: ReadRequest;
  readonly #columns: BucketColumns;
  readonly #sizeMs: number;
  /** The rows that klines aggregate. */
  readonly #rows: Relation;
  /** The aligned rows of the same time. */
  readonly #seconds: Relation;
  readonly #time: Field;
  /** Whether each kline is preceded by the number of rows that it aggregates. */
  readonly #isCounted: boolean;
  /** SQL of the cells of an answer. */
  readonly #cells: readonly string[];

  /** @param more other columns than those of klines, and the filters on the rows that they are made of. */
  constructor(
    context: PlanContext,
    sizeMs: number,
    more: { readonly columns?: BucketColumns; readonly rowFilters?: ReadRequest['filters'] } = {},
  ) {
    const { columns = klineColumns(context.request), rowFilters = [] } = more;
    const request = more.columns ? { ...context.request, filters: [] } : context.request;
    const { order, fields } = shapeOf(request.dataset, request.mode);
    this.#request = request;
    this.#columns = columns;
    this.#sizeMs = sizeMs;
    this.#isCounted = context.relation.hidden === 'rows';
    this.#cells = context.relation.cells;
    this.#rows = new Relation({ ...request, fields: [], filters: rowFilters }, context);
    this.#seconds = new Relation({ ...request, mode: 'aligned_1s', fields: [], filters: [] }, context);
    this.#time = fields.find((field) => field.name === order[0])!;
  }

  get chunkMs(): number {
    return this.#rows.chunkMs;
  }

  get timeMs(): string {
    const time = `t.${KLINE_DATETIME}`;
    return this.#isNative ? time : `floor(extract(epoch from ${time}) * 1000)::int8`;
  }

  get key(): readonly string[] {
    return [`(${this.timeMs})::text`];
  }

  order(direction = ''): string {
    return `t.${KLINE_DATETIME}${direction}`;
  }

  hash(seed: string): string {
    return `hashint8extended(${this.timeMs}, ${seed})`;
  }

  /** The klines of the slice in order, with the requested columns. */
  select(slice: KlineSlice, params: Params, where?: string): string {
    return this.selectAll([slice], params, where);
  }

  /** The klines of several slices, in order. No bucket may lie in two of them. */
  selectAll(slices: readonly KlineSlice[], params: Params, where?: string): string {
    const hidden = this.#isCounted ? [`t.${KLINE_ROWS}`] : [];
    const outputs = [...hidden, ...this.#cells].join(', ');
    const names = [...this.#request.fields, ...this.#filtered].map((field) => field.name);
    return `select ${outputs} ${this.#from(slices, params, names, where)} order by ${this.order()}`;
  }

  /** `from ... where ...`: the klines that pass the filters, with only the columns that the filters need. */
  from(slice: KlineSlice, params: Params, { where }: { readonly where?: string } = {}): string {
    const names = this.#filtered.map((field) => field.name);
    return this.#from([slice], params, names, where);
  }

  isRecurring({ source, parts }: KlineSlice): boolean {
    const { dataset, fields } = this.#request;
    const hasQuartiles = [...fields, ...this.#filtered].some(({ name }) => QUARTILE_COLUMNS.includes(name));
    const isKept = source === 'stored' || (source === 'added' && !hasQuartiles && dataset.offset.unique);
    return isKept && joined(parts).length === 1;
  }

  /** A condition: the slice has a row. */
  exists(slice: KlineSlice, params: Params): string {
    return `exists (select 1 ${this.#sourceOf(slice, params)})`;
  }

  get #isNative(): boolean {
    return this.#request.mode === 'native';
  }

  get #filtered(): Field[] {
    return this.#request.filters.map((filter) => filter.field);
  }

  #from(slices: readonly KlineSlice[], params: Params, names: readonly string[], where?: string): string {
    const klines = slices.map((slice) => this.#klines(slice, params, new Set(names)));
    const tests = [
      ...(where === undefined ? [] : [where]),
      ...this.#request.filters.map((filter) => filter.test(params)),
    ];
    return `from (${klines.join(' union all ')}) t${tests.length === 0 ? '' : ` where ${tests.join(' and ')}`}`;
  }

  /** The klines of the slice with these columns, in an order that all sources share. */
  #klines(slice: KlineSlice, params: Params, names: ReadonlySet<string>): string {
    const values = this.#columns.names.filter((name) => names.has(name) && name !== KLINE_DATETIME);
    switch (slice.source) {
      case 'rows':
        return this.#computed(slice, params, values);
      case 'seconds':
        return this.#ofSeconds(slice, params, values);
      case 'added':
        return this.#added(slice, params, values);
      case 'stored':
      case 'shared':
        return this.#stored(slice, params, values);
    }
  }

  #computed(slice: KlineSlice, params: Params, names: readonly string[]): string {
    const { aggregates, values } = this.#columnsOf(names, this.#formulas(slice, params), 'count(*)');
    // The subquery orders the buckets, so that they stream out of the index and none waits for another to be complete.
    return `select k.${KLINE_DATETIME}${values} from (select ${this.#bucket} as ${KLINE_DATETIME}${aggregates}
      ${this.#rowsOf(slice, params)} group by 1 order by 1) k`;
  }

  /** Native klines added up from the aligned rows of exact seconds. */
  #ofSeconds(slice: KlineSlice, params: Params, names: readonly string[]): string {
    const { aggregates, values } = this.#columnsOf(names, this.#columns.ofSeconds!, 'sum(t.trade_count)::int8');
    const bucket = bucketOf('t.aligned_at_utc', this.#sizeMs);
    return `select (extract(epoch from k.start) * 1000)::int8 as ${KLINE_DATETIME}${values} from (select ${bucket} as start${aggregates}
      ${this.#sourceOf(slice, params)} group by 1 order by 1) k`;
  }

  /** Kept klines as they are stored. */
  #stored(slice: KlineSlice, params: Params, names: readonly string[]): string {
    const values = names.map((name) => `, ${this.#columns.stored(name)} as ${name}`);
    if (this.#isCounted) values.push(`, t.${KEPT_ROWS[this.#request.mode]} as ${KLINE_ROWS}`);
    return `select ${this.#startOf('t.start_ms')} as ${KLINE_DATETIME}${values.join('')} ${this.#keptOf(slice, params)}`;
  }

  /** Klines added up from kept ones, with the quartiles of the rows if they are among the columns. */
  #added(slice: KlineSlice, params: Params, names: readonly string[]): string {
    const formulas = this.#columns.added((column) => this.#id(slice, column, 't.start_ms'));
    const rows = `sum(t.${KEPT_ROWS[this.#request.mode]})::int8`;
    const { aggregates, values } = this.#columnsOf(names, formulas, rows);
    const start = this.#startOf('k.start_ms');
    const quartiles = names.some((name) => QUARTILE_COLUMNS.includes(name))
      ? this.#quartiles(slice, params, start)
      : '';
    return `select ${start} as ${KLINE_DATETIME}${values} from (
      select time_bucket(${this.#sizeMs}::int8, t.start_ms) as start_ms${aggregates}
      ${this.#keptOf(slice, params)} group by 1 order by 1) k${quartiles}`;
  }

  /** A join with the quartiles of the slice's rows as `q`, by the start of the bucket. */
  #quartiles(slice: KlineSlice, params: Params, start: string): string {
    const price = this.#request.dataset.trades!.unified.find((field) => field.name === 'price')!.sql;
    return ` join (select ${this.#bucket} as ${KLINE_DATETIME}, ${quartilesOf(price)} as quartiles
      ${this.#rowsOf(slice, params)} group by 1) q on q.${KLINE_DATETIME} = ${start}`;
  }

  /** SQL of the columns: the aggregates that they need and their values, each list with a comma before each element. */
  #columnsOf(names: readonly string[], formulas: Formulas, rows: string): { aggregates: string; values: string } {
    const aggregates = Object.entries<string>(Object.assign({}, ...names.map((name) => formulas[name].aggregates)));
    const values = names.map((name) => [name, formulas[name].value]);
    if (this.#isCounted) {
      aggregates.push([KLINE_ROWS, rows]);
      values.push([KLINE_ROWS, `k.${KLINE_ROWS}`]);
    }
    const listed = (list: readonly (readonly string[])[]) => list.map(([name, sql]) => `, ${sql} as ${name}`).join('');
    return { aggregates: listed(aggregates), values: listed(values) };
  }

  #formulas(slice: KlineSlice, params: Params): Formulas {
    const { sql } = this.#time;
    const start = `k.${KLINE_DATETIME}`;
    const within = `${sql} >= ${start} and ${sql} < ${start} + ${this.#size}`;
    const bucket = {
      again: (aggregate: string) => `(select ${aggregate} ${this.#rowsOf(slice, params, within)})`,
      large: this.#sizeMs >= LARGE_MS,
    };
    const id = this.#isNative ? this.#id(slice, this.#request.dataset.native.identity[0], sql) : sql;
    return this.#columns.ofRows(id, bucket);
  }

  /** The expression that orders trades by a column with ids. Where ids restart with each partition, the day comes first. */
  #id({ from, to }: KlineSlice, column: string, time: string): string {
    const { offset, partition } = this.#request.dataset;
    const id = `t."${column}"`;
    const start = partition.kind === 'file_day' ? partition.startOffsetMs : 0;
    const dayOf = (ms: number) => Math.floor((ms - start) / DAY_MS);
    if (offset.unique || dayOf(from) === dayOf(to - 1)) return id;
    return `(((${time} - ${start}) / ${DAY_MS} - ${dayOf(from)}) << ${ID_BITS}) + ${id}`;
  }

  get #size(): string {
    return this.#isNative ? `${this.#sizeMs}::int8` : intervalOf(this.#sizeMs);
  }

  get #bucket(): string {
    const { sql } = this.#time;
    return this.#isNative ? `time_bucket(${this.#size}, ${sql})` : bucketOf(sql, this.#sizeMs);
  }

  /** The start of a kept kline in the type of the column. */
  #startOf(startMs: string): string {
    return this.#isNative ? startMs : `to_timestamp(${startMs} / 1000)`;
  }

  /** `from ... where ...`: what the slice's klines are made from. */
  #sourceOf(slice: KlineSlice, params: Params): string {
    if (slice.source === 'rows') return this.#rowsOf(slice, params);
    return slice.source === 'seconds'
      ? this.#rowsOf(slice, params, undefined, this.#seconds)
      : this.#keptOf(slice, params);
  }

  /** `from ... where ...`: the kept klines that the slice's klines are, or are added up from. */
  #keptOf({ from, to, parts, source }: KlineSlice, params: Params): string {
    const { dataset, mode } = this.#request;
    const table = source === 'shared' ? KLINE_TABLES.shared : KLINE_TABLES[mode === 'native' ? 'native' : 'aligned'];
    const sizeMs = source === 'shared' ? this.#sizeMs : keptSizeFor(dataset, this.#sizeMs)!;
    const tests = [
      `t.dataset_id = ${dataset.number}`,
      `t.size_s = ${sizeMs / 1000}`,
      `t.start_ms >= ${params.add(int8(from))} and t.start_ms < ${params.add(int8(to))}`,
    ];
    const ranges = joined(parts);
    if (ranges.length > 1) tests.push(inRanges('t.start_ms', ranges, params));
    return `from ${table} t where ${tests.join(' and ')}`;
  }

  /** `from ... where ...`: the slice's rows. */
  #rowsOf({ from, to, parts }: KlineSlice, params: Params, where?: string, rows = this.#rows): string {
    const [part] = parts;
    const ranges = parts.map((one) => `(${rows.within(one.from, one.to)})`);
    const tests = [...(parts.length > 1 ? [`(${ranges.join(' or ')})`] : []), ...(where === undefined ? [] : [where])];
    return rows.from({ from, to, part }, params, {
      where: tests.length === 0 ? undefined : tests.join(' and '),
    });
  }
}
