/** A file day of exchange A in a folder and served over http, and a spool for downloads that every test finds empty. */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect } from 'vitest';
import { writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { fetchExchangeAFile } from '../../pipelines/sources/exchange_a/source.ts';
import { startVendorServer, type VendorServer } from './vendor-server.ts';

export const SYMBOL = 'BTCUSDT';
export const DAY = '2024-01-01';
export const NAME = `${SYMBOL}-trades-${DAY}.zip`;
export const PATH = `spot/daily/trades/${SYMBOL}/${NAME}`;
export const CHECKSUM_PATH = `${PATH}.CHECKSUM`;
export const LIMITS = {
  timeoutMs: 60_000,
  maxAttempts: 3,
  maxBytes: 10_000_000,
  backoff: { firstMs: 10, maxMs: 20 },
};

export type FetchTrades = Parameters<typeof fetchExchangeAFile>[0];

class VendorDay {
  /** Holds the others, and whatever a test puts there. */
  folder = '';
  directory = '';
  /** Of this test alone. */
  spoolDir = '';
  zip: Buffer = Buffer.alloc(0);
  sha256 = '';
  server!: VendorServer;

  spooled(): Promise<string[]> {
    return readdir(this.spoolDir).catch(() => []);
  }

  /** The day, from the server unless told otherwise. */
  fetch(more: Partial<FetchTrades> = {}): ReturnType<typeof fetchExchangeAFile> {
    const { server, spoolDir } = this;
    return fetchExchangeAFile({ baseUrl: server.url, symbol: SYMBOL, period: DAY, spoolDir, ...LIMITS, ...more });
  }
}

/** For the tests of the file that calls it. */
export function vendorDay(): VendorDay {
  const day = new VendorDay();
  beforeAll(async () => {
    day.folder = await mkdtemp(join(tmpdir(), 'documents-'));
    day.directory = join(day.folder, 'vendor');
    const written = await writeDay({
      directory: day.directory,
      symbol: SYMBOL,
      day: DAY,
      rows: 20_000,
      seed: 1,
      timeUnit: 'ms',
    });
    day.zip = await readFile(written.path);
    day.sha256 = written.sha256;
    day.server = await startVendorServer(day.directory);
  });
  afterAll(async () => {
    await day.server[Symbol.asyncDispose]();
    await rm(day.folder, { recursive: true });
  });
  beforeEach(() => {
    day.spoolDir = join(day.folder, `spool-${Math.random().toString(36).slice(2)}`);
  });
  afterEach(async () => {
    day.server.reset();
    // Whatever happened, nothing stays behind that the test has not disposed of.
    expect(await day.spooled()).toEqual([]);
  });
  return day;
}
