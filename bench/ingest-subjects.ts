/** The datasets of the ingest benchmark: for each the generated vendor days, and the table that psql loads from them. */
import { createReadStream, createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { pathToFileURL } from 'node:url';
import { createGunzip } from 'node:zlib';
import { localPath } from '../pipelines/sources/documents/locations.ts';
import { type ArchiveMember, openGzip, openZipMember } from '../pipelines/sources/documents/zip-reader.ts';
import * as exchangeA from '../pipelines/sources/exchange_a/sample.ts';
import * as exchangeB from '../pipelines/sources/exchange_b/sample.ts';
import * as exchangeBFetch from '../pipelines/sources/exchange_b/source.ts';
import * as exchangeC from '../pipelines/sources/exchange_c/sample.ts';
import * as exchangeCSource from '../pipelines/sources/exchange_c/source.ts';

export interface IngestSubject {
  readonly dataset: string;
  /** The setting that names the vendor's folder. */
  readonly setting: string;
  /** Writes the documents of consecutive days. @returns the days. */
  generate(vendor: string, from: string, to: string, rows: number): Promise<string[]>;
  /** One day's document: its path, and the CSV in it. */
  document(vendor: string, day: string): Promise<{ readonly path: string; readonly member: ArchiveMember }>;
  /** Writes one day's CSV for psql. */
  unpack(vendor: string, day: string, to: string): Promise<void>;
  /** The columns of a hypertable equal to ours; the key is (timestamp, trade_id). */
  readonly table: string;
  /** The columns of the CSV, in order. */
  readonly csvColumns: string;
  readonly header: boolean;
}

const SYMBOL = 'BTCUSDT';
const INSTRUMENT = 'BTC-USDT';

export const SUBJECTS: readonly IngestSubject[] = [
  {
    dataset: 'exchange_a_spot_trades',
    setting: 'SVC_EXCHANGE_A_BASE_URL',
    async generate(directory, from, to, rowsPerDay) {
      const days = exchangeA.consecutiveDays({ from, to, rowsPerDay, seed: 7, timeUnit: 'ms' });
      for (const day of days) await exchangeA.writeDay({ directory, symbol: SYMBOL, ...day });
      return days.map(({ day }) => day);
    },
    document(vendor, day) {
      const stem = `${SYMBOL}-trades-${day}`;
      return opened(openZipMember, join(vendor, 'spot/daily/trades', SYMBOL, `${stem}.zip`), `${stem}.csv`);
    },
    unpack,
    table: `"timestamp" int8 not null, trade_id int8 not null, price float8 not null, quantity float8 not null,
      quote_quantity float8 not null, is_buyer_maker boolean not null, is_best_match boolean not null`,
    csvColumns: 'trade_id, price, quantity, quote_quantity, "timestamp", is_buyer_maker, is_best_match',
    header: false,
  },
  {
    dataset: 'exchange_b_spot_trades',
    setting: 'SVC_EXCHANGE_B_BASE_URL',
    async generate(directory, from, to, rowsPerDay) {
      const days = exchangeB.consecutiveDays({ from, to, rowsPerDay, seed: 7 });
      // Without repeated rows: psql cannot drop them, and its unique key would refuse them.
      for (const day of days) await exchangeB.writeDay({ directory, ...day, repeats: 0 });
      return days.map(({ day }) => day);
    },
    document(vendor, day) {
      const url = exchangeBFetch.archiveUrl(pathToFileURL(join(vendor, '/')), INSTRUMENT, day);
      const name = exchangeBFetch.documentName(INSTRUMENT, day).replace(/zip$/, 'csv');
      return opened(openZipMember, localPath(url), name);
    },
    unpack,
    // The table computes the column that the file lacks.
    table: `"timestamp" int8 not null, trade_id int8 not null, price float8 not null, size float8 not null,
      quote_quantity float8 generated always as (price * size) stored, side text not null, instrument_name text not null`,
    csvColumns: 'instrument_name, trade_id, side, price, size, "timestamp"',
    header: true,
  },
  {
    dataset: 'exchange_c_spot_trades',
    setting: 'SVC_EXCHANGE_C_BASE_URL',
    async generate(directory, from, to, rowsPerDay) {
      const days = exchangeC.consecutiveDays({ from, to, rowsPerDay, seed: 7 });
      for (const day of days)
        await exchangeC.writeDay({ directory, ...day, archive: 'trading', rpi: false, repeats: 0 });
      return days.map(({ day }) => day);
    },
    document(vendor, day) {
      const url = exchangeCSource.archiveUrl(pathToFileURL(join(vendor, '/')), 'trading', SYMBOL, day);
      return opened(openGzip, localPath(url), `${SYMBOL}${day}.csv`);
    },
    async unpack(vendor, day, to) {
      const { path } = await this.document(vendor, day);
      const lines = createInterface({ input: createReadStream(path).pipe(createGunzip()) });
      await pipeline(Readable.from(inMilliseconds(lines)), createWriteStream(to));
    },
    table: `"timestamp" int8 not null, price float8 not null, size float8 not null, gross_value float8 not null,
      home_notional float8 not null, foreign_notional float8 not null, side text not null, tick_direction text not null,
      symbol text not null, trd_match_id text not null,
      trade_id int8 generated always as (substr(trd_match_id, 3)::int8) stored`,
    csvColumns: `"timestamp", symbol, side, size, price, tick_direction, trd_match_id, gross_value, home_notional,
      foreign_notional`,
    header: true,
  },
];

/** Converts decimal seconds to milliseconds before the measurement, because psql cannot convert them. */
async function* inMilliseconds(lines: AsyncIterable<string>): AsyncGenerator<string> {
  let isHeader = true;
  let pending: string[] = [];
  for await (const line of lines) {
    const comma = line.indexOf(',');
    const time = isHeader ? 'timestamp' : String(Math.round(Number(line.slice(0, comma)) * 1000));
    pending.push(`${time}${line.slice(comma)}\n`);
    isHeader = false;
    if (pending.length < 10_000) continue;
    yield pending.join('');
    pending = [];
  }
  yield pending.join('');
}

const opened = async (open: typeof openZipMember, path: string, expectedName: string) => ({
  path,
  member: await open({ path, expectedName, maxUnpackedBytes: 2 ** 40 }),
});

async function unpack(this: IngestSubject, vendor: string, day: string, to: string): Promise<void> {
  const { member } = await this.document(vendor, day);
  await pipeline(member.stream(), createWriteStream(to));
}
