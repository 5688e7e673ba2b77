/** The SQL of klines, over the rows of a dataset's relation. */

import { DAY_MS } from '../../../shared/dates.ts';
import { assert } from '../../../shared/errors.ts';
import { type Field, shapeOf } from '../../../shared/registry/index.ts';
import { KLINE_DATETIME } from '../../../shared/registry/trades.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import type { Params } from '../../db/pg-messages.ts';
import type { PlanContext } from '../plan/context.ts';
import type { Rows } from '../read-model.ts';
import { Relation } from '../sql/relation.ts';
import type { KlineSlice } from './slices.ts';
import { alignedFormulas, type Formulas, nativeFormulas } from './sums.ts';

/** From this length on a bucket may hold some hundred thousand trades. */
const LARGE_MS = 3_600_000;
/** The column with the number of rows that a kline aggregates. */
const KLINE_ROWS = 'kline_rows';
/** No id has more than 15 digits (50 bits); below the sign bit that leaves 13 bits, the number of a day among 8,192. */
const ID_BITS = 50;

export class KlineRelation implements Rows<KlineSlice> {
  readonly #request: ReadRequest;
  readonly #sizeMs: number;
  /** The rows that klines aggregate. */
  readonly #rows: Relation;
  readonly #time: Field;
  /** Whether each kline is preceded by the number of rows that it aggregates. */
  readonly #isCounted: boolean;

  constructor(context: PlanContext, sizeMs: number) {
    const { request } = context;
    const { order, fields } = shapeOf(request.dataset, request.mode);
    this.#request = request;
    this.#sizeMs = sizeMs;
    this.#isCounted = context.relation.hidden === 'rows';
    this.#rows = new Relation({ ...request, fields: [], filters: [] }, context);
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
    const outputs = [...hidden, ...this.#request.fields.map((field) => field.sql)].join(', ');
    const names = [...this.#request.fields, ...this.#filtered].map((field) => field.name);
    return `select ${outputs} ${this.#from(slices, params, names, where)} order by ${this.order()}`;
  }

  /** `from ... where ...`: the klines that pass the filters, with only the columns that the filters need. */
  from(slice: KlineSlice, params: Params, { where }: { readonly where?: string } = {}): string {
    const names = this.#filtered.map((field) => field.name);
    return this.#from([slice], params, names, where);
  }

  /** A condition: the slice has a row. */
  exists(slice: KlineSlice, params: Params): string {
    return `exists (select 1 ${this.#rowsOf(slice, params)})`;
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

  #klines(slice: KlineSlice, params: Params, names: ReadonlySet<string>): string {
    const formulas = Object.entries(this.#formulas(slice, params)).filter(([name]) => names.has(name));
    const aggregates = Object.entries(Object.assign({}, ...formulas.map(([, formula]) => formula.aggregates)));
    const columns = [...aggregates, ...(this.#isCounted ? [[KLINE_ROWS, 'count(*)']] : [])].map(
      ([name, sql]) => `, ${sql} as ${name}`,
    );
    const values = formulas.map(([name, { value }]) => `, ${value} as ${name}`);
    if (this.#isCounted) values.push(`, k.${KLINE_ROWS}`);
    // The subquery orders the buckets, so that they stream out of the index and none waits for another to be complete.
    return `select k.${KLINE_DATETIME}${values.join('')} from (select ${this.#bucket} as ${KLINE_DATETIME}${columns.join('')}
      ${this.#rowsOf(slice, params)} group by 1 order by 1) k`;
  }

  #formulas(slice: KlineSlice, params: Params): Formulas {
    const { sql } = this.#time;
    const start = `k.${KLINE_DATETIME}`;
    const within = `${sql} >= ${start} and ${sql} < ${start} + ${this.#size}`;
    const bucket = {
      again: (aggregate: string) => `(select ${aggregate} ${this.#rowsOf(slice, params, within)})`,
      large: this.#sizeMs >= LARGE_MS,
    };
    if (!this.#isNative) return alignedFormulas(bucket);
    const { trades } = this.#request.dataset;
    assert(trades !== undefined, 'klines are made of trades');
    return nativeFormulas(trades.unified, this.#id(slice), bucket);
  }

  /** The expression that orders trades. Where ids restart with each partition, the day comes first. */
  #id({ from, to }: KlineSlice): string {
    const { native, offset, partition } = this.#request.dataset;
    const id = `t."${native.identity[0]}"`;
    const start = partition.kind === 'file_day' ? partition.startOffsetMs : 0;
    const dayOf = (ms: number) => Math.floor((ms - start) / DAY_MS);
    if (offset.unique || dayOf(from) === dayOf(to - 1)) return id;
    return `(((${this.#time.sql} - ${start}) / ${DAY_MS} - ${dayOf(from)}) << ${ID_BITS}) + ${id}`;
  }

  get #size(): string {
    return this.#isNative ? `${this.#sizeMs}::int8` : `interval '${this.#sizeMs / 1000} seconds'`;
  }

  get #bucket(): string {
    const origin = this.#isNative ? '' : ", timestamptz '1970-01-01T00:00:00Z'";
    return `time_bucket(${this.#size}, ${this.#time.sql}${origin})`;
  }

  /** `from ... where ...`: the slice's rows. */
  #rowsOf({ from, to, parts }: KlineSlice, params: Params, where?: string): string {
    const [part] = parts;
    const ranges = parts.map((one) => `(${this.#rows.within(one.from, one.to)})`);
    const tests = [...(parts.length > 1 ? [`(${ranges.join(' or ')})`] : []), ...(where === undefined ? [] : [where])];
    return this.#rows.from({ from, to, part }, params, {
      where: tests.length === 0 ? undefined : tests.join(' and '),
    });
  }
}
