/** Events as storage rows: what the two sides of the log have in common. Sources, projector and proofs import it. */
import type { Window } from '../../shared/registry/partitions.ts';
import type { SecondsRule } from '../../shared/registry/types.ts';

export interface PartitionWindow extends Window {
  readonly key: string;
}

/** Folds the event bytes of one partition into storage rows. One instance per partition attempt. */
export interface RowProjector {
  /**
   * Binary COPY rows (no header or trailer) of a frame's events, in the native table's column order. `rows` is how many
   * there must be; `copy` is good until the third call after. @throws TidemarkError LOG_FRAME_CORRUPT when there are not.
   */
  rows(raw: Buffer, rows: number): { readonly copy: Buffer; readonly rows: number };
}

/** Of datasets whose seconds are one partition's alone: one-second rows are folded while rows go by. */
export interface FoldingProjector extends RowProjector {
  /** At the end, once: binary COPY rows of the aligned storage for everything seen; columns as in `alignedColumns`. */
  aligned(key: { datasetId: number; seriesId: number }): { readonly copy: Buffer; readonly rows: number };
}

/** Of datasets whose seconds partitions share: the database makes one-second rows from native rows. */
export type SharedSeconds = SecondsRule;

/** Of datasets whose seconds are one partition's alone. */
export interface FoldingProjection {
  readonly createRows: (partition: PartitionWindow) => FoldingProjector;
  /** Columns that are folded. */
  readonly alignedColumns: readonly string[];
  readonly seconds?: undefined;
}

/** What the projector and the proofs need to know of a dataset beside its declaration. */
export type Projection =
  | FoldingProjection
  | { readonly createRows: (partition: PartitionWindow) => RowProjector; readonly seconds: SharedSeconds };
