/** The SQL of one request's rows, for any slice of time. Text comes from the registry and from numbers, never from callers. */
import type { Range } from '../../shared/db/ranges.ts';
import { assert } from '../../shared/errors.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { type Field, shapeOf } from '../../shared/registry/index.ts';
import { isoOf } from '../contract/time.ts';
import { array, int8, OID, type Params, text } from '../db/params.ts';
import { CELL, type Column, cellOf } from '../rendering/cells.ts';
import type { Part } from './coverage.ts';
import type { Slice } from './slices.ts';
import type { ReadRequest } from './types.ts';

const DAY_MS = 86_400_000;
/** Of the aligned storage (migration 0002). */
const ALIGNED_CHUNK_MS = 30 * DAY_MS;
/** Of a dataset that has no aligned rows yet. */
const NO_SERIES = -1;
/** The registry's expression for the end of validity: a column that only these statements make. */
const VALID_TO = 't.valid_to';
const VALID_TO_COLUMN = 'valid_to';

/** How the end of a row's validity is found. */
export type ValidityRule =
  /** Not asked for. */
  | 'none'
  /** From the row that follows in the answer, by the renderer: all rows are there, in order. */
  | 'lookahead'
  /** From the row that follows in the storage, by the database: a filter or a sample leaves rows out. */
  | 'computed';

/** How `computed` finds the following row: by a window over all rows, or by a probe for each of few. */
export type NextRow = 'lead' | 'probe';

export interface Lookup {
  readonly where?: string;
  readonly places?: { readonly numbers: readonly number[]; readonly numberedBy: string };
}

export class Relation {
  readonly chunkMs: number;
  readonly validity: ValidityRule;
  /** Columns of the answer. */
  readonly columns: readonly Column[];
  /** Type OIDs the rows come with. */
  readonly oids: readonly number[];
  readonly #request: ReadRequest;
  readonly #table: string;
  readonly #time: { readonly sql: string; readonly pg: 'int8' | 'timestamptz' };
  readonly #scope: string;
  readonly #series: string;
  /** End of the window, where it has one; else of what is proved. */
  readonly #endMs: number;
  readonly #order: readonly Field[];

  constructor(request: ReadRequest, facts: { readonly seriesId: number | undefined; readonly endMs: number }) {
    const { dataset, mode, fields, filters, window } = request;
    const native = mode === 'native';
    const shape = shapeOf(dataset, mode);
    this.#request = request;
    this.#endMs = facts.endMs;
    this.#table = native ? `"${dataset.native.table}"` : ALIGNED_TABLE;
    this.#time = native
      ? { sql: `t."${dataset.native.time.column}"`, pg: dataset.native.time.pg }
      : { sql: 't.aligned_at_utc', pg: 'timestamptz' };
    // Windows of states (metrics) begin with what is carried in, of every series: they need a relation of their own.
    assert(native || dataset.aligned.windowing === 'bucket', `${dataset.key}: aligned windows of states are not built`);
    const seriesId = facts.seriesId ?? NO_SERIES;
    this.#series = native ? '' : `dataset_id = ${dataset.number} and series_id = ${seriesId}`;
    this.#scope = native ? '' : `t.dataset_id = ${dataset.number} and t.series_id = ${seriesId} and `;
    this.chunkMs = native ? dataset.native.chunkMs : ALIGNED_CHUNK_MS;
    this.#order = shape.order.map((name) => shape.fields.find((field) => field.name === name)!);
    const asked = [...fields, ...filters.map((filter) => filter.field)].some((field) => field.sql === VALID_TO);
    const complete = filters.length === 0 && window.kind !== 'random';
    this.validity = !asked ? 'none' : complete ? 'lookahead' : 'computed';
    const lookahead = this.validity === 'lookahead';
    this.columns = fields.map((field) => ({
      field,
      cell: lookahead && field.sql === VALID_TO ? CELL.validTo : cellOf(field),
    }));
    this.oids = [...(lookahead ? [OID.timestamptz] : []), ...this.#cellFields().map((field) => OID[field.pg])];
  }

  /** The time column as the registry writes it: filters on it narrow the slices. */
  isTime(field: Field): boolean {
    return field.sql.replaceAll('"', '') === this.#time.sql.replaceAll('"', '');
  }

  /** Rows of the slice in order; `where` is one more test over `t`. */
  select(slice: Slice, params: Params, where?: string): string {
    return `select ${this.#outputs()} ${this.from(slice, params, { where })} order by ${this.order()}`;
  }

  /** The newest `rows` of the slice, in order. */
  selectLatest(slice: Slice, params: Params, rows: number): string {
    const inner = `select ${this.#innerColumns().join(', ')} ${this.from(slice, params)} order by ${this.order(' desc')} limit ${rows}`;
    return `select ${this.#outputs()} from (${inner}) t order by ${this.order()}`;
  }

  /**
   * Some rows of a slice, for `selectLookups`: those that pass the test `where`, and of these the ones at `places`,
   * counted from 0 in the order of `numberedBy`, where that is given.
   */
  lookup(slice: Slice, params: Params, { where, places }: Lookup): string {
    const columns = this.#innerColumns().join(', ');
    // A test leaves few rows, each with its own search for the next one; numbering goes through all of them anyway.
    const rows = this.from(slice, params, { where, next: places ? 'lead' : 'probe' });
    if (!places) return `select ${columns} ${rows}`;
    const numbers = params.add(array(places.numbers.map((number) => int8(number))));
    return `select ${columns} from (select ${columns}, row_number() over (order by ${places.numberedBy}) - 1 as place ${rows}) t
      where t.place = any (${numbers})`;
  }

  /** A test for the rows at these places of the slice, counted from 0 in order of time. Aligned rows only. */
  atPlaces(slice: Slice, places: readonly number[]): string {
    const within = `n.${this.#series.replace(' and ', ' and n.')} and ${this.within(slice.from, slice.to).replaceAll('t.', 'n.')}`;
    // Each walks the index alone, without touching a row: 10,000 entries take a millisecond.
    const times = places.map(
      (place) =>
        `(select n.aligned_at_utc from ${this.#table} n where ${within} order by n.aligned_at_utc offset ${place} limit 1)`,
    );
    return `t.aligned_at_utc = any (array[${times.join(', ')}])`;
  }

  /** The rows of several lookups, in order. */
  selectLookups(lookups: readonly string[]): string {
    return `select ${this.#outputs()} from (${lookups.join(' union all ')}) t order by ${this.order()}`;
  }

  order(direction = ''): string {
    return this.#order.map((field) => `${field.sql}${direction}`).join(', ');
  }

  /** `from ... where ...`: the slice's rows that pass the filters. */
  from(
    slice: Slice,
    params: Params,
    { where, next = 'lead' }: { readonly where?: string; readonly next?: NextRow } = {},
  ): string {
    const tests = [
      ...(where === undefined ? [] : [where]),
      ...this.#request.filters.map((filter) => filter.test(params)),
    ];
    const within = this.#scope + this.within(slice.from, slice.to);
    if (this.validity !== 'computed') return `from ${this.#table} t where ${[within, ...tests].join(' and ')}`;
    const columns = this.#innerColumns().filter((column) => column !== VALID_TO);
    const probed = next === 'probe' && where !== undefined ? ` and ${where}` : '';
    const inner = `select ${columns.join(', ')}, ${this.#validTo(slice, next)} as ${VALID_TO_COLUMN}
      from ${this.#table} t where ${within}${probed}`;
    return `from (${inner}) t${tests.length === 0 ? '' : ` where ${tests.join(' and ')}`}`;
  }

  /** The time is in [fromMs, toMs). */
  within(fromMs: number, toMs: number): string {
    const { sql } = this.#time;
    return `${sql} >= ${this.literal(fromMs)} and ${sql} < ${this.literal(toMs)}`;
  }

  literal(ms: number): string {
    return this.#time.pg === 'int8' ? String(ms) : `timestamptz '${isoOf(ms)}'`;
  }

  /** The time in epoch ms, as SQL. */
  get timeMs(): string {
    const { sql, pg } = this.#time;
    return pg === 'int8' ? sql : `floor(extract(epoch from ${sql}) * 1000)::int8`;
  }

  /** The order's values as text, to be given back to `fromKey`. */
  get key(): readonly string[] {
    return this.#order.map((field) => `(${field.sql})::text`);
  }

  /** The row with this key and those after it. */
  fromKey(key: readonly string[], params: Params): string {
    const values = this.#order.map(({ pg }, index) => `${params.add(text(key[index]))}::text::${pg}`);
    const expressions = this.#order.map((field) => field.sql);
    return `(${expressions.join(', ')}) >= (${values.join(', ')})`;
  }

  /** A number that depends on the row's identity and a seed alone. */
  hash(seed: string): string {
    return this.#order.reduce(
      (hash, field) =>
        field.pg === 'int8'
          ? `hashint8extended(${field.sql}, ${hash})`
          : `hashtextextended((${field.sql})::text, ${hash})`,
      seed,
    );
  }

