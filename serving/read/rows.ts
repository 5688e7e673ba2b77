/** Rows in their order, as SQL for any slice of them: those of a table, or klines made of them. */
import type { Params } from '../db/params.ts';

export interface Rows<S> {
  /** `from ... where ...`, with the rows under the alias `t`; `where` is one more test over it. */
  from(slice: S, params: Params, more?: { readonly where?: string }): string;
  /** The answer's columns of these rows, in order. */
  select(slice: S, params: Params, where?: string): string;
  order(direction?: string): string;
  /** The order's values as text. */
  readonly key: readonly string[];
  readonly timeMs: string;
  /** A number that depends on the row's identity and a seed alone. */
  hash(seed: string): string;
}
