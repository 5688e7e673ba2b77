/**
 * Reads the Delta log of a table of a lake: which files are active at a version. Commits are lines of JSON, a checkpoint is Parquet
 * and replaces the commits up to it.
 */
import { createHash } from 'node:crypto';
import { parquetReadObjects } from 'hyparquet';

export const LOG_FOLDER = '_delta_log';
export const LAST_CHECKPOINT = '_last_checkpoint';
/** As `txn` names the writer of a lake. */
export const APP_ID = 'tidemark';

const padded = (version: number): string => String(version).padStart(20, '0');
export const commitName = (version: number): string => `${padded(version)}.json`;
export const checkpointName = (version: number): string => `${padded(version)}.checkpoint.parquet`;

const LOG_FILE = /^(\d{20})\.(json|checkpoint\.parquet)$/;

/** The version of a file of the log, and whether it is a checkpoint; undefined for other names. */
export function logFileOf(name: string): { readonly version: number; readonly isCheckpoint: boolean } | undefined {
  const [, version, kind] = LOG_FILE.exec(name) ?? [];
  return version === undefined ? undefined : { version: Number(version), isCheckpoint: kind !== 'json' };
}

type Texts = Readonly<Record<string, string | null>>;

export interface Added {
  /** Below the table's folder, percent-encoded. */
  readonly path: string;
  readonly partitionValues: Texts;
  readonly size: number;
  readonly modificationTime: number;
  readonly dataChange: boolean;
  readonly stats?: string | null;
}

export interface Removed {
  readonly path: string;
  readonly deletionTimestamp?: number | null;
  readonly dataChange: boolean;
  readonly extendedFileMetadata?: boolean | null;
  readonly partitionValues?: Texts | null;
  readonly size?: number | null;
}

export interface MetaData {
  readonly id: string;
  readonly name?: string | null;
  readonly description?: string | null;
  readonly format: { readonly provider: string; readonly options: Texts };
  readonly schemaString: string;
  readonly partitionColumns: readonly string[];
  readonly configuration: Texts;
  readonly createdTime?: number | null;
}

export interface Txn {
  readonly appId: string;
  readonly version: number;
  readonly lastUpdated?: number | null;
}

export interface Protocol {
  readonly minReaderVersion: number;
  readonly minWriterVersion: number;
}

/** One line of a commit, or row of a checkpoint. */
export interface Action {
  readonly add?: Added;
  readonly remove?: Removed;
  readonly metaData?: MetaData;
  readonly protocol?: Protocol;
  readonly txn?: Txn;
  readonly commitInfo?: Readonly<Record<string, unknown>>;
}

/** A log that is none, or that holds what a lake's tables never have. */
export class LogFault extends Error {
  override readonly name = 'LogFault';
}

/** The state of a table at a version. */
export class Snapshot {
  version = -1;
  metaData: MetaData | undefined;
  protocol: Protocol | undefined;
  /** Active files by their decoded path. */
  readonly files = new Map<string, Added>();
  /** Files that older versions have. */
  readonly removed = new Map<string, Removed>();
  readonly txns = new Map<string, Txn>();

  /** The change up to which the table holds everything. */
  get change(): number {
    return this.txns.get(APP_ID)?.version ?? 0;
  }

  apply(version: number, actions: Iterable<Action>): void {
    for (const { add, remove, metaData, protocol, txn } of actions) {
      if (add) {
        const path = pathOf(add.path);
        this.files.set(path, add);
        this.removed.delete(path);
      }
      if (remove) {
        const path = pathOf(remove.path);
        this.files.delete(path);
        this.removed.set(path, remove);
      }
      if (metaData) this.metaData = metaData;
      if (protocol) this.protocol = protocol;
      if (txn) this.txns.set(txn.appId, txn);
    }
    this.version = version;
  }
}

