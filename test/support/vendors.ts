/** The three vendors of trades as folders: where a day's document lies, how it is packed, what a day of it looks like. */
import { mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { gzipSync } from 'node:zlib';
import { generateLines as linesOfB } from '../../pipelines/sources/exchange_b/sample.ts';
import { generateLines as linesOfC } from '../../pipelines/sources/exchange_c/sample.ts';
import { buildZip, type MemberSpec } from './broken-zip.ts';
import { csvOf, documentPath, memberName, SYMBOL, writeDocument } from './pipeline.ts';
import { EXCHANGE_A, EXCHANGE_B, EXCHANGE_C_SPOT, type TradeLayout } from './trade-layouts.ts';

export interface DayContent {
  readonly day: string;
  readonly rows: number;
  readonly seed: number;
  readonly firstId: number;
}

export interface Vendor {
  readonly layout: TradeLayout;
  readonly dataset: string;
  readonly archive: 'zip' | 'gzip';
  /** Of a day's document, below the vendor's base. */
  path(day: string): string;
  document(day: string): string;
  /** The archive of a text; a zip's member may be told otherwise. */
  pack(day: string, text: string | Buffer, member?: Partial<MemberSpec>): Buffer;
  /** Puts an archive, or takes it away, with what belongs beside it. */
  put(base: string, day: string, archive: Buffer | undefined): Promise<void>;
  /** A day's file, in the order of its ids, nothing repeated: every line is one event. */
  plainDay(content: DayContent): string;
  /** The setting that names the vendor's folder, and its value. */
  settings(base: string): Record<string, string>;
}

async function put(path: string, bytes: Buffer | undefined): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  if (!bytes) return await rm(path, { force: true });
  // There at once: somebody may be reading it meanwhile.
  await writeFile(`${path}.part`, bytes);
  await rename(`${path}.part`, path);
}
const folder = (base: string) => pathToFileURL(`${base}/`).href;

const nameOfB = (day: string) => `BTC-USDT-trades-${day}`;
const pathOfB = (day: string) => `trades/daily/${day.replaceAll('-', '')}/${nameOfB(day)}.zip`;
const nameOfC = (day: string) => `BTCUSDT_${day}.csv.gz`;

export const VENDOR_A: Vendor = {
  layout: EXCHANGE_A,
  dataset: EXCHANGE_A.dataset.key,
  archive: 'zip',
  path: documentPath,
  document: (day) => `${SYMBOL}-trades-${day}.zip`,
  pack: (day, text, member) =>
    buildZip({ members: [{ name: memberName(day), content: Buffer.from(text as string), ...member }] }),
  async put(base, day, zip) {
    if (zip) await writeDocument(base, day, '', { zip });
    else for (const suffix of ['', '.CHECKSUM']) await put(`${join(base, documentPath(day))}${suffix}`, undefined);
  },
  plainDay: (content) => csvOf({ ...content, timeUnit: content.seed % 2 === 0 ? 'ms' : 'us' }),
  settings: (base) => ({ SVC_EXCHANGE_A_BASE_URL: folder(base) }),
};

export const VENDOR_B: Vendor = {
  layout: EXCHANGE_B,
  dataset: EXCHANGE_B.dataset.key,
  archive: 'zip',
  path: pathOfB,
  document: (day) => `${nameOfB(day)}.zip`,
  pack: (day, text, member) =>
    buildZip({ members: [{ name: `${nameOfB(day)}.csv`, content: Buffer.from(text as string), ...member }] }),
  put: (base, day, zip) => put(join(base, pathOfB(day)), zip),
  plainDay: (content) => [...linesOfB({ ...content, repeats: 0 })].join(''),
  settings: (base) => ({ SVC_EXCHANGE_B_BASE_URL: folder(base) }),
};

export const VENDOR_C: Vendor = {
  layout: EXCHANGE_C_SPOT,
  dataset: EXCHANGE_C_SPOT.dataset.key,
  archive: 'gzip',
  path: (day) => `spot/BTCUSDT/${nameOfC(day)}`,
  document: nameOfC,
  pack: (_, text) => gzipSync(text, { level: 1 }),
  put: (base, day, gzip) => put(join(base, `spot/BTCUSDT/${nameOfC(day)}`), gzip),
  // Its ids begin at 1 every day.
  plainDay: ({ firstId: _, ...content }) => linesOfC(content).join(''),
  settings: (base) => ({ SVC_EXCHANGE_C_BASE_URL: folder(base) }),
};

export const VENDORS = [VENDOR_A, VENDOR_B, VENDOR_C];
