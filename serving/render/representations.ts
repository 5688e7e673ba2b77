/** The media types that rows are served as, and the choice among them that an Accept header makes. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import { Problem } from '../contract/problems.ts';
import type { CsvFormulas } from '../contract/shapes.ts';
import { ArrowRows } from './arrow-rows.ts';
import type { OutputBuffer, RowShape, RowWriter } from './cells.ts';
import { CsvRows } from './csv-rows.ts';
import { type ClosingMembers, type Envelope, envelopeMetadata, JSON_LINES, JsonRows, jsonList } from './json-rows.ts';
import { CODINGS, type Coding } from './response.ts';

export interface Representation {
  /** The name in Accept. */
  readonly mediaType: string;
  /** The value of Content-Type. */
  readonly contentType: string;
  /** The body holds only rows: the envelope is in headers; the row count and the body's digest are in trailers. */
  readonly rowsOnly: boolean;
  /** Begins a body. */
  open(out: OutputBuffer, shape: RowShape, envelope: Envelope, closing?: ClosingMembers): RowWriter;
}

const CSV = 'text/csv';

/** In order of preference. */
export const REPRESENTATIONS: readonly Representation[] = [
  {
    mediaType: 'application/json',
    contentType: 'application/json',
    rowsOnly: false,
    open(out, shape, envelope, closing) {
      out.text(`${JSON.stringify(envelope).slice(0, -1)},"rows":`);
      return new JsonRows(out, shape, jsonList(closing));
    },
  },
  {
    mediaType: 'application/x-ndjson',
    contentType: 'application/x-ndjson',
    rowsOnly: true,
    open: (out, shape) => new JsonRows(out, shape, JSON_LINES),
  },
  {
    mediaType: CSV,
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

/** CSV whose texts no spreadsheet takes for formulas. */
const ESCAPED_CSV: Representation = {
  ...REPRESENTATIONS.find(({ mediaType }) => mediaType === CSV)!,
  open: (out, shape) => new CsvRows(out, shape, 'escape'),
};

/** The form with what the body asks of its cells. @returns undefined where the form cannot do it */
export function withFormulas(form: Accepted, formulas: CsvFormulas | undefined): Accepted | undefined {
  if (formulas === undefined) return form;
  return form.representation.mediaType === CSV ? { ...form, representation: ESCAPED_CSV } : undefined;
}

/** The form of an answer with rows. */
export interface Accepted {
  readonly representation: Representation;
  /** Undefined: the answer is not encoded. */
  readonly coding: Coding | undefined;
}

/** Negotiates the answer and sets Vary to the headers it depends on. @throws Problem NOT_ACCEPTABLE */
export function accepted({ headers }: IncomingMessage, response: ServerResponse): Accepted {
  response.appendHeader('Vary', 'Accept, Accept-Encoding');
  return {
    representation: chooseRepresentation(headers.accept),
    coding: chooseCoding(headers['accept-encoding'] as string | undefined),
  };
}

interface Preference {
  /** In lower case, without parameters. */
  readonly name: string;
  readonly quality: number;
}

/** @throws Problem NOT_ACCEPTABLE */
export function chooseRepresentation(accept: string | undefined): Representation {
  const choices = choicesOf(accept);
  if (choices.length === 0) return REPRESENTATIONS[0];
  const best = bestOf(REPRESENTATIONS, ({ mediaType }) => qualityOfType(choices, mediaType));
  if (best) return best;
  const known = REPRESENTATIONS.map(({ mediaType }) => mediaType).join(', ');
  throw new Problem(
    'NOT_ACCEPTABLE',
    `The Accept header names no type that rows are served as. Accept one of ${known}.`,
  );
}

/** The client's preference for a media type, 0 to 1. */
export function mediaQuality(accept: string | undefined, mediaType: string): number {
  const choices = choicesOf(accept);
  return choices.length === 0 ? 1 : qualityOfType(choices, mediaType);
}

/** The most specific media range that matches decides. */
function qualityOfType(choices: readonly Preference[], mediaType: string): number {
  const all = `${mediaType.split('/')[0]}/*`;
  return qualityOf(choices, mediaType) ?? qualityOf(choices, all) ?? qualityOf(choices, '*/*') ?? 0;
}

/** Below every quality that a client can state (three decimals), so that codings the client did not name come last. */
const UNNAMED = 0.0001;

/** @returns undefined when the answer is not encoded. @throws Problem NOT_ACCEPTABLE */
export function chooseCoding(acceptEncoding: string | undefined): Coding | undefined {
  const choices = choicesOf(acceptEncoding).map(({ name, quality }) => ({
    name: name.replace(/^x-gzip$/, 'gzip'),
    quality,
  }));
  if (choices.length === 0) return undefined;
  const any = qualityOf(choices, '*');
  const coding = bestOf(CODINGS, ({ name }) => qualityOf(choices, name) ?? 0);
  const ofCoding = coding ? qualityOf(choices, coding.name)! : 0;
  // An unencoded answer is acceptable unless the client rules it out; a bare `*` prefers none of the codings.
  const plain = qualityOf(choices, 'identity') ?? (any === undefined ? UNNAMED : any);
  if (plain > ofCoding) return undefined;
  if (coding) return coding;
  const unnamed = CODINGS.find(({ name }) => qualityOf(choices, name) === undefined);
  if (unnamed && any) return unnamed;
  const known = CODINGS.map(({ name }) => name).join(', ');
  throw new Problem(
    'NOT_ACCEPTABLE',
    `The Accept-Encoding header names no coding of this service and rules out an unencoded answer. Accept ${known} or identity.`,
  );
}

/** The offer with the highest quality, the first of equals; undefined where every quality is 0. */
function bestOf<T>(offers: readonly T[], quality: (offer: T) => number): T | undefined {
  let best: T | undefined;
  for (const offer of offers) if (quality(offer) > (best === undefined ? 0 : quality(best))) best = offer;
  return best;
}

/** When the header names a choice twice, the first mention counts. */
const qualityOf = (choices: readonly Preference[], name: string): number | undefined =>
  choices.find((choice) => choice.name === name)?.quality;

function choicesOf(header: string | undefined): Preference[] {
  if (header === undefined) return [];
  return header
    .split(',')
    .map(parseChoice)
    .filter(({ name }) => name !== '');
}

function parseChoice(text: string): Preference {
  const [name, ...parameters] = text.split(';').map((part) => part.trim().toLowerCase());
  const q = parameters.find((parameter) => /^q\s*=/.test(parameter))?.replace(/^q\s*=\s*/, '');
  // An unreadable quality rules the choice out; it does not count as the highest.
  const quality = q === undefined ? 1 : q === '' ? 0 : Number(q);
  return { name, quality: quality >= 0 && quality <= 1 ? quality : 0 };
}
