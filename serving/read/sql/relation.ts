/** The SQL of a request's rows for any slice of time. Its text comes from the registry and from numbers, never from callers. */

import { isoOf, SECOND_MS } from '../../../shared/dates.ts';
import { assert } from '../../../shared/errors.ts';
import { clip, multirangeText, type Range } from '../../../shared/ranges.ts';
import { ALIGNED_CHUNK_MS, ALIGNED_TABLE } from '../../../shared/registry/aligned-storage.ts';
import { type Mode, PARTITION_FACTS } from '../../../shared/registry/definition.ts';
import { type DatasetDefinition, type Field, shapeOf } from '../../../shared/registry/index.ts';
import { nativeRows } from '../../../shared/registry/instruments.ts';
import { isOfPartition } from '../../../shared/registry/keys.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { array, int8, OID, type Params, text } from '../../db/pg-messages.ts';
import { CELL, type Column, cellOf } from '../../render/cells.ts';
import type { Part, Slice, ValidityRule } from '../read-model.ts';
import { type Coverage, isWhole, knownTest, type RowScope } from '../snapshot/proved-runs.ts';
import type { Series, Snapshot } from '../snapshot/session.ts';
import { seriesRows } from './series-rows.ts';

/** SQL of aligned rows as the registry builds them, for a range of time; `test` is a further condition over `t`. */
export function secondsOf(request: RowScope, { from, to }: Range, test?: string): string {
  const { native, aligned, number, offset, key } = request.dataset;
  assert(aligned.seconds && native.time.pg === 'int8', `the seconds of ${key} are not made from its rows`);
  const time = `t."${native.time.column}"`;
  // The query covers whole seconds, however little of one the request needs: all rows of a second decide together.
  const [first, end] = [Math.floor(from / SECOND_MS) * SECOND_MS, Math.ceil(to / SECOND_MS) * SECOND_MS];
  const tests = [`p.state = 'proved'`, `${time} >= ${first}`, `${time} < ${end}`, knownTest(request), test];
  return aligned.seconds.select(`(select t.*, floor(${time} / ${SECOND_MS}.0)::int8 as second, ${offset.sql} as source_offset,
      ${PARTITION_FACTS.map((fact) => `p.${fact}`).join(', ')}
    from ${nativeRows(request.dataset)} t join partitions p on p.dataset_id = ${number} and ${isOfPartition()}
    where ${tests.filter((one) => one !== undefined).join(' and ')})`);
}

/**
 * Aligned rows as of a time, as a table with the columns of the storage. The storage holds those of the newest vintages; this
 * query builds the rows from the native rows that were known at that time.
 */
function knownSeconds(request: RowScope, range: Range): string {
  const { aligned, number } = request.dataset;
  const columns = aligned.seconds!.columns.map((column) => `m.${column}`).join(', ');
  const series = aligned.seriesKey.map((name) => `m.${name}`).join(', ');
  return `(select s.dataset_id, s.series_id, to_timestamp(m.second) as aligned_at_utc, ${columns}
    from (${secondsOf(request, range)}) m join series s on s.dataset_id = ${number} and s.key = concat_ws('|', ${series}))`;
}

type OrderTerm = Pick<Field, 'sql' | 'pg' | 'columns'>;

/** The alias of the rows in each query of a relation; subqueries for other rows of the same table have another one. */
const ROWS = 't';

function orderOf(dataset: DatasetDefinition, mode: Mode): readonly OrderTerm[] {
  const { fields, order } = shapeOf(dataset, mode);
  return order.map((name) => {
    const field = fields.find((one) => one.name === name);
    if (field) {
      // Native tables declare the collation of their texts (code points); the aligned table needs it in the query.
      const isLocal = mode === 'aligned_1s' && field.pg === 'text';
      return isLocal ? { ...field, sql: `${field.sql} collate "C"` } : field;
    }
    const column = dataset.native.columns.find((one) => one.name === name);
    assert(mode === 'native' && column, `${dataset.key} cannot be ordered by ${name}`);
    return { sql: `t."${name}"`, pg: column.pg, columns: [name] };
  });
}

/** More ranges than this are compared through a multirange (a binary search) instead of one by one. */
const MAX_COMPARED = 4;

