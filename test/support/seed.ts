/**
 * Where everything random in tests begins. The same by default, so that a run tells of the tree alone and a red one can be
 * repeated; TIDEMARK_TEST_SEED takes another number, or `random` to look where nobody has looked.
 */
const asked = process.env.TIDEMARK_TEST_SEED ?? '20240601';

export const SEED = asked === 'random' ? Date.now() % 2 ** 31 : Number(asked);

/**
 * Runs of a property that takes seconds: all of them when somebody searches, a fourth where they are the same ones every
 * time.
 */
export const runs = (searching: number): number => (asked === 'random' ? searching : Math.ceil(searching / 4));

if (!Number.isSafeInteger(SEED)) throw new Error(`TIDEMARK_TEST_SEED takes a whole number or "random", not ${asked}`);
