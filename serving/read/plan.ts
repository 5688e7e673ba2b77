/** Which statements answer a request, by its window. */

import { inOrder, type LiveContext, type Plan } from './context.ts';
import { boundsOf, gapsWithin } from './coverage.ts';
import { planLatest } from './latest.ts';
import { planRandom } from './random.ts';

export async function planRead(context: LiveContext): Promise<Plan> {
  const { request, snapshot, parts } = context;
  const { window } = request;
  if (window.kind === 'latest') return await planLatest(context, window.rows);
  const gaps = gapsWithin(snapshot.coverage, boundsOf(snapshot.coverage, window));
  if (window.kind === 'random') return { gaps, parts, ...(await planRandom(context, window.rows, window.seed)) };
  return { gaps, parts, statements: inOrder(context) };
}
