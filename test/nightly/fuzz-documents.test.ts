/** Mutated documents over all decoders, eighty thousand of `npm run fuzz -- documents`: nothing comes out but what should. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { fuzzDocuments } from '../fuzz/documents.ts';
import { SEED } from '../support/seed.ts';

test('every mutated document is read for what it is, or refused with a code and its place', async () => {
  const folder = join(import.meta.dirname, '../../.tidemark/fuzz');
  const report = await fuzzDocuments({ seed: SEED, count: 80_000, folder });
  expect(report.findings.map(({ target, what, path, stack }) => `${target}: ${what} (${path})\n${stack}`)).toEqual([]);
  expect(report.documents).toBe(80_000);
  // Changes that change nothing of what a document says, and those that are refused, both are many.
  expect(report.accepted).toBeGreaterThan(4000);
  expect(report.documents - report.accepted).toBeGreaterThan(40_000);
  for (const [target, outcomes] of Object.entries(report.outcomes))
    expect([target, outcomes > 1]).toEqual([target, true]);
});
