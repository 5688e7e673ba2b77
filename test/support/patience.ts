/**
 * How long tests wait for what must come. A machine may be slow and busy with other tests: patience that is long costs
 * nothing where things go well. Nothing is expected to be fast.
 */
export const PATIENCE_MS = Number(process.env.TIDEMARK_TEST_PATIENCE_MS ?? 120_000);
