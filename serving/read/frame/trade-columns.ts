/** Columns of trades: the trades of a bucket become one value. Whole buckets come from kept klines where those have the value. */
import { DAY_MS, SECOND_MS } from '../../../shared/dates.ts';
import type { Range } from '../../../shared/ranges.ts';
import { type Field, shapeOf } from '../../../shared/registry/index.ts';
import { KLINE_DATETIME } from '../../../shared/registry/trades.ts';
import type { Aggregate, FrameColumn } from '../../contract/frame.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { Params, type Statement } from '../../db/pg-messages.ts';
import { readTimestamptzMs } from '../../render/text.ts';
import { type BucketColumns, KlineRelation } from '../klines/relation.ts';
import { countedKlineSlices, type Grid, klineSlicesBackward } from '../klines/slices.ts';
import { floorTo, klineSources } from '../klines/sources.ts';
import { type Bucket, decimal, decimalSum, type Formulas } from '../klines/sums.ts';
import { type LiveContext, withParts } from '../plan/context.ts';
import { type CountedPartition, checkCount, countWithin, wholeFileDays } from '../plan/counted.ts';
import { within } from '../snapshot/proved-runs.ts';
import {
  type ColumnGroup,
  dtypeOf,
  type FrameWindow,
  integerAt,
  type RowValues,
  VALUE_BYTES,
  Values,
  valueSql,
} from './values.ts';

/** Digits after the point of a quotient before it becomes a double: more than tell any two doubles of prices apart. */
const QUOTIENT_DECIMALS = 40;

/** An exact quotient, rounded once. */
const quotient = (sum: string, by: string) => `(round(${sum}, ${QUOTIENT_DECIMALS}) / nullif(${by}, 0))::float8`;

type Formula = Formulas[string];

/** The value over the rows of a bucket. `name` is the column's own. */
function ofRows(column: FrameColumn, name: string, id: string, bucket: Bucket): Formula {
  const value = valueSql(column.field);
  const plain = (aggregate: string): Formula => ({ aggregates: { [name]: aggregate }, value: `k.${name}` });
  switch (column.aggregate!) {
    case 'first':
      return plain(`first(${value}, ${id})`);
    case 'last':
      return plain(`last(${value}, ${id})`);
    case 'min':
      return plain(`min(${value})`);
    case 'max':
      return plain(`max(${value})`);
    case 'count':
      return { aggregates: { [name]: 'count(*)' }, value: `k.${name}` };
    case 'sum': {
      if (column.field.dtype !== 'float64')
        return { aggregates: { [name]: `sum(${value})` }, value: `k.${name}::int8` };
      const sum = decimalSum({ name, value }, bucket);
      return { ...sum, value: `(${sum.value})::float8` };
    }
    case 'vwap': {
      const { unified } = column.dataset.trades!;
      const [price, quantity] = ['price', 'quantity'].map((one) =>
        decimal(unified.find((field) => field.name === one)!.sql),
      );
      return {
        aggregates: { [`${name}_quote`]: `sum(${price} * ${quantity})`, [`${name}_base`]: `sum(${quantity})` },
        value: quotient(`k.${name}_quote`, `k.${name}_base`),
      };
    }
  }
}

/** How kept klines have a value: the column of one, and the aggregate over several. */
interface KeptValue {
  readonly stored: string;
  readonly added: (name: string, idOf: (column: string) => string) => Formula;
}

const aggregated = (column: string, aggregate: string): KeptValue => ({
  stored: `t.${column}`,
  added: (name) => ({ aggregates: { [name]: `${aggregate}(t.${column})` }, value: `k.${name}` }),
});
const ordered = (column: string, aggregate: 'first' | 'last'): KeptValue => ({
  stored: `t.${column}`,
  added: (name, idOf) => ({
    aggregates: { [name]: `${aggregate}(t.${column}, ${idOf(`${aggregate}_id`)})` },
    value: `k.${name}`,
  }),
});
const totalled = (column: string): KeptValue => ({
  stored: `t.${column}::float8`,
  added: (name) => ({ aggregates: { [name]: `sum(t.${column})` }, value: `k.${name}::float8` }),
});

