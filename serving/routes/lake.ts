/**
 * GET /v1/lake/...: the tables of a lake's folder, under the paths that they have there, at the versions that the root manifest names.
 * A file is served only if its version has it, its bytes are those of its name, none of its rows was withdrawn since, and the rights
 * of its dataset allow it now.
 */
import { createHash } from 'node:crypto';
import type { BigIntStats } from 'node:fs';
import { type FileHandle, realpath } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { dataFileOf, LOG_FOLDER, logFilesOf } from '../../shared/mirror/delta-log.ts';
import {
  type LakeFile,
  type LakeManifest,
  MANIFEST_FILE,
  MAX_ROOT_BYTES,
  manifestName,
  noteName,
  PROOFS_FOLDER,
  parseLakeManifest,
  partsOf,
  readVersion,
  type TableVersion,
} from '../../shared/mirror/lake-manifest.ts';
import { manifestBytes } from '../../shared/proof-log/signed-manifest.ts';
import { DATASETS, type DatasetKey } from '../../shared/registry/index.ts';
import { openRegular } from '../../shared/regular-file.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { INSTRUMENT_HEADERS, instrumentHeader } from '../contract/instruments.ts';
import { Problem } from '../contract/problems.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { ProvedFiles } from '../exports/files.ts';
import { answerBytes, requireAccept } from '../http/answer.ts';
import { NO_PARAMETERS, queryParams } from '../http/request.ts';
import {
  CATALOG_PROBLEMS,
  type Exchange,
  fileContent,
  RIGHTS_PROBLEMS,
  type Route,
  type RouteDoc,
  SYNTHETIC_HEADER,
  VALIDATOR_HEADERS,
} from '../http/routes.ts';
import { isTagged, sendFile } from '../http/send-file.ts';
import { isWithdrawn } from '../lake/plan.ts';
import type { Session } from '../read/snapshot/session.ts';
import { checkRights, type Grant, realRowsProblem } from '../rights/gate.ts';

export interface LakeRouteDeps {
  readonly inspector: Inspector;
  readonly instruments: Instruments;
  /** SVC_LAKE_FOLDER. */
  readonly folder: string | undefined;
  readonly rights: RightsStore;
  readonly stallTimeoutMs: number;
}

const PREFIX = '/v1/lake';
const MANIFEST_TYPE = 'application/json';
const ROWS_TYPE = 'application/vnd.apache.parquet';

export const lakeRoutes = (deps: LakeRouteDeps): Route[] => {
  const lake = deps.folder === undefined ? undefined : new LakeReader(deps.folder);
  const opened = () => {
    if (lake) return lake;
    throw new Problem(
      'LAKE_NOT_FOUND',
      'The service has no lake. The operator sets SVC_LAKE_FOLDER to the folder of one.',
    );
  };
  return [rootRoute(opened, deps), ...FILE_ROUTES.map((route) => fileRoute(opened, deps, route))];
};

const headersOf = (type: string) => ({
  'Content-Type': type,
  'X-Content-Type-Options': 'nosniff',
  'Cache-Control': 'private, no-cache',
});

const rootRoute = (opened: () => LakeReader, { rights }: LakeRouteDeps): Route => ({
  method: 'GET',
  path: `${PREFIX}/${MANIFEST_FILE}`,
  access: 'export',
  doc: () => ({
    ...docOf(MANIFEST_TYPE),
    operation: 'getLakeManifest',
    summary: 'The tables of the lake',
    doc: 'The newest version of each table that the key covers and rights allow, as its signed note states it; `change` is the last change of the proof log that all of them hold. With `If-None-Match`, one request says whether anything changed. `./tidemark mirror` keeps a copy of the whole.',
    problems: ['QUERY_CONTRACT_ERROR', ...FILE_PROBLEMS],
    examples: [{ title: 'What the lake holds', status: 404 }],
  }),
  async handle(exchange) {
    const { caller, request, url } = exchange;
    queryParams(url, NO_PARAMETERS);
    const lake = opened();
    requireAccept(request, MANIFEST_TYPE);
    const root = await lake.root();
    const tables = root.tables.filter((note) => {
      const { dataset } = partsOf(note.table);
      return DATASETS.has(dataset) && caller.coversAny(dataset) && isAllowed(rights, note);
    });
    answerManifest(exchange, manifestBytes({ ...root, tables }));
  },
});

