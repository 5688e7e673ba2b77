/**
 * GET /v1/lake/...: the files of a lake's folder, under the paths that they have there. A file is served only if the root manifest
 * names it, its bytes are those of the manifest, none of its rows was taken back since, and the rights of its dataset allow it now.
 */
import { createHash } from 'node:crypto';
import type { BigIntStats } from 'node:fs';
import { type FileHandle, realpath } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import {
  type LakeFile,
  type LakeManifest,
  MANIFEST_FILE,
  MAX_ROOT_BYTES,
  type NamedBytes,
  parseFileManifest,
  parseLakeManifest,
  ROWS_FILE,
} from '../../shared/mirror/lake-manifest.ts';
import { manifestBytes } from '../../shared/proof-log/signed-manifest.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetKey } from '../../shared/registry/index.ts';
import { openRegular } from '../../shared/regular-file.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { Problem } from '../contract/problems.ts';
import type { Inspector } from '../discovery/inspector.ts';
import { ProvedFiles } from '../exports/files.ts';
import { answerBytes, requireAccept } from '../http/answer.ts';
import type { Caller } from '../http/caller.ts';
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
import { isTakenBack } from '../lake/plan.ts';
import { checkRights, type Grant, realRowsProblem } from '../rights/gate.ts';

export interface LakeRouteDeps {
  readonly inspector: Inspector;
  /** SVC_LAKE_FOLDER. */
  readonly folder: string | undefined;
  readonly rights: RightsStore;
  readonly stallTimeoutMs: number;
}

const PREFIX = '/v1/lake';
const MANIFEST_TYPE = 'application/json';
const ROWS_TYPE = 'application/vnd.apache.parquet';

export const lakeRoutes = (deps: LakeRouteDeps): Route[] => {
  const lake = deps.folder === undefined ? undefined : new LakeFolder(deps.folder);
  const opened = () => {
    if (lake) return lake;
    throw new Problem(
      'LAKE_NOT_FOUND',
      'The service has no lake. The operator sets SVC_LAKE_FOLDER to the folder of one.',
    );
  };
  return [rootRoute(opened, deps), fileRoute(opened, deps)];
};

const headersOf = (type: string) => ({
  'Content-Type': type,
  'X-Content-Type-Options': 'nosniff',
  'Cache-Control': 'private, no-cache',
});

const rootRoute = (opened: () => LakeFolder, { stallTimeoutMs }: LakeRouteDeps): Route => ({
  method: 'GET',
  path: `${PREFIX}/${MANIFEST_FILE}`,
  access: 'export',
  doc: () => ({
    ...docOf(MANIFEST_TYPE),
    operation: 'getLakeManifest',
    summary: 'The root manifest of the lake',
    doc: 'All files of the lake with sizes, digests and the manifest of each; `change` is the last change of the proof log that they hold. With `If-None-Match`, one request says whether anything changed. `./tidemark mirror` keeps a copy of the whole.',
    problems: ['QUERY_CONTRACT_ERROR', ...FILE_PROBLEMS],
    examples: [{ title: 'What the lake holds', status: 404 }],
  }),
  async handle(exchange) {
    const { caller, request, url } = exchange;
    queryParams(url, NO_PARAMETERS);
    const lake = opened();
    requireAccept(request, MANIFEST_TYPE);
    const covered = await lake.coveredBy(caller);
    if (covered) return answerCovered(exchange, covered);
    await using file = await lake.openRoot();
    await sendFile(exchange, { ...file, stallTimeoutMs, headers: headersOf(MANIFEST_TYPE) });
  },
});

