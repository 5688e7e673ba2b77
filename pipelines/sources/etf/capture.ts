/** A document of a fund, read: which day it is of, and what it says of it. */
import { TidemarkError } from '../../../shared/errors.ts';
import { DAY_MS, dayKey, parseDay } from '../../../shared/time/days.ts';
import { LISTED_YEARS } from '../../../shared/time/market-days.ts';
import type { RecordedEvent } from '../records/record-frames.ts';
import { eventsOf, recordOf } from './events.ts';
import type { Issuer } from './issuers/types.ts';
import { metricsOf } from './parse/facts.ts';

/** What is known of a document beside its bytes. */
export interface Seen {
  /** Its name to people. */
  readonly name: string;
  readonly atMs: number;
  /** The day that was asked for; the document has to be of it. */
  readonly askedDay?: string;
  /** The day it is filed under: what a document is of that names no day. */
  readonly filedDay?: string;
}

export interface Capture {
  /** `YYYY-MM-DD`. */
  readonly asOf: string;
  /** In the order of their offsets; none where the issuer says that the day has no data. */
  readonly events: readonly RecordedEvent[];
  /** Of what it says of the fund; none where there are no events. */
  readonly recordSha256?: string;
}

/** Before, there was no such fund on an exchange: a date like this is a slip. */
const FIRST_DAY = `${LISTED_YEARS.first}-01-01`;
/** Issuers publish a day some days late. Only after that is "no data" said of the day, and not of the hour. */
const NO_DATA_AFTER_DAYS = 7;

/** @throws TidemarkError naming fund, document and place for what is not the fund's document. Nothing is written then. */
export const readCapture = (issuer: Issuer, bytes: Uint8Array, seen: Seen): Capture =>
  reading(issuer, seen.name, () => captureOf(issuer, textOf(bytes), seen));

/** The path of the document that a page names. @throws like `readCapture`. */
export const pathBehind = (issuer: Issuer, page: Uint8Array, name: string): string =>
  reading(issuer, name, () => issuer.document.next!(textOf(page)));

function reading<T>(issuer: Issuer, name: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof TidemarkError)) throw error;
    const details = { fund: issuer.ticker, source_id: issuer.sourceId, document: name };
    throw new TidemarkError(error.code, `${describe(issuer, name)}: ${error.message}`, {
      details,
      cause: error.cause,
    });
  }
}

function captureOf(issuer: Issuer, text: string, { atMs, askedDay, filedDay }: Seen): Capture {
  if (issuer.saysNoData?.(text)) return withoutData(askedDay ?? filedDay, atMs);
  const facts = issuer.parse(text);
  const metrics = metricsOf({ issuer: issuer.issuer, ticker: issuer.ticker, ...facts });
  const asOf = String(facts.as_of_date);
  if (asOf > dayKey(atMs)) throw outside(`the as-of date ${asOf} is in the future`);
  if (asOf < FIRST_DAY) throw outside(`the as-of date ${asOf} is before ${FIRST_DAY}, when there was no such fund`);
  if (askedDay !== undefined && asOf !== askedDay) throw outside(`it is as of ${asOf}, and ${askedDay} was asked for`);
  return { asOf, events: eventsOf(issuer, metrics, parseDay(asOf)!), recordSha256: recordOf(issuer, metrics) };
}

function withoutData(day: string | undefined, atMs: number): Capture {
  if (day === undefined) {
    throw new TidemarkError('SOURCE_EMPTY', 'the issuer says that it has no data, and no day was asked for');
  }
  const ageDays = Math.floor((atMs - parseDay(day)!) / DAY_MS);
  if (ageDays >= NO_DATA_AFTER_DAYS) return { asOf: day, events: [] };
  throw new TidemarkError('SOURCE_EMPTY', `the issuer has no data of ${day} yet`);
}

function textOf(bytes: Uint8Array): string {
  if (bytes.length === 0) throw new TidemarkError('SOURCE_EMPTY', 'the document is empty');
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', 'the document is not UTF-8', { cause });
  }
}

const outside = (what: string) => new TidemarkError('SOURCE_OUTSIDE_PARTITION', what);
const describe = ({ ticker, sourceId }: Issuer, name: string) => `${ticker} (${sourceId}), document ${name}`;
