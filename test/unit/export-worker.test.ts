/** A worker of exports and its queue. */
import { expect, test, vi } from 'vitest';
import { ExportWorker } from '../../serving/exports/worker.ts';

test('a worker that is stopped while it opens its queue asks for no job, and does not wait for one', async () => {
  const opening = Promise.withResolvers<object>();
  const next = vi.fn(() => new Promise(() => {}));
  const queue = { get: async () => ({ consumer: () => opening.promise }) };
  const options = { queue, concurrency: 1 } as unknown as ConstructorParameters<typeof ExportWorker>[0];
  const worker = new ExportWorker(options);
  const stopped = worker[Symbol.asyncDispose]();
  opening.resolve({ next });
  await stopped;
  expect(next).not.toHaveBeenCalled();
});
