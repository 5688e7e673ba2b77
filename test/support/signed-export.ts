/** An export of one day of exchange A with its manifest, its leaf and the key that signed both, made without a service. */
import { LAYOUTS } from '../../client/check/layouts.ts';
import { CsvFeed } from '../../shared/proof-log/csv-feed.ts';
import { commitTo, encodeLeaf, logLeaf } from '../../shared/proof-log/leaf.ts';
import { GrowingTree, leafHash } from '../../shared/proof-log/merkle.ts';
import { checkpointText, generateSigner } from '../../shared/proof-log/note.ts';
import { RowDigests } from '../../shared/proof-log/rows.ts';
import { manifestBytes, signManifest } from '../../shared/proof-log/signed-manifest.ts';
import { sha256Of } from './lake-folder.ts';

const DATASET = 'exchange_a_spot_trades';
export const DAY = '2024-01-01';
const layout = LAYOUTS[DATASET];
const FIELDS = ['trade_id', 'timestamp', 'price', 'quantity', 'quote_quantity', 'is_buyer_maker', 'is_best_match'];

const SALT = Buffer.alloc(32, 5);
const signer = generateSigner('log');
export const LOG_KEY = signer.verifier.line;

export function csvOf(rows: number): Buffer {
  const start = Date.parse(DAY);
  const lines = Array.from({ length: rows }, (_, at) => `${at + 1},${start + at},40000.5,0.25,10000.125,1,0`);
  return Buffer.from(`${[FIELDS.join(','), ...lines].join('\n')}\n`);
}

/**
 * @param stated what the leaf was made of
 * @param file what the artifact is
 * @param options `isSample`: the leaf says that no vendor published the rows; the manifest never does; `salt`: another one than the leaf's
 * @returns the manifest's text
 */
export function manifestOf(
  stated: Buffer,
  file: { readonly name: string; readonly bytes: Buffer },
  { isSample = false, salt }: { readonly isSample?: boolean; readonly salt?: string | null } = {},
): string {
  const digests = new RowDigests(layout, [{ partition: DAY, document_sha256: null }]);
  const feed = new CsvFeed(layout, digests, FIELDS);
  feed.push(stated);
  const [{ rows, sha256 }] = digests.digests();
  const facts = { revision: 1, rows, rows_hash: 'h', events_sha256: 'e' };
  const leaf = encodeLeaf({
    ...logLeaf({ kind: 'proved', reason: null }),
    ...{ dataset: DATASET, partition: DAY, attempt: 1, synthetic: isSample, document: 'd' },
    ...{ revision: 1, rows },
    ...commitTo(SALT, { ...facts, document_sha256: 'd', rows_sha256: sha256!, offsets: `1 ${rows}` }),
  });
  const tree = new GrowingTree();
  tree.add(leafHash(leaf));
  const manifest = {
    ...{ manifest_version: 1, dataset: DATASET, mode: 'native', format: 'csv', filters: [], as_of: null },
    window: { kind: 'range', start_utc: `${DAY}T00:00:00.000Z`, end_utc: '2024-01-02T00:00:00.000Z' },
    schema: FIELDS.map((name) => ({ name })),
    row_count: rows,
    synthetic: false,
    files: [{ name: file.name, bytes: file.bytes.length, sha256: sha256Of(file.bytes) }],
    proof: { partitions: 1, listed: [{ partition: DAY, document_sha256: 'd', ...facts }] },
    proof_log: {
      checkpoint: signer.sign(checkpointText({ origin: 'log', size: 1, root: tree.root })),
      leaves: [
        {
          dataset: DATASET,
          partition: DAY,
          leaf_index: 0,
          leaf: leaf.toString(),
          salt: salt === undefined ? SALT.toString('hex') : salt,
          inclusion: [],
        },
      ],
    },
  };
  return manifestBytes(signManifest(manifest, signer)).toString();
}
