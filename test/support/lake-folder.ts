/** Folders of lakes whose rows are any bytes, and a file server that breaks off, lies and stalls when it is asked to. */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import type { Signer } from '../../shared/proof-log/note.ts';
import { manifestBytes, signManifest } from '../../shared/proof-log/signed-manifest.ts';

export const sha256Of = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');

/** Folder of a file, as `placeOf` makes it -> its rows. */
export type Contents = ReadonlyMap<string, Buffer>;

export const placeOf = (dataset: string, date: string, mode = 'native'): string =>
  `dataset=${dataset}/mode=${mode}/date=${date}`;

export interface LakeOptions {
  readonly change?: number;
  readonly signer?: Signer;
  readonly synthetic?: boolean;
}

/** The manifest beside a file of rows, with the members that a mirror compares. */
export function fileManifest(place: string, rows: Buffer, { signer, synthetic = false }: LakeOptions = {}): Buffer {
  const { dataset, mode } = partsOf(place);
  const [bytes, sha256] = [rows.length, sha256Of(rows)];
  const file = { name: 'rows.parquet', day: null, row_count: rows.length, bytes, sha256 };
  const proof = { coverage_version: 1, partitions: 1, sha256: sha256Of(`proof ${place} ${sha256}`), listed: [] };
  const facts = { manifest_version: 1, dataset, mode, row_count: rows.length, bytes, sha256, files: [file], synthetic };
  return manifestBytes(signManifest({ ...facts, proof }, signer));
}

const partsOf = (place: string) => {
  const [, dataset, mode, date] = /^dataset=(.*)\/mode=(.*)\/date=(.*)$/.exec(place)!;
  return { dataset, mode, date };
};

/** An entry of the root manifest. */
export function entryOf(place: string, rows: Buffer, options: LakeOptions = {}) {
  const manifest = fileManifest(place, rows, options);
  return {
    path: `${place}/rows.parquet`,
    ...partsOf(place),
    ...{ rows: rows.length, bytes: rows.length, sha256: sha256Of(rows), revision: 1, partitions: 1 },
    proof_sha256: JSON.parse(manifest.toString()).proof.sha256 as string,
    manifest: { path: `${place}/_manifest.json`, bytes: manifest.length, sha256: sha256Of(manifest) },
  };
}

export function rootManifest(contents: Contents, options: LakeOptions = {}): Buffer {
  const files = [...contents].map(([place, rows]) => entryOf(place, rows, options));
  files.sort((one, other) => (one.path < other.path ? -1 : 1));
  const { change = 1, synthetic = false, signer } = options;
  const facts = { lake_version: 1, written_at_utc: '2026-01-01T00:00:00.000Z', synthetic, change, files };
  return manifestBytes(signManifest(facts, signer));
}

async function replace(path: string, bytes: Buffer): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(`${path}.part`, bytes);
  await rename(`${path}.part`, path);
}

/** Brings a lake's folder to these contents, in the order of its writer: the root manifest last. */
export async function writeLake(folder: string, contents: Contents, options: LakeOptions = {}): Promise<void> {
  for (const [place, rows] of contents) {
    await replace(join(folder, place, 'rows.parquet'), rows);
    await replace(join(folder, place, '_manifest.json'), fileManifest(place, rows, options));
  }
  for (const path of filesIn(folder)) {
    if (path !== '_manifest.json' && !contents.has(dirname(path)))
      await rm(join(folder, dirname(path)), { recursive: true, force: true });
  }
  await replace(join(folder, '_manifest.json'), rootManifest(contents, options));
}

