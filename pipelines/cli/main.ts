/** Runs the operator's command as a process. */
import { EXIT, PROCESS_IO, STOP_SIGNALS } from './io.ts';
import { run } from './run.ts';

/** True if standard output could not be written: the answer did not arrive. */
let unwritten = false;

// A closed pipe (`| head`), a closed terminal or a full disk loses the output but must not end the work: a service that
// exited here would leave its servers running.
process.stderr.on('error', () => {});
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE' || error.code === 'EIO') return;
  process.stderr.write(`tidemark: the answer could not be written: ${error.message}\n`);
  unwritten = true;
});

// From the start, Ctrl-C and the end of the terminal stop the process in order. A command stops through its own
// listener once it has one; before that there is nothing to clean up.
for (const name of STOP_SIGNALS) {
  process.on(name, () => {
    // This listener and the one of `run`.
    if (process.listenerCount(name) > 2) return;
    if (!process.argv.includes('--json')) process.stderr.write('tidemark: stopped\n');
    process.exit(EXIT.INTERRUPTED);
  });
}
const code = await run(process.argv.slice(2), PROCESS_IO);
for (const output of [process.stdout, process.stderr]) {
  await new Promise<void>((resolve) => output.write('', () => resolve()));
}
// Everything is closed. Without this, Node would free its heap piece by piece first: 20 ms after a day of trades.
process.exit(code || (unwritten ? EXIT.FAILED : 0));
