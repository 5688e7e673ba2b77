/**
 * What every answer over a world must be, said in plain JavaScript over all of its rows: no slices, no SQL, no
 * look-ahead. Rows are served as the contract describes them; validity is worked out for each row on its own.
 */

import fc from 'fast-check';
import { OPERATORS_OF } from '../../serving/contract/filters.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { type Field, shapeOf } from '../../shared/registry/index.ts';
import { compares } from './comparisons.ts';
import { DAY, SECOND, type World, type WorldAligned, type WorldRow, type WorldRun } from './worlds.ts';

export type Served = Readonly<Record<string, string | number | null>>;

export interface Clause {
  readonly field: string;
  readonly op: string;
  readonly value: unknown;
}

export interface Body {
  readonly mode: Mode;
  readonly fields?: readonly string[];
  readonly time_range?: readonly [string, string];
  readonly n_rows?: number;
  readonly filters?: readonly Clause[];
  readonly as_of?: string;
}

export const iso = (ms: number): string => new Date(ms).toISOString();
const at = (text: unknown): number => Date.parse(String(text));

/** All rows of the answer, in order. */
export function expected(world: World, body: Body): Served[] {
  const shape = shapeOf(world.dataset, body.mode);
  const dtypes = new Map(shape.fields.map((field) => [field.name, field.dtype]));
  const [from, to] = body.time_range?.map(at) ?? [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  const all = body.mode === 'native' ? nativeRows(world, from, to) : alignedRows(world, from, to);
  let rows = all.filter((row) =>
    (body.filters ?? []).every((clause) => passes(row[clause.field], dtypes.get(clause.field)!, clause)),
  );
  if (body.n_rows !== undefined) rows = rows.slice(-body.n_rows);
  const names = body.fields ?? shape.fields.map((field) => field.name);
  return rows.map((row) => Object.fromEntries(names.map((name) => [name, row[name]])));
}

// ---- native --------------------------------------------------------------------------------------------------------

const IDENTITY: Readonly<Record<string, readonly string[]>> = {
  bitcoin_block_headers: ['height'],
  bitcoin_block_transactions: ['block_height', 'transaction_index'],
  bitcoin_mempool_state: ['txid'],
  etf_daily_metrics: ['source_id', 'metric_name', 'metric_id'],
  macro_series_metrics: ['source_id', 'metric_name', 'vintage', 'metric_id'],
};

function nativeRows({ dataset, rows }: World, from: number, to: number): Served[] {
  const identity = IDENTITY[dataset.key] ?? ['block_height'];
  return rows
    .filter(({ ms, partition }) => partition.state === 'proved' && ms >= from && ms < to)
    .sort((a, b) => a.ms - b.ms || compareAll(identity.map((name) => [a.cells[name], b.cells[name]])))
    .map((row) => Object.fromEntries(dataset.native.fields.map((field) => [field.name, nativeCell(row, field)])));
}

function nativeCell({ ms, partition, cells }: WorldRow, { name, dtype }: Field): string | number | null {
  const kind = cells.value_kind;
  switch (name) {
    case 'datetime':
    case 'observed_at_utc':
    case 'snapshot_at':
      return iso(ms);
    case 'ingested_at_utc':
      return iso(partition.ingestedMs);
    case 'fee_rate_sat_vb':
      return Number(cells.fee_sats) / Number(cells.vsize);
    case 'fee_total_btc':
    case 'subsidy_btc':
    case 'circulating_supply_btc':
      return Number(cells[name.replace('_btc', '_sats')]) / 1e8;
    case 'metric_value_string':
      return cells.value_text as string | null;
    case 'metric_value_int':
      return kind === 'int' ? Number(cells.value_text) : null;
    case 'metric_value_float':
      return kind === 'int' || kind === 'float' ? Number(cells.value_text) : null;
    case 'metric_value_bool':
      return kind === 'bool' ? Number(cells.value_text === 'true') : null;
    case 'provenance_json': {
      if (partition.lastUpdatedMs === undefined) return cells.provenance_json as string | null;
      const whole = { ...JSON.parse(String(cells.provenance_json)), last_updated_utc: iso(partition.lastUpdatedMs) };
      return JSON.stringify(
        Object.fromEntries(
          Object.keys(whole)
            .sort()
            .map((key) => [key, whole[key]]),
        ),
      );
    }
    default:
      return shown(cells[name], dtype);
  }
}

// ---- aligned -------------------------------------------------------------------------------------------------------

function alignedRows({ dataset, aligned, runs }: World, from: number, to: number): Served[] {
  const isState = dataset.aligned.windowing === 'state';
  return aligned
    .flatMap((row) => {
      const until = validTo(row, aligned, runs, to);
      const since = isState ? Math.max(row.ms, from) : row.ms;
      const isIn = isState ? row.ms < to && until > since : row.ms >= from && row.ms < to;
      return isIn ? [{ row, since, until }] : [];
    })
    .sort((a, b) => a.row.ms - b.row.ms || compareAll(a.row.series.map((value, index) => [value, b.row.series[index]])))
    .map(({ row, since, until }) =>
      Object.fromEntries(
        dataset.aligned.fields.map(({ name, dtype }) => {
          if (name === 'aligned_at_utc') return [name, iso(row.ms)];
          if (name === 'valid_from_utc') return [name, iso(since)];
          if (name === 'valid_to_utc_exclusive') return [name, iso(until)];
          return [name, shown(row.cells[name], dtype)];
        }),
      ),
    );
}

/** Until the next row of the series, a gap, or what is proved through; never past the window. */
function validTo(row: WorldAligned, all: readonly WorldAligned[], runs: readonly WorldRun[], end: number): number {
  const series = JSON.stringify(row.series);
  const later = all.filter((other) => JSON.stringify(other.series) === series && other.ms > row.ms);
  const next = Math.min(...later.map((other) => other.ms));
  const run = runs.find(
    ({ sourceId, fromMs, throughMs }) =>
      sourceId === row.sourceId && Math.floor(fromMs / SECOND) * SECOND <= row.ms && row.ms < throughMs,
  );
  return Math.min(next, Math.max(run?.throughMs ?? 0, row.ms + SECOND), end);
}

// ---- cells ---------------------------------------------------------------------------------------------------------

function shown(cell: unknown, dtype: Field['dtype']): string | number | null {
  if (cell === null) return null;
  if (dtype === 'bool01') return cell ? 1 : 0;
  if (dtype === 'timestamp_utc') return iso(typeof cell === 'number' ? cell : at(cell));
  return cell as string | number;
}

/** Numbers as numbers, texts by code points. */
function compareAll(pairs: readonly (readonly [unknown, unknown])[]): number {
  for (const [a, b] of pairs) {
    if (a === b) continue;
    return (a as number | string) < (b as number | string) ? -1 : 1;
  }
  return 0;
}

function passes(cell: string | number | null, dtype: Field['dtype'], { op, value }: Clause): boolean {
  if (value === null) return op === 'eq' ? cell === null : cell !== null;
  if (cell === null) return false;
  const isTime = dtype === 'timestamp_utc';
  const own = isTime ? at(cell) : cell;
  const of = (one: unknown) => (isTime ? at(one) : (one as string | number));
  return compares(own, op, value, of);
}

// Requests at random of a world: windows about its rows, any fields, filters that leave some.

/** Moments at rows and at the edges of what is proved, and close to them; and any. */
function momentsOf({ rows, aligned, runs }: World): fc.Arbitrary<number> {
  const marks = [
    ...rows.map(({ ms }) => ms),
    ...aligned.map(({ ms }) => ms),
    ...runs.flatMap(({ fromMs, toMs, throughMs }) => [fromMs, toMs, throughMs]),
  ];
  const [first, last] = [Math.min(...marks), Math.max(...marks)];
  const near = fc
    .tuple(fc.constantFrom(...marks), fc.constantFrom(0, 0, 0, 1, -1, 500, 1000, -1000, DAY, -DAY))
    .map(([mark, shift]) => mark + shift);
  return fc.oneof(
    { weight: 3, arbitrary: near },
    { weight: 1, arbitrary: fc.integer({ min: first - 3 * DAY, max: last + 40 * DAY }) },
  );
}

/** Clauses with values that occur, or nearly. */
function clausesOf(world: World, mode: Mode): fc.Arbitrary<Clause> {
  const rows = expected(world, { mode });
  const fields = shapeOf(world.dataset, mode).fields.filter(({ dtype }) => OPERATORS_OF[dtype].length > 0);
  return fc.constantFrom(...fields).chain(({ name, dtype }) => {
    const cells = [...new Set(rows.map((row) => row[name]))].filter((cell) => cell !== null);
    const near = (cell: string | number, shift: number) =>
      dtype === 'timestamp_utc'
        ? iso(Date.parse(String(cell)) + shift)
        : typeof cell === 'number' && dtype === 'int64'
          ? cell + shift
          : cell;
    const value =
      cells.length === 0
        ? fc.constant(null)
        : fc
            .tuple(fc.constantFrom(...cells), fc.constantFrom(0, 0, 0, 1, -1))
            .map(([cell, shift]) => near(cell!, dtype === 'bool01' ? 0 : shift));
    return fc.constantFrom(...OPERATORS_OF[dtype]).chain((op): fc.Arbitrary<Clause> => {
      if (cells.length === 0)
        return fc.constantFrom('eq', 'ne').map((either) => ({ field: name, op: either, value: null }));
      if (op === 'in' || op === 'not_in') {
        return fc.array(value, { minLength: 1, maxLength: 4 }).map((list) => ({ field: name, op, value: list }));
      }
      const orNull =
        op === 'eq' || op === 'ne'
          ? fc.oneof({ weight: 8, arbitrary: value }, { weight: 1, arbitrary: fc.constant(null) })
          : value;
      return orNull.map((one) => ({ field: name, op, value: one }));
    });
  });
}

export function bodiesOf(world: World, mode: Mode): fc.Arbitrary<Body> {
  const moments = momentsOf(world);
  const total = expected(world, { mode }).length;
  const timeRange = fc
    .tuple(moments, moments)
    .filter(([a, b]) => a !== b)
    .map(([a, b]): Partial<Body> => ({ time_range: [iso(Math.min(a, b)), iso(Math.max(a, b))] }));
  const window = fc.oneof(
    { weight: 4, arbitrary: timeRange },
    { weight: 1, arbitrary: fc.integer({ min: 1, max: total + 2 }).map((n_rows): Partial<Body> => ({ n_rows })) },
    { weight: 1, arbitrary: fc.constant<Partial<Body>>({}) },
  );
  const names = shapeOf(world.dataset, mode).fields.map((field) => field.name);
  return fc
    .record({
      window,
      fields: fc.option(fc.shuffledSubarray(names, { minLength: 1 }), { nil: undefined }),
      filters: fc.option(fc.array(clausesOf(world, mode), { minLength: 1, maxLength: 2 }), { nil: undefined, freq: 2 }),
    })
    .map(({ window, fields, filters }) => ({
      mode,
      ...window,
      ...(fields && { fields }),
      ...(filters && { filters }),
    }));
}