const fileRoute = (opened: () => LakeFolder, { inspector, rights, stallTimeoutMs }: LakeRouteDeps): Route => ({
  method: 'GET',
  path: `${PREFIX}/:dataset/:mode/:date/:file`,
  access: 'export',
  doc: fileDoc,
  async handle(exchange) {
    const { params, url, request, caller } = exchange;
    queryParams(url, NO_PARAMETERS);
    // Before existence.
    caller.requireDatasets([...DATASETS.values()].filter(({ key }) => params.dataset === `dataset=${key}`));
    const lake = opened();
    const root = await lake.root();
    const path = `${params.dataset}/${params.mode}/${params.date}/${params.file}`;
    const entry = entryOf(root.manifest, `${dirname(path)}/${ROWS_FILE}`);
    const named = entry && [entry, entry.manifest].find((one) => one.path === path);
    if (!entry || !named) {
      throw new Problem('LAKE_NOT_FOUND', 'The lake has no such file. Read the paths from its root manifest.');
    }
    const grant = grantOf(rights, entry.dataset);
    const isSampled = root.manifest.synthetic || grant.syntheticOnly !== undefined;
    const isSynthetic = isSampled && (await lake.isSynthetic(entry));
    const problem = isSynthetic ? undefined : realRowsProblem(grant, entry.dataset as DatasetKey);
    if (problem) throw problem;
    const type = named === entry ? ROWS_TYPE : MANIFEST_TYPE;
    requireAccept(request, type);
    await using file = await lake.open(named);
    const place = { dataset: DATASETS.get(entry.dataset)!, mode: entry.mode as Mode, date: entry.date };
    const { change } = root.manifest;
    if (await inspector.run(exchange, (session) => isTakenBack(session, place, change))) {
      throw new Problem(
        'LAKE_FILE_ALTERED',
        `Rows of ${path} were taken back or replaced after the lake was written. A writer that follows (\`./tidemark lake --follow\`) brings the lake up to date within seconds; else the operator runs \`./tidemark lake\` again.`,
      );
    }
    const synthetic: Record<string, string> = isSynthetic ? { 'X-Svc-Synthetic': 'true' } : {};
    await sendFile(exchange, { ...file, stallTimeoutMs, headers: { ...headersOf(type), ...synthetic } });
  },
});

const text = { type: 'string' } as const;

const fileDoc = (): RouteDoc => ({
  ...docOf(ROWS_TYPE, MANIFEST_TYPE),
  operation: 'downloadLakeFile',
  summary: 'A file of the lake',
  doc: 'The rows of a dataset on a day or in a year, or their manifest, which is the one of an export. The `ETag` is the sha256 that the root manifest names. To resume a download, send `Range: bytes=n-` and `If-Range` with it.',
  segments: {
    dataset: { doc: '`dataset=` and its key.', schema: text },
    mode: { doc: '`mode=native` or `mode=aligned_1s`.', schema: text },
    date: { doc: '`date=` and a UTC day, or a year for datasets with few rows a day.', schema: text },
    file: { doc: `\`${ROWS_FILE}\` or \`${MANIFEST_FILE}\`.`, schema: text },
  },
  problems: ['QUERY_CONTRACT_ERROR', ...RIGHTS_PROBLEMS, ...CATALOG_PROBLEMS, ...FILE_PROBLEMS],
  examples: [
    {
      title: 'A day of trades',
      path: {
        dataset: 'dataset=exchange_a_spot_trades',
        mode: 'mode=native',
        date: 'date=2024-01-01',
        file: ROWS_FILE,
      },
      status: 404,
    },
  ],
});

