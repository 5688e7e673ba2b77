/**
 * Every fault that an operator or a caller may meet carries a stable `code`; messages are for people and may change.
 * Codes are declared once, in `shared/error-codes.ts`, with the sentence that tells what to do about them.
 */
import { ERROR_CODES, type ErrorCode } from './error-codes.ts';

/** Facts that place a fault: document, line, offset, setting, partition ... Values must be safe to show to an operator. */
export type ErrorDetails = Readonly<Record<string, string | number | boolean | bigint | null | undefined>>;

export class TidemarkError extends Error {
  override readonly name = 'TidemarkError';
  readonly code: ErrorCode;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, message: string, options: { details?: ErrorDetails; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.details = options.details ?? {};
  }

  /** What to do about it; the same for every fault of this code. */
  get remedy(): string {
    return ERROR_CODES[this.code].remedy;
  }

  /** Whether trying the same thing again, unchanged, can help. */
  get transient(): boolean {
    return ERROR_CODES[this.code].transient;
  }
}

/** The code of any thrown value, or undefined for faults that are not ours. */
export function codeOf(error: unknown): ErrorCode | undefined {
  return error instanceof TidemarkError ? error.code : undefined;
}

/** One line for a person: message, then the chain of causes. */
export function explain(error: unknown): string {
  const parts: string[] = [];
  for (let at: unknown = error, depth = 0; at !== undefined && at !== null && depth < 5; depth++) {
    parts.push(at instanceof Error ? at.message || at.name : String(at));
    at = at instanceof Error ? at.cause : undefined;
  }
  return parts.join(': ');
}

/** An invariant of ours does not hold: a bug, never bad input. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new TidemarkError('INTERNAL_INVARIANT', message);
}