const COUNT: KeptValue = {
  stored: 't.no_of_trades',
  added: (name) => ({ aggregates: { [name]: 'sum(t.no_of_trades)' }, value: `k.${name}::int8` }),
};

/** The values that kept klines have, by field and aggregate; a count is that of any field. */
const KEPT: Readonly<Record<string, Partial<Record<Aggregate, KeptValue>>>> = {
  price: {
    first: ordered('open', 'first'),
    last: ordered('close', 'last'),
    min: aggregated('low', 'min'),
    max: aggregated('high', 'max'),
    sum: totalled('price_total'),
    vwap: {
      stored: quotient('t.liquidity_total', 't.quantity_total'),
      added: (name) => ({
        aggregates: { [`${name}_quote`]: 'sum(t.liquidity_total)', [`${name}_base`]: 'sum(t.quantity_total)' },
        value: quotient(`k.${name}_quote`, `k.${name}_base`),
      }),
    },
  },
  quantity: { sum: totalled('quantity_total') },
};

function keptOf({ dataset, mode, field, aggregate, filters }: FrameColumn): KeptValue | undefined {
  if (mode !== 'native' || filters.length > 0) return undefined;
  if (aggregate === 'count') return COUNT;
  const unified = dataset.trades!.unified.find((one) => one.sql === field.sql && one.name in KEPT);
  return unified && KEPT[unified.name][aggregate!];
}

const nameOf = (index: number) => `c${index}`;

function bucketColumns(columns: readonly FrameColumn[]): BucketColumns {
  const names = columns.map((_, index) => nameOf(index));
  const of = (formula: (column: FrameColumn, name: string) => Formula): Formulas =>
    Object.fromEntries(columns.map((column, index) => [names[index], formula(column, names[index])]));
  const kept = new Map(columns.map((column, index) => [names[index], keptOf(column)]));
  return {
    names,
    ofRows: (id, bucket) => of((column, name) => ofRows(column, name, id, bucket)),
    stored: (name) => kept.get(name)!.stored,
    added: (idOf) => of((_, name) => kept.get(name)!.added(name, idOf)),
  };
}

/** The fields of the statement: the bucket's start, and a value for each column. */
const fieldsOf = (columns: readonly FrameColumn[], start: Field): Field[] => [
  { ...start, name: KLINE_DATETIME, sql: `t.${KLINE_DATETIME}`, columns: [] },
  ...columns.map((column, index): Field => {
    const dtype = dtypeOf(column);
    const pg = dtype === 'float64' ? 'float8' : 'int8';
    return {
      ...column.field,
      name: nameOf(index),
      dtype: pg === 'int8' ? 'int64' : 'float64',
      pg,
      sql: `t.${nameOf(index)}`,
    };
  }),
];

/** Sums and counts are of their bucket alone; any other value may stand for an empty bucket after it. */
const isCarried = ({ aggregate }: FrameColumn) => aggregate !== 'sum' && aggregate !== 'count';

/** The value that an empty bucket takes over. */
interface Carried {
  readonly endMs: number;
  readonly values: RowValues;
}

interface TradeNeeds {
  /** The columns, and their positions in the frame. */
  readonly columns: readonly { readonly column: FrameColumn; readonly at: number }[];
  readonly gridMs: number;
  readonly fill: 'null' | 'previous';
}

/** The request of a group of trade columns as the read core takes it. */
export function tradeRequest(
  columns: readonly FrameColumn[],
  gridMs: number,
  window: ReadRequest['window'],
): ReadRequest {
  const [{ dataset, mode, filters }] = columns;
  const { fields, order } = shapeOf(dataset, mode);
  const time = fields.find(({ name }) => name === order[0])!;
  return { dataset, mode, fields: fieldsOf(columns, time), filters, window, strict: false, klineMs: gridMs };
}