/** Paths of a log are percent-encoded. @throws LogFault */
function pathOf(encoded: unknown): string {
  try {
    if (typeof encoded === 'string' && encoded !== '') return decodeURIComponent(encoded);
  } catch {
    // Said below.
  }
  throw new LogFault(`the log names the file ${JSON.stringify(encoded)?.slice(0, 200)}, which is no path`);
}

/** The actions of a commit. @throws LogFault */
export function actionsOf(name: string, bytes: Uint8Array): Action[] {
  const lines = new TextDecoder().decode(bytes).split('\n');
  return lines.flatMap((line, index) => {
    if (line.trim() === '') return [];
    try {
      const action: unknown = JSON.parse(line);
      if (typeof action === 'object' && action !== null) return [action as Action];
    } catch {
      // Said below.
    }
    throw new LogFault(`${name}: line ${index + 1} is not a JSON object`);
  });
}

/** The actions of a checkpoint. @throws LogFault */
async function actionsOfCheckpoint(name: string, bytes: Uint8Array): Promise<Action[]> {
  try {
    const file = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer;
    return (await parquetReadObjects({ file })).map((row) => plain(row) as Action);
  } catch (cause) {
    throw new LogFault(`${name} cannot be read as Parquet: ${cause instanceof Error ? cause.message : cause}`, {
      cause,
    });
  }
}

/** Numbers for the bigints of Parquet, all of which are counts and times. */
function plain(value: unknown): unknown {
  if (typeof value === 'bigint') return Number(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, plain(member)]));
}

/**
 * Reads the table at a version, from a checkpoint on or from its first commit. @param read of a file of the log, by its name
 * @throws LogFault
 */
export async function readSnapshot(
  read: (name: string) => Promise<Uint8Array>,
  version: number,
  checkpoint: number | null,
): Promise<Snapshot> {
  const snapshot = new Snapshot();
  for (const name of logFilesOf(version, checkpoint)) {
    const { version: at, isCheckpoint } = logFileOf(name)!;
    const bytes = await read(name);
    snapshot.apply(at, isCheckpoint ? await actionsOfCheckpoint(name, bytes) : actionsOf(name, bytes));
  }
  return snapshot;
}

/** The files of the log that say what a version is, in their order. */
export function logFilesOf(version: number, checkpoint: number | null): string[] {
  const first = checkpoint === null ? 0 : checkpoint + 1;
  const commits = Array.from({ length: version - first + 1 }, (_, index) => commitName(first + index));
  return checkpoint === null ? commits : [checkpointName(checkpoint), ...commits];
}

const DATA_FILE =
  /^(?:date=(\d{4}-\d{2}-\d{2})|year=(\d{4}))\/(?:instrument=([A-Za-z0-9][A-Za-z0-9._-]{0,31})\/)?(\d+)-([0-9a-f]{64})\.parquet$/;

/** What the path of a file of rows says: its date, the change that it was written at, and the sha256 of its bytes. */
export interface DataFile {
  /** A UTC day or a year. */
  readonly date: string;
  /** The folder below the table. */
  readonly folder: string;
  /** The symbol, of trades. */
  readonly instrument: string | undefined;
  readonly change: number;
  readonly sha256: string;
}

export function dataFileOf(path: string): DataFile | undefined {
  const [, day, year, instrument, change, sha256] = DATA_FILE.exec(path) ?? [];
  if (sha256 === undefined) return undefined;
  const folder = path.slice(0, path.lastIndexOf('/'));
  return { date: day ?? year, folder, instrument, change: Number(change), sha256 };
}

/** Digest of the lines that `sha256sum` prints of the files in the order of their paths, from the table's folder. @throws LogFault */
export function filesDigest(paths: Iterable<string>): string {
  const digest = createHash('sha256');
  for (const path of [...paths].sort()) {
    const file = dataFileOf(path);
    if (!file) throw new LogFault(`the table has the file ${path.slice(0, 200)}, which no writer of a lake adds`);
    digest.update(`${file.sha256}  ${path}\n`);
  }
  return digest.digest('hex');
}
