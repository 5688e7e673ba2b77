/** Which dates of a lake a change concerns, and which have to be planned for it. */
import { expect, test } from 'vitest';
import { reachOf } from '../../serving/lake/plan.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { datasetOf } from '../../shared/registry/index.ts';

const day = (date: string) => Date.parse(`${date}T00:00:00Z`);

test('a change reaches the date before it that the lake holds, and eleven before a block; the one after it is planned', () => {
  const held = ['2024-01-01', '2024-01-05', '2024-01-09', '2024-01-20'].map(day);
  const touched = { from: day('2024-01-09') + 5, to: day('2024-01-09') + 6 };
  expect(reachOf(datasetOf('bitcoin_mempool_state'), [touched], held)).toEqual([
    {
      compared: { from: day('2024-01-05'), to: day('2024-01-10') },
      planned: { from: day('2024-01-05'), to: day('2024-01-21') },
    },
  ]);
  const dates = Array.from({ length: 15 }, (_, index) => day('2024-02-01') + index * DAY_MS);
  const tip = { from: dates[14], to: dates[14] + 1 };
  expect(reachOf(datasetOf('bitcoin_block_headers'), [tip], dates)).toEqual([
    {
      compared: { from: dates[3], to: dates[14] + DAY_MS },
      planned: { from: dates[3], to: dates[14] + DAY_MS },
    },
  ]);
});