/** @param knownTo trades from this time on were not known */
export async function tradeColumns(
  whole: LiveContext,
  { columns, gridMs, fill }: TradeNeeds,
  knownTo: number | undefined,
): Promise<ColumnGroup> {
  const known =
    knownTo === undefined
      ? whole.searched
      : within(whole.searched, { from: Number.NEGATIVE_INFINITY, to: endOfKnown(whole, knownTo) });
  const context = { ...whole, searched: known };
  const all = columns.map(({ column }) => column);
  const klines = new KlineRelation(context, gridMs, {
    columns: bucketColumns(all),
    rowFilters: context.request.filters,
  });
  const isKept = all.every((column) => keptOf(column) !== undefined);
  const sources = isKept ? await klineSources(context, gridMs, context.searched) : undefined;
  const grid: Grid = { sizeMs: gridMs, chunkMs: klines.chunkMs, sources };
  const partitions = await wholeFileDays(context, context.searched);
  return new TradeColumns(context, { klines, grid, partitions, columns, fill });
}

/** An aligned row holds trades up to the end of its second, so it is known when that has ended. */
const endOfKnown = ({ request: { mode } }: LiveContext, knownTo: number): number =>
  mode === 'native' ? knownTo : floorTo(SECOND_MS, knownTo);

class TradeColumns implements ColumnGroup {
  readonly maxWindowMs: number | undefined;
  readonly #context: LiveContext;
  readonly #klines: KlineRelation;
  readonly #grid: Grid;
  readonly #partitions: readonly CountedPartition[];
  readonly #columns: TradeNeeds['columns'];
  readonly #fill: TradeNeeds['fill'];
  readonly #runs: readonly Range[];
  #run: Range | undefined;
  #found = 0;
  #carried: Carried | undefined;
  #hasLookedBack = false;

  constructor(
    context: LiveContext,
    needs: Pick<TradeNeeds, 'columns' | 'fill'> & {
      readonly klines: KlineRelation;
      readonly grid: Grid;
      readonly partitions: readonly CountedPartition[];
    },
  ) {
    this.#context = context;
    this.#klines = needs.klines;
    this.#grid = needs.grid;
    // A day may have millions of trades.
    this.maxWindowMs = needs.grid.sources === undefined ? DAY_MS : undefined;
    this.#partitions = needs.partitions;
    this.#columns = needs.columns;
    this.#fill = needs.fill;
    this.#runs = context.coverage.sources[0]?.runs ?? [];
  }

