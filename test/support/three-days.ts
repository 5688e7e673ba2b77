/** Three days of exchange A that follow each other: ms, ms with ids going on, and µs under a header. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { consecutiveDays, type ExchangeADay, writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { csvOf, SYMBOL, type System } from './pipeline.ts';

const threeDays = (rowsPerDay: number, last: number): readonly ExchangeADay[] => [
  ...consecutiveDays({ from: '2024-03-01', to: '2024-03-02', rowsPerDay, seed: 1, timeUnit: 'ms' }),
  {
    ...consecutiveDays({ from: '2024-03-03', to: '2024-03-03', rowsPerDay: last, seed: 2, timeUnit: 'us' })[0],
    firstId: 2 * rowsPerDay + 1,
    header: true,
  },
];
export const DAYS = threeDays(30_000, 40_000);
/** For those that take them in again and again. */
export const SMALL_DAYS = threeDays(8000, 9000);
export const [FROM, , TO] = DAYS.map(({ day }) => day);

/** As the vendor has them. @returns the paths of the same rows as plain CSV, in order. */
export async function writeDays(system: System, days = DAYS): Promise<string[]> {
  const paths: string[] = [];
  for (const day of days) {
    await writeDay({ directory: system.vendor, symbol: SYMBOL, ...day });
    const path = join(system.env.dir, `${day.day}.csv`);
    await writeFile(path, csvOf({ ...day, header: false }));
    paths.push(path);
  }
  return paths;
}
