/** The client in a Node between the oldest it supports and this one; client-platforms.test.ts has those two. */
import { expect, test } from 'vitest';
import { EXPECTED, noNode, openClientSite } from '../support/client-site.ts';

// npm brings this Node, which takes seconds; what the client uses is in the oldest already.
test('in Node 22', async (context) => {
  using site = await openClientSite();
  const outcomes = await site.outcomesInNode(22);
  if (!outcomes) return context.skip(noNode(22));
  expect(outcomes).toEqual(EXPECTED);
});