const isAllowed = (rights: RightsStore, note: TableVersion): boolean => {
  const { dataset } = partsOf(note.table);
  try {
    const problem = realRowsProblem(grantOf(rights, dataset), dataset as DatasetKey);
    return problem === undefined || note.synthetic;
  } catch (error) {
    if (error instanceof Problem) return false;
    throw error;
  }
};

/** Where a table's files lie. */
interface FileRoute {
  readonly operation: string;
  readonly path: string;
  readonly summary: string;
  readonly doc: string;
  readonly type: string;
  readonly example: Readonly<Record<string, string>>;
  /** The folder below the table, by the segments; undefined for what proves it. */
  folderOf(params: Readonly<Record<string, string>>): string | undefined;
}

const SEGMENTS: Readonly<Record<string, string>> = {
  dataset: 'Key of the dataset.',
  mode: '`native` or `aligned_1s`.',
  folder: '`_delta_log`, or `date=` and a UTC day, or `year=` and a year for datasets with few rows a day.',
  date: '`date=` and a UTC day.',
  instrument: '`instrument=` and the symbol, for trades.',
  file: 'Name of the file.',
};

const TABLE = { dataset: 'exchange_a_spot_trades', mode: 'native' };

const FILE_ROUTES: readonly FileRoute[] = [
  {
    operation: 'downloadLakeProof',
    path: `${PREFIX}/${PROOFS_FOLDER}/:dataset/:mode/:file`,
    summary: 'What proves a table',
    doc: 'The signed note of the version that the root manifest names, or the manifest of a file of rows, which is the one of an export.',
    type: MANIFEST_TYPE,
    example: { ...TABLE, file: noteName(0) },
    folderOf: () => undefined,
  },
  {
    operation: 'downloadLakeFile',
    path: `${PREFIX}/:dataset/:mode/:folder/:file`,
    summary: 'A file of a table or of its Delta log',
    doc: 'The log of a version is its checkpoint, if the note names one, and the commits after it. The name of a file of rows ends with its sha256, which is the `ETag`. To resume a download, send `Range: bytes=n-` and `If-Range` with it.',
    type: ROWS_TYPE,
    example: { ...TABLE, folder: LOG_FOLDER, file: noteName(0) },
    folderOf: ({ folder }) => folder,
  },
  {
    operation: 'downloadLakeTrades',
    path: `${PREFIX}/:dataset/:mode/:date/:instrument/:file`,
    summary: 'A file of a table of trades',
    doc: 'As the files of the other tables, which have no folder of an instrument.',
    type: ROWS_TYPE,
    example: {
      ...TABLE,
      date: 'date=2024-01-01',
      instrument: 'instrument=BTCUSDT',
      file: `1-${'0'.repeat(64)}.parquet`,
    },
    folderOf: ({ date, instrument }) => `${date}/${instrument}`,
  },
];

const fileRoute = (
  opened: () => LakeReader,
  { inspector, instruments, rights, stallTimeoutMs }: LakeRouteDeps,
  route: FileRoute,
): Route => ({
  method: 'GET',
  path: route.path,
  access: 'export',
  doc: () => fileDoc(route),
  async handle(exchange) {
    const { params, url, request, caller } = exchange;
    queryParams(url, NO_PARAMETERS);
    const base = DATASETS.get(params.dataset);
    // Before existence.
    if (base) caller.requireAny(base);
    const lake = opened();
    const root = await lake.root();
    const note = root.tables.find(({ table }) => table === `${params.dataset}/${params.mode}`);
    const found = note && (await lake.find(note, route.folderOf(params), params.file));
    if (!found) {
      throw new Problem('LAKE_NOT_FOUND', 'The lake has no such file. Read the tables from its root manifest.');
    }
    const { path, rows, type } = found;
    const grant = grantOf(rights, params.dataset);
    const placed = rows && dataFileOf(rows.name)!;
    const dataset = placed && (await instruments.ofPath(caller, base!, placed.instrument));
    const problem = note.synthetic ? undefined : realRowsProblem(grant, params.dataset as DatasetKey);
    if (problem) throw problem;
    requireAccept(request, type);
    await using file = await lake.open(path, found.isNamedByDigest ? rows : undefined);
    const isGone = (session: Session) => isWithdrawn(session, dataset!, placed!.date, root.change);
    if (placed && (await inspector.run(exchange, isGone))) {
      throw new Problem(
        'LAKE_FILE_ALTERED',
        `Rows of ${path} were withdrawn after the lake was written. A writer that follows (\`./tidemark lake --follow\`) brings the lake up to date within seconds; else the operator runs \`./tidemark lake\` again.`,
      );
    }
    const headers = {
      ...headersOf(type),
      ...(note.synthetic && { 'X-Svc-Synthetic': 'true' }),
      ...(dataset && instrumentHeader(dataset)),
    };
    await sendFile(exchange, { ...file, stallTimeoutMs, headers });
  },
});

