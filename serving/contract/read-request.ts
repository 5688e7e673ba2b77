/** What a read is asked for, the same for query, historical and export. */
import type { DatasetDefinition, Field } from '../../shared/registry/index.ts';
import type { Mode } from '../../shared/registry/types.ts';
import type { Filter } from './filters.ts';

export type Window =
  /** No selector: the proved history. */
  | { readonly kind: 'history' }
  /** [fromMs, toMs); an open side is the proved history's. */
  | { readonly kind: 'range'; readonly fromMs: number | undefined; readonly toMs: number | undefined }
  /** `selector` is the key of the request that says how many. */
  | { readonly kind: 'latest'; readonly rows: number; readonly selector: string }
  | { readonly kind: 'random'; readonly rows: number; readonly seed: number; readonly selector: string };

export interface ReadRequest {
  readonly dataset: DatasetDefinition;
  readonly mode: Mode;
  readonly fields: readonly Field[];
  readonly filters: readonly Filter[];
  readonly window: Window;
  readonly strict: boolean;
  /** Rows put together to klines of this length; fields and filters are then those of klines. */
  readonly klineMs?: number;
  /** Of a dataset with vintages: rows as they were known then. */
  readonly asOfMs?: number;
}
