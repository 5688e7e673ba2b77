/** What goes between the thread that reads rows and the one that encodes them. Buffers change hands, none is copied. */
import type { ColumnMemory } from '../../../rendering/arrow/column.ts';
import type { ArrowType } from '../../../rendering/arrow/messages.ts';

export interface EncoderColumn {
  readonly name: string;
  readonly type: ArrowType;
  readonly nullable: boolean;
  /** Texts that are long and seldom the same. */
  readonly isDocument: boolean;
}

/** What the encoder is started with. */
export interface EncoderFile {
  readonly columns: readonly EncoderColumn[];
  /** Pairs that the file's footer carries. */
  readonly facts: readonly (readonly [key: string, value: string])[];
}

/** A column of a row group, in Arrow's layout. */
export interface EncoderBatch {
  /** The values, or where texts end. */
  readonly values: Uint8Array;
  /** One bit a row, set where there is a value; empty: no nulls. */
  readonly validity: Uint8Array;
  readonly text: Uint8Array;
}

export type ToEncoder =
  | { readonly kind: 'group'; readonly rows: number; readonly columns: readonly EncoderBatch[] }
  | { readonly kind: 'end' };

export type FromEncoder =
  /** More of the file; with it, its row group is done, and its memory comes back. */
  | { readonly kind: 'bytes'; readonly bytes: Uint8Array; readonly memory: readonly ColumnMemory[] }
  /** The rest of the file. */
  | { readonly kind: 'end'; readonly bytes: Uint8Array };
