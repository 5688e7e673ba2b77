/** The end of an Arrow stream: an empty batch that says how many rows and which bytes came before it. */
import { createHash } from 'node:crypto';
import { RecordBatchReader, tableFromIPC } from 'apache-arrow';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BUFFER_BYTES, OutputBuffer } from '../../serving/render/cells.ts';
import { chooseRepresentation } from '../../serving/render/representations.ts';
import { bodyOf, type GeneratedRows, generatedRows, lastMessageAt } from '../support/generated-rows.ts';

const ARROW = chooseRepresentation('application/vnd.apache.arrow.stream');
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');
const batchesOf = (body: Buffer) => [...RecordBatchReader.from(body)];
/** Of some thousand rows: several batches, and more than one buffer. */
const many = ({ rows, ...rest }: GeneratedRows): GeneratedRows => ({
  ...rest,
  rows: Array.from({ length: Math.ceil(3000 / rows.length) }, () => rows).flat(),
});

describe('the last batch', () => {
  test('has no rows, and the row count and sha256 of what came before it', () => {
    fc.assert(
      fc.property(generatedRows, fc.boolean(), (some, isLong) => {
        const generated = isLong ? many(some) : some;
        const body = bodyOf(ARROW, generated);
        const last = batchesOf(body).at(-1)!;
        expect(last.numRows).toBe(0);
        expect(Object.fromEntries(last.metadata)).toEqual({
          row_count: String(generated.rows.length),
          sha256: sha256(body.subarray(0, lastMessageAt(body))),
        });
        expect(tableFromIPC(body).numRows).toBe(generated.rows.length);
      }),
      { numRuns: 40 },
    );
  });

  test('is missing from a stream that was cut between two batches, which readers take for whole', () => {
    const generated = many(fc.sample(generatedRows, { numRuns: 1, seed: 3 })[0]);
    const body = bodyOf(ARROW, generated);
    const cut = body.subarray(0, lastMessageAt(body));
    expect(tableFromIPC(cut).numRows).toBe(generated.rows.length);
    for (const { metadata } of batchesOf(cut)) expect([...metadata.keys()]).toEqual([]);
  });
});

test('a body that nobody hashes cannot end with its digest', () => {
  const out = new OutputBuffer({ write() {}, buffer: () => Buffer.alloc(BUFFER_BYTES) });
  const writer = ARROW.open(out, { columns: [], hiddenFirst: false }, {});
  expect(() => writer.end()).toThrow('keeps no digest');
});