/** The manifest for a key that does not cover all datasets: without their files, and unsigned, since the signature covers all. */
function answerCovered(exchange: Exchange, bytes: Buffer): void {
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

/** Files are sorted by path. */
function entryOf({ files }: LakeManifest, path: string): LakeFile | undefined {
  let [low, high] = [0, files.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (files[middle].path < path) low = middle + 1;
    else high = middle;
  }
  return files[low]?.path === path ? files[low] : undefined;
}

/** An open file that was compared with the root manifest. */
interface OpenLakeFile extends AsyncDisposable {
  readonly handle: FileHandle;
  readonly etag: string;
  readonly bytes: number;
  readonly modifiedMs: number;
}

interface Root {
  readonly manifest: LakeManifest;
  readonly sha256: string;
  /** The state of its file, to know it again. */
  readonly stat: BigIntStats;
}

/** Manifests whose `synthetic` is remembered. */
const MAX_REMEMBERED = 10_000;

class LakeFolder {
  readonly #folder: string;
  readonly #proved = new ProvedFiles();
  #root: Root | undefined;
  /** Digest of a manifest -> whether its rows are synthetic. */
  readonly #synthetic = new Map<string, boolean>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** The root manifest; it is parsed once for each replacement. @throws Problem */
  async root(): Promise<Root> {
    await using file = await this.#openRootFile();
    return await this.#read(file);
  }

  /** The root manifest without files of datasets that the caller's key does not cover; undefined where it covers all. */
  async coveredBy(caller: Caller): Promise<Buffer | undefined> {
    if (caller.terms.datasets === null) return undefined;
    const { manifest } = await this.root();
    const files = manifest.files.filter(({ dataset }) => caller.covers(DATASETS.get(dataset) ?? { key: dataset }));
    if (files.length === manifest.files.length) return undefined;
    return manifestBytes({ ...manifest.parsed, files, signed: null });
  }

  async openRoot(): Promise<OpenLakeFile> {
    await using cleanup = new AsyncDisposableStack();
    const handle = cleanup.use(await this.#openRootFile());
    const { sha256, stat } = await this.#read(handle);
    cleanup.move();
    return openFile(handle, sha256, stat);
  }

  async #openRootFile(): Promise<FileHandle> {
    try {
      return await openRegular(join(this.#folder, MANIFEST_FILE));
    } catch (cause) {
      throw new Problem(
        'LAKE_NOT_FOUND',
        `The lake of the service has no ${MANIFEST_FILE}, or none that can be read.`,
        { cause },
      );
    }
  }

  async #read(file: FileHandle): Promise<Root> {
    const stat = await file.stat({ bigint: true });
    if (this.#root && isSameState(this.#root.stat, stat)) return this.#root;
    try {
      if (stat.size > MAX_ROOT_BYTES) throw new Error(`it has more than ${MAX_ROOT_BYTES} bytes`);
      const bytes = Buffer.alloc(Number(stat.size));
      await file.read(bytes, 0, bytes.length, 0);
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      this.#root = { manifest: parseLakeManifest(bytes), sha256, stat };
      return this.#root;
    } catch (error) {
      throw altered(MANIFEST_FILE, error);
    }
  }

  /**
   * Opens a file whose bytes are those of the manifest. A file that is older than the root manifest is compared too: the writer
   * replaces that manifest whenever any day is proved, so its time says nothing of this file. @throws Problem LAKE_FILE_ALTERED
   */
  async open({ path, bytes, sha256 }: NamedBytes): Promise<OpenLakeFile> {
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
    if (stat.size !== BigInt(bytes) || (await this.#proved.digestOf(handle)) !== sha256) throw altered(path);
    cleanup.move();
    return openFile(handle, sha256, stat);
  }

  /** What the manifest of a file says of its rows. @throws Problem LAKE_FILE_ALTERED */
  async isSynthetic(entry: LakeFile): Promise<boolean> {
    const { path, bytes, sha256 } = entry.manifest;
    const known = this.#synthetic.get(sha256);
    if (known !== undefined) return known;
    await using file = await this.open(entry.manifest);
    const content = Buffer.alloc(bytes);
    await file.handle.read(content, 0, bytes, 0);
    let isSynthetic: boolean;
    try {
      if (createHash('sha256').update(content).digest('hex') !== sha256) throw altered(path);
      isSynthetic = parseFileManifest(content, entry).synthetic === true;
    } catch (error) {
      throw error instanceof Problem ? error : altered(path, error);
    }
    if (this.#synthetic.size >= MAX_REMEMBERED) this.#synthetic.clear();
    this.#synthetic.set(sha256, isSynthetic);
    return isSynthetic;
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
    `${path} is not the file that the manifest of the lake names: it is being replaced, or was changed. Try again soon.`,
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
