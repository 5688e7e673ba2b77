/**
 * `npm run bench -- <name> [--json] [options]`: ours beside what one would use instead, in one run, with the ratio.
 * Benchmarks are run by hand; they print and never judge. Machines differ: quote ratios and medians.
 */
import { run as ingest } from './ingest.ts';


const BENCHES: Record<string, (argv: readonly string[]) => Promise<void>> = { ingest };

const [name, ...argv] = process.argv.slice(2);
const bench = BENCHES[name ?? ''];
if (!bench) {
  process.stderr.write(`Usage: npm run bench -- ${Object.keys(BENCHES).join('|')} [--json]\n`);
  process.exitCode = 2;
} else {
  await bench(argv);
}
