/**
 * Preloaded into the product's processes by the soak: at SIGUSR2 a process collects garbage and writes the bytes that are still in
 * use, on the heap and in buffers outside it, to a file of its own in the folder that TIDEMARK_LIVE_MEMORY names. Resident memory
 * alone cannot show a slow leak: it grows with what V8 has not collected and malloc has not returned.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { isMainThread } from 'node:worker_threads';

const folder = process.env.TIDEMARK_LIVE_MEMORY;
if (folder && isMainThread) {
  setFlagsFromString('--expose-gc');
  const collect: () => void = runInNewContext('gc');
  const file = join(folder, String(process.pid));
  process.on('SIGUSR2', () => {
    collect();
    // Waits for the buffers that the first one frees.
    collect();
    const { heapUsed, external } = process.memoryUsage();
    writeFileSync(file, String(heapUsed + external));
  });
  // Says that the signal does not end this process.
  writeFileSync(file, '');
}
