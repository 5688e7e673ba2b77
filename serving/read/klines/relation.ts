/** The SQL of klines, over the rows of a dataset's relation. */

import { DAY_MS } from '../../../shared/dates.ts';
import { assert } from '../../../shared/errors.ts';
import { type Field, shapeOf } from '../../../shared/registry/index.ts';
import { KLINE_DATETIME } from '../../../shared/registry/trades.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import type { Params } from '../../db/params.ts';
import type { PlanContext } from '../plan/context.ts';
import { Relation } from '../sql/relation.ts';
import type { Rows } from '../types.ts';
import type { KlineSlice } from './slices.ts';
import { alignedFormulas, type Formulas, nativeFormulas } from './sums.ts';

/** From here on buckets may hold some hundred thousand trades. */
const LARGE_MS = 3_600_000;
/** Of how many rows a kline is made. */
const KLINE_ROWS = 'kline_rows';
/** No id has more than 15 digits; below the sign bit that leaves the number of a day among 8,192. */
const ID_BITS = 50;

export class KlineRelation implements Rows<KlineSlice> {
  readonly #request: ReadRequest;
  readonly #sizeMs: number;
  /** The rows that klines are made of. */
  readonly #rows: Relation;
  readonly #time: Field;
  /** Each kline comes with how many rows it is made of, before its columns. */
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

  /** Klines of the slice in order, with the columns asked for. */
  select(slice: KlineSlice, params: Params, where?: string): string {
    return this.selectAll([slice], params, where);
  }

  /** Klines of several slices, in order; no bucket may be of two of them. */
  selectAll(slices: readonly KlineSlice[], params: Params, where?: string): string {
    const hidden = this.#isCounted ? [`t.${KLINE_ROWS}`] : [];
    const outputs = [...hidden, ...this.#request.fields.map((field) => field.sql)].join(', ');
    const names = [...this.#request.fields, ...this.#filtered].map((field) => field.name);
    return `select ${outputs} ${this.#from(slices, params, names, where)} order by ${this.order()}`;
  }

  /** `from ... where ...`: klines that pass the filters, with no more columns than these need. */
  from(slice: KlineSlice, params: Params, { where }: { readonly where?: string } = {}): string {
    const names = this.#filtered.map((field) => field.name);
    return this.#from([slice], params, names, where);
  }

  /** Whether there is a row in the slice, as a test. */
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
    // Ordered here, so that the buckets follow each other out of the index and none waits for another to be complete.
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

  /** What trades are ordered by. Ids that begin anew with a partition come after its day. */
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

  /** `from ... where ...`: the rows of the slice. */
  #rowsOf({ from, to, parts }: KlineSlice, params: Params, where?: string): string {
    const [part] = parts;
    const ranges = parts.map((one) => `(${this.#rows.within(one.from, one.to)})`);
    const tests = [...(parts.length > 1 ? [`(${ranges.join(' or ')})`] : []), ...(where === undefined ? [] : [where])];
    return this.#rows.from({ from, to, part }, params, {
      where: tests.length === 0 ? undefined : tests.join(' and '),
    });
  }
}
