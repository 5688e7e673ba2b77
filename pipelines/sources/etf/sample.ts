/** The last market days of ten funds, in their issuers' layouts: made up, the same on every machine on a day. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import Big from 'big.js';
import { DAY_MS, dayKey } from '../../../shared/time/days.ts';
import { isMarketDay } from '../../../shared/time/market-days.ts';
import type { SampleNeeds } from '../types.ts';
import { DOCUMENTS, fundOf } from './generate.ts';
import { ISSUERS } from './issuers/index.ts';

const SAMPLE_DAYS = 3;
export const SAMPLE_PARTITIONS = SAMPLE_DAYS * ISSUERS.length;

/** The market days before today. */
export async function makeSample({ directory, todayMs }: SampleNeeds) {
  const days = lastMarketDays(todayMs);
  for (const [index, { sourceId, document }] of ISSUERS.entries()) {
    const folder = join(directory, sourceId);
    await mkdir(folder, { recursive: true });
    for (const day of days) {
      await writeFile(join(folder, `${day}.${document.extension}`), DOCUMENTS[sourceId](sampleDay(day, index)));
    }
  }
  return { location: pathToFileURL(`${directory}/`), selection: { options: {}, reingest: false } };
}

function lastMarketDays(todayMs: number): string[] {
  const days: string[] = [];
  for (let ms = todayMs - DAY_MS; days.length < SAMPLE_DAYS; ms -= DAY_MS) {
    if (isMarketDay(dayKey(ms))) days.unshift(dayKey(ms));
  }
  return days;
}

/** One price for all funds of a day; what a fund holds changes a little from day to day. */
function sampleDay(day: string, fund: number) {
  const count = Date.parse(day) / DAY_MS;
  const wave = (days: number, size: number) => Math.round(Math.sin((2 * Math.PI * (count + 7 * fund)) / days) * size);
  const price = 90_000 + Math.round(Math.sin(count / 11) * 9_000) + (count % 17) * 31.25;
  return fundOf(day, {
    units: new Big(240_000)
      .div(fund + 1)
      .round(0)
      .plus(wave(23, 800))
      .plus('0.125')
      .toFixed(),
    priceUsd: new Big(price).toFixed(2),
    cashUsd: new Big(400_000).plus(wave(5, 90_000)).plus('0.25').toFixed(),
    sharesOutstanding: new Big(420_000_000)
      .div(fund + 1)
      .round(0)
      .plus(wave(23, 10) * 40_000)
      .toFixed(),
    visit: `${day}-${fund}`,
  });
}