  async fill(window: FrameWindow, values: Values): Promise<void> {
    const parts = within(this.#context.searched, window);
    const hasTrades = new Uint8Array(values.buckets);
    const columns = this.#columns.map(({ at }) => at);
    for (const slice of countedKlineSlices(parts, this.#partitions, this.#grid)) {
      const params = new Params();
      const text = this.#klines.select(slice, params);
      const statement = { text, params: params.list, prepared: this.#klines.isRecurring(slice) };
      const found = await this.#read(statement, (startMs, view, at) => {
        const bucket = (startMs - window.from) / window.gridMs;
        hasTrades[bucket] = 1;
        for (const column of columns) {
          const size = view.getInt32(at);
          at += 4;
          if (size < 0) continue;
          values.set(bucket, column, view.getInt32(at), view.getInt32(at + 4));
          at += size;
        }
      });
      checkCount(this.#context.request.dataset.key, slice.count, found);
      this.#found += found;
    }
    if (this.#fill === 'previous') await this.#carry(window, values, hasTrades);
  }

  finish(): void {
    const { request, searched } = this.#context;
    checkCount(request.dataset.key, countWithin(this.#partitions, searched), this.#found);
  }

  /**
   * Reads buckets; `take` receives the start of each, and where its values begin.
   * @returns how many stored rows they have, if they are counted.
   */
  async #read(statement: Statement, take: (startMs: number, view: DataView, at: number) => void): Promise<number> {
    const { session, relation, request } = this.#context;
    const isCounted = relation.hidden === 'rows';
    const isNative = request.mode === 'native';
    let found = 0;
    const row = (view: DataView, _bytes: Buffer, start: number) => {
      let at = start;
      if (isCounted) {
        found += integerAt(view, at + 4);
        at += 4 + VALUE_BYTES;
      }
      const startMs = isNative ? integerAt(view, at + 4) : readTimestamptzMs(view, at + 4);
      take(startMs, view, at + 4 + VALUE_BYTES);
    };
    await session.stream(statement, relation.oids, { row });
    return found;
  }

  /** Gives buckets without trades the value before them, where no unproved time lies between. */
  async #carry(window: FrameWindow, values: Values, hasTrades: Uint8Array): Promise<void> {
    const columns = this.#columns.map(({ at }) => at);
    for (let bucket = 0; bucket < values.buckets; bucket++) {
      const endMs = window.endOf(bucket);
      const isLast = bucket === values.buckets - 1 || hasTrades[bucket + 1] === 0;
      if (hasTrades[bucket] === 1) {
        if (isLast) this.#carried = { endMs, values: values.rowOf(bucket, columns) };
      } else {
        if (!this.#hasLookedBack) this.#carried = await this.#before(window.from);
        const carried = this.#carried;
        const run = carried && this.#runAt(carried.endMs - 1);
        if (run && run === this.#runAt(endMs - 1)) this.#take(carried, bucket, endMs, values);
      }
      this.#hasLookedBack = true;
    }
  }

  /** The proved time without a gap that a moment lies in. */
  #runAt(ms: number): Range | undefined {
    const { from = 0, to = 0 } = this.#run ?? {};
    if (ms < from || ms >= to) this.#run = this.#runs.find((run) => run.from <= ms && ms < run.to);
    return this.#run;
  }

  #take(carried: Carried, bucket: number, endMs: number, values: Values): void {
    this.#columns.forEach(({ column, at }, index) => {
      const isYoung = column.maxAgeMs === undefined || endMs - carried.endMs <= column.maxAgeMs;
      const upper = carried.values[2 * index];
      if (isCarried(column) && isYoung && !Number.isNaN(upper))
        values.set(bucket, at, upper, carried.values[2 * index + 1]);
    });
  }

  /** The last bucket with trades before the frame: values do not depend on where a frame begins. */
  async #before(startMs: number): Promise<Carried | undefined> {
    const gridMs = this.#grid.sizeMs;
    const ages = this.#columns.filter(({ column }) => isCarried(column)).map(({ column }) => column.maxAgeMs);
    const run = this.#runAt(startMs - 1);
    if (ages.length === 0 || !run) return undefined;
    const oldest = ages.includes(undefined) ? run.from : startMs - Math.max(...(ages as number[])) - gridMs;
    const { searched } = withParts(this.#context, { from: Math.max(run.from, floorTo(gridMs, oldest)), to: startMs });
    for (const slice of klineSlicesBackward(searched, { ...this.#grid, sources: undefined }, 1)) {
      const params = new Params();
      let last = new Values(1, this.#columns.length);
      let lastMs: number | undefined;
      await this.#read({ text: this.#klines.select(slice, params), params: params.list }, (startMs, view, at) => {
        lastMs = startMs;
        last = new Values(1, this.#columns.length);
        this.#columns.forEach((_, index) => {
          const size = view.getInt32(at);
          if (size > 0) last.set(0, index, view.getInt32(at + 4), view.getInt32(at + 8));
          at += 4 + Math.max(size, 0);
        });
      });
      if (lastMs === undefined) continue;
      return { endMs: lastMs + gridMs, values: last.rowOf(0, [...this.#columns.keys()]) };
    }
    return undefined;
  }
}
