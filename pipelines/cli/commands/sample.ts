/**
 * `sample`: writes synthetic documents in a vendor's layout to a folder of the operator's. Needs neither database nor
 * log.
 */
import { mkdir, mkdtemp, readdir, rename, rm, rmdir } from 'node:fs/promises';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { pathToFileURL } from 'node:url';
import { defaultInstrument } from '../../../shared/config/instruments.ts';
import { loadSettings } from '../../../shared/config/load.ts';
import { SETTINGS, type SettingName } from '../../../shared/config/settings.ts';
import { DAY_MS, dayKey, daysBetween } from '../../../shared/dates.ts';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import { hasInstruments, parseInstrument, SYMBOL_RULE } from '../../../shared/registry/instruments.ts';
import { sha256OfFile } from '../../sources/documents/locations.ts';
import type { Feed, Sample } from '../../sources/feed-types.ts';
import { feedOf, feeds } from '../../sources/index.ts';

import { EXIT, PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput, table } from '../output.ts';

/** A year; a longer range is probably a mistyped day. */
const MAX_DAYS = 366;
/** Bitcoin was not traded before, and times of 13 digits begin in 2001. */
const FIRST_DAY = '2010-01-01';
/** A folder inside the target, so that renaming out of it stays on one file system. */
const STAGING = '.tidemark-sample-';

interface SampleDocument {
  /** Path below the folder, with slashes. */
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
}

type WritingFeed = Feed & { readonly sample: Sample & { readonly write: NonNullable<Sample['write']> } };

export async function runSample(command: ParsedCommand): Promise<number> {
  const { from, to, out, rows, instrument } = command.values as Readonly<Record<string, string | undefined>>;
  const feed = writingFeed(command.positionals[0]);
  checkDays(from!, to!);
  checkRows(feed, rows);
  checkInstrument(feed, instrument);
  const settings = loadSettings({ env: command.io.env, flags: command.settings, cwd: PROJECT_ROOT });
  const folder = resolve(out!);
  const stopping = new AbortController();
  const forget = command.io.onStop(() => stopping.abort(new Error('interrupted')));
  try {
    const documents = await writtenTo(folder, async (directory) => {
      const options = { directory, from: from!, to: to!, settings, signal: stopping.signal };
      await feed.sample.write({ ...options, instrument, ...(rows === undefined ? {} : { rows: Number(rows) }) });
    });
    const locations = locationsOf(feed, folder);
    const other = instrument === defaultInstrument(settings, feed.datasets[0]) ? undefined : instrument;
    createOutput(command).answer(
      { command: 'sample', ok: true, feed: feed.name, from, to, folder, documents, settings: locations },
      () => textOf(feed, { from: from!, to: to!, folder, documents, locations, other }),
    );
    return EXIT.DONE;
  } finally {
    forget();
  }
}

/** @throws TidemarkError USAGE; its message names the feeds whose documents can be written. */
function writingFeed(name: string): WritingFeed {
  const feed = feeds().find(({ datasets }) => datasets.some(({ key }) => key === name)) ?? feedOf(name);
  if (feed.sample?.write) return feed as WritingFeed;
  const known = feeds().flatMap((one) => (one.sample?.write ? [one.name] : []));
  throw new TidemarkError(
    'USAGE',
    `${feed.name} is fetched from a server, not from documents in a folder. \`./tidemark up\` loads a sample of it into an empty system. This command writes ${known.join(', ')}`,
  );
}

function checkDays(from: string, to: string): void {
  const fault = (why: string) => new TidemarkError('USAGE', why);
  if (from > to) throw fault(`--from ${from} is after --to ${to}`);
  if (from < FIRST_DAY) throw fault(`--from ${from} is before ${FIRST_DAY}, the first day that a sample can have`);
  const today = dayKey(Date.now());
  if (to >= today)
    throw fault(`--to ${to} has not ended yet (UTC); the last day that has ended is ${dayKey(Date.now() - DAY_MS)}`);
  const days = daysBetween(from, to).length;
  if (days > MAX_DAYS)
    throw fault(`--from ${from} --to ${to} are ${days} days; at most ${MAX_DAYS} can be written at once`);
}

function checkRows(feed: Feed, rows: string | undefined): void {
  if (rows === undefined) return;
  if (feed.datasets[0].kind !== 'spot_trades') {
    throw new TidemarkError('USAGE', `--rows applies to trades only; ${feed.name} determines its own rows`);
  }
}

function checkInstrument(feed: Feed, instrument: string | undefined): void {
  if (instrument === undefined) return;
  if (!hasInstruments(feed.datasets[0])) {
    throw new TidemarkError('USAGE', `--instrument applies to trades only; ${feed.name} has none`);
  }
  if (parseInstrument(instrument)) return;
  throw new TidemarkError('USAGE', `--instrument ${JSON.stringify(instrument)} is no symbol: ${SYMBOL_RULE}`);
}

