/** A proof of inclusion as a file: https://c2sp.org/tlog-proof. It has a checkpoint, and the leaf is beside it. */
import { CheckReport } from './check.ts';
import { HASH_BYTES, leafHash, verifyInclusion } from './merkle.ts';
import { type LogKey, NoteFault, openCheckpoint } from './note.ts';

export const TLOG_PROOF = 'c2sp.org/tlog-proof@v1\n';

interface TlogProof {
  readonly index: number;
  /** From the leaf's sibling on. */
  readonly hashes: readonly Buffer[];
  /** As a note. */
  readonly checkpoint: string;
}

/** @throws NoteFault */
export function parseTlogProof(text: string): TlogProof {
  const match =
    /^(?:extra [A-Za-z0-9+/=]*\n)?index (?<index>0|[1-9]\d{0,14})\n(?<hashes>(?:[A-Za-z0-9+/]+=*\n){0,63})\n/.exec(
      text.slice(TLOG_PROOF.length),
    );
  const hashes = (match?.groups?.hashes ?? '').split('\n').slice(0, -1);
  const bytes = hashes.map((hash) => Buffer.from(hash, 'base64'));
  if (!match || !bytes.every(({ length }) => length === HASH_BYTES)) {
    throw new NoteFault('a tlog-proof has the lines `index N` and hashes in base64, an empty line, and a checkpoint');
  }
  const checkpoint = text.slice(TLOG_PROOF.length + match[0].length);
  return { index: Number(match.groups!.index), hashes: bytes, checkpoint };
}

/** @param leafAt the leaf of an index, where it is at hand */
export async function checkTlogProof(
  text: string,
  keys: readonly LogKey[],
  leafAt: (index: number, size: number) => Promise<Uint8Array | undefined>,
): Promise<CheckReport> {
  const report = new CheckReport();
  const proof = report.attempt('tlog-proof', () => parseTlogProof(text));
  const head = proof && report.attempt('checkpoint', () => openCheckpoint(proof.checkpoint, keys));
  if (!proof || !head) return report;
  const { index, hashes } = proof;
  report.checked.push(`its checkpoint of ${head.size} leaves is signed by ${head.origin}`);
  if (index >= head.size) {
    report.faults.push(`it is of leaf ${index}, and the tree has ${head.size}`);
    return report;
  }
  const leaf = await leafAt(index, head.size);
  if (!leaf) report.unchecked.push(`leaf ${index}: name its file after the proof, or the log with --log`);
  else if (verifyInclusion(leafHash(leaf), index, head.size, hashes, head.root))
    report.checked.push(`the leaf is leaf ${index} of the tree that was signed`);
  else report.faults.push(`the leaf is not leaf ${index} of the tree of ${head.size} leaves that was signed`);
  return report;
}
