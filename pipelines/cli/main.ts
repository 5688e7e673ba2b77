/** The operator's command as a process of its own. */
import { EXIT, PROCESS_IO, STOP_SIGNALS } from './io.ts';
import { run } from './run.ts';

/** Standard output takes nothing: the answer did not arrive. */
let unwritten = false;

// A reader that goes away (`| head`), a terminal that is closed or a full disk takes the output, not the work: a service
// that ended here would leave its servers behind.
process.stderr.on('error', () => {});
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE' || error.code === 'EIO') return;
  process.stderr.write(`tidemark: the answer could not be written: ${error.message}\n`);
  unwritten = true;
});

// From the first moment Ctrl-C ends in order, and so does the end of the terminal: a command stops by its own listener
// once it has one, and before that, or without one, there is nothing to put away.
for (const name of STOP_SIGNALS) {
  process.on(name, () => {
    // Ours, and that of `run`.
    if (process.listenerCount(name) <= 2) process.exit(EXIT.INTERRUPTED);
  });
}
process.exitCode = await run(process.argv.slice(2), PROCESS_IO);
if (unwritten) process.exitCode ||= EXIT.FAILED;