  #cellFields(): Field[] {
    return this.columns.filter((column) => column.cell !== CELL.validTo).map((column) => column.field);
  }

  #outputs(): string {
    const hidden = this.validity === 'lookahead' ? [this.#time.sql] : [];
    return [...hidden, ...this.#cellFields().map((field) => field.sql)].join(', ');
  }

  #innerColumns(): string[] {
    const fields = [...this.#request.fields, ...this.#request.filters.map((filter) => filter.field), ...this.#order];
    const names = new Set(fields.flatMap((field) => field.columns));
    const columns = [...names].map((name) => `t."${name}"`);
    if (this.validity !== 'none' && !names.has('aligned_at_utc')) columns.push('t.aligned_at_utc');
    if (this.validity === 'computed') columns.push(VALID_TO);
    return columns;
  }

  /** Until the next row of the series, or the end of what is proved, or of the window. */
  #validTo(slice: Slice, next: NextRow): string {
    const { from, to, part, following = { from: to, to: part.until } } = slice;
    const first = (tests: string) => `(select n.aligned_at_utc from ${this.#table} n
      where n.${this.#series.replace(' and ', ' and n.')} and ${tests} order by n.aligned_at_utc limit 1)`;
    const between = (range: Range) =>
      `n.aligned_at_utc >= ${this.literal(range.from)} and n.aligned_at_utc < ${this.literal(range.to)}`;
    const candidates = [
      next === 'lead'
        ? 'lead(t.aligned_at_utc) over (order by t.aligned_at_utc)'
        : first(`n.aligned_at_utc > t.aligned_at_utc and ${between({ from, to })}`),
    ];
    if (following.from < following.to) candidates.push(first(between(following)));
    return `least(coalesce(${candidates.join(', ')}), ${this.#cap(part)})`;
  }

  /** The last a row of the part can be valid, whatever follows it. */
  #cap({ provedTo, isLast }: Part): string {
    const end = this.#endMs;
    if (!isLast) return this.literal(Math.min(end, provedTo));
    const open = `greatest(${this.literal(provedTo)}, t.aligned_at_utc + interval '1 second')`;
    // A row is at most a second past what is proved: a later end of the window, however far, does not matter.
    return end < provedTo + 1000 ? `least(${this.literal(end)}, ${open})` : open;
  }
}
