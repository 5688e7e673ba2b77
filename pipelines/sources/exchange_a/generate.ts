/** Synthetic documents in exchange A's layout: generated days and months, zipped, each with its checksum beside it. */
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { assert } from '../../../shared/errors.ts';
import { localPath } from '../documents/urls.ts';
import { type WrittenZip, writeZip } from '../documents/zip-writer.ts';
import { documentFor } from './fetch.ts';
import { type DayOptions, type DaySummary, generateDay } from './generate-rows.ts';

export { consecutiveDays, type DayOptions, type DaySummary, generateDay } from './generate-rows.ts';

export interface WriteOptions {
  /** The base of the layout: `spot/daily/...` is made below it. */
  readonly directory: string;
  readonly symbol: string;
  /** zlib level, default 4. */
  readonly level?: number;
}

export interface WrittenDocument extends WrittenZip {
  readonly checksumPath: string;
  /** One for each day, in order. */
  readonly days: readonly DaySummary[];
}

/** `spot/daily/trades/SYMBOL/SYMBOL-trades-YYYY-MM-DD.zip` with its `.CHECKSUM`. */
export async function writeDay(options: WriteOptions & DayOptions): Promise<WrittenDocument> {
  return writeDocument(options, options.day, [options]);
}

/** `spot/monthly/trades/SYMBOL/SYMBOL-trades-YYYY-MM.zip`: exactly the rows of these days, which are of one month. */
export async function writeMonth(
  options: WriteOptions & { readonly days: readonly DayOptions[] },
): Promise<WrittenDocument> {
  const month = options.days[0]?.day.slice(0, 7);
  assert(
    month !== undefined && options.days.every((day) => day.day.startsWith(month)),
    'the days of one month are needed',
  );
  return writeDocument(options, month, options.days);
}

async function writeDocument(
  options: WriteOptions,
  period: string,
  days: readonly DayOptions[],
): Promise<WrittenDocument> {
  const { name, memberName, url, checksumUrl, endMs } = documentFor(
    baseUrlOf(options.directory),
    options.symbol,
    period,
  );
  const summaries: DaySummary[] = [];
  const chunks = function* () {
    for (const [index, day] of days.entries()) {
      // A file has one header, if any.
      summaries.push(yield* generateDay({ ...day, header: day.header === true && index === 0 }));
    }
  };
  const path = localPath(url);
  const zip = await writeZip({ path, memberName, chunks: chunks(), modified: new Date(endMs), level: options.level });
  const checksumPath = localPath(checksumUrl);
  await writeWhole(checksumPath, `${zip.sha256}  ${name}\n`);
  return { ...zip, checksumPath, days: summaries };
}

async function writeWhole(path: string, text: string): Promise<void> {
  const partial = `${path}.${process.pid}.partial`;
  await mkdir(dirname(path), { recursive: true });
  await writeFile(partial, text);
  await rename(partial, path);
}

const baseUrlOf = (directory: string) => pathToFileURL(join(directory, '/'));
