/**
 * Other limits than the product's (shared/config/limits.ts), for commands and processes of tests. A process of its own begins with this
 * module (`NODE_OPTIONS=--import`), and so does each that it starts; a command in the test's process takes them from its `Io`.
 */
import { LIMITS, type Limits } from '../../shared/config/limits.ts';

const VARIABLE = 'TIDEMARK_TEST_LIMITS';

/** What a command or process finds in its environment. `preloads` are those of the test itself. */
export const limitsEnv = (limits: Partial<Limits>, ...preloads: readonly string[]): Record<string, string> => ({
  [VARIABLE]: JSON.stringify(limits),
  NODE_OPTIONS: [import.meta.filename, ...preloads].map((path) => `--import=${path}`).join(' '),
});

/** The limits of that environment. */
export const limitsIn = (env: Readonly<NodeJS.ProcessEnv>): Partial<Limits> => JSON.parse(env[VARIABLE] ?? '{}');

Object.assign(LIMITS, limitsIn(process.env));
