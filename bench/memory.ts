/**
 * Memory of the serving process: its peak after an answer of a million rows and after one of ten million, in each
 * representation, plain and compressed.
 */
import { REPRESENTATIONS } from '../serving/render/representations.ts';
import { createDatabase, loadDays } from './chunks.ts';
import type { Note } from './harness.ts';
import { DATASET, discard, startServer } from './query-subjects.ts';

const END_DAY = '2024-03-01';
/** A trade every 100 ms. */
const ROWS_PER_DAY = 864_000;
const WINDOWS = [
  { days: 1, from: '2024-02-29' },
  { days: 12, from: '2024-02-18' },
];

export type Memory = Awaited<ReturnType<typeof measureMemory>>;

export async function measureMemory(databaseUrl: string, note: Note) {
  const url = await createDatabase(databaseUrl, 'bench_memory');
  const days = WINDOWS.at(-1)!.days;
  note(`making ${(days * ROWS_PER_DAY).toLocaleString('en-US')} rows`);
  await loadDays(url, END_DAY, days, ROWS_PER_DAY);
  const found: { representation: string; coding: string; rows: number[]; peak_mib: number[] }[] = [];
  for (const { mediaType } of REPRESENTATIONS) {
    for (const coding of ['identity', 'zstd']) {
      await using server = await startServer({ databaseUrl: url });
      const rows: number[] = [];
      const peaks: number[] = [];
      for (const window of WINDOWS) {
        const body = { sources: [DATASET], time_range: [`${window.from}T00:00:00Z`, `${END_DAY}T00:00:00Z`] };
        await discard(await server.post(body, { Accept: mediaType, 'Accept-Encoding': coding }));
        rows.push(window.days * ROWS_PER_DAY);
        peaks.push(server.peakMib());
      }
      note(`${mediaType} ${coding}: ${peaks.join(' and ')} MiB`);
      found.push({ representation: mediaType, coding, rows, peak_mib: peaks });
    }
  }
  return found;
}

export const memoryLines = (memory: Memory): string[] => [
  `peak memory of the serving process after ${memory[0].rows.map((rows) => rows.toLocaleString('en-US')).join(' and ')} rows in one answer`,
  ...memory.map(
    ({ representation, coding, peak_mib }) =>
      `  ${representation.padEnd(36)} ${coding.padEnd(8)} ${peak_mib.join(' MiB  ')} MiB`,
  ),
];
