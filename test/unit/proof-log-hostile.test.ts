/** What a service may send that keeps a log of its own kind: too much, something else the second time, and rows that were retold. */
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { brotliCompressSync } from 'node:zlib';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { feedParquet } from '../../pipelines/cli/parquet-feed.ts';
import { type Cell, RowFault } from '../../shared/proof-log/cells.ts';
import { checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource, writeDurably } from '../../shared/proof-log/folder.ts';
import { GrowingLog } from '../../shared/proof-log/growing-log.ts';
import { httpSource } from '../../shared/proof-log/http.ts';
import { checkpointText, generateSigner, openCheckpoint } from '../../shared/proof-log/note.ts';
import { printable } from '../../shared/proof-log/printable.ts';
import { parseRotations, rotationNote } from '../../shared/proof-log/rotations.ts';
import { RowDigests } from '../../shared/proof-log/rows.ts';
import { encodeEntries, LogUnreachable, type TileSource } from '../../shared/proof-log/tiles.ts';
import { lookAt, mirror } from '../../shared/proof-log/watch.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { rowLayoutOf } from '../../shared/registry/proof-rows.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'tidemark-hostile-'));
});
afterEach(() => rm(dir, { recursive: true }));

const signer = generateSigner('log');

/** A log of leaves in a folder. @returns its last checkpoint */
async function writeLog(folder: string, leaves: number): Promise<string> {
  const log = await GrowingLog.load(folder, 0);
  for (let index = 0; index < leaves; index++) log.add(Buffer.from(`leaf ${index}`));
  await log.write();
  const note = signer.sign(checkpointText({ origin: 'log', size: log.size, root: log.root }));
  await writeDurably(join(folder, 'key'), `${signer.verifier.line}\n`);
  await writeDurably(join(folder, 'checkpoint'), note);
  return note;
}

test('a file of a service that unpacks to more than its kind can have is not read to its end', async () => {
  const bomb = brotliCompressSync(Buffer.alloc(64 * 1024 * 1024));
  const server = createServer((_, response) => response.writeHead(200, { 'Content-Encoding': 'br' }).end(bomb));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  try {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    for (const [path, limit] of [
      ['checkpoint', 65_536],
      ['rotations', 262_144],
      ['tile/1/000', 8192],
      ['tile/entries/000.p/3', 16_777_472],
    ] as const) {
      await expect(httpSource(url)(path)).rejects.toThrow(`${path} has more than ${limit} bytes`);
    }
    await expect(httpSource(url, AbortSignal.abort())('key')).rejects.toBeInstanceOf(LogUnreachable);
  } finally {
    server.close();
  }
});

test('rotations are found among anything else, however long it is', () => {
  const note = rotationNote(signer, { next: generateSigner('log').verifier, size: 3, untilMs: 0 });
  const noise = 'x'.repeat(200_000);
  expect(parseRotations(`${noise}\u2014\n\n${note}${noise}\n${note}\n\u2014 ${noise}`)).toEqual([note, note]);
  expect(parseRotations(note.slice(0, -1))).toEqual([]);
});

test('a mirror takes nothing that does not give the signed root, and is whole after the next look', async () => {
  const [log, copy] = [join(dir, 'log'), join(dir, 'copy')];
  await writeLog(log, 600);
  const source = folderSource(log);
  /** Sends something else from the second time on. */
  const swapping: TileSource = async (path) => {
    const bytes = await source(path);
    const isSecond = path === 'tile/entries/000' && seen.has(path);
    seen.add(path);
    return isSecond ? encodeEntries(Array.from({ length: 256 }, () => Buffer.from('rubbish'))) : bytes;
  };
  const seen = new Set<string>();
  const { watched, head } = await lookAt(swapping, {}, { random: () => 0.9 });
  expect(await mirror(swapping, copy, head!, watched!)).toBe(
    'the 600 leaves that were copied do not give the root that was signed',
  );
  expect(await folderSource(copy)('checkpoint')).toBeUndefined();
  expect(await mirror(source, copy, head!, watched!)).toBeUndefined();
  const keys = [signer.verifier];
  const wholeAt = async () => {
    const own = openCheckpoint(String(Buffer.from((await folderSource(copy)('checkpoint'))!)), keys);
    const { ok } = await checkMirror(own, folderSource(copy));
    return ok ? own.size : undefined;
  };
  expect(await wholeAt()).toBe(600);
  await writeLog(log, 5000);
  const next = await lookAt(source, watched!);
  expect(await mirror(source, copy, next.head!, next.watched!)).toBeUndefined();
  expect(await wholeAt()).toBe(5000);
  // An altered mirror is not continued.
  for (const [tile, width] of [
    ['tile/1/000.p/19', 19],
    ['tile/0/019.p/136', 136],
  ] as const) {
    await writeFile(join(copy, tile), Buffer.alloc(width * 32));
    expect(await mirror(source, copy, next.head!, next.watched!)).toContain('do not give its checkpoint');
  }
  await writeFile(join(copy, 'checkpoint'), 'x');
  expect(await mirror(source, copy, next.head!, next.watched!)).toContain('a checkpoint has three lines');
});

test('a damaged Parquet file is a fault of its rows, whatever its reader stumbles over', async () => {
  const layout = rowLayoutOf(datasetOf('exchange_a_spot_trades'));
  const whole = Buffer.from(parquetWriteBuffer({ columnData: [{ name: 'timestamp', data: [1n, 2n], type: 'INT64' }] }));
  const path = join(dir, 'rows.parquet');
  for (let at = whole.length - 5; at > whole.length - 60; at--) {
    await writeFile(path, Buffer.concat([whole.subarray(0, at), whole.subarray(at + 1)]));
    const digests = new RowDigests(layout, []);
    await expect(feedParquet(path, { layout, digests }, ['timestamp']), String(at)).rejects.toBeInstanceOf(RowFault);
  }
});