/**
 * Writes the documents to a staging folder and moves each into the target when it is complete. An existing document
 * with the same bytes stays. Any other existing file makes the command fail before it moves the first document.
 */
async function writtenTo(folder: string, write: (directory: string) => Promise<void>): Promise<SampleDocument[]> {
  const made = await makeFolder(folder);
  try {
    const staging = await mkdtemp(join(folder, STAGING)).catch((cause) => {
      throw new TidemarkError('USAGE', `--out ${folder} cannot be written to: ${explain(cause)}`, { cause });
    });
    try {
      await write(staging);
      const documents = await documentsIn(staging);
      if (documents.length === 0) throw new TidemarkError('USAGE', 'No day of --from to --to has a document');
      const missing = await missingFrom(folder, documents);
      for (const { path } of missing) {
        await mkdir(dirname(join(folder, path)), { recursive: true });
        await rename(join(staging, path), join(folder, path));
      }
      return documents;
    } finally {
      await rm(staging, { recursive: true, force: true });
    }
  } catch (error) {
    // Removes the folder only if it is empty.
    if (made) await rmdir(folder).catch(() => {});
    throw error;
  }
}

/** @returns whether it was created now. */
async function makeFolder(folder: string): Promise<boolean> {
  try {
    return (await mkdir(folder, { recursive: true })) !== undefined;
  } catch (cause) {
    const why = (cause as NodeJS.ErrnoException).code === 'EEXIST' ? 'is not a folder' : 'cannot be created';
    throw new TidemarkError('USAGE', `--out ${folder} ${why}; name a folder that is empty or does not exist`, {
      cause,
    });
  }
}

/** @throws TidemarkError USAGE if the folder holds anything but these documents. */
async function missingFrom(folder: string, documents: readonly SampleDocument[]): Promise<SampleDocument[]> {
  const missing = new Map(documents.map((document) => [document.path, document]));
  const refuse = (path: string, what: string): never => {
    const why = `holds ${path}, which ${what}; nothing was written`;
    throw new TidemarkError('USAGE', `--out ${folder} ${why}. Name a folder that is empty or does not exist`);
  };
  // Foreign names are refused before any folder is listed deeply, because the target may be a whole disk.
  const ours = new Set(documents.map(({ path }) => path.split('/')[0]));
  for (const name of (await readdir(folder)).sort()) {
    if (!ours.has(name) && !name.startsWith(STAGING)) refuse(name, 'is not part of this sample');
  }
  for (const { path, sha256 } of await documentsIn(folder)) {
    const same = missing.get(path);
    if (!same) refuse(path, 'is not part of this sample');
    else if (same.sha256 !== sha256) refuse(path, 'has other bytes than in this sample');
    missing.delete(path);
  }
  return [...missing.values()];
}

/** Every file, sorted, without the staging folders of other runs. */
async function documentsIn(folder: string): Promise<SampleDocument[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const paths = entries
    .filter((entry) => !entry.isDirectory())
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)).replaceAll(sep, '/'))
    .filter((path) => !path.startsWith(STAGING))
    .sort();
  return await Promise.all(paths.map(async (path) => ({ path, ...(await sha256OfFile(join(folder, path))) })));
}

interface Location {
  readonly name: string;
  readonly url: string;
}

/** The source settings that make `backfill` read the folder: one, or one per fund. */
function locationsOf({ datasets: [{ locations }] }: Feed, folder: string): Location[] {
  const sources = Object.entries(locations);
  return sources.flatMap(([source, names]) => {
    const name = names.find((one) => SETTINGS[one as SettingName].schema.safeParse('file:///').success);
    const directory = sources.length === 1 ? folder : join(folder, source);
    return name ? [{ name, url: pathToFileURL(`${directory}/`).href }] : [];
  });
}

interface Written {
  readonly from: string;
  readonly to: string;
  readonly folder: string;
  readonly documents: readonly SampleDocument[];
  readonly locations: readonly Location[];
  /** Another than the default. */
  readonly other: string | undefined;
}

function textOf(feed: Feed, { from, to, folder, documents, locations, other }: Written): string {
  return [
    table(
      ['document', 'bytes'],
      documents.map(({ path, bytes }) => [path, bytes]),
    ),
    '',
    `${documents.length} synthetic documents of ${feed.name} are in ${folder}. To load them:`,
    '',
    ...locations.map(({ name, url }) => `export ${name}='${url.replaceAll("'", '%27')}'`),
    ...(other === undefined ? [] : [`export ${feed.datasets[0].trades?.instruments.also}='${other}'`]),
    `./tidemark backfill ${feed.name} --from ${from} --to ${to}${other === undefined ? '' : ` --instrument ${other}`}`,
    '',
    'Rows loaded this way count as published by the source: they replace the sample of `./tidemark up`, and they are served',
    'once the rights of the source allow it (`./tidemark help rights`).',
  ].join('\n');
}
