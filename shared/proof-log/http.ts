/** The files of a proof log over HTTP: its tiles, checkpoint and key below `/v1/proofs/` of a service, or of any file server. */
import { ROTATIONS_FILE } from './folder.ts';
import { HASH_BYTES } from './merkle.ts';
import { LogUnreachable, MAX_ENTRY_BYTES, parseTilePath, TILE_WIDTH, TileFault, type TileSource } from './tiles.ts';

const TIMEOUT_MS = 30_000;
/** Some bytes may unpack to gigabytes: a file that is larger than its kind can be is not read to its end. */
const MAX_NOTE_BYTES = 64 * 1024;
const MAX_ROTATIONS_BYTES = 256 * 1024;
const MAX_HASHES_BYTES = TILE_WIDTH * HASH_BYTES;
const MAX_ENTRIES_BYTES = TILE_WIDTH * (2 + MAX_ENTRY_BYTES);

function limitOf(path: string): number {
  const tile = parseTilePath(path);
  if (tile) return tile.level === 'entries' ? MAX_ENTRIES_BYTES : MAX_HASHES_BYTES;
  return path === ROTATIONS_FILE ? MAX_ROTATIONS_BYTES : MAX_NOTE_BYTES;
}

/**
 * @param url of the service, or of a folder of the log's files where it ends with a slash
 * @param stop ends what is under way
 */
export function httpSource(url: string, stop?: AbortSignal): TileSource {
  const base = url.endsWith('/') ? url : `${url}/v1/proofs/`;
  return async (path) => {
    let response: Response;
    try {
      const timeout = AbortSignal.timeout(TIMEOUT_MS);
      response = await fetch(new URL(path, base), { signal: stop ? AbortSignal.any([stop, timeout]) : timeout });
      if (response.ok) return await bodyOf(response, limitOf(path));
      await response.body?.cancel();
    } catch (cause) {
      if (cause instanceof TileFault) throw new TileFault(`${base}${path} ${cause.message}`);
      throw new LogUnreachable(`${base}${path} does not answer`, { cause });
    }
    if (response.status === 404) return undefined;
    throw new LogUnreachable(`${base}${path} answered ${response.status}`);
  };
}

async function bodyOf({ body }: Response, limit: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body ?? []) {
    bytes += chunk.length;
    if (bytes > limit) throw new TileFault(`has more than ${limit} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
