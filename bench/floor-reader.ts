/**
 * Reads a day of trades in a process of its own, a part of the floor benchmark. Both parts hash the document, inflate it and
 * hash its bytes:
 * - `node bench/floor-reader.ts read DOCUMENT CSV CELLS` separates the cells and expects that many
 * - `node bench/floor-reader.ts decode DATASET SETTING=URL DAY ROWS` is the product's decoder and expects that many rows
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';

const [COMMA, LF] = [44, 10];

async function countCells(path: string, expectedName: string): Promise<number> {
  const { openGzip, openZipMember } = await import('../pipelines/sources/documents/zip-reader.ts');
  const document = createHash('sha256');
  for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) document.update(chunk);
  const open = path.endsWith('.gz') ? openGzip : openZipMember;
  const member = await open({ path, expectedName, maxUnpackedBytes: 2 ** 40 });
  const bytes = createHash('sha256');
  let cells = 0;
  for await (const chunk of member.stream()) {
    bytes.update(chunk);
    for (let at = 0; at < chunk.length; at++) if (chunk[at] === COMMA || chunk[at] === LF) cells++;
  }
  return cells;
}

async function decodeRows(dataset: string, setting: string, day: string): Promise<number> {
  const { loadSettings } = await import('../shared/config/load.ts');
  const { createLogger } = await import('../shared/logger.ts');
  // The adapter of one exchange alone, without the modules of the others.
  const adapters = await import(`../pipelines/sources/${dataset.replace('_spot_trades', '')}/feed.ts`);
  const [{ feeds }] = Object.values(
    adapters,
  ) as typeof import('../pipelines/sources/exchange_a/feed.ts')['exchangeA'][];
  const [name, url] = setting.split('=');
  const settings = loadSettings({ env: { [name]: url, SVC_STATE_DIR: process.cwd() } });
  const { signal } = new AbortController();
  // A day that is named is not looked up in the catalog.
  const needs = { settings, catalog: undefined as never, log: createLogger('warn', 'bench'), signal };
  await using feed = await feeds[0].open(needs);
  const { value: event } = await feed.select({ options: { from: day, to: day }, reingest: false }).next();
  if (event?.kind !== 'document') throw new Error(`${dataset} has no document of ${day}`);
  await using document = await feed.source.open(event.request);
  let rows = 0;
  for await (const item of document.decode({ frameRawBytes: settings.limits.frameRawBytes })) {
    if (item.kind === 'events') item.release?.();
    else rows += item.facts.rows;
  }
  return rows;
}

const [part, ...words] = process.argv.slice(2);
const expected = Number(words.pop());
const found = part === 'read' ? await countCells(words[0], words[1]) : await decodeRows(words[0], words[1], words[2]);
if (found !== expected) throw new Error(`${words.join(' ')}: found ${found}, not ${expected}`);
