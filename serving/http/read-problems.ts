/** What the read core reports, as answers of HTTP: one mapping for every route that reads. */
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read/faults.ts';
import { ClientGone } from './client-gone.ts';

export const strictProblem = (warnings: StrictRefusal['warnings']) =>
  new Problem('STRICT_MODE_WARNING_FAILURE', warnings.map((warning) => warning.message).join(' '), { warnings });

/** Codes of the same meaning, one set an access style; what is common to all has one code. */
export type ProblemFamily = 'QUERY' | 'HISTORICAL';

/** The fault's own message is meant for the caller. */
const AS_TOLD = null;

const READ_PROBLEMS: Readonly<
  Record<
    ReadFaultKind,
    { readonly code: (family: ProblemFamily) => ProblemCode; readonly detail: string | typeof AS_TOLD }
  >
> = {
  backend: {
    code: (family) => `${family}_BACKEND_ERROR`,
    detail: 'The database is not reachable or could not run the read.',
  },
  runtime: {
    code: (family) => `${family}_RUNTIME_ERROR`,
    detail: 'What is stored is not as declared; the operator has to look at it.',
  },
  aligned_contract: { code: () => 'ALIGNED_STORAGE_CONTRACT_VIOLATION', detail: AS_TOLD },
  timeout: { code: () => 'QUERY_TIMEOUT', detail: 'Narrow the window or the filters, or ask again later.' },
  no_rows: { code: (family) => `${family}_NO_DATA`, detail: AS_TOLD },
  credentials_refused: {
    code: () => 'QUERY_RIGHTS_BYOK_REFUSED',
    detail: 'X-Backend-Token is not the password of the read role.',
  },
  credentials_unfit: {
    code: () => 'QUERY_RIGHTS_RESOLUTION_ERROR',
    detail: 'The role for callers with their own credentials is not fit for it; the operator has to look at it.',
  },
};

/** `contractViolationStatus`: of the dataset that was read. */
export function toProblem(error: unknown, contractViolationStatus?: number, family: ProblemFamily = 'QUERY'): unknown {
  // Nobody is left to be told, and nothing went wrong.
  if (error instanceof Problem || error instanceof ClientGone) return error;
  if (error instanceof StrictRefusal) return strictProblem(error.warnings);
  if (error instanceof ReadFault) {
    const { code: codeOf, detail } = READ_PROBLEMS[error.kind];
    const code = codeOf(family);
    const { warnings } = error;
    return new Problem(code, detail ?? `${error.message[0].toUpperCase()}${error.message.slice(1)}.`, {
      cause: error,
      ...(warnings.length > 0 && { warnings }),
      ...(error.kind === 'aligned_contract' && { status: contractViolationStatus }),
    });
  }
  return new Problem(`${family}_UNKNOWN_ERROR`, 'The fault is logged under the request id.', { cause: error });
}
