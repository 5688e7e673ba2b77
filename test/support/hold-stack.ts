/**
 * A process that holds a stack: `node hold-stack.ts STATE_DIR`. Prints one JSON line when it has it (or the code of
 * the fault), leaves on SIGTERM, ignores SIGINT.
 */
import { codeOf, type TidemarkError } from '../../shared/errors.ts';
import { createLogger } from '../../shared/logger.ts';
import { acquireStack } from '../../shared/stack/stack.ts';
import { PRIVATE_PROFILE } from './profiles.ts';

const [stateDir] = process.argv.slice(2);
process.on('SIGINT', () => {});
try {
  const stack = await acquireStack({
    stateDir,
    log: createLogger(process.env.TIDEMARK_TEST_LOG ?? 'silent', 'holder'),
    profile: PRIVATE_PROFILE,
  });
  const stay = setInterval(() => {}, 60_000);
  process.on('SIGTERM', async () => {
    await stack[Symbol.asyncDispose]();
    clearInterval(stay);
  });
  const { owned, processes, databaseUrl, natsUrl } = stack;
  process.stdout.write(`${JSON.stringify({ owned, processes, databaseUrl, natsUrl })}\n`);
} catch (error) {
  const { message, remedy } = error as TidemarkError;
  process.stdout.write(`${JSON.stringify({ code: codeOf(error), message, remedy })}\n`);
  process.exitCode = 1;
}
