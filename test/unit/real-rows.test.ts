/** The real rows and headers of test/data/real, held against answers that were computed without this project's code. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { hasItsWork, readHeader, writeHeader } from '../../pipelines/sources/bitcoin/wire/block.ts';
import { displayHash, sha256d, WireReader } from '../../pipelines/sources/bitcoin/wire/bytes.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { exactDecimal, TEN } from '../support/decimals.ts';
import { LAYOUTS } from '../support/trade-layouts.ts';
import { decodeFile, factsOf, rawOf } from '../support/trades.ts';

const FOLDER = join(import.meta.dirname, '../data/real');
const read = (name: string) => readFileSync(join(FOLDER, name));
const ANSWERS = JSON.parse(read('answers.json').toString());
const fail = (message: string) => new TidemarkError('INTERNAL_INVARIANT', message);
const TRADES = Object.keys(ANSWERS).filter((name) => name.startsWith('exchange_'));
/** Totals of manifests are in units of 10^-8, exact decimals of tests in 10^-30. */
const units = (text: string) => String(exactDecimal(text) / TEN ** 22n);

describe.each(TRADES)('%s', (name) => {
  const { layout: key, day, sums, ...known } = ANSWERS[name];
  const layout = LAYOUTS.find(({ dataset }) => dataset.key === key)!;
  const file = read(name);

  test.each([[undefined], [[1]], [[7, 64]]])('is read, in pieces of %j bytes, for what it is', (pieces) => {
    const items = decodeFile(layout, file, { day, pieces });
    const { totals, ...facts } = factsOf(items)!;
    expect(facts).toMatchObject({ ...known, gaps: 0 });
    const summed = Object.keys(totals).filter((column) => sums[column] !== undefined);
    expect(summed.length).toBeGreaterThan(0);
    for (const column of summed) expect([column, totals[column]]).toEqual([column, units(sums[column])]);
    expect(file.toString().endsWith(rawOf(items))).toBe(true);
  });
});

test('the first block headers of the main chain: each has its work, follows the one before it, and is written as it was read', () => {
  const known = ANSWERS['bitcoin-headers-1-20.txt'];
  const lines = read('bitcoin-headers-1-20.txt').toString().trimEnd().split('\n');
  const headers = lines.map((line) => readHeader(new WireReader(Buffer.from(line, 'hex'), fail)));
  expect(headers.map((header) => writeHeader(header).toString('hex'))).toEqual(lines);
  let before = known.first_prev_hash;
  for (const header of headers) {
    expect(displayHash(header.prevHash)).toBe(before);
    const hash = sha256d(writeHeader(header));
    expect([hasItsWork(hash, header.bits), header.bits]).toEqual([true, Number(known.bits)]);
    before = displayHash(hash);
  }
  expect(before).toBe(known.last_hash);
  expect(headers.reduce((sum, { time }) => sum + time, 0)).toBe(known.times_sum);
  expect(headers.reduce((sum, { nonce }) => sum + nonce, 0)).toBe(known.nonces_sum);
});
