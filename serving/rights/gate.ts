/** May this dataset be served to this caller, now? Asked before any work, and fails closed. */
import type { DatasetKey } from '../../shared/registry/index.ts';
import { Problem } from '../contract/problems.ts';
import { RIGHTS_STATES, type RightsState, type SourceRights } from './matrix.ts';
import { requiredSources } from './sources.ts';
import type { RightsStore } from './store.ts';

export interface Grant {
  readonly state: RightsState;
  readonly provisional: boolean;
  /** The caller's own storage credential, where the state asks for one. */
  readonly token: string | undefined;
}

/** @throws Problem QUERY_RIGHTS_* */
export function checkRights(store: RightsStore, dataset: DatasetKey, token: string | undefined): Grant {
  const current = store.current();
  if ('faults' in current) {
    throw new Problem(
      'QUERY_RIGHTS_RESOLUTION_ERROR',
      'The rights matrix cannot be used; reads are refused until it is put right.',
    );
  }
  const sources = current.matrix.sources.filter((rights) => rights.datasets.includes(dataset));
  const undeclared = requiredSources(dataset).filter((source) => !sources.some((rights) => rights.source === source));
  if (sources.length === 0 || undeclared.length > 0) {
    throw new Problem('QUERY_RIGHTS_MISSING_STATE', `The rights matrix does not declare every source of ${dataset}.`);
  }
  const state = mostRestrictive(sources);
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
  return {
    state,
    provisional: sources.some((rights) => rights.provisional),
    token: state === 'BYOK Required' ? token : undefined,
  };
}

const mostRestrictive = (sources: readonly SourceRights[]): RightsState =>
  RIGHTS_STATES.find((state) => sources.some((rights) => rights.state === state))!;