const fileDoc = ({ operation, path, summary, doc, type, example }: FileRoute): RouteDoc => ({
  ...docOf(...new Set([type, MANIFEST_TYPE])),
  operation,
  summary,
  doc,
  segments: Object.fromEntries(
    [...path.matchAll(/:(\w+)/g)].map(([, name]) => [name, { doc: SEGMENTS[name], schema: { type: 'string' } }]),
  ),
  problems: ['QUERY_CONTRACT_ERROR', ...RIGHTS_PROBLEMS, ...CATALOG_PROBLEMS, ...FILE_PROBLEMS],
  examples: [{ title: summary, path: example, status: 404 }],
});

/** The manifest for this caller: without tables that its key does not cover, or that rights do not allow. */
function answerManifest(exchange: Exchange, bytes: Buffer): void {
  const { request, response } = exchange;
  const headers = { ...headersOf(MANIFEST_TYPE), ETag: `"${createHash('sha256').update(bytes).digest('hex')}"` };
  const known = request.headers['if-none-match'];
  if (known !== undefined && isTagged(known, headers.ETag)) response.writeHead(304, headers).end();
  else answerBytes(exchange, bytes, headers);
}

/** The right to read a dataset's files now. @throws Problem */
function grantOf(rights: RightsStore, dataset: string): Grant {
  if (!DATASETS.has(dataset)) {
    throw new Problem('LAKE_NOT_FOUND', `${dataset} is no dataset of this service, which does not know its rights.`);
  }
  try {
    return checkRights(rights, dataset as DatasetKey, undefined);
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== 'QUERY_RIGHTS_BYOK_REQUIRED') throw error;
    throw new Problem(
      error.code,
      `The service serves ${dataset} only with the caller’s own credentials, and files of the lake need none. Query the dataset instead.`,
    );
  }
}

/** A file of a version, by the path that was asked for. */
interface Found {
  /** Below the lake. */
  readonly path: string;
  readonly type: string;
  /** The file of rows that it is, or is about. */
  readonly rows?: LakeFile;
  readonly isNamedByDigest?: boolean;
}

/** An open file. */
interface OpenLakeFile extends AsyncDisposable {
  readonly handle: FileHandle;
  readonly etag: string;
  readonly bytes: number;
  readonly modifiedMs: number;
}

/** Versions of tables whose files are remembered. */
const MAX_REMEMBERED = 100;