/** A condition: the int8 lies in one of the ranges, sorted and disjoint. */
export function inRanges(sql: string, ranges: readonly Range[], params: Params): string {
  if (ranges.length === 0) return 'false';
  if (ranges.length <= MAX_COMPARED) {
    return `(${ranges.map(({ from, to }) => `${sql} >= ${from} and ${sql} < ${to}`).join(' or ')})`;
  }
  // Within a subquery the text is parsed once, and not for every row.
  return `${sql} <@ (select ${params.add(text(multirangeText(ranges)))}::text::int8multirange)`;
}

/**
 * A condition over `t` that selects proved rows, and as of a time those that were known; undefined where every row of a proved
 * slice is proved. It follows the snapshot's coverage, in terms of the column that assigns rows to partitions.
 */
function proofTest(request: RowScope, coverage: Coverage, slice: Range, params: Params): string | undefined {
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
  return inRanges(column, isTime ? clip(coverage.proved, slice.from, slice.to) : coverage.proved, params);
}

/** The id for a dataset without aligned rows. */
const NO_SERIES = -1;
const RANGE_NUMBER = 's.number';
/** The time of aligned rows, as their fields have it. */
const ALIGNED_AT = 't.aligned_at_utc';
/** The columns of computed validity. No table has them: only these statements create them. */
const VALID_FROM = 'valid_from';
const VALID_TO = 'valid_to';

/** Whether the field is this end of the validity, and the read computes it. */
const isComputed = (field: Field, end: Field['validity']) => field.validity === end && field.column === undefined;

/** How `computed` finds the following row: by a window function over all rows, or by a probe per row if there are few. */
type NextRow = 'lead' | 'probe';

interface Lookup {
  readonly where?: string;
  /** The places of the rows, instead. */
  readonly places?: readonly Place[];
  readonly positions?: { readonly numbers: readonly number[]; readonly numberedBy: string };
}

interface RelationFacts {
  readonly coverage: Coverage;
  readonly snapshot: Snapshot;
  /** For a dataset of many series: the series whose rows are read. */
  readonly series: readonly Series[];
  /** Start of the window, no earlier than the first proved row; undefined for a window without a start. */
  readonly startMs: number | undefined;
  /** End of the window; infinite for a window without an end. */
  readonly endMs: number;
  /** Where the rows are whose ids the filters name, if that is known: only these are searched. */
  readonly places?: readonly Place[];
}

/** Where a row is, if it exists: between two times, by its id, or by its number among ids from this to the last. */
export interface Place extends Range {
  readonly id: number;
  readonly numbered?: { readonly last: number; readonly number: number };
}

export class Relation {
  readonly chunkMs: number;
  readonly validity: ValidityRule;
  /** The meaning of a hidden first cell: the row's time, or the number of rows that a kline aggregates. */
  readonly hidden: 'time' | 'rows' | undefined;
  /** Whether rows follow each other in proved time: native file days, and aligned datasets with a single series. */
  readonly isSingleSeries: boolean;
  /** Whether a window holds the rows that are valid in it. */
  readonly isState: boolean;
  /** The columns of the answer. */
  readonly columns: readonly Column[];
  /** SQL of the result's columns after a hidden one. A value that several columns of the answer show is sent once. */
  readonly cells: readonly string[];
  /** The type OIDs of the result's columns. */
  readonly oids: readonly number[];
  readonly #request: ReadRequest;
  readonly #facts: RelationFacts;
  readonly #table: string;
  readonly #time: { readonly column: string; readonly pg: 'int8' | 'timestamptz' };
  /** The dataset, and its series if it has a single one; undefined for native rows, whose table is the dataset's own. */
  readonly #series: { readonly dataset: number; readonly id: number | undefined } | undefined;
  readonly #order: readonly OrderTerm[];

