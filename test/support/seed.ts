/**
 * Where everything random in tests begins. The same by default, so that a run tells of the tree alone and a red one can be
 * repeated; TIDEMARK_TEST_SEED takes another number, or `random` to look where nobody has looked.
 */
const asked = process.env.TIDEMARK_TEST_SEED ?? '20240601';

export const SEED = asked === 'random' ? Date.now() % 2 ** 31 : Number(asked);

/**
 * Runs of a property that takes seconds: all of them where somebody searches and in `npm run test:nightly`, an eighth in
 * `npm test`, where they are the same ones every time.
 */
export const runs = (all: number): number =>
  asked === 'random' || process.env.TIDEMARK_TEST_RUNS === 'all' ? all : Math.ceil(all / 8);

if (!Number.isSafeInteger(SEED)) throw new Error(`TIDEMARK_TEST_SEED takes a whole number or "random", not ${asked}`);
