/**
 * `npm run bench -- <name> [--json] [options]`: compares Tidemark with what one would use instead, in one run, and prints
 * the ratio. Benchmarks are run by hand and have no threshold. Machines differ, so quote ratios and medians.
 */
import { codeOf, explain } from '../shared/errors.ts';
import { BenchUsage } from './options.ts';

const BENCHES: Record<string, () => Promise<{ run(argv: readonly string[]): Promise<void> }>> = {
  bitcoin: () => import('./bitcoin.ts'),
  columns: () => import('./columns.ts'),
  export: () => import('./export.ts'),
  filters: () => import('./filters.ts'),
  frame: () => import('./frame.ts'),
  ingest: () => import('./ingest.ts'),
  klines: () => import('./klines.ts'),
  lake: () => import('./lake.ts'),
  libraries: () => import('./libraries.ts'),
  listeners: () => import('./listeners.ts'),
  macro: () => import('./macro.ts'),
  peers: () => import('./peers.ts'),
  'proof-log': () => import('./proof-log.ts'),
  query: () => import('./query.ts'),
  years: () => import('./years.ts'),
  load: () => import('./load.ts'),
};

const [name, ...argv] = process.argv.slice(2);
const load = BENCHES[name ?? ''];
const usage = (names: string) => `Usage: npm run bench -- ${names} [options]\n`;
if (load) {
  try {
    await (await load()).run(argv);
  } catch (error) {
    if (error instanceof BenchUsage) {
      process.stderr.write(`${error.message}\n${usage(name)}`);
      process.exitCode = 2;
    } else {
      // An error with a code is printed as a sentence. Any other is a bug of the benchmark and keeps its stack trace.
      if (codeOf(error) === undefined) throw error;
      process.stderr.write(`${explain(error)}\n`);
      process.exitCode = 1;
    }
  }
} else {
  process.stderr.write(usage(Object.keys(BENCHES).join('|')));
  process.exitCode = 2;
}