class LakeReader {
  readonly #folder: string;
  readonly #proved = new ProvedFiles();
  #root: { readonly manifest: LakeManifest; readonly stat: BigIntStats } | undefined;
  /** Table and version -> its files, by name and by the name of their manifest. */
  readonly #files = new Map<string, ReadonlyMap<string, LakeFile>>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** The root manifest; it is parsed once for each replacement. @throws Problem */
  async root(): Promise<LakeManifest> {
    let file: FileHandle;
    try {
      file = await openRegular(join(this.#folder, MANIFEST_FILE));
    } catch (cause) {
      throw new Problem(
        'LAKE_NOT_FOUND',
        `The lake of the service has no ${MANIFEST_FILE}, or none that can be read.`,
        { cause },
      );
    }
    await using _opened = file;
    const stat = await file.stat({ bigint: true });
    if (this.#root && isSameState(this.#root.stat, stat)) return this.#root.manifest;
    try {
      if (stat.size > MAX_ROOT_BYTES) throw new Error(`it has more than ${MAX_ROOT_BYTES} bytes`);
      const manifest = parseLakeManifest(await file.readFile());
      this.#root = { manifest, stat };
      return manifest;
    } catch (error) {
      throw altered(MANIFEST_FILE, error);
    }
  }

  /** @param folder below the table; undefined for what proves it */
  async find(note: TableVersion, folder: string | undefined, file: string): Promise<Found | undefined> {
    const { table, version } = note;
    if (folder === LOG_FOLDER) {
      const type = file.endsWith('.json') ? MANIFEST_TYPE : ROWS_TYPE;
      return logFilesOf(version, note.log_checkpoint).includes(file)
        ? { path: `${table}/${LOG_FOLDER}/${file}`, type }
        : undefined;
    }
    if (folder === undefined && file === noteName(version)) {
      return { path: `${PROOFS_FOLDER}/${table}/${file}`, type: MANIFEST_TYPE };
    }
    const rows = (await this.#filesOf(note)).get(folder === undefined ? file : `${folder}/${file}`);
    if (!rows) return undefined;
    return folder === undefined
      ? { path: rows.manifest, type: MANIFEST_TYPE, rows }
      : { path: rows.path, type: ROWS_TYPE, rows, isNamedByDigest: true };
  }

  /** The files of a version; its log is read once. @throws Problem LAKE_FILE_ALTERED where it is not the one of the note */
  async #filesOf(note: TableVersion): Promise<ReadonlyMap<string, LakeFile>> {
    const key = `${note.table} ${note.version} ${note.files_sha256}`;
    const known = this.#files.get(key);
    if (known) return known;
    try {
      const { files } = await readVersion(note, async (name, limit) => {
        await using file = await openRegular(join(this.#folder, note.table, LOG_FOLDER, name));
        const { size } = await file.stat();
        if (size > limit) throw new Error(`${name} has ${size} bytes, and at most ${limit} are left of the log`);
        return await file.readFile();
      });
      const found = new Map(files.flatMap((file) => [[file.name, file] as const, [manifestName(file.name), file]]));
      if (this.#files.size >= MAX_REMEMBERED) this.#files.clear();
      this.#files.set(key, found);
      return found;
    } catch (error) {
      throw altered(`${note.table}/${LOG_FOLDER}`, error);
    }
  }

  /** Opens a file, whose bytes are those of the digest in its name. @throws Problem LAKE_FILE_ALTERED */
  async open(path: string, rows: LakeFile | undefined): Promise<OpenLakeFile> {
    const folder = join(this.#folder, dirname(path));
    // No folder on the way is a link.
    const isBelow =
      (await realpath(folder).catch(() => undefined)) === join(await realpath(this.#folder), dirname(path));
    if (!isBelow) throw altered(path);
    await using cleanup = new AsyncDisposableStack();
    const handle = cleanup.use(
      await openRegular(join(this.#folder, path)).catch((cause) => {
        throw altered(path, cause);
      }),
    );
    const stat = await handle.stat({ bigint: true });
    if (rows && stat.size !== BigInt(rows.bytes)) throw altered(path);
    const sha256 = await this.#proved.digestOf(handle);
    if (rows && sha256 !== rows.sha256) throw altered(path);
    cleanup.move();
    return openFile(handle, sha256, stat);
  }
}

const openFile = (handle: FileHandle, sha256: string, { size, mtimeMs }: BigIntStats): OpenLakeFile => ({
  handle,
  etag: `"${sha256}"`,
  bytes: Number(size),
  modifiedMs: Number(mtimeMs),
  [Symbol.asyncDispose]: () => handle.close(),
});

const isSameState = (one: BigIntStats, other: BigIntStats): boolean =>
  (['dev', 'ino', 'size', 'mtimeNs', 'ctimeNs'] as const).every((name) => one[name] === other[name]);

const altered = (path: string, cause?: unknown): Problem =>
  new Problem(
    'LAKE_FILE_ALTERED',
    `${path} is not as the lake’s notes state it: it is being replaced, or was changed. Try again soon.`,
    { cause },
  );

const FILE_PROBLEMS = [
  'NOT_ACCEPTABLE',
  'LAKE_NOT_FOUND',
  'LAKE_FILE_ALTERED',
  'EXPORT_PRECONDITION_FAILED',
  'EXPORT_RANGE_NOT_SATISFIABLE',
] as const;

function docOf(...types: readonly string[]): Pick<RouteDoc, 'tag' | 'query' | 'headers' | 'answers'> {
  const headers = {
    ...VALIDATOR_HEADERS,
    ETag: 'The sha256 of the file.',
    'Accept-Ranges': '`bytes`.',
    ...SYNTHETIC_HEADER,
    ...INSTRUMENT_HEADERS,
  };
  return {
    tag: 'lake',
    query: NO_PARAMETERS,
    headers: ['Range', 'If-Range', 'If-Match', 'If-None-Match', 'If-Modified-Since', 'If-Unmodified-Since'],
    answers: [
      { doc: 'The file.', content: fileContent(types), headers },
      {
        status: 206,
        doc: 'The part of the file that `Range` asks for.',
        content: fileContent(types, { isPart: true }),
        headers: { ...headers, 'Content-Range': 'The part that the answer holds.' },
      },
      { status: 304, doc: 'The client already has the file.', content: {}, headers: VALIDATOR_HEADERS },
    ],
  };
}
