/** What a plan is made of: the request, what its snapshot says, and the statements that answer it in order. */
import type { Range } from '../../shared/db/ranges.ts';
import { Params } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import { boundsOf, type Part, partsOf } from './coverage.ts';
import { Relation } from './relation.ts';
import type { Session, Snapshot } from './session.ts';
import { slicesOf } from './slices.ts';
import type { ReadRequest } from './types.ts';

export interface Plan {
  /** Unproved stretches the answer reaches across or past. */
  readonly gaps: readonly Range[];
  /** Proved parts the rows come from, ascending. */
  readonly parts: readonly Part[];
  readonly statements: Iterable<Statement> | AsyncIterable<Statement>;
  /** How many rows there must be, where that is known. */
  readonly expectedRows?: number;
}

export interface PlanContext {
  readonly request: ReadRequest;
  readonly snapshot: Snapshot;
  readonly relation: Relation;
  /** Proved parts of the window. */
  readonly parts: readonly Part[];
  /** End of the window, or of what is proved. */
  readonly endMs: number;
}

/** For plans that have to look further before they are made. */
export type LiveContext = PlanContext & { readonly session: Session };

export function contextOf(request: ReadRequest, snapshot: Snapshot): PlanContext {
  const bounds = boundsOf(snapshot.coverage, request.window);
  return {
    request,
    snapshot,
    relation: new Relation(request, { seriesId: snapshot.seriesId, endMs: bounds.to }),
    parts: partsOf(snapshot.coverage, bounds.from, bounds.to),
    endMs: bounds.to,
  };
}

/** All rows of the window, slice by slice; filters on the time leave slices out. */
export function* inOrder(context: PlanContext): Generator<Statement> {
  const { relation, parts } = context;
  const { from: lower, to: upper } = narrowed(context);
  for (const slice of slicesOf(parts, relation.chunkMs)) {
    const from = Math.max(slice.from, lower);
    const to = Math.min(slice.to, upper);
    if (from >= to) continue;
    const params = new Params();
    yield { text: relation.select({ from, to, part: slice.part }, params), params: params.list };
  }
}

/** What filters on the time column leave of all time. */
function narrowed({ request, relation }: PlanContext): Range {
  let from = Number.NEGATIVE_INFINITY;
  let to = Number.POSITIVE_INFINITY;
  for (const { field, bounds } of request.filters) {
    if (!bounds || !relation.isTime(field)) continue;
    from = Math.max(from, bounds.fromMs);
    to = Math.min(to, bounds.toMs);
  }
  return { from, to };
}
