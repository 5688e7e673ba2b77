/** Requests at random of a world: windows about its rows, any fields, filters that leave some. */
import fc from 'fast-check';
import { OPERATORS_OF } from '../../serving/contract/filters.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { shapeOf } from '../../shared/registry/index.ts';
import { type Body, type Clause, expected, iso } from './world-oracle.ts';
import { DAY, type World } from './worlds.ts';

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
