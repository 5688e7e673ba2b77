/** Folders of lakes whose rows are any bytes: their logs and notes are real. And a file server that breaks off, lies and stalls when it is asked to. */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { commitName, filesDigest, readSnapshot, Snapshot } from '../../shared/mirror/delta-log.ts';
import { manifestName, noteName, partsOf } from '../../shared/mirror/lake-manifest.ts';
import type { Signer } from '../../shared/proof-log/note.ts';
import { manifestBytes, signManifest } from '../../shared/proof-log/signed-manifest.ts';

export const sha256Of = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');

/** Folder of a file, as `placeOf` makes it -> its rows. */
export type Contents = ReadonlyMap<string, Buffer>;

export const placeOf = (dataset: string, date: string, mode = 'native'): string =>
  `${dataset}/${mode}/${date.length === 4 ? 'year' : 'date'}=${date}`;

const tableOf = (place: string): string => place.split('/').slice(0, 2).join('/');
/** The path of a place's file, which depends on its rows. */
export const pathOf = (place: string, rows: Buffer): string => `${place}/1-${sha256Of(rows)}.parquet`;
const nameOf = (place: string, rows: Buffer): string => pathOf(place.split('/').slice(2).join('/'), rows);
export const manifestPathOf = (place: string, rows: Buffer): string =>
  `_proofs/${tableOf(place)}/${manifestName(nameOf(place, rows))}`;
export const notePathOf = (table: string, version: number): string => `_proofs/${table}/${noteName(version)}`;

export interface LakeOptions {
  readonly change?: number;
  readonly signer?: Signer;
  readonly synthetic?: boolean;
}

/** The manifest of a file of rows, with the members that a mirror compares. */
export function fileManifest(place: string, rows: Buffer, { signer, synthetic = false }: LakeOptions = {}): Buffer {
  const { dataset, mode } = partsOf(tableOf(place));
  const [bytes, sha256] = [rows.length, sha256Of(rows)];
  const file = { name: nameOf(place, rows), day: null, row_count: rows.length, bytes, sha256 };
  const facts = { manifest_version: 1, dataset, mode, row_count: rows.length, bytes, sha256, files: [file], synthetic };
  return manifestBytes(signManifest(facts, signer));
}

async function replace(path: string, bytes: Buffer | string): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(`${path}.part`, bytes);
  await rename(`${path}.part`, path);
}

/** The bounds and digests of a version, as its note has them. */
export async function noteOf(folder: string, table: string, version: number, options: LakeOptions = {}) {
  const log = join(folder, table, '_delta_log');
  const snapshot = await readSnapshot((name) => readFile(join(log, name)), version, null);
  const sizes = [...snapshot.files.values()].map(({ size }) => size);
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  const commits = await Promise.all(
    Array.from({ length: version + 1 }, (_, at) => readFile(join(log, commitName(at)))),
  );
  const facts = {
    ...{ lake_version: 2, table, version, change: snapshot.change, checkpoint: null },
    ...{ synthetic: options.synthetic ?? false, files: sizes.length, rows: bytes, bytes },
    files_sha256: filesDigest(snapshot.files.keys()),
    log_checkpoint: null,
    log_bytes: commits.reduce((sum, { length }) => sum + length, 0),
    written_at_utc: '2026-01-01T00:00:00.000Z',
  } as const;
  return signManifest(facts, options.signer);
}

/**
 * Brings a lake's folder to these contents: rows, manifests and a commit a table where something changed, then the notes and the
 * root manifest. Only what the newest versions have stays.
 */
export async function writeLake(folder: string, contents: Contents, options: LakeOptions = {}): Promise<void> {
  const { change = 1, synthetic = false } = options;
  const known = existsSync(folder) ? tablesIn(folder) : [];
  const tables = [...new Set([...known, ...[...contents.keys()].map(tableOf)])].sort();
  const notes: object[] = [];
  for (const table of tables) {
    const log = join(folder, table, '_delta_log');
    let version = filesIn(log).length - 1;
    const held = version < 0 ? new Snapshot() : await readSnapshot((name) => readFile(join(log, name)), version, null);
    const own = [...contents].filter(([place]) => tableOf(place) === table);
    const names = new Map(own.map(([place, rows]) => [nameOf(place, rows), { place, rows }]));
    for (const { place, rows } of names.values()) {
      await replace(join(folder, pathOf(place, rows)), rows);
      await replace(join(folder, manifestPathOf(place, rows)), fileManifest(place, rows, options));
    }
    const gone = [...held.files.keys()].filter((name) => !names.has(name));
    const added = [...names].filter(([name]) => !held.files.has(name));
    if (version < 0 || gone.length > 0 || added.length > 0) {
      const actions = [
        { txn: { appId: 'tidemark', version: change } },
        ...gone.map((name) => ({ remove: { path: name, dataChange: true } })),
        ...added.map(([name, { rows }]) => ({
          add: { path: name, size: rows.length, partitionValues: {}, dataChange: true },
        })),
      ];
      await replace(join(log, commitName(++version)), actions.map((action) => `${JSON.stringify(action)}\n`).join(''));
    }
    const note = await noteOf(folder, table, version, options);
    notes.push(note);
    await replace(join(folder, notePathOf(table, version)), manifestBytes(note));
    const kept = new Set([
      notePathOf(table, version),
      ...own.flatMap(([place, rows]) => [pathOf(place, rows), manifestPathOf(place, rows)]),
    ]);
    for (const below of [table, `_proofs/${table}`]) {
      for (const path of filesIn(join(folder, below)).map((name) => `${below}/${name}`)) {
        if (!kept.has(path) && !path.includes('/_delta_log/')) await rm(join(folder, path));
      }
    }
    for (const name of readdirSync(join(folder, table))) {
      if (filesIn(join(folder, table, name)).length === 0) await rm(join(folder, table, name), { recursive: true });
    }
  }
  const root = { lake_version: 2, written_at_utc: '2026-01-01T00:00:00.000Z', synthetic, change, tables: notes };
  await replace(join(folder, '_manifest.json'), manifestBytes(root));
}

const tablesIn = (folder: string): string[] =>
  readdirSync(folder)
    .filter((name) => !name.startsWith('_'))
    .flatMap((dataset) => readdirSync(join(folder, dataset)).map((mode) => `${dataset}/${mode}`));

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
