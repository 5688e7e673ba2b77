/** The layout of a lake: its paths, and the root manifest that lists its files. docs/lake.md describes both. */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { DAY_MS } from '../../shared/dates.ts';
import type { Range } from '../../shared/ranges.ts';
import type { Mode, PartitionKind } from '../../shared/registry/definition.ts';

export const LAKE_VERSION = 1;
export const ROOT_MANIFEST = '_manifest.json';
/** The name of each file of rows without its extension; one name for all, so that a replacement is one rename. */
export const ROWS_STEM = 'rows';
export const ROWS_FILE = `${ROWS_STEM}.parquet`;
export const FILE_MANIFEST = '_manifest.json';
export const PARTIAL = '_partial';

export const MODES: readonly Mode[] = ['native', 'aligned_1s'];

/** How long a file is. */
export interface Span {
  /** SQL of the span's number, over the SQL of a time in epoch ms. */
  numberSql(ms: string): string;
  /** The name of a span, as in `date=`. */
  dateOf(number: number): string;
  dateAt(ms: number): string;
  windowOf(date: string): Range;
  /**
   * Whether a state can be carried from any earlier file into a file, and not only from the one before: a series of a fund or of
   * macro data may have no row for years.
   */
  readonly carriesFar: boolean;
  /** Files with rows before a change whose rows it may make valid for longer or shorter. */
  readonly prolonged: number;
}

const DAY: Span = {
  numberSql: (ms) => `floor(${ms} / ${DAY_MS}.0)::int8`,
  dateOf: (number) => new Date(number * DAY_MS).toISOString().slice(0, 10),
  dateAt: (ms) => new Date(ms).toISOString().slice(0, 10),
  windowOf: (date) => {
    const from = Date.parse(`${date}T00:00:00Z`);
    return { from, to: from + DAY_MS };
  },
  carriesFar: false,
  prolonged: 1,
};

const YEAR: Span = {
  numberSql: (ms) => `extract(year from to_timestamp(${ms} / 1000.0) at time zone 'UTC')::int8`,
  dateOf: (number) => String(number).padStart(4, '0'),
  dateAt: (ms) => new Date(ms).toISOString().slice(0, 4),
  windowOf: (date) => ({ from: Date.UTC(Number(date), 0), to: Date.UTC(Number(date) + 1, 0) }),
  carriesFar: true,
  prolonged: 1,
};

/** Blocks are valid up to the median time of the last eleven, which may lie on as many dates. */
const BLOCK_DAY: Span = { ...DAY, prolonged: 11 };

/** A day of captures or vintages has a handful of rows. */
export const SPANS: Readonly<Record<PartitionKind['kind'], Span>> = {
  file_day: DAY,
  height: BLOCK_DAY,
  snapshot: DAY,
  capture: YEAR,
  vintage: YEAR,
};

export interface LakeFile {
  readonly dataset: string;
  readonly mode: Mode;
  readonly date: string;
}

/** The folder of a file, below the lake. */
export const folderOf = ({ dataset, mode, date }: LakeFile): string => `dataset=${dataset}/mode=${mode}/date=${date}`;

export const pathOf = (file: LakeFile): string => `${folderOf(file)}/${ROWS_FILE}`;

const HIVE_FOLDER = /^dataset=([a-z0-9_]+)\/mode=(native|aligned_1s)\/date=(\d{4}(?:-\d{2}-\d{2})?)$/;

/** The file that a folder below the lake is of. */
export function fileOf(folder: string): LakeFile | undefined {
  const [, dataset, mode, date] = HIVE_FOLDER.exec(folder) ?? [];
  return dataset === undefined ? undefined : { dataset, mode: mode as Mode, date };
}

const count = z.int().nonnegative();
const digest = z.string().regex(/^[0-9a-f]{64}$/);

const entry = z.object({
  path: z.string(),
  dataset: z.string(),
  mode: z.enum(['native', 'aligned_1s']),
  date: z.string(),
  rows: count,
  bytes: count,
  sha256: digest,
  revision: count,
  partitions: count,
  proof_sha256: digest,
  /** Digest of the state of the catalog that the file is of. */
  state_sha256: digest,
  manifest: z.strictObject({ path: z.string(), bytes: count, sha256: digest }),
});

export type LakeEntry = z.infer<typeof entry>;

const root = z.looseObject({
  lake_version: z.literal(LAKE_VERSION),
  written_at_utc: z.string(),
  synthetic: z.boolean(),
  change: count,
  files: z.array(entry),
  signed: z.string().nullable(),
});

export type RootManifest = z.infer<typeof root>;

/** @returns why it is none of this release */
export function parseRoot(text: string): RootManifest | { readonly fault: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { fault: `its ${ROOT_MANIFEST} is not JSON` };
  }
  const version = (value as { lake_version?: unknown } | null)?.lake_version;
  if (version === undefined) return { fault: `its ${ROOT_MANIFEST} is not that of a lake` };
  if (version !== LAKE_VERSION) {
    return {
      fault: `its ${ROOT_MANIFEST} has the version ${JSON.stringify(version)}; this release writes ${LAKE_VERSION}`,
    };
  }
  const parsed = root.safeParse(value);
  if (!parsed.success) {
    const [{ path, message }] = parsed.error.issues;
    return { fault: `its ${ROOT_MANIFEST} is damaged: ${path.join('.')}: ${message}` };
  }
  const foreign = parsed.data.files.find((file) => file.path !== pathOf(file) || !fileOf(folderOf(file)));
  return foreign ? { fault: `its ${ROOT_MANIFEST} is damaged: the path ${JSON.stringify(foreign.path)}` } : parsed.data;
}

export const sha256Of = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');
