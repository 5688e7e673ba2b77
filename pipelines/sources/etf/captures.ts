/**
 * Parses a fund's document: its day, its facts, and the events they become, one event per metric. Event names derive
 * from the fund's facts only, never from the bytes of its page. Two fetches that differ only in an advert give one
 * record; a changed fact gives another record and so another capture. Also lists an operator's folder of archived
 * documents.
 */

import { createHash } from 'node:crypto';
import { type Dirent, promises } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DAY_MS, dayKey, LISTED_YEARS, parseDay } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { localPath } from '../documents/locations.ts';
import type { RecordedEvent } from '../record-frames.ts';
import type { Issuer } from './issuers/issuer.ts';
import { FACTS, type Metric, metricsOf } from './parse/facts.ts';

const PARSER_VERSION = '1.0.0';
const DIMENSIONS = '{"row_index":"1"}';

/** The events in the order of their offsets. */
export function eventsOf(issuer: Issuer, metrics: readonly Metric[], asOfMs: number): RecordedEvent[] {
  const { sourceId, document } = issuer;
  const observed = new Date(asOfMs).toISOString();
  // Keys are in alphabetical order, here and below.
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

/** A text of all that a fund states about a day; two documents with the same text are the same record. */
export const recordOf = ({ sourceId }: Issuer, metrics: readonly Metric[]): string =>
  sha256Of(JSON.stringify([sourceId, ...metrics.filter(isLasting).map(({ name, text }) => [name, text])]));

const isLasting = ({ name }: Metric) => name === 'observed_at_utc' || !('passing' in FACTS[name]);

const sha256Of = (text: string) => createHash('sha256').update(text).digest('hex');

/** What is known about a document beside its bytes. */
export interface Seen {
  /** Its name in messages. */
  readonly name: string;
  readonly atMs: number;
  /** The requested day; the document must be of that day. */
  readonly askedDay?: string;
  /** The day that it is filed under, which applies if the document states none. */
  readonly filedDay?: string;
}

export interface Capture {
  /** `YYYY-MM-DD`. */
  readonly asOf: string;
  /** In the order of their offsets; empty if the issuer says that the day has no data. */
  readonly events: readonly RecordedEvent[];
  /** The digest of the facts; undefined if there are no events. */
  readonly recordSha256?: string;
}

/** Before this day no such fund was listed, so an earlier date is an error. */
const FIRST_DAY = `${LISTED_YEARS.first}-01-01`;
/** Issuers publish a day up to some days late. Only after this many days does "no data" count as final. */
const NO_DATA_AFTER_DAYS = 7;

/**
 * @throws TidemarkError if it is not the fund's document; its message names fund, document and position. The caller has
 * written nothing by then.
 */
export const readCapture = (issuer: Issuer, bytes: Uint8Array, seen: Seen): Capture =>
  reading(issuer, seen.name, () => captureOf(issuer, textOf(bytes), seen));

/** The path of the document that a page refers to. @throws like `readCapture`. */
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
      remedy: error.remedy,
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
  if (asOf < FIRST_DAY) throw outside(`the as-of date ${asOf} is before ${FIRST_DAY}, when the first fund was listed`);
  if (askedDay !== undefined && asOf !== askedDay) throw outside(`it is as of ${asOf}, but ${askedDay} was requested`);
  return { asOf, events: eventsOf(issuer, metrics, parseDay(asOf)!), recordSha256: recordOf(issuer, metrics) };
}

function withoutData(day: string | undefined, atMs: number): Capture {
  if (day === undefined) {
    throw new TidemarkError('SOURCE_DOCUMENT_INVALID', 'the issuer says that it has no data, and no day was requested');
  }
  const ageDays = Math.floor((atMs - parseDay(day)!) / DAY_MS);
  if (ageDays >= NO_DATA_AFTER_DAYS) return { asOf: day, events: [] };
  throw new TidemarkError('SOURCE_DOCUMENT_INVALID', `the issuer has no data for ${day} yet`);
}

function textOf(bytes: Uint8Array): string {
  if (bytes.length === 0) throw new TidemarkError('SOURCE_DOCUMENT_INVALID', 'the document is empty');
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', 'the document is not UTF-8', { cause });
  }
}

const outside = (what: string) => new TidemarkError('SOURCE_DOCUMENT_INVALID', what);
const describe = ({ ticker, sourceId }: Issuer, name: string) => `${ticker} (${sourceId}), document ${name}`;

export interface FolderDocument {
  /** The day that it is filed under. */
  readonly day: string;
  /** Path below the archive's folder. */
  readonly name: string;
  readonly url: URL;
  /** The archive's folder. */
  readonly root: URL;
  /** Changes whenever the file changes. */
  readonly version: string;
}

const DATED = /^(\d{4}-\d{2}-\d{2})(?:[^0-9].*)?$/;

/**
 * Lists a folder of one issuer's documents archived by day, sorted by day and name without extension:
 * `<YYYY-MM-DD>.<ext>`, with any text after the day if a day has several, or a folder `<YYYY-MM-DD>` of files under the
 * issuer's own names.
 * @throws TidemarkError SOURCE_NOT_FOUND, SOURCE_UNREACHABLE.
 */
export async function archivedDocuments(base: URL, extension: string): Promise<FolderDocument[]> {
  const folder = localPath(base);
  const documents: FolderDocument[] = [];
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
    if (!(await isFolder(folder, entry))) await add(day, entry.name);
    else for (const { name } of await entriesOf(join(folder, entry.name))) await add(day, entry.name, name);
  }
  // `(10)` follows `(9)`, and the name breaks a tie of `a.csv` and `a.CSV`.
  const order = ({ name }: FolderDocument) => {
    const stem = name.slice(0, -extension.length - 1).replaceAll(/\d+/g, (digits) => digits.padStart(20, '0'));
    return `${stem}\n${name}`;
  };
  return documents.sort((a, b) => (order(a) < order(b) ? -1 : 1));
}

/** A symbolic link counts as what it leads to; one that leads out of the archive is refused when its documents are read. */
async function isFolder(folder: string, entry: Dirent): Promise<boolean> {
  if (!entry.isSymbolicLink()) return entry.isDirectory();
  const target = await promises.stat(join(folder, entry.name)).catch(() => undefined);
  return target?.isDirectory() ?? false;
}

async function entriesOf(folder: string): Promise<Dirent[]> {
  return await promises.readdir(folder, { withFileTypes: true }).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code === 'ENOENT' || cause.code === 'ENOTDIR') {
      throw new TidemarkError('SOURCE_NOT_FOUND', `The folder ${folder} does not exist`, { cause });
    }
    throw new TidemarkError('SOURCE_UNREACHABLE', `${folder} cannot be read`, { cause });
  });
}
