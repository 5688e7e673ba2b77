/** Reads files of rows in a thread, so that one which is never read to its end can be ended. */
import { parentPort } from 'node:worker_threads';
import { feedParquet } from '../../../pipelines/cli/parquet-feed.ts';
import { RowFault } from '../../../shared/proof-log/cells.ts';
import { RowDigests } from '../../../shared/proof-log/rows.ts';
import { datasetOf } from '../../../shared/registry/index.ts';
import { rowLayoutOf } from '../../../shared/registry/proof-rows.ts';
import { refusal } from '../target.ts';

const layout = rowLayoutOf(datasetOf('exchange_a_spot_trades'));

parentPort?.on('message', async ({ path, fields }: { readonly path: string; readonly fields: readonly string[] }) => {
  const digests = new RowDigests(layout, [{ partition: '2024-01-15', document_sha256: null }]);
  try {
    await feedParquet(path, { layout, digests }, fields);
    parentPort!.postMessage({ outcome: 'accepted' });
  } catch (error) {
    try {
      parentPort!.postMessage({ outcome: refusal(error, RowFault) });
    } catch (wrong) {
      parentPort!.postMessage({ wrong: wrong instanceof Error ? (wrong.stack ?? wrong.message) : String(wrong) });
    }
  }
});
