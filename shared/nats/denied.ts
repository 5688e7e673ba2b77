/** Telling that the server refuses an account what it asks for: its rights, not its state. */
import { PermissionViolationError } from '@nats-io/transport-node';
import { TidemarkError } from '../errors.ts';

/** Whether the server refused a request because the account may not make it. */
export function isDenied(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) if (at instanceof PermissionViolationError) return true;
  return false;
}

/** @throws TidemarkError LOG_ACCOUNT_REFUSED when the account may not do `what`; what `asked` throws otherwise. */
export async function allowed<T>(asked: Promise<T>, what: string): Promise<T> {
  try {
    return await asked;
  } catch (cause) {
    if (!isDenied(cause)) throw cause;
    throw new TidemarkError('LOG_ACCOUNT_REFUSED', `The account of the log may not ${what}`, { cause });
  }
}
