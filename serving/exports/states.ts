/** The states of an export as a table, and its problems and rights under the codes of exports. */
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import {
  type Admission,
  admission,
  checkRights,
  type Grant,
  mostRestrictive,
  realRowsProblem,
} from '../rights/gate.ts';

export const EXPORT_STATES = ['queued', 'running', 'succeeded', 'failed'] as const;
export type ExportState = (typeof EXPORT_STATES)[number];

export const EXPORT_EVENTS = [
  /** A worker takes the export: the first time, or after the previous worker gave it back or died. */
  'claim',
  /** A worker gives the export back because it stops or a store is unavailable. Nobody runs it until the next claim. */
  'release',
  'succeed',
  'fail',
  /** The caller cancels the export. */
  'cancel',
] as const;
export type ExportEvent = (typeof EXPORT_EVENTS)[number];

/** The event is not allowed in this state and changes nothing. */
const REFUSED = null;

/** Every state, every event, and the state that follows. The database's updates use this table. */
export const TRANSITIONS: Readonly<Record<ExportState, Readonly<Record<ExportEvent, ExportState | typeof REFUSED>>>> = {
  queued: { claim: 'running', release: REFUSED, succeed: REFUSED, fail: 'failed', cancel: 'failed' },
  running: { claim: 'running', release: 'running', succeed: 'succeeded', fail: 'failed', cancel: 'failed' },
  succeeded: { claim: REFUSED, release: REFUSED, succeed: REFUSED, fail: REFUSED, cancel: REFUSED },
  failed: { claim: REFUSED, release: REFUSED, succeed: REFUSED, fail: REFUSED, cancel: REFUSED },
};

export const isFinished = (state: ExportState): boolean => state === 'succeeded' || state === 'failed';

/** Codes of other routes and the codes of exports with the same meaning. */
const CODES: Partial<Record<ProblemCode, ProblemCode>> = {
  QUERY_CONTRACT_ERROR: 'EXPORT_CONTRACT_ERROR',
  QUERY_RIGHTS_MISSING_STATE: 'EXPORT_RIGHTS_MISSING_STATE',
  QUERY_RIGHTS_INGEST_ONLY: 'EXPORT_RIGHTS_INGEST_ONLY',
  QUERY_RIGHTS_BYOK_REQUIRED: 'EXPORT_RIGHTS_BYOK_REQUIRED',
  QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING: 'EXPORT_RIGHTS_LEGAL_SIGNOFF_MISSING',
  QUERY_RIGHTS_RESOLUTION_ERROR: 'EXPORT_RIGHTS_RESOLUTION_ERROR',
  QUERY_BACKEND_ERROR: 'EXPORT_DISPATCH_ERROR',
  QUERY_TIMEOUT: 'EXPORT_DISPATCH_ERROR',
  QUERY_RUNTIME_ERROR: 'EXPORT_RUNTIME_ERROR',
  QUERY_UNKNOWN_ERROR: 'EXPORT_RUNTIME_ERROR',
};

export function exportProblem(error: unknown): unknown {
  if (!(error instanceof Problem)) return error;
  const code = CODES[error.code];
  if (!code) return error;
  const { status: _, ...more } = error.more;
  return new Problem(code, error.message, more);
}

/** The rights of an export's datasets together. */
export interface ExportRights extends Pick<Grant, 'state' | 'provisional'> {
  readonly grants: readonly (readonly [DatasetKey, Grant])[];
  /** Checks in the snapshot of the run whether these rows may be exported. Undefined: any row may be. */
  readonly admit: Admission | undefined;
}

/** The current right to export. The caller's own credentials do not help, since the run has none. @throws Problem */
export function exportRights(rights: RightsStore, datasets: readonly DatasetDefinition[]): ExportRights {
  const grants = datasets.map((dataset) => exportGrant(rights, dataset.key as DatasetKey));
  const admissions = datasets.flatMap((dataset, index) => admission(grants[index], dataset) ?? []);
  return {
    state: mostRestrictive(grants),
    provisional: grants.some(({ provisional }) => provisional),
    grants: datasets.map(({ key }, index) => [key as DatasetKey, grants[index]]),
    admit: admissions.length === 0 ? undefined : (session) => admitAll(admissions, session),
  };
}

function exportGrant(rights: RightsStore, dataset: DatasetKey): Grant {
  try {
    return checkRights(rights, dataset, undefined);
  } catch (error) {
    if (error instanceof Problem && error.code === 'QUERY_RIGHTS_BYOK_REQUIRED') {
      throw new Problem(
        'EXPORT_RIGHTS_BYOK_REQUIRED',
        `The service serves ${dataset} only with the caller’s own credentials, and an export has none. Query the dataset instead.`,
      );
    }
    throw exportProblem(error);
  }
}

/** The checks of reads, under the codes of exports. */
async function admitAll(admissions: readonly Admission[], session: Parameters<Admission>[0]): Promise<void> {
  try {
    for (const admit of admissions) await admit(session);
  } catch (error) {
    throw exportProblem(error);
  }
}

/** Checks rows that are already written. @throws Problem EXPORT_RIGHTS_LEGAL_SIGNOFF_MISSING */
export function requireGrants({ grants }: ExportRights, rows: { readonly synthetic: boolean }): void {
  if (rows.synthetic) return;
  for (const [dataset, grant] of grants) {
    const problem = realRowsProblem(grant, dataset);
    if (problem) throw exportProblem(problem);
  }
}
