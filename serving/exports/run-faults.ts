/** What a fault of a run means for its export: try again, or failed, with a code and words for the caller. */
import { outageCode } from '../../shared/outage.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read/faults.ts';
import { ArtifactFault } from './artifact/index.ts';

/** Codes of exports that failed while they ran; those of problems are among them. */
const RUN_CODES = ['EXPORT_RUN_FAILED', 'EXPORT_RUN_CANCELED'] as const;
export type RunCode = (typeof RUN_CODES)[number] | ProblemCode;

export type Verdict =
  | { readonly kind: 'retry'; readonly message: string }
  | { readonly kind: 'failed'; readonly code: RunCode; readonly message: string };

const failed = (code: RunCode, message: string): Verdict => ({ kind: 'failed', code, message });

const READ_VERDICTS: Readonly<Record<ReadFaultKind, (fault: ReadFault) => Verdict>> = {
  backend: () => ({ kind: 'retry', message: 'the database is away' }),
  runtime: () => failed('EXPORT_RUN_FAILED', 'What is stored is not as declared; the operator has to look at it.'),
  aligned_contract: (fault) => failed('ALIGNED_STORAGE_CONTRACT_VIOLATION', sentence(fault.message)),
  timeout: () => failed('EXPORT_RUN_FAILED', 'The database found no further row within its time; narrow the window.'),
  no_rows: (fault) => failed('EXPORT_WINDOW_NOT_PROVED', sentence(fault.message)),
  // An export never runs with credentials of a caller.
  credentials_refused: () => failed('EXPORT_RUN_FAILED', 'The run was refused by the database.'),
  credentials_unfit: () => failed('EXPORT_RUN_FAILED', 'The run was refused by the database.'),
};

export function verdictOf(error: unknown): Verdict {
  if (error instanceof ReadFault) return READ_VERDICTS[error.kind](error);
  if (error instanceof StrictRefusal) {
    return failed('STRICT_MODE_WARNING_FAILURE', error.warnings.map(({ message }) => message).join(' '));
  }
  if (error instanceof ArtifactFault) return failed('EXPORT_RUN_FAILED', sentence(error.message));
  if (error instanceof Problem) return failed(error.code, error.message);
  if (outageCode(error) !== undefined) return { kind: 'retry', message: 'a store is away' };
  return failed('EXPORT_RUN_FAILED', 'The run failed; the fault is logged under the export’s id.');
}

const sentence = (text: string) => `${text[0].toUpperCase()}${text.slice(1)}.`;
