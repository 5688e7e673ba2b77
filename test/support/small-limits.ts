/**
 * Other limits than the product's (shared/config/limits.ts), for commands and processes of tests. A process of its own begins with this
 * module (`NODE_OPTIONS=--import`), and so does each that it starts; a command in the test's process takes them from its `Io`.
 */
import { LIMITS, type Limits } from '../../shared/config/limits.ts';

const PREFIX = 'TIDEMARK_TEST_LIMIT_';

/** What a command or process finds in its environment. `preloads` are those of the test itself. */
export const limitsEnv = (limits: Partial<Limits>, ...preloads: readonly string[]): Record<string, string> => ({
  NODE_OPTIONS: [import.meta.filename, ...preloads].map((path) => `--import=${path}`).join(' '),
  ...Object.fromEntries(Object.entries(limits).map(([name, value]) => [PREFIX + name, String(value)])),
});

/** The limits of that environment. */
export const limitsIn = (env: Readonly<NodeJS.ProcessEnv>): Partial<Limits> =>
  Object.fromEntries(
    Object.entries(env)
      .filter(([name]) => name.startsWith(PREFIX))
      .map(([name, value]) => [name.slice(PREFIX.length), Number(value)]),
  );

Object.assign(LIMITS, limitsIn(process.env));
