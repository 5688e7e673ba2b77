/**
 * Keeps a local copy of a lake, or of a service's exports, in Node: what `./tidemark mirror` does, as a function.
 *
 *   await mirror({ from: 'http://127.0.0.1:8080/v1/lake', to: 'lake', key: process.env.TIDEMARK_KEY })
 */
import { type MirrorOptions, type MirrorReport, mirror as mirrorVerified } from '../../shared/mirror/mirror.ts';
import { keysIn } from '../../shared/proof-log/rotations.ts';

export { MirrorFault, type MirrorFaultKind } from '../../shared/mirror/lake-manifest.ts';
export type { MirrorProgress, MirrorReport } from '../../shared/mirror/mirror.ts';

export interface Options extends Omit<MirrorOptions, 'signers'> {
  /** The verifier key of the log that signs manifests, `name+hash+base64`. Where it was rotated: and below it `/v1/proofs/rotations`. */
  readonly signingKey?: string;
}

/** @throws MirrorFault, the signal's reason, or the error of the file system; NoteFault for a key that is none */
export async function mirror({ signingKey, ...options }: Options): Promise<MirrorReport> {
  return await mirrorVerified({ ...options, signers: signingKey === undefined ? [] : keysIn(signingKey) });
}
