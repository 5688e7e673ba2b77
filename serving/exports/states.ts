import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { type Admission, admission, checkRights, type Grant, realRowsProblem } from '../rights/gate.ts';

/** The life of an export, as a table: every state, every event, and what follows. The database's updates are made from it. */

export const EXPORT_STATES = ['queued', 'running', 'succeeded', 'failed'] as const;
export type ExportState = (typeof EXPORT_STATES)[number];

export const EXPORT_EVENTS = [
  /** A worker takes it: the first time, or after the one before gave it back or died. */
  'claim',
  /** A worker gives it back: it is stopped, or a store is away. Nobody runs it then; it is claimed again. */
  'release',
  'succeed',
  'fail',
  /** The caller wants it no longer. */
  'cancel',
] as const;
export type ExportEvent = (typeof EXPORT_EVENTS)[number];

/** The event means nothing in this state, and changes nothing. */
const REFUSED = null;

export const TRANSITIONS: Readonly<Record<ExportState, Readonly<Record<ExportEvent, ExportState | typeof REFUSED>>>> = {
  queued: { claim: 'running', release: REFUSED, succeed: REFUSED, fail: 'failed', cancel: 'failed' },
  running: { claim: 'running', release: 'running', succeed: 'succeeded', fail: 'failed', cancel: 'failed' },
  succeeded: { claim: REFUSED, release: REFUSED, succeed: REFUSED, fail: REFUSED, cancel: REFUSED },
  failed: { claim: REFUSED, release: REFUSED, succeed: REFUSED, fail: REFUSED, cancel: REFUSED },
};

export const isFinished = (state: ExportState): boolean => state === 'succeeded' || state === 'failed';

/* Problems of other routes under the codes of exports. */

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

/** The right to export, now. Credentials of the caller's own are of no use: the run has none. @throws Problem */
export function exportGrant(rights: RightsStore, dataset: DatasetKey): Grant {
  try {
    return checkRights(rights, dataset, undefined);
  } catch (error) {
    if (error instanceof Problem && error.code === 'QUERY_RIGHTS_BYOK_REQUIRED') {
      throw new Problem(
        'EXPORT_RIGHTS_BYOK_REQUIRED',
        `${dataset} is served with the caller's own credentials alone, and an export has none: query it.`,
      );
    }
    throw exportProblem(error);
  }
}

/** `admission`, under the codes of exports. */
export function exportAdmission(grant: Grant, dataset: DatasetDefinition): Admission | undefined {
  const admit = admission(grant, dataset);
  return (
    admit &&
    (async (session) => {
      try {
        await admit(session);
      } catch (error) {
        throw exportProblem(error);
      }
    })
  );
}

/** Of rows that have been written already. @throws Problem EXPORT_RIGHTS_LEGAL_SIGNOFF_MISSING */
export function requireGrantOf(grant: Grant, dataset: DatasetKey, rows: { readonly synthetic: boolean }): void {
  const problem = rows.synthetic ? undefined : realRowsProblem(grant, dataset);
  if (problem) throw exportProblem(problem);
}
