import fc from 'fast-check';
import { expect, test } from 'vitest';
import { FoundRows } from '../../serving/read/plan/found-rows.ts';
import { runs } from '../support/seed.ts';

/** A cell as the server sends it. */
const cellOf = (bytes: Buffer | string | null) => {
  const length = Buffer.alloc(4);
  length.writeInt32BE(bytes === null ? -1 : Buffer.from(bytes).length);
  return Buffer.concat([length, Buffer.from(bytes ?? '')]);
};

/** Gives the rows, each within a larger piece as they arrive, and overwrites the piece after each. */
function keep(rows: readonly { readonly key: string; readonly ms: number; readonly cells: Buffer }[]): FoundRows {
  const kept = new FoundRows(2);
  for (const { key, ms, cells } of rows) {
    const row = Buffer.concat([cellOf(key), cellOf(String(ms)), cells]);
    const piece = Buffer.concat([Buffer.from('abc'), row, Buffer.from('def')]);
    kept.row(new DataView(piece.buffer, piece.byteOffset, piece.byteLength), piece, 3, row.length);
    piece.fill(0);
  }
  return kept;
}

async function given(kept: FoundRows): Promise<Buffer[]> {
  const found: Buffer[] = [];
  let areOne = true;
  await kept.giveTo({
    row(view, bytes, at, length) {
      areOne &&= view.byteLength === bytes.byteLength && view.getInt8(at) === bytes.readInt8(at);
      found.push(Buffer.from(bytes.subarray(at, at + length)));
    },
  });
  expect(areOne).toBe(true);
  return found;
}

test('rows come back in the other order, without what led them', async () => {
  const row = fc.record({
    key: fc.string(),
    ms: fc.nat(),
    cells: fc
      .array(fc.option(fc.uint8Array({ maxLength: 100 })), { minLength: 1, maxLength: 5 })
      .map((cells) => Buffer.concat(cells.map((cell) => cellOf(cell && Buffer.from(cell))))),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(row, { maxLength: 40, size: 'max' }), async (rows) => {
      const kept = keep(rows);
      expect([kept.rows, kept.areAll]).toEqual([rows.length, true]);
      expect(await given(kept)).toEqual(rows.map(({ cells }) => cells).toReversed());
      const last = rows.at(-1);
      if (last) expect(kept.oldest).toEqual({ key: [Buffer.from(last.key).toString()], ms: last.ms });
    }),
    { numRuns: runs(20) },
  );
});

test('more than a MiB is not kept; the oldest row is known all the same', async () => {
  const wide = (at: number) => ({ key: `k${at}`, ms: at, cells: cellOf('x'.repeat(1020)) });
  const rows = Array.from({ length: 1025 }, (_, at) => wide(at));
  const most = keep(rows.slice(1));
  expect(most.areAll).toBe(true);
  expect(await given(most)).toEqual(
    rows
      .slice(1)
      .map(({ cells }) => cells)
      .toReversed(),
  );
  const kept = keep(rows);
  expect([kept.areAll, kept.rows, kept.oldest]).toEqual([false, 1025, { key: ['k1024'], ms: 1024 }]);
  // A narrow row after it may fit.
  expect(keep([...rows, { key: '', ms: 0, cells: cellOf(null) }]).areAll).toBe(false);
});