  constructor(request: ReadRequest, facts: RelationFacts) {
    const { dataset, mode, fields, filters, window, asOfMs, klineMs } = request;
    const native = mode === 'native';
    this.#request = request;
    this.#facts = facts;
    this.#table = native ? nativeRows(dataset) : ALIGNED_TABLE;
    this.#time = native ? dataset.native.time : { column: 'aligned_at_utc', pg: 'timestamptz' };
    this.isSingleSeries = native ? dataset.native.scope.kind === 'window' : dataset.aligned.seriesKey.length === 0;
    this.isState = !native && dataset.aligned.windowing === 'state';
    const id = this.isSingleSeries ? (facts.snapshot.seriesId ?? NO_SERIES) : undefined;
    this.#series = native ? undefined : { dataset: dataset.number, id };
    // As of a time, aligned rows are built from native ones.
    this.chunkMs = native || asOfMs !== undefined ? dataset.native.chunkMs : ALIGNED_CHUNK_MS;
    this.#order = orderOf(dataset, mode);
    const filtered = filters.map((filter) => filter.field);
    const asks = (list: readonly Field[], end: Field['validity']) => list.some((field) => isComputed(field, end));
    const asked = asks([...fields, ...filtered], 'to') || asks(filtered, 'from');
    const complete = this.isSingleSeries && filters.length === 0 && window.kind !== 'random' && !isWhole(window);
    this.validity = !asked ? 'none' : complete ? 'lookahead' : 'computed';
    const lookahead = this.validity === 'lookahead';
    const isCounted = klineMs !== undefined && filters.length === 0 && dataset.partition.kind === 'file_day';
    this.hidden = lookahead ? 'time' : isCounted ? 'rows' : undefined;
    const time = { sql: ALIGNED_AT, oid: OID.timestamptz };
    const rows = { sql: '', oid: OID.int8 };
    const sent: { readonly sql: string; readonly oid: number }[] =
      this.hidden === undefined ? [] : [this.hidden === 'time' ? time : rows];
    const hidden = sent.length;
    this.columns = fields.map((field) => {
      if (lookahead && isComputed(field, 'to')) return { field, cell: CELL.validTo };
      const [sql, oid, cell] = [this.#outputOf(field), OID[field.pg], cellOf(field)];
      const again = sent.findIndex((one) => one.sql === sql && one.oid === oid);
      if (again >= 0) return { field, cell, again };
      sent.push({ sql, oid });
      return { field, cell };
    });
    this.oids = sent.map(({ oid }) => oid);
    this.cells = sent.slice(hidden).map(({ sql }) => sql);
  }

  /** Whether the field is the time column: filters on it narrow the slices. */
  isTime(field: Field): boolean {
    return field.column === this.#time.column;
  }

  /** The rows of the slice in order; `where` is a further condition over `t`. */
  select(slice: Slice, params: Params, where?: string): string {
    return `select ${this.#outputs()} ${this.from(slice, params, { where })} order by ${this.order('', slice)}`;
  }

  /** The newest `rows` rows of the slice, in order. */
  selectLatest(slice: Slice, params: Params, rows: number): string {
    const inner = `select ${this.#innerColumns().join(', ')} ${this.from(slice, params)} order by ${this.order(' desc')} limit ${rows}`;
    return `select ${this.#outputs()} from (${inner}) t order by ${this.order()}`;
  }

  /** The newest `rows` rows of the slice, newest first, each after the texts of its key and its time. */
  selectNewest(slice: Slice, params: Params, rows: number): string {
    const leading = [...this.key, `(${this.timeMs})::text`];
    return `select ${[...leading, this.#outputs()].join(', ')} ${this.from(slice, params)}
      order by ${this.order(' desc', slice)} limit ${rows}`;
  }

  /** The last or first row of the slice for each of the series `ids`: series and time in epoch ms. */
  selectNearest(slice: Slice, ids: string, direction: 'before' | 'after'): string {
    const { number } = this.#request.dataset;
    const nearest = `select t.aligned_at_utc from ${this.#tableOf(slice)} t where t.dataset_id = ${number} and t.series_id = s.id
      and ${this.within(slice.from, slice.to)} order by t.aligned_at_utc ${direction === 'before' ? 'desc' : 'asc'} limit 1`;
    return `select t.id, ${this.timeMs} from (select s.id, (${nearest}) as aligned_at_utc from unnest(${ids}) s (id)) t
      where t.aligned_at_utc is not null`;
  }

  /** The time in epoch ms of the slice's first row, for a dataset with a single series. */
  selectFirst(slice: Slice): string {
    return `select ${this.timeMs} from ${this.#table} t where ${this.#ofSeries(ROWS)} and ${this.within(slice.from, slice.to)}
      order by t.aligned_at_utc limit 1`;
  }

  /** A condition for proved rows `t` of the native table; undefined where time alone decides. */
  provedNative(slice: Range, params: Params): string | undefined {
    return proofTest(this.#request, this.#facts.coverage, slice, params);
  }

  /**
   * Some rows of a slice, for `selectLookups`: those that pass the condition `where`, and of these the ones at `positions`, if
   * given, counted from 0 in the order of `numberedBy`.
   */
  lookup(slice: Slice, params: Params, { where, places, positions }: Lookup): string {
    const columns = this.#innerColumns().join(', ');
    if (places) return `select ${columns} ${this.#ofPlaces(places, this.#stored(slice, params), [], params)}`;
    // A condition leaves few rows, each with its own search for the next one; numbering reads all rows anyway.
    const rows = this.from(slice, params, { where, next: positions ? 'lead' : 'probe' });
    if (!positions) return `select ${columns} ${rows}`;
    const numbers = params.add(array(positions.numbers.map((number) => int8(number))));
    return `select ${columns} from (select ${columns}, row_number() over (order by ${positions.numberedBy}) - 1 as position ${rows}) t
      where t.position = any (${numbers})`;
  }

  /** A condition for the rows at these positions of the slice, counted from 0 in order of time. Single aligned series only. */
  atPositions(slice: Slice, positions: readonly number[]): string {
    const within = `${this.#ofSeries('n')} and ${this.within(slice.from, slice.to, 'n')}`;
    // Each subquery scans only the index and reads no row of the table: 10,000 entries take a millisecond.
    const times = positions.map(
      (position) =>
        `(select n.aligned_at_utc from ${this.#table} n where ${within} order by n.aligned_at_utc offset ${position} limit 1)`,
    );
    return `t.aligned_at_utc = any (array[${times.join(', ')}])`;
  }

  /** The times in epoch ms and the keys of the rows of several look-ups, in order. */
  selectKeys(lookups: readonly string[]): string {
    return `select ${[this.timeMs, ...this.key].join(', ')} from (${lookups.join(' union all ')}) t order by ${this.order()}`;
  }

  /** The rows of several look-ups, in order. */
  selectLookups(lookups: readonly string[]): string {
    return `select ${this.#outputs()} from (${lookups.join(' union all ')}) t order by ${this.order()}`;
  }

  /** Rows of several ranges are ordered by the number of their range first, so that no more than a range is sorted at once. */
  order(direction = '', slice?: Slice): string {
    const terms = this.#order.map((term) => `${term.sql}${direction}`);
    return [...(slice?.ranges && !this.#facts.places ? [RANGE_NUMBER] : []), ...terms].join(', ');
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
    if (!this.isSingleSeries && this.isState) {
      const rows = seriesRows(
        {
          ...this.#facts,
          tableOf: (range) => this.#tableOf(range),
          dataset: this.#request.dataset,
          within: this.within(slice.from, slice.to),
          columns: this.#storedColumns(),
          validity: this.validity,
          validFrom: this.#validFrom(),
        },
        slice,
        params,
      );
      return `from (${rows}) t${tests.length === 0 ? '' : ` where ${tests.join(' and ')}`}`;
    }
    const stored = this.#stored(slice, params);
    if (this.#facts.places) {
      const places = this.#facts.places.filter(({ from, to }) => from < slice.to && slice.from < to);
      return this.#ofPlaces(places, stored, tests, params);
    }
    if (slice.ranges) return this.#ofRanges(slice.ranges, [stored, ...tests], params);
    if (this.validity !== 'computed') return `from ${this.#table} t where ${[stored, ...tests].join(' and ')}`;
    const columns = this.#storedColumns();
    if (this.isState) columns.push(`${this.#validFrom()} as ${VALID_FROM}`);
    const probed = next === 'probe' && where !== undefined ? ` and ${where}` : '';
    const inner = `select ${columns.join(', ')}, ${this.#validTo(slice, next)} as ${VALID_TO}
      from ${this.#table} t where ${stored}${probed}`;
    return `from (${inner}) t${tests.length === 0 ? '' : ` where ${tests.join(' and ')}`}`;
  }

  /**
   * The rows of ranges that pass the tests. "offset 0" keeps the planner from joining in another way than by a search of the index
   * for each range: it expects thousands of rows of one, and would rather read all rows and compare them with each.
   */
  #ofRanges(ranges: readonly Range[], tests: readonly string[], params: Params): string {
    assert(this.validity === 'none' && this.#time.pg === 'int8', 'ranges are of native rows without validity');
    const ends = (['from', 'to'] as const).map((end) => params.add(array(ranges.map((one) => int8(one[end])))));
    // Each column that is named is unpacked where the rows lie in columns.
    const columns = new Set([...this.#storedColumns(), this.#timeOf(ROWS)]);
    const within = `${this.#timeOf(ROWS)} >= s.from_ms and ${this.#timeOf(ROWS)} < s.to_ms`;
    return `from unnest(${ends.join(', ')}) with ordinality s (from_ms, to_ms, number),
      lateral (select ${[...columns].join(', ')} from ${this.#table} t where ${[within, ...tests].join(' and ')} offset 0) t`;
  }

  /** The rows at the places that pass the tests. "offset 0" keeps the planner from another order than a search of the index for each. */
  #ofPlaces(places: readonly Place[], stored: string, tests: readonly string[], params: Params): string {
    assert(this.validity === 'none' && this.#time.pg === 'int8', 'places are of native rows of file days');
    if (places.length === 0) return `from ${this.#table} t where false`;
    const list = (of: (place: Place) => number) => params.add(array(places.map((place) => int8(of(place)))));
    const [time, id] = [this.#timeOf(ROWS), `${ROWS}."${this.#request.dataset.native.identity[0]}"`];
    const lists = [list((place) => place.id), list(({ from }) => from), list(({ to }) => to)];
    const isNumbered = places[0].numbered !== undefined;
    if (isNumbered)
      lists.push(
        list(({ numbered }) => numbered!.last),
        list(({ numbered }) => numbered!.number),
      );
    const one = isNumbered
      ? `${id} between s.id and s.last_id order by ${id} offset s.number limit 1`
      : `${id} = s.id offset 0`;
    return `from (select t.* from unnest(${lists.join(', ')}) s (id, from_ms, to_ms${isNumbered ? ', last_id, number' : ''}),
      lateral (select * from ${this.#table} t where ${stored} and ${time} >= s.from_ms and ${time} < s.to_ms and ${one}) t offset 0) t${
        tests.length === 0 ? '' : ` where ${tests.join(' and ')}`
      }`;
  }

  /** A condition: the time is in [fromMs, toMs). */
  within(fromMs: number, toMs: number, alias = ROWS): string {
    const sql = this.#timeOf(alias);
    return `${sql} >= ${this.literal(fromMs)} and ${sql} < ${this.literal(toMs)}`;
  }

  literal(ms: number): string {
    return this.#time.pg === 'int8' ? String(ms) : `timestamptz '${isoOf(ms)}'`;
  }

  /** SQL of the time in epoch ms. */
  get timeMs(): string {
    const sql = this.#timeOf(ROWS);
    return this.#time.pg === 'int8' ? sql : `floor(extract(epoch from ${sql}) * 1000)::int8`;
  }

  /** SQL of the order's values as text, which `fromKey` takes. */
  get key(): readonly string[] {
    return this.#order.map((term) => `(${term.sql})::text`);
  }

  /** A condition: the row has this key or follows it. */
  fromKey(key: readonly string[], params: Params): string {
    const values = this.#order.map(({ pg }, index) => `${params.add(text(key[index]))}::text::${pg}`);
    const expressions = this.#order.map((term) => term.sql);
    return `(${expressions.join(', ')}) >= (${values.join(', ')})`;
  }

  /** A condition: the row has one of these keys. */
  isOneOf(keys: readonly { readonly values: readonly string[] }[], params: Params): string {
    const lists = this.#order.map((_, index) => params.add(array(keys.map(({ values }) => text(values[index])))));
    const names = this.#order.map((_, index) => `c${index}`);
    const typed = this.#order.map(({ pg }, index) => `k.c${index}::${pg}`);
    const expressions = this.#order.map((term) => term.sql);
    return `(${expressions.join(', ')}) in (select ${typed.join(', ')} from unnest(${lists.join(', ')}) k (${names.join(', ')}))`;
  }

  /** SQL of a number that depends only on the row's identity and a seed. */
  hash(seed: string): string {
    return this.#order.reduce(
      (hash, term) =>
        term.pg === 'int8'
          ? `hashint8extended(${term.sql}, ${hash})`
          : `hashtextextended((${term.sql})::text, ${hash})`,
      seed,
    );
  }

  /** A condition: the row belongs to the slice and is proved. */
  #stored(slice: Slice, params: Params): string {
    const within = this.within(slice.from, slice.to);
    if (this.#series) return `${this.#ofSeries(ROWS)} and ${within}`;
    const proof = this.provedNative(slice, params);
    return proof === undefined ? within : `${within} and ${proof}`;
  }

  /** The table of a range of time: the storage, or as of a time the rows that it would have held then. */
  #tableOf(range: Range): string {
    const { mode, asOfMs } = this.#request;
    return mode === 'aligned_1s' && asOfMs !== undefined ? knownSeconds(this.#request, range) : this.#table;
  }

  #timeOf(alias: string): string {
    return `${alias}."${this.#time.column}"`;
  }

  /** A condition for aligned rows: they are of the dataset, and of its series if it has a single one. */
  #ofSeries(alias: string): string {
    assert(this.#series !== undefined, 'native rows have no series');
    const { dataset, id } = this.#series;
    return `${alias}.dataset_id = ${dataset}${id === undefined ? '' : ` and ${alias}.series_id = ${id}`}`;
  }

  #outputs(): string {
    return [...(this.hidden === 'time' ? [ALIGNED_AT] : []), ...this.cells].join(', ');
  }

  #outputOf(field: Field): string {
    // `valid_from` is a column only where the inner query creates one.
    const isColumn = this.validity === 'computed' || !this.isSingleSeries;
    return isComputed(field, 'from') && !isColumn ? this.#validFrom() : field.sql;
  }

  /** The stored columns that the answer, its filters, its order and its validity need. */
  #storedColumns(): string[] {
    const fields = [...this.#request.fields, ...this.#request.filters.map((filter) => filter.field), ...this.#order];
    const names = new Set(fields.flatMap((field) => field.columns));
    if (this.validity !== 'none') names.add('aligned_at_utc');
    return [...names].map((name) => `${ROWS}."${name}"`);
  }

  /** The stored columns, and those of the validity that the inner query creates. */
  #innerColumns(): string[] {
    const columns = this.#storedColumns();
    if (this.isState && (this.validity === 'computed' || !this.isSingleSeries)) columns.push(`${ROWS}.${VALID_FROM}`);
    if (this.validity === 'computed') columns.push(`${ROWS}.${VALID_TO}`);
    return columns;
  }

  /** A state from before the window is valid from the window's start. */
  #validFrom(): string {
    const { startMs: start } = this.#facts;
    return start === undefined ? ALIGNED_AT : `greatest(t.aligned_at_utc, ${this.literal(start)})`;
  }

  /** A row is valid until the next row of its series, the end of what is proved, or the end of the window. */
  #validTo(slice: Slice, next: NextRow): string {
    const { from, to, part, following = { from: to, to: part.until } } = slice;
    const first = (tests: string) => `(select n.aligned_at_utc from ${this.#table} n
      where ${this.#ofSeries('n')} and ${tests} order by n.aligned_at_utc limit 1)`;
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

  /** The latest time at which a row of the part can be valid, whatever follows it. */
  #cap({ provedTo, isLast, to }: Part): string {
    const end = this.#facts.endMs;
    if (provedTo !== undefined && !isLast) return this.literal(Math.min(end, provedTo));
    const second = `t.aligned_at_utc + interval '1 second'`;
    const open = provedTo === undefined ? second : `greatest(${this.literal(provedTo)}, ${second})`;
    // A row ends at most a second past its part, so a later end of the window does not matter.
    return end < (provedTo ?? to) + 1000 ? `least(${this.literal(end)}, ${open})` : open;
  }
}