test('a look at a log that says to have any number of leaves reads none of them', async () => {
  const log = join(dir, 'log');
  await writeLog(log, 300);
  const asked: string[] = [];
  const counting: TileSource = (path) => {
    asked.push(path);
    return folderSource(log)(path);
  };
  const small = await lookAt(counting, {}, { maxLeaves: 299 });
  expect(small.report.faults).toEqual([
    expect.stringMatching(/^the log says 300 leaves more .* at most 299: .*--max-leaves$/),
  ]);
  expect([small.watched, asked.filter((path) => path.startsWith('tile/'))]).toEqual([undefined, []]);
  const { watched } = await lookAt(counting, {}, { maxLeaves: 300 });
  // 2^50 leaves, signed.
  const head = { origin: 'log', size: 2 ** 50, root: Buffer.alloc(32, 1) };
  await writeDurably(join(log, 'checkpoint'), signer.sign(checkpointText(head)));
  asked.length = 0;
  expect((await lookAt(counting, watched!)).report.ok).toBe(false);
  expect(asked.filter((path) => path.startsWith('tile/'))).toEqual([]);
});

test('a line of a report has no control characters of others', () => {
  expect(printable('leaf\u001b[2K \nchecked \u202e')).toBe('leaf\\u{1b}[2K \\u{a}checked \\u{202e}');
});

describe('a row of a metric', () => {
  const DOCUMENT = 'ab'.repeat(32);
  const ID = 'f12171ba09b14506d126f102ae7b31e00bbc6eebaf09135579803be162b86eb0';
  const PARTITION = 'etf_ishares_ibit_daily:2024-01-11';
  const layout = rowLayoutOf(datasetOf('etf_daily_metrics'));
  const names = [
    ...new Set([...layout.partitionFields, ...layout.columns.flatMap(({ fields }) => fields)]),
    ...layout.copies.map(({ field }) => field),
  ];
  const value = (text: Cell, int: Cell, float: Cell, bool: Cell) => ({
    metric_value_string: text,
    metric_value_int: int,
    metric_value_float: float,
    metric_value_bool: bool,
  });
  function digestOf(row: Readonly<Record<string, Cell>>): string {
    const digests = new RowDigests(layout, [{ partition: PARTITION, document_sha256: DOCUMENT }]);
    const cellsOf = (fields: readonly string[]) => fields.map((name) => row[name]);
    digests.add(
      layout.columns.map(({ fields }) => cellsOf(fields)),
      cellsOf(layout.partitionFields),
      cellsOf(layout.copies.map(({ field }) => field)),
    );
    return digests.digests()[0].sha256!;
  }
  const provenance = (id: string, document = DOCUMENT) =>
    `{"adapter":"a","artifact_id":"${id}","artifact_sha256":"${document}","fetch_method":"http","source_uri":"file:///a"}`;
  const row: Readonly<Record<string, Cell>> = {
    ...Object.fromEntries(names.map((name) => [name, name])),
    source_id: 'etf_ishares_ibit_daily',
    observed_at_utc: '2024-01-11T00:00:00.000Z',
    provenance_json: provenance(ID),
    ...value('42.5', null, 42.5, null),
  };

  test('has the channels of its text', () => {
    for (const [text, int, float, bool] of [
      ['42.5', null, 42.5, null],
      ['-7', '-7', '-7', null],
      ['7', 7n, 7, null],
      ['1e3', null, 1000, null],
      ['true', null, null, 1],
      ['false', null, null, '0'],
      ['5', null, null, null],
      [null, null, null, null],
    ] as const) {
      expect(digestOf({ ...row, ...value(text, int, float, bool) })).toMatch(/^[0-9a-f]{64}$/);
    }
    for (const [text, int, float, bool] of [
      ['42.5', null, 99999.9, null],
      ['7', 8_000_000, 7, null],
      ['7', 7, null, null],
      ['true', null, null, 0],
      ['yes', null, null, 1],
      ['true', null, 1, 1],
      [null, null, 0, null],
      ['x', null, 0, null],
    ] as const) {
      expect(() => digestOf({ ...row, ...value(text, int, float, bool) })).toThrow('is not');
    }
  });

  test('names the document of its leaf', () => {
    expect(digestOf(row)).toMatch(/^[0-9a-f]{64}$/);
    for (const other of [provenance('0'.repeat(64)), provenance(ID, 'cd'.repeat(32))]) {
      expect(() => digestOf({ ...row, provenance_json: other })).toThrow(`is not the document ${DOCUMENT} of the leaf`);
    }
  });

  test('from which its document was cut out does not have the digest of the whole one', () => {
    const cut = '{"adapter":"a","fetch_method":"http","source_uri":"file:///a"}';
    expect(() => digestOf({ ...row, provenance_json: cut })).toThrow('is not provenance with its document');
  });

  test('on a day or at an hour that no calendar has is not taken for the row of the next day', () => {
    for (const time of ['2024-01-11T00:00:00Z', '2024-01-11T00:00:00.0Z'])
      expect(digestOf({ ...row, observed_at_utc: time })).toBe(digestOf(row));
    for (const time of ['2024-01-10T24:00:00.000Z', '2024-02-30T00:00:00.000Z', '2023-02-29T00:00:00Z'])
      expect(() => digestOf({ ...row, observed_at_utc: time })).toThrow('is not an integer');
  });
});
