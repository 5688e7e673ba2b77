/** What a read is asked for, the same for query, historical and export. */
import type { DatasetDefinition, Field, Mode } from '../../shared/registry/index.ts';
import type { Filter } from '../contract/filters.ts';

export type Window =
  /** No selector: the proved history. */
  | { readonly kind: 'history' }
  /** [fromMs, toMs); an open side is the proved history's. */
  | { readonly kind: 'range'; readonly fromMs: number | undefined; readonly toMs: number | undefined }
  | { readonly kind: 'latest'; readonly rows: number }
  | { readonly kind: 'random'; readonly rows: number; readonly seed: number };

export interface ReadRequest {
  readonly dataset: DatasetDefinition;
  readonly mode: Mode;
  readonly fields: readonly Field[];
  readonly filters: readonly Filter[];
  readonly window: Window;
  readonly strict: boolean;
}
