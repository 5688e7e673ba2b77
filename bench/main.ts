/**
 * `npm run bench -- <name> [--json] [options]`: ours beside what one would use instead, in one run, with the ratio.
 * Benchmarks are run by hand; they print and never judge. Machines differ: quote ratios and medians.
 */
const BENCHES: Record<string, () => Promise<{ run(argv: readonly string[]): Promise<void> }>> = {
  bitcoin: () => import('./bitcoin.ts'),
  export: () => import('./export.ts'),
  ingest: () => import('./ingest.ts'),
  macro: () => import('./macro.ts'),
  query: () => import('./query.ts'),
  load: () => import('./load.ts'),
};

const [name, ...argv] = process.argv.slice(2);
const load = BENCHES[name ?? ''];
if (load) {
  await (await load()).run(argv);
} else {
  process.stderr.write(`Usage: npm run bench -- ${Object.keys(BENCHES).join('|')} [--json]\n`);
  process.exitCode = 2;
}
