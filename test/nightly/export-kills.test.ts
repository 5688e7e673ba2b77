/** Export workers killed by the dozen; three kills are in nightly/export-workers.test.ts. */
import { expect, test } from 'vitest';
import { killWorkers } from '../support/export-kills.ts';
import { startExports } from '../support/exports.ts';
import { DATASET, loadBulk } from '../support/load-rows.ts';
import { createMigratedEnv } from '../support/stack.ts';

const BODY = { dataset: DATASET, format: 'csv', month_year: [5, 2024] };

test('killed ten times at random moments, workers finish every export once, with the same bytes', async () => {
  await using env = await createMigratedEnv();
  await loadBulk(env.databaseUrl, { fromDay: '2024-05-01', days: 1, rowsPerDay: 60_000 });
  await using calm = await startExports(env);
  const { json } = await calm.run(BODY);
  const undisturbed = await calm.bytes(json.export_id);
  await calm.serving.app.exports.stopWork();
  await using exports = await startExports(env, { worker: false, settings: { SVC_EXPORT_MAX_QUEUE: '100' } });
  expect(undisturbed.length).toBeGreaterThan(0);
  await killWorkers({ env, exports, body: BODY, undisturbed, kills: 10 });
});
