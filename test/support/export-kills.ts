/** Export workers that are killed, and what must be left of an export however that went. */
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect } from 'vitest';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { type ExportEnv, type Exports, spawnWorker } from './exports.ts';
import { eventually } from './serving.ts';

/** A worker is started after each kill: on a busy machine that alone takes minutes. */
const FINISHED_MS = 300_000;

export const ended = (child: { exitCode: number | null; signalCode: string | null } & NodeJS.EventEmitter) =>
  child.exitCode !== null || child.signalCode !== null ? Promise.resolve() : once(child, 'exit');

/** One artifact, the right one, and nothing beside it. */
export async function expectOne(exports: Exports, exportId: string, bytes: Buffer, withinMs?: number): Promise<void> {
  const { json } = await exports.finished(exportId, withinMs);
  expect(json.status, JSON.stringify(json)).toBe('succeeded');
  expect((await exports.bytes(exportId)).equals(bytes)).toBe(true);
  await eventually(async () => (await exports.runs(exportId)).length === 1, 'one folder is left');
  const [run] = await exports.runs(exportId);
  expect((await readdir(join(exports.root, exportId, run))).sort()).toEqual(
    [json.artifact.files[0].name, 'manifest.json'].sort(),
  );
}

export interface Kills {
  readonly env: ExportEnv;
  /** Submits and looks; runs nothing. */
  readonly exports: Exports;
  readonly body: object;
  /** Bytes of the artifact, made without a disturbance. */
  readonly undisturbed: Buffer;
  readonly kills: number;
}

/** Kills one worker after the other at random moments; the last one finishes what they left. */
export async function killWorkers({ env, exports, body, undisturbed, kills }: Kills): Promise<void> {
  const random = seededRandom(10);
  const ids: string[] = [];
  const start = () => {
    const worker = spawnWorker(env, { limits: { exportCrashes: 1000 } });
    return Object.assign(worker, {
      async [Symbol.asyncDispose]() {
        worker.kill('SIGKILL');
        await ended(worker);
      },
    });
  };
  for (let kill = 0; kill < kills; kill++) {
    // There is always one that nobody has tried: those of the dead come again after the lease.
    const { status, json, text } = await exports.submit(body);
    expect(status, text).toBe(202);
    ids.push(json.export_id);
    await using worker = start();
    await worker.ready;
    await delay(random() * 300);
  }
  await using last = start();
  // Others may have finished everything before it listens for signals.
  await last.ready;
  for (const id of ids) await expectOne(exports, id, undisturbed, FINISHED_MS);
  last.kill('SIGTERM');
  await ended(last);
  expect(last.exitCode).toBe(0);
}
