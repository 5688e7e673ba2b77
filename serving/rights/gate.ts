/** May this dataset be served to this caller, now? Asked before any work, and fails closed. */
import type { DatasetKey } from '../../shared/registry/index.ts';
import { RIGHTS_STATES, type RightsState, type SourceRights } from '../../shared/rights/matrix.ts';
import { sourcesOf } from '../../shared/rights/sources.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';

export interface Grant {
  readonly state: RightsState;
  readonly provisional: boolean;
  /** The caller's own storage credential, where the state asks for one. */
  readonly token: string | undefined;
}

interface DatasetRights extends Pick<Grant, 'state' | 'provisional'> {
  readonly sources: readonly SourceRights[];
}

/** What the matrix says. @throws Problem QUERY_RIGHTS_RESOLUTION_ERROR, QUERY_RIGHTS_MISSING_STATE */
function rightsOf(store: RightsStore, dataset: DatasetKey): DatasetRights {
  const current = store.current();
  if ('faults' in current) {
    throw new Problem(
      'QUERY_RIGHTS_RESOLUTION_ERROR',
      'The rights matrix cannot be used; reads are refused until it is put right.',
    );
  }
  const sources = current.matrix.sources.filter((rights) => rights.datasets.includes(dataset));
  const undeclared = sourcesOf(dataset).filter((source) => !sources.some((rights) => rights.source === source));
  if (sources.length === 0 || undeclared.length > 0) {
    throw new Problem('QUERY_RIGHTS_MISSING_STATE', `The rights matrix does not declare every source of ${dataset}.`);
  }
  return { sources, state: mostRestrictive(sources), provisional: sources.some((rights) => rights.provisional) };
}

/** @throws Problem QUERY_RIGHTS_*, then QUERY_SERVING_SHADOW_MODE */
export function checkRights(store: RightsStore, dataset: DatasetKey, token: string | undefined): Grant {
  const { sources, state, provisional } = rightsOf(store, dataset);
  if (state === 'Ingest Only') {
    throw new Problem(
      'QUERY_RIGHTS_INGEST_ONLY',
      `${dataset} is ingested and proved, but its licence does not allow serving it.`,
    );
  }
  const blank = token === undefined || token.trim() === '';
  if (state === 'BYOK Required' && blank) {
    throw new Problem(
      'QUERY_RIGHTS_BYOK_REQUIRED',
      `${dataset} is served with the caller's own credentials: send X-Backend-Token.`,
    );
  }
  for (const rights of sources) {
    if (rights.state !== 'Hosted Allowed') continue;
    const fault = store.signoffFault(rights);
    if (fault !== undefined) {
      throw new Problem(
        'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING',
        `The legal sign-off of ${rights.source} cannot be shown: ${fault}.`,
      );
    }
  }
  if (store.isShadowed(dataset)) {
    throw new Problem(
      'QUERY_SERVING_SHADOW_MODE',
      `${dataset} is ingested and proved, and not yet promoted to serving.`,
    );
  }
  return { state, provisional, token: state === 'BYOK Required' ? token : undefined };
}

/** How things stand for callers, without refusing. */
export interface RightsReport {
  /** Null: the matrix cannot be used, or does not declare the dataset. */
  readonly rights_state: RightsState | null;
  readonly rights_provisional: boolean | null;
  readonly serving_state: 'promoted' | 'shadow';
  /** The code a read is refused with, also one with credentials of the caller's own; null: it is served. */
  readonly refused_with: ProblemCode | null;
}

export function reportRights(store: RightsStore, dataset: DatasetKey): RightsReport {
  const rights = unlessProblem(() => rightsOf(store, dataset));
  const grant = unlessProblem(() => checkRights(store, dataset, 'any'));
  return {
    rights_state: rights instanceof Problem ? null : rights.state,
    rights_provisional: rights instanceof Problem ? null : rights.provisional,
    serving_state: store.isShadowed(dataset) ? 'shadow' : 'promoted',
    refused_with: grant instanceof Problem ? grant.code : null,
  };
}

function unlessProblem<T>(work: () => T): T | Problem {
  try {
    return work();
  } catch (error) {
    if (error instanceof Problem) return error;
    throw error;
  }
}

const mostRestrictive = (sources: readonly SourceRights[]): RightsState =>
  RIGHTS_STATES.find((state) => sources.some((rights) => rights.state === state))!;
