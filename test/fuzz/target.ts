/** What is fuzzed: a decoder with its valid documents, and what may come out of it. */
import { codeOf, TidemarkError } from '../../shared/errors.ts';
import type { Form } from './mutate.ts';

export interface Target {
  readonly name: string;
  readonly form: Form;
  /** Valid documents. */
  readonly seeds: readonly Buffer[];
  /** Words of the format, which chance would not find. */
  readonly words?: readonly string[];
  /** How often it is taken, beside the 4 of most. */
  readonly weight?: number;
  /** Packs a mutated document: with lengths and digests that are right, so that what lies behind them is reached. */
  readonly pack?: (inner: Buffer) => Buffer | Promise<Buffer>;
  /**
   * Reads a document. @returns what came out, without what differs from document to document.
   * @throws whatever may never come out of it
   */
  run(bytes: Buffer): string | Promise<string>;
}

/** What a decoder returned is not what is in the document, or its refusal says too little. */
export class Wrong extends Error {
  override readonly name = 'Wrong';
}

// biome-ignore lint/suspicious/noExplicitAny: constructors of any errors
type ErrorClass = abstract new (...args: any[]) => Error;

/** Of what somebody else wrote a few faults are said; of the operator's own settings all. */
const MAX_MESSAGE = 4000;

/** A message without what is different in each document. */
export const shapeOf = (message: string): string =>
  message
    .replaceAll(/"(?:[^"\\]|\\.)*"/g, '""')
    .replaceAll(/[0-9a-f]{16,}/g, '#')
    .replaceAll(/-?\d[\d.,:eE+-]*/g, '0')
    .slice(0, 90);

/**
 * What a refusal says, if it is one: an error with a stable code, or one of the classes that the caller of this decoder
 * turns into one.
 * @throws the error itself if it is neither
 */
export function refusal(error: unknown, ...classes: readonly ErrorClass[]): string {
  const isOfClass = classes.some((one) => error instanceof one);
  if (!(error instanceof TidemarkError) && !isOfClass) throw error;
  const { message } = error as Error;
  if (codeOf(error) === 'INTERNAL_INVARIANT') throw error;
  if (message.trim() === '') throw new Wrong('a refusal says nothing', { cause: error });
  if (message.length > MAX_MESSAGE && !/^(?:CONFIGURATION_INVALID|undefined)$/.test(String(codeOf(error))))
    throw new Wrong(`a refusal has ${message.length} characters`, { cause: error });
  if (/\[object Object\]|\bat .*\.ts:\d/.test(message))
    throw new Wrong(`a refusal shows what it should not: ${message.slice(0, 200)}`, { cause: error });
  return `${codeOf(error) ?? (error as Error).name} ${shapeOf(message)}`;
}

export function same(what: string, found: unknown, expected: unknown): void {
  const [a, b] = [JSON.stringify(found, exact), JSON.stringify(expected, exact)];
  if (a !== b) throw new Wrong(`${what}: ${String(a).slice(0, 300)} instead of ${String(b).slice(0, 300)}`);
}

const exact = (_: string, value: unknown) => (typeof value === 'bigint' ? `${value}n` : value);
