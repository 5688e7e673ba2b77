/** Decides whether a dataset may be served to a caller now. The check precedes any work and fails closed. */
import { type Settings, settingValue } from '../../shared/config/settings.ts';
import { DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import { OWN_MATRIX_REMEDY } from '../../shared/rights/form.ts';
import { RIGHTS_STATES, type RightsState, type SourceRights, sourcesOf } from '../../shared/rights/matrix.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { int2, Params } from '../db/pg-messages.ts';
import type { Session } from '../read/snapshot/session.ts';

export interface Grant {
  readonly state: RightsState;
  readonly provisional: boolean;
  /** The caller's own storage credential, if the state requires one. */
  readonly token: string | undefined;
  /** Why only synthetic rows may be served: see `admission`. Undefined: any row may be served. */
  readonly syntheticOnly: string | undefined;
}

interface DatasetRights extends Pick<Grant, 'state' | 'provisional'> {
  readonly sources: readonly SourceRights[];
}

/** The matrix's entry for a dataset. @throws Problem QUERY_RIGHTS_RESOLUTION_ERROR, QUERY_RIGHTS_MISSING_STATE */
function rightsOf(store: RightsStore, dataset: DatasetKey): DatasetRights {
  const current = store.current();
  if ('faults' in current) {
    throw new Problem(
      'QUERY_RIGHTS_RESOLUTION_ERROR',
      'The rights matrix is invalid, and the service refuses all reads. The operator has to correct the matrix.',
    );
  }
  const sources = current.matrix.sources.filter((rights) => rights.datasets.includes(dataset));
  const undeclared = sourcesOf(dataset).filter((source) => !sources.some((rights) => rights.source === source));
  if (sources.length === 0 || undeclared.length > 0) {
    throw new Problem(
      'QUERY_RIGHTS_MISSING_STATE',
      `The rights matrix does not declare every source of ${dataset}. The operator has to add them.`,
    );
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
      `The service serves ${dataset} only with the caller’s own credentials. Send X-Backend-Token.`,
    );
  }
  let syntheticOnly: string | undefined;
  for (const rights of sources) {
    if (rights.state !== 'Hosted Allowed') continue;
    const { fault, syntheticOnly: why } = store.signoff(rights);
    if (fault !== undefined) {
      throw new Problem(
        'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING',
        `The legal sign-off of ${rights.source} cannot be shown: ${fault}.`,
      );
    }
    if (why !== undefined) syntheticOnly ??= `the legal sign-off of ${rights.source} is ${why}`;
  }
  if (store.isShadowed(dataset)) {
    throw new Problem(
      'QUERY_SERVING_SHADOW_MODE',
      `${dataset} is ingested and proved, but the operator has not promoted it to serving yet.`,
    );
  }
  return { state, provisional, token: state === 'BYOK Required' ? token : undefined, syntheticOnly };
}

/** The problem of real rows under a grant for synthetic ones. @returns undefined where the grant covers real rows. */
export function realRowsProblem({ syntheticOnly }: Grant, dataset: DatasetKey): Problem | undefined {
  if (syntheticOnly === undefined) return undefined;
  return new Problem(
    'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING',
    `The service may not serve rows of ${dataset} that are not synthetic: ${syntheticOnly}. ${OWN_MATRIX_REMEDY}`,
  );
}

/** Runs in the snapshot that the rows come from. @throws Problem QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING */
export type Admission = (session: Pick<Session, 'rows'>) => Promise<void>;

/** True if anything real is proved, or anything proved is not known to be synthetic. */
const HOLDS_REAL = `select exists (select from coverage where dataset_id = $1 and not synthetic and proved <> '{}')
  or exists (select from partitions where dataset_id = $1 and state = 'proved' and not synthetic)`;

/**
 * A grant for synthetic rows only must be checked against the rows themselves. A check before the read is not enough: a real
 * partition may be proved between the two. @returns undefined where there is nothing to check.
 */
export function admission(grant: Grant, dataset: Pick<DatasetDefinition, 'key' | 'number'>): Admission | undefined {
  const problem = realRowsProblem(grant, dataset.key as DatasetKey);
  if (!problem) return undefined;
  return async (session) => {
    const params = new Params();
    params.add(int2(dataset.number));
    const [[holdsReal]] = await session.rows(HOLDS_REAL, params);
    if (holdsReal !== 'f') throw problem;
  };
}

/** Whether a caller may have the salt of a leaf, which opens what the leaf commits to. */
export type MayOpen = (dataset: string, synthetic: boolean) => boolean;

/**
 * Those who may read rows without credentials of their own may have their salts. Every call of `openers` asks the matrix anew, and
 * once a dataset.
 */
export function openers(store: RightsStore): MayOpen {
  const grants = new Map<string, Grant | Problem>();
  return (dataset, synthetic) => {
    const grant = grants.get(dataset) ?? unlessProblem(() => checkRights(store, dataset as DatasetKey, undefined));
    grants.set(dataset, grant);
    return !(grant instanceof Problem) && (synthetic || grant.syntheticOnly === undefined);
  };
}

/** The rights of a dataset, reported without refusing. */
export interface RightsReport {
  /** Null: the matrix is invalid, or does not declare the dataset. */
  readonly rights_state: RightsState | null;
  readonly rights_provisional: boolean | null;
  readonly serving_state: 'promoted' | 'shadow';
  /** The code that refuses reads, even with the caller's own credentials; null: the dataset is served. */
  readonly refused_with: ProblemCode | null;
}

/** @param holdsReal whether rows are proved, of any instrument, that do not belong to the sample. */
export function reportRights(store: RightsStore, dataset: DatasetKey, holdsReal: boolean): RightsReport {
  const rights = unlessProblem(() => rightsOf(store, dataset));
  const grant = unlessProblem(() => {
    const found = checkRights(store, dataset, 'any');
    return (holdsReal && realRowsProblem(found, dataset)) || found;
  });
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

export const mostRestrictive = (sources: readonly Pick<SourceRights, 'state'>[]): RightsState =>
  RIGHTS_STATES.find((state) => sources.some((rights) => rights.state === state))!;

/** The datasets that are not served as a whole: a setting, named in their declaration, holds them in shadow. */
export function shadowedBy(settings: Settings): ReadonlySet<DatasetKey> {
  const shadowed = [...DATASETS.values()].filter(
    ({ servingState }) => servingState !== undefined && settingValue(settings, servingState) === 'shadow',
  );
  return new Set(shadowed.map(({ key }) => key as DatasetKey));
}
