/**
 * Reads a day of exchange A in a process of its own, a part of the floor benchmark: `node bench/floor-reader.ts read|decode
 * ZIP DAY ROWS`. Both hash the document, inflate it and hash its bytes. `read` then separates the cells; `decode` is the
 * product's decoder, which hashes the bytes itself.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { openZipMember } from '../pipelines/sources/documents/zip-reader.ts';

const COLUMNS = 7;
const [COMMA, LF] = [44, 10];

async function countRows(chunks: AsyncIterable<Buffer>): Promise<number> {
  const bytes = createHash('sha256');
  let cells = 0;
  for await (const chunk of chunks) {
    bytes.update(chunk);
    for (let at = 0; at < chunk.length; at++) if (chunk[at] === COMMA || chunk[at] === LF) cells++;
  }
  return cells / COLUMNS;
}

async function decodedRows(chunks: AsyncIterable<Buffer>, day: string, document: string): Promise<number> {
  const { ExchangeADecoder } = await import('../pipelines/sources/exchange_a/decode.ts');
  const fromMs = Date.parse(day);
  const decoder = new ExchangeADecoder({ document, fromMs, toMs: fromMs + 86_400_000, frameRawBytes: 2 ** 20 });
  let rows = 0;
  const take = (items: ReturnType<typeof decoder.push>) => {
    for (const item of items) {
      if (item.kind === 'events') item.release?.();
      else rows += item.facts.rows;
    }
  };
  for await (const chunk of chunks) take(decoder.push(chunk));
  take(decoder.finish());
  return rows;
}

const [part, path, day, rows] = process.argv.slice(2);
const document = createHash('sha256');
for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) document.update(chunk);
const expectedName = `BTCUSDT-trades-${day}.csv`;
const member = await openZipMember({ path, expectedName, maxUnpackedBytes: 2 ** 40 });
const found = part === 'read' ? await countRows(member.stream()) : await decodedRows(member.stream(), day, path);
if (found !== Number(rows)) throw new Error(`${path} holds ${found} rows, not ${rows}`);
