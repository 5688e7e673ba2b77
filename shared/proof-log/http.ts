/** The files of a proof log over HTTP: its tiles, checkpoint and key below `/v1/proofs/` of a service, or of any file server. */
import { TileFault, type TileSource } from './tiles.ts';

const TIMEOUT_MS = 30_000;

/** @param url of the service, or of a folder of the log's files where it ends with a slash */
export function httpSource(url: string): TileSource {
  const base = url.endsWith('/') ? url : `${url}/v1/proofs/`;
  return async (path) => {
    let response: Response;
    try {
      response = await fetch(new URL(path, base), { signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (response.ok) return new Uint8Array(await response.arrayBuffer());
      await response.body?.cancel();
    } catch (cause) {
      throw new TileFault(`${base}${path} does not answer`, { cause });
    }
    if (response.status === 404) return undefined;
    throw new TileFault(`${base}${path} answered ${response.status}`);
  };
}
