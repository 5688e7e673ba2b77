/** What a plan is made of: the request, what its snapshot says, and the statements that answer it in order. */
import type { Range } from '../../shared/db/ranges.ts';
import type { Field } from '../../shared/registry/index.ts';
import { Params } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import { boundsOf, type Part, partsOf, within } from './coverage.ts';
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
  /** What of them can hold rows that pass the filters. */
  readonly searched: readonly Part[];
  /** End of the window, or of what is proved. */
  readonly endMs: number;
}

/** For plans that have to look further before they are made. */
export type LiveContext = PlanContext & { readonly session: Session };

export function contextOf(request: ReadRequest, snapshot: Snapshot): PlanContext {
  const bounds = boundsOf(snapshot.coverage, request.window);
  const relation = new Relation(request, { seriesId: snapshot.seriesId, endMs: bounds.to });
  const parts = partsOf(snapshot.coverage, bounds.from, bounds.to);
  const searched = within(
    parts,
    boundsOfFilters(request, (field) => relation.isTime(field)),
  );
  return { request, snapshot, relation, parts, searched, endMs: bounds.to };
}

/** Where the filters on some fields leave their common value. */
export function boundsOfFilters(request: ReadRequest, isOne: (field: Field) => boolean): Range {
  const bounds = request.filters.flatMap((filter) => (filter.bounds && isOne(filter.field) ? [filter.bounds] : []));
  return { from: Math.max(...bounds.map((one) => one.from)), to: Math.min(...bounds.map((one) => one.to)) };
}

/** All rows of the window, slice by slice. */
export function* inOrder({ relation, searched }: PlanContext): Generator<Statement> {
  for (const slice of slicesOf(searched, relation.chunkMs)) {
    const params = new Params();
    yield { text: relation.select(slice, params), params: params.list };
  }
}
