/** The media types that rows are served as. */
import { ArrowRows } from './arrow-rows.ts';
import type { OutputBuffer, RowShape, RowWriter } from './cells.ts';
import { CsvRows } from './csv-rows.ts';
import { type Envelope, envelopeMetadata, JSON_LINES, JSON_LIST, JsonRows } from './json-rows.ts';

export interface Representation {
  /** The name in Accept. */
  readonly mediaType: string;
  /** The value of Content-Type. */
  readonly contentType: string;
  /** The body holds only rows: the envelope is in headers; the row count and the body's digest are in trailers. */
  readonly rowsOnly: boolean;
  /** Begins a body. */
  open(out: OutputBuffer, shape: RowShape, envelope: Envelope): RowWriter;
}

/** In order of preference. */
export const REPRESENTATIONS: readonly Representation[] = [
  {
    mediaType: 'application/json',
    contentType: 'application/json',
    rowsOnly: false,
    open(out, shape, envelope) {
      out.text(`${JSON.stringify(envelope).slice(0, -1)},"rows":`);
      return new JsonRows(out, shape, JSON_LIST);
    },
  },
  {
    mediaType: 'application/x-ndjson',
    contentType: 'application/x-ndjson',
    rowsOnly: true,
    open: (out, shape) => new JsonRows(out, shape, JSON_LINES),
  },
  {
    mediaType: 'text/csv',
    contentType: 'text/csv; charset=utf-8; header=present',
    rowsOnly: true,
    open: (out, shape) => new CsvRows(out, shape),
  },
  {
    mediaType: 'application/vnd.apache.arrow.stream',
    contentType: 'application/vnd.apache.arrow.stream',
    rowsOnly: true,
    open: (out, shape, envelope) => new ArrowRows(out, shape, envelopeMetadata(envelope)),
  },
];
