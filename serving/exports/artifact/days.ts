/** A very large window as a file a UTC day: each day's rows by statements of their own. */
import { DAY_MS } from '../../../shared/time/days.ts';
import { type CountedStatement, inOrder, type LiveContext, type Plan } from '../../read/context.ts';
import { within } from '../../read/coverage.ts';
import { dateName } from './names.ts';

/** Rows of many series that hold on come in one piece: their windows are small, and a row of before has no day of its own. */
export function canSplit({ request, relation }: LiveContext): boolean {
  const { kind } = request.window;
  return (kind === 'range' || kind === 'history') && (relation.isOneLine || !relation.isState);
}

export async function* statementsByDay(
  live: LiveContext,
  { parts }: Plan,
  begin: (day: string) => Promise<void>,
): AsyncGenerator<CountedStatement> {
  const days = new Set<number>();
  for (const { from, to } of parts) {
    for (let day = Math.floor(from / DAY_MS); day * DAY_MS < to; day++) days.add(day);
  }
  for (const day of [...days].sort((a, b) => a - b)) {
    await begin(dateName(day * DAY_MS));
    const searched = within(parts, { from: day * DAY_MS, to: (day + 1) * DAY_MS });
    yield* inOrder({ ...live, searched });
  }
}
