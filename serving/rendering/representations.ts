/** The media types rows are served as. Another one is another entry. */
import type { Column } from './cells.ts';
import { JsonRows } from './json-rows.ts';
import type { Out } from './out.ts';

/** Writes rows into a body. */
export interface RowWriter {
  readonly rows: number;
  /** A row's `valid_to_utc_exclusive` is still open: what is written must not be handed on. */
  readonly isOpen: boolean;
  row(view: DataView, bytes: Buffer, at: number, length: number): void;
  /** The end of validity of the last row. */
  resolve(ms: number): void;
}

/** The members of the answer beside its rows. */
export type Envelope = Readonly<Record<string, unknown>>;

export interface Representation {
  readonly mediaType: string;
  /** Before the first row. */
  begin(out: Out, envelope: Envelope): void;
  rows(out: Out, columns: readonly Column[], hiddenFirst: boolean): RowWriter;
  /** After the last row. */
  end(out: Out, rows: number): void;
}

const JSON_REPRESENTATION: Representation = {
  mediaType: 'application/json',
  begin(out, envelope) {
    out.text(`${JSON.stringify(envelope).slice(0, -1)},"rows":`);
  },
  rows: (out, columns, hiddenFirst) => new JsonRows(out, columns, hiddenFirst),
  end(out, rows) {
    out.text(`${rows === 0 ? '[' : ''}],"row_count":${rows}}`);
  },
};

/** In order of preference. */
export const REPRESENTATIONS: readonly Representation[] = [JSON_REPRESENTATION];
