/** A document of a fund, read: which day it is of, and what it says of it. */

import { createHash } from 'node:crypto';
import { type Dirent, promises } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DAY_MS, dayKey, LISTED_YEARS, parseDay } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { localPath } from '../documents/locations.ts';
import type { RecordedEvent } from '../record-frames.ts';
import type { Issuer } from './issuers/types.ts';
import { FACTS, type Metric, metricsOf } from './parse/facts.ts';

/*
 * A fund's day as events: one a metric. Names come from the fund's facts alone, never from the bytes of its page: fetched
 * twice with another advert it is one record, while a changed fact makes another record, so another capture.
 */

const PARSER_VERSION = '1.0.0';
const DIMENSIONS = '{"row_index":"1"}';

/** In the order of their offsets. */
export function eventsOf(issuer: Issuer, metrics: readonly Metric[], asOfMs: number): RecordedEvent[] {
  const { sourceId, document } = issuer;
  const observed = new Date(asOfMs).toISOString();
  // Keys in the order of the alphabet, here and below.
  const provenance = {
    fetch_method: document.by,
    parser_name: sourceId,
    parser_version: PARSER_VERSION,
    source_id: sourceId,
    source_uri: document.path,
  };
  const recordId = recordOf(issuer, metrics);
  return metrics
    .map(({ name, unit, kind, text }): RecordedEvent => {
      const metricId = sha256Of(`${sourceId}|${recordId}|${name}|${text}`);
      const payload = {
        dimensions: { row_index: '1' },
        metric_id: metricId,
        metric_name: name,
        metric_unit: unit,
        metric_value_kind: kind,
        metric_value_text: text,
        observed_at_utc: observed,
        provenance,
        source_id: sourceId,
      };
      const row = [asOfMs, metricId, sourceId, name, unit, kind, text, DIMENSIONS, JSON.stringify(provenance), ''];
      return { offset: metricId, payload: Buffer.from(JSON.stringify(payload)), row };
    })
    .sort((a, b) => (a.offset < b.offset ? -1 : 1));
}

/** What a fund says of a day: two documents with the same are the same record. */
export const recordOf = ({ sourceId }: Issuer, metrics: readonly Metric[]): string =>
  sha256Of(JSON.stringify([sourceId, ...metrics.filter(isLasting).map(({ name, text }) => [name, text])]));

const isLasting = ({ name }: Metric) => name === 'observed_at_utc' || !('passing' in FACTS[name]);

const sha256Of = (text: string) => createHash('sha256').update(text).digest('hex');

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

/*
 * A folder of one issuer's documents archived by day: `<YYYY-MM-DD>.<ext>`, with anything after the day where a day has
 * several, or a folder `<YYYY-MM-DD>` of files under the issuer's own names.
 */

export interface ArchivedDocument {
  /** Under which it is filed. */
  readonly day: string;
  /** Below the archive's folder. */
  readonly name: string;
  readonly url: URL;
  /** The archive's folder. */
  readonly root: URL;
  /** Differs once the file does. */
  readonly version: string;
}

const DATED = /^(\d{4}-\d{2}-\d{2})(?:[^0-9].*)?$/;

/** By day, then by name. @throws TidemarkError SOURCE_NOT_FOUND, SOURCE_UNREACHABLE. */
export async function archivedDocuments(base: URL, extension: string): Promise<ArchivedDocument[]> {
  const folder = localPath(base);
  const documents: ArchivedDocument[] = [];
  const add = async (day: string, ...names: readonly string[]) => {
    if (!names.at(-1)?.toLowerCase().endsWith(`.${extension}`)) return;
    const path = join(folder, ...names);
    const { mtimeMs, size } = await promises.stat(path).catch(() => ({ mtimeMs: 0, size: 0 }));
    documents.push({
      day,
      name: names.join('/'),
      url: pathToFileURL(path),
      root: base,
      version: `${path} ${mtimeMs} ${size}`,
    });
  };
  for (const entry of await entriesOf(folder)) {
    const day = DATED.exec(entry.name)?.[1];
    if (day === undefined || parseDay(day) === undefined) continue;
    if (!entry.isDirectory()) await add(day, entry.name);
    else for (const { name } of await entriesOf(join(folder, entry.name))) await add(day, entry.name, name);
  }
  return documents.sort((a, b) => (a.name < b.name ? -1 : 1));
}

async function entriesOf(folder: string): Promise<Dirent[]> {
  return await promises.readdir(folder, { withFileTypes: true }).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code === 'ENOENT' || cause.code === 'ENOTDIR') {
      throw new TidemarkError('SOURCE_NOT_FOUND', `There is no folder ${folder}`, { cause });
    }
    throw new TidemarkError('SOURCE_UNREACHABLE', `${folder} cannot be read`, { cause });
  });
}
