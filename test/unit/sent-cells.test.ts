/** What the database sends of a row: a value that several columns of an answer show is sent once. */
import { expect, test } from 'vitest';
import { Relation } from '../../serving/read/sql/relation.ts';
import { CELL } from '../../serving/render/cells.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition, type Field, shapeOf } from '../../shared/registry/index.ts';

const WINDOWS = {
  'from a time on': { window: { kind: 'range', fromMs: 0, toMs: 1000 }, startMs: 0, filters: [] },
  'from any time': { window: { kind: 'range', toMs: 1000 }, startMs: undefined, filters: [] },
  'a sample': { window: { kind: 'random', rows: 1, seed: 1 }, startMs: undefined, filters: [] },
} as const;

const cases = [...DATASETS.values()].flatMap((dataset) =>
  (['native', 'aligned_1s'] as const).flatMap((mode) =>
    Object.keys(WINDOWS).map((window) => [dataset.key, mode, window]),
  ),
) as [string, Mode, keyof typeof WINDOWS][];

function relationOf(dataset: DatasetDefinition, mode: Mode, fields: readonly Field[], name: keyof typeof WINDOWS) {
  const { window, startMs, filters } = WINDOWS[name];
  const facts = { coverage: {}, snapshot: {}, series: [], startMs, endMs: 1000 };
  return new Relation({ dataset, mode, fields, filters, window } as never, facts as never);
}

test.each(cases)('%s, %s, %s: each value once, and each column shows its own', (key, mode, window) => {
  const dataset = DATASETS.get(key)!;
  const { fields } = shapeOf(dataset, mode);
  const { columns, cells, oids, hidden } = relationOf(dataset, mode, fields, window);
  expect(new Set(cells).size).toBe(cells.length);
  expect(oids).toHaveLength(cells.length + Number(hidden !== undefined));
  const sent = [...(hidden ? ['t.aligned_at_utc'] : []), ...cells];
  let next = Number(hidden !== undefined);
  for (const [index, { field, cell, again }] of columns.entries()) {
    expect(field).toBe(fields[index]);
    if (cell === CELL.validTo) continue;
    // Beside the end of validity alone, which decides how validity is found, the column's cell is the first.
    const beside = relationOf(
      dataset,
      mode,
      [field, ...fields.filter((one) => one !== field && one.validity === 'to')],
      window,
    );
    const own = beside.columns[0].again === undefined ? beside.cells[0] : 't.aligned_at_utc';
    expect(sent[again ?? next++]).toBe(own);
  }
  expect(next).toBe(sent.length);
});

test('the time of a trade is sent once', () => {
  const dataset = DATASETS.get('exchange_b_spot_trades')!;
  const { fields } = shapeOf(dataset, 'native');
  const { cells } = relationOf(dataset, 'native', fields, 'from a time on');
  expect(cells.filter((sql) => sql === 't.timestamp')).toHaveLength(1);
  expect(cells).toHaveLength(fields.length - 2);
});