/** Files of a lake or mirror without those in progress and the mirror's own, sorted. */
export const filesIn = (folder: string): string[] =>
  existsSync(folder)
    ? readdirSync(folder, { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
        .filter((path) => !path.startsWith('_partial') && path !== '_mirror.json')
        .sort()
    : [];

/** Path -> digest. */
export const digestsIn = (folder: string): Record<string, string> =>
  Object.fromEntries(filesIn(folder).map((path) => [path, sha256Of(readFileSync(join(folder, path)))]));

export const partialsIn = async (folder: string): Promise<string[]> =>
  (await readdir(join(folder, '_partial')).catch(() => [])).filter((name) => name !== 'lock');

export type ServerFault =
  | { readonly status: number; readonly headers?: Record<string, string>; readonly body?: string }
  /** The connection ends, or stays and brings nothing more, after so many bytes of the body. */
  | { readonly cutAfter: number }
  | { readonly stallAfter: number }
  /** These bytes as if they were the file. */
  | { readonly lie: Buffer; readonly isEndless?: boolean }
  /** Headers that an answer has beside its own, or instead of them. */
  | { readonly headers: Record<string, string> }
  | 'reset';

export interface SeenRequest {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
}

export interface FileServer extends AsyncDisposable {
  readonly url: string;
  readonly seen: SeenRequest[];
  /** `digest`, as the service; `opaque`, strong but unrelated to the digest; `weak`; `none`. */
  tags: 'digest' | 'opaque' | 'weak' | 'none';
  /** False: every answer is the whole file. */
  hasRanges: boolean;
  /** Called with each request, before it is answered; it may change the folder. */
  onRequest: (request: SeenRequest) => void | Promise<void>;
  /** Awaited before a connection is cut: what the client has not read by then is lost. */
  beforeCut: () => Promise<unknown>;
  /** The fault of each request, by its path and headers. */
  faultOf: (request: SeenRequest) => ServerFault | undefined;
}

export async function serveFolder(folder: string): Promise<FileServer> {
  const server = createServer(async (request, response) => {
    const seen = { path: decodeURIComponent(request.url!.slice(1)), headers: request.headers };
    serving.seen.push(seen);
    await serving.onRequest(seen);
    const fault = serving.faultOf(seen);
    if (fault === 'reset') return void request.socket.destroy();
    if (fault && 'status' in fault) return void response.writeHead(fault.status, fault.headers).end(fault.body ?? '');
    const bytes = fault && 'lie' in fault ? fault.lie : await readFile(join(folder, seen.path)).catch(() => undefined);
    if (!bytes) return void response.writeHead(404).end('no such file');
    answer(serving, seen, response, bytes, fault);
  });
  const serving: FileServer = {
    url: '',
    seen: [],
    tags: 'digest',
    hasRanges: true,
    onRequest: () => {},
    beforeCut: async () => {},
    faultOf: () => undefined,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return Object.assign(serving, { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/` });
}

function answer(
  { tags, hasRanges, beforeCut }: FileServer,
  { headers }: SeenRequest,
  response: ServerResponse,
  bytes: Buffer,
  fault: Exclude<ServerFault, 'reset' | { status: number }> | undefined,
): void {
  const digest = sha256Of(bytes);
  const tag = {
    digest: `"${digest}"`,
    opaque: `"${sha256Of(digest).slice(0, 16)}"`,
    weak: `W/"${digest}"`,
    none: undefined,
  }[tags];
  const own = { ...(tag !== undefined && { ETag: tag }) };
  if (tag !== undefined && headers['if-none-match'] === tag) return void response.writeHead(304, own).end();
  const from = Number(/^bytes=(\d+)-$/.exec(headers.range ?? '')?.[1] ?? 0);
  const isPart = hasRanges && from > 0 && (headers['if-range'] ?? tag) === tag;
  if (isPart && from >= bytes.length) {
    return void response.writeHead(416, { 'Content-Range': `bytes */${bytes.length}` }).end();
  }
  const body = isPart ? bytes.subarray(from) : bytes;
  const isEndless = fault && 'isEndless' in fault && fault.isEndless;
  response.writeHead(isPart ? 206 : 200, {
    ...own,
    ...(!isEndless && { 'Content-Length': String(body.length) }),
    ...(isPart && { 'Content-Range': `bytes ${from}-${bytes.length - 1}/${bytes.length}` }),
    ...(fault && 'headers' in fault && fault.headers),
  });
  if (isEndless) {
    const more = () => void (response.destroyed || response.write(body, () => setImmediate(more)));
    more();
    return;
  }
  const limit =
    fault && 'cutAfter' in fault ? fault.cutAfter : fault && 'stallAfter' in fault ? fault.stallAfter : undefined;
  if (limit === undefined || limit >= body.length) return void response.end(body);
  response.flushHeaders();
  response.write(body.subarray(0, limit), () => {
    if (fault && 'cutAfter' in fault) void beforeCut().then(() => response.socket?.destroy());
  });
}
