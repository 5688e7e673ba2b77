/** A backfill of issuers' archives that is killed again and again. */
import { test } from 'vitest';
import { marketDays } from '../support/etf.ts';
import { expectSameAfterKills } from '../support/etf-kills.ts';

test('killed at any instant, started again: every capture once, and the digests of an undisturbed run', async () => {
  await expectSameAfterKills(marketDays('2025-06-02', 4), [0, 8, 20]);
});
