import { TidemarkError } from '../../../../shared/errors.ts';

/** The document is not what its adapter was written for; `what` names the field, label or line. */
export function unreadable(what: string, cause?: unknown): TidemarkError {
  return new TidemarkError('SOURCE_LAYOUT_UNKNOWN', what, { cause });
}

/** For messages: what stood where something else was expected. */
export function shown(value: unknown): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? 'nothing');
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}...` : text);
}
