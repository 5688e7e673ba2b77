/** What a caller asks to read. Query, historical and export requests all produce it. */

import type { Mode } from '../../shared/registry/definition.ts';
import type { DatasetDefinition, Field } from '../../shared/registry/index.ts';
import type { Filter } from './filters.ts';

export type Window =
  /** No selector: the whole proved history. */
  | { readonly kind: 'history' }
  /** [fromMs, toMs); an open side extends to the end of the proved history. */
  | {
      readonly kind: 'range';
      readonly fromMs: number | undefined;
      readonly toMs: number | undefined;
      /** The rows whose time lies in the window and no others, each with its whole validity. */
      readonly whole?: true;
    }
  /** `selector` is the request's key that holds the number of rows. */
  | { readonly kind: 'latest'; readonly rows: number; readonly selector: string }
  | { readonly kind: 'random'; readonly rows: number; readonly seed: number; readonly selector: string };

export interface ReadRequest {
  readonly dataset: DatasetDefinition;
  readonly mode: Mode;
  readonly fields: readonly Field[];
  readonly filters: readonly Filter[];
  readonly window: Window;
  readonly strict: boolean;
  /** Whether silences of the dataset are warned of. */
  readonly silences?: 'warn';
  /** When set, rows are aggregated to klines of this length, and fields and filters are those of klines. */
  readonly klineMs?: number;
  /** For a dataset with vintages: the read returns rows as they were known at this time. */
  readonly asOfMs?: number;
}
