/** Expecting a fault by its code, with a message that tells what came instead. */
import { expect } from 'vitest';
import type { ErrorCode } from '../../shared/errors.ts';
import { TidemarkError } from '../../shared/errors.ts';

/** The fault `work` ends with; fails when it succeeds (what it made is disposed of) or fails otherwise. */
export async function faultOf(work: Promise<unknown>, code: ErrorCode): Promise<TidemarkError> {
  const outcome = await work.then(
    (value) => ({ value }),
    (error: unknown) => ({ error }),
  );
  if ('value' in outcome) {
    await (outcome.value as Partial<AsyncDisposable> | undefined)?.[Symbol.asyncDispose]?.();
    throw new Error(`no fault where ${code} is due`);
  }
  const { error } = outcome;
  if (!(error instanceof TidemarkError)) throw new Error(`${code} is due, not ${error}`, { cause: error });
  expect({ code: error.code, message: error.message }).toMatchObject({ code });
  return error;
}
